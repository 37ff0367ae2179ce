"""A federation over Flower on this machine, compared with the engine's: `make flower-demo`."""

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from app.digits import make
from deployment import Deployment
from safetensors.torch import save_file

from floral_lite import History, Run, Task, tasks, train
from floral_lite.experiments.provenance import provenance

APP = Path(__file__).parent / "app"
NUM_CLIENTS = 3
# One of the clients' 360 test images may fall on the other side of a float's rounding.
CLOSE = 0.01


def main() -> None:
    """Run the app over Flower, then the engine, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", default="floral")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="for keys, logs and files; one that is removed if none")
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers")
    given = parser.parse_args()
    torch.set_num_threads(1)  # as each of the nodes has
    config = {
        "method": given.method,
        "rounds": given.rounds,
        "evaluate-every": 1,
        "num-clients": NUM_CLIENTS,
    }
    made = describe(sys.argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.folder or Path(temporary)).absolute()
        task, method, seed = whole(config)
        deal(folder, task)
        begin = time.perf_counter()
        deploy(folder, config)
        seconds = time.perf_counter() - begin
        history = History.load(folder / "server" / "history.json")
    if untested := [entry.round for entry in history.rounds if entry.test_accuracy is None]:
        sys.exit(f"no client was tested in rounds {untested}; --folder DIR keeps the logs, which say why")
    engine = train(task, method, seed=seed).history
    print("round  over Flower  engine   (test accuracy, mean over the clients)")
    for ours, theirs in zip(history.rounds, engine.rounds, strict=True):
        print(f"{ours.round:5}  {ours.test_accuracy:11.4f}  {theirs.test_accuracy:6.4f}")
    numbers = {
        "made": made,
        "rounds": given.rounds,
        "seconds": round(seconds, 1),
        **costs(history, engine),
        "accuracy": [entry.test_accuracy for entry in history.rounds],
        "engine_accuracy": [entry.test_accuracy for entry in engine.rounds],
    }
    print(f"{seconds:.0f} s over Flower; the training of a round took {numbers['round_seconds']} s")
    print(f"a client sends {history.bytes_up:,} bytes a round, and receives {history.bytes_down:,}")
    write(numbers, given.out)
    apart = max(abs(a - b) for a, b in zip(numbers["accuracy"], numbers["engine_accuracy"], strict=True))
    if apart > CLOSE:
        sys.exit(f"the accuracies differ by {apart:.4f}")


def describe(command: list[str]) -> dict[str, Any]:
    """The description of what made a file of numbers."""
    words = [f"examples/flower/{Path(command[0]).name}", *command[1:]]
    made = provenance(torch.device("cpu"), " ".join(["python", *words]))
    made["versions"]["flwr"] = version("flwr")
    return {**made, "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}


def write(numbers: dict[str, Any], path: Path | None) -> None:
    """Keep numbers in a file, if it is named."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(numbers, indent=1) + "\n")


def costs(history: History, engine: History) -> dict[str, Any]:
    """The cost of a run's rounds over Flower and on the engine."""
    return {
        "round_seconds": [round(entry.seconds, 3) for entry in history.rounds],
        "engine_round_seconds": [round(entry.seconds, 3) for entry in engine.rounds],
        "bytes_up": history.bytes_up,
        "bytes_down": history.bytes_down,
    }


def whole(config: dict[str, Any]) -> Run:
    """The app's run with everybody's data."""
    task, method, seed = make(config)
    digits = tasks.load("digits-rotate", num_clients=config["num-clients"], num_clusters=3)
    return Run(replace(task, train=digits.train, test=digits.test), method, seed)


def deal(folder: Path, task: Task) -> None:
    """Give each client a file with its own samples."""
    for client, shards in enumerate(zip(task.train, task.test, strict=True)):
        own = {
            f"{kind}_{name}": tensor.contiguous()
            for kind, shard in zip(("train", "test"), shards, strict=True)
            for name, tensor in shard._asdict().items()
        }
        (folder / f"client-{client}").mkdir(parents=True, exist_ok=True)
        save_file(own, folder / f"client-{client}" / "data.safetensors")


def deploy(folder: Path, config: dict[str, Any]) -> None:
    """A SuperLink and SuperNodes, each with its own key and data."""
    with Deployment(folder, config["num-clients"]) as deployment:
        (folder / "server" / "history.json").unlink(missing_ok=True)  # of a run before
        hand_in(deployment, config, folder / "server")
        for number in range(1, config["rounds"] + 1):
            deployment.wait(
                f"the end of round {number}", lambda number=number: done(folder / "server") >= number
            )
        deployment.wait("the end of the run", (folder / "server" / "history.json").exists)


def hand_in(deployment: Deployment, config: dict[str, Any], server: Path) -> None:
    """Give the app to the SuperLink, which starts it."""
    told = [f"{key}={json.dumps(value)}" for key, value in {**config, "folder": str(server)}.items()]
    deployment.flwr("run", APP, "local", "--run-config", " ".join(told))


def done(server: Path) -> int:
    """Rounds in the newest checkpoint."""
    return max((int(path.name.removeprefix("round-")) for path in server.glob("round-*")), default=0)


if __name__ == "__main__":
    main()
