"""What the benchmarks share: interleaved timing, the machine's description, and the JSON files of results."""

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import torch

from floral_lite.devices import processor
from floral_lite.files import write_whole

Name = TypeVar("Name")
Record = dict[str, Any]

HERE = Path(__file__).parent
RESULTS = HERE / "results"


def seconds(action: Callable[[], object]) -> float:
    """How long an action takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def interleaved(actions: Mapping[Name, Callable[[], object]], repeats: int) -> dict[Name, list[float]]:
    """Seconds of every action, each repeat one after another: a slow moment is slow for all of them."""
    times: dict[Name, list[float]] = {name: [] for name in actions}
    for _ in range(repeats):
        for name, action in actions.items():
            times[name].append(seconds(action))
    return times


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the ratios of times that were measured in the same repeat.

    Example:
        >>> ratio([2.0, 4.0, 30.0], [1.0, 2.0, 3.0])
        2.0
    """
    return statistics.median(first / second for first, second in zip(above, below, strict=True))


@cache  # asked once: what a script saves later was made by the same code, whatever has been changed since
def machine() -> dict[str, object]:
    """Where, on what and by which command something was measured."""
    return {
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "commit": commit(),
        "cpu": processor(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def commit() -> str:
    """The commit, with -dirty where any file, these scripts included, has changed since."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def process_bytes(name: str) -> int:
    """Bytes of this process as Linux counts them: "VmRSS" are held now, "VmHWM" is the peak; 0 elsewhere."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def saved(name: str, folder: Path) -> list[dict[str, object]]:
    """The results in a JSON file of that name, none if it is not there; another process may add to it."""
    path = folder / f"{name}.json"
    results: list[dict[str, object]] = json.loads(path.read_text())["results"] if path.exists() else []
    return results


def save(name: str, results: object, folder: Path, **more: object) -> Path:
    """Write results, with the machine's description, to a JSON file of that name, whole or not at all.

    Where a list goes on with the one that is there, "earlier" says what its first entries were made with.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    made: dict[str, Any] = {**machine(), **more}
    earlier: list[Any] = []
    old: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"results": None}
    if isinstance(results, list) and old["results"] == results[: len(old["results"] or [])]:
        earlier = old.get("earlier", [])
        if old["machine"] != made:
            earlier = [*earlier, {**old["machine"], "entries": len(old["results"])}]
    content = {"machine": made, **({"earlier": earlier} if earlier else {}), "results": results}
    write_whole(path, (json.dumps(content, indent=1) + "\n").encode())
    return path


def save_each(
    name: str, records: Iterable[Record], table: Callable[[list[Record]], pd.DataFrame], folder: Path
) -> None:
    """Save and print records as they come, so that nothing measured is lost."""
    done: list[Record] = []
    for record in records:
        done.append(record)
        save(name, done, folder)
        print(table([record]).to_string(index=False, float_format="{:.2f}".format), flush=True)
    print(folder / f"{name}.json")
