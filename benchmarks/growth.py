"""How a round's seconds and memory grow with clients, clusters, rank, batch and width.

    python benchmarks/growth.py --threads 2

FLoRAL on the MNIST-shaped federation, one number changed at a time. Each case runs in a process of
its own. Its memory is the growth of the process's peak in training: the peak before training, when everything
is loaded and the task is built, is subtracted.
"""

import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import shapes
import torch
import typer
from measure import RESULTS, process_bytes, save, seconds

from floral_lite import methods
from floral_lite.federation import federated_rounds

# What changes, and through which values; the rest is as in USUAL.
USUAL: dict[str, int | None] = {"clients": 30, "clusters": 4, "rank": None, "batch": 32, "hidden": 200}
SWEEPS = {
    "clients": (1, 3, 10, 30, 100, 300),
    "clusters": (1, 2, 4, 8, 16),
    "rank": (1, 2, 4, 8, 16),
    "batch": (8, 16, 32, 64, 128),
    "hidden": (50, 100, 200, 400, 800),
}


def peak_bytes() -> int:
    """The most memory that this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # ru_maxrss begins with the parent process's peak
    return process_bytes("VmHWM") or (peak if sys.platform == "darwin" else 1024 * peak)


def measure(
    clients: int,
    clusters: int,
    rank: int | None,
    batch: int,
    hidden: int,
    *,
    repeats: int = 5,
    num_clients: int = 300,
    num_samples: int = 200,
) -> dict[str, Any]:
    """Seconds a round after the first, and the bytes that training took, in this process.

    Args:
        clients: sampled in a round.
        clusters: C.
        rank: of the adaptors; None for a budget of 1%.
        batch: samples a local step.
        hidden: width of the two-layer net.
        repeats: rounds that are timed.
        num_clients: K.
        num_samples: of each client.
    """
    task = shapes.mnist(
        num_clients,
        num_samples,
        num_hidden=hidden,
        participation=clients / num_clients,
        batch_size=batch,
    )
    size = {"budget": 0.01} if rank is None else {"rank": rank}
    method = methods.make("floral", task.model, num_clusters=clusters, **size)
    settings = task.settings.with_changes(rounds=repeats + 1, evaluate_every=0)
    rounds = federated_rounds(task, method, settings)
    before = peak_bytes()
    next(rounds)
    times = [seconds(lambda: next(rounds)) for _ in range(repeats)]
    return {"seconds": times, "median": statistics.median(times), "bytes": peak_bytes() - before}


def in_a_process(case: dict[str, Any], repeats: int, threads: int) -> dict[str, Any]:
    """`measure` in a fresh process."""
    options = json.dumps({**case, "repeats": repeats})
    command = [sys.executable, __file__, "--threads", str(threads), "--case", options]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def line(values: list[float], times: list[float]) -> dict[str, float]:
    """Seconds = intercept + slope * value by least squares, and the share of the variance it explains.

    Example:
        >>> fitted = line([1.0, 2.0, 3.0], [3.0, 5.0, 7.0])
        >>> {name: round(number, 6) for name, number in fitted.items()}
        {'slope': 2.0, 'intercept': 1.0, 'explained': 1.0}
    """
    slope, intercept = np.polyfit(values, times, 1)
    residuals = np.array(times) - (intercept + slope * np.array(values))
    explained = 1 - residuals.var() / np.var(times)
    return {"slope": float(slope), "intercept": float(intercept), "explained": float(explained)}


def main(
    threads: Annotated[int, typer.Option(help="torch's threads", min=1)] = 2,
    repeats: Annotated[int, typer.Option(help="rounds that are timed", min=1)] = 5,
    out: Annotated[Path, typer.Option(help="where growth.json goes")] = RESULTS,
    case: Annotated[str | None, typer.Option(help="one case as JSON, measured in this process")] = None,
) -> None:
    """Measure every case, print and save."""
    torch.set_num_threads(threads)
    if case is not None:
        print(json.dumps(measure(**json.loads(case))))
        return
    results: dict[str, object] = {}
    for what, values in SWEEPS.items():
        records = []
        for value in values:
            record = in_a_process({**USUAL, what: value}, repeats, threads)
            records.append({what: value, **record})
            print(f"{what:8} {value:4} {1000 * record['median']:9.1f} ms {record['bytes'] / 2**20:9.1f} MiB")
        fitted = line([float(value) for value in values], [record["median"] for record in records])
        print(f"{what:8} {1000 * fitted['slope']:9.3f} ms each, {100 * fitted['explained']:.1f}% explained\n")
        results[what] = {"cases": records, "line": fitted}
    print(save("growth", results, out))


if __name__ == "__main__":
    typer.run(main)
