"""A federation over Flower on this machine, and the same on the engine: `make flower-demo`."""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from app.digits import make
from deployment import Deployment
from safetensors.torch import save_file

from floral_lite import History, Task, tasks, train

APP = Path(__file__).parent / "app"


def main() -> None:
    """Start everything, run the app, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", default="floral")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="for keys, logs and files; one that is removed if none")
    given = parser.parse_args()
    config = {"method": given.method, "rounds": given.rounds, "evaluate-every": 1, "num-clients": 3}
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.folder or Path(temporary)).absolute()
        begin = time.perf_counter()
        task = deal(folder, config["num-clients"])
        with Deployment(folder, config["num-clients"]) as deployment:
            print(f"SuperLink and {config['num-clients']} SuperNodes: {time.perf_counter() - begin:.0f} s")
            begin = time.perf_counter()
            run(deployment, config, folder / "server")
            print(f"{given.rounds} rounds over Flower: {time.perf_counter() - begin:.0f} s")
        history = History.load(folder / "server" / "history.json")
    begin = time.perf_counter()
    whole, method, seed = make(config)
    engine = train(replace(whole, train=task.train, test=task.test), method, seed=seed).history
    print(f"{given.rounds} rounds on the engine: {time.perf_counter() - begin:.1f} s")
    print("round  over Flower  engine   (test accuracy, mean over the clients)")
    for ours, theirs in zip(history.rounds, engine.rounds, strict=True):
        print(f"{ours.round:5}  {ours.test_accuracy:11.4f}  {theirs.test_accuracy:6.4f}")
    seconds = sorted(entry.seconds for entry in history.rounds)[len(history.rounds) // 2]
    print(f"a round of training takes {seconds:.1f} s")
    print(f"a client sends {history.bytes_up:,} bytes a round, and receives {history.bytes_down:,}")


def deal(folder: Path, num_clients: int) -> Task:
    """Give each client a file with its own samples."""
    task = tasks.load("digits-rotate", num_clients=num_clients, num_clusters=3)
    for client, (train_shard, test_shard) in enumerate(zip(task.train, task.test, strict=True)):
        own = {
            **{f"train_{name}": tensor.contiguous() for name, tensor in train_shard._asdict().items()},
            **{f"test_{name}": tensor.contiguous() for name, tensor in test_shard._asdict().items()},
        }
        (folder / f"client-{client}").mkdir(parents=True, exist_ok=True)
        save_file(own, folder / f"client-{client}" / "data.safetensors")
    return task


def run(deployment: Deployment, config: dict[str, object], server: Path, wait: bool = True) -> None:
    """Hand the app to the SuperLink, and wait for its end."""
    told = " ".join(
        f"{key}={value!r}".replace("'", '"') for key, value in {**config, "folder": str(server)}.items()
    )
    deployment.flwr("run", APP, "local", "--run-config", told)
    deadline = time.monotonic() + 600
    while wait and not (server / "history.json").exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"no end after 600 s:\n{deployment.log('superlink')[-3000:]}")
        time.sleep(0.5)


if __name__ == "__main__":
    main()
