"""What a round costs in Flower's simulation, by method: seconds, and each client's bytes down and up.

It needs `flwr[simulation]` beside what `make flower-demo` installs, and MNIST for the paper's network.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from demo import NUM_CLIENTS, costs, deal, describe, whole, write
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from safetensors.torch import load_file
from torch import nn

from floral_lite import History, Run, Shard, Task, methods, tasks, train
from floral_lite.federation import Population
from floral_lite.flower import client_app, server_app

METHODS = ("fedavg", "local-adaptor", "floral", "ensemble")
# The paper's C and rho, a method's values where nothing else is asked for.
NUM_CLUSTERS, BUDGET = 4, 0.01
# One worker, as the engine has one thread.
ONE_WORKER = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 1, "log_to_driver": False}}


def main() -> None:
    """Every method on the app's three clients, and on the paper's 300 with MNIST."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--data", type=Path, help="the folder of MNIST; without it the paper's task is left out"
    )
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers")
    given = parser.parse_args()
    torch.set_num_threads(1)
    numbers = {"made": describe(sys.argv), "rounds": given.rounds, "runs": []}
    config = {"method": "fedavg", "rounds": 1, "evaluate-every": 1, "num-clients": NUM_CLIENTS}
    federations = [whole(config).task]
    if given.data is not None:
        federations.append(tasks.load("mnist-rotate", data=given.data))
    for task in federations:
        # a test asks every client: once, at the end
        settings = replace(task.settings, rounds=given.rounds, evaluate_every=given.rounds)
        for name in METHODS:
            numbers["runs"].append(measure(replace(task, settings=settings), name))
            print(numbers["runs"][-1], flush=True)
            write(numbers, given.out)


def measure(task: Task, name: str) -> dict[str, Any]:
    """A run in the simulation, and the same on the engine."""
    run = Run(task, methods.make(name, task.model), seed=0)
    # first: Flower's workers take a while to end
    engine = train(task, run.method, seed=run.seed).history
    sizes: dict[str, list[int]] = {"message_down": [], "message_up": []}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        deal(folder, task)
        own = from_files(run, folder)
        app = ServerApp()

        @app.main()
        def server(grid: Grid, context: Context) -> None:
            """The package's, with the messages counted."""
            count(grid, sizes)
            server_app(lambda _: own, folder / "server")(grid, context)

        begin = time.perf_counter()
        client = client_app(lambda _: own, folder / "clients")
        run_simulation(app, client, task.num_clients, backend_config=ONE_WORKER)
        seconds = time.perf_counter() - begin
        history = History.load(folder / "server" / "history.json")
    return {
        "task": task.name,
        "method": name,
        "clients": task.num_clients,
        "sampled": len(sizes["message_up"]) // len(history.rounds),
        "seconds": round(seconds, 1),
        **costs(history, engine),
        **{way: round(float(np.mean(each))) for way, each in sizes.items()},
        "paper_bytes": 4 * paper_numbers(name, task.model),
        "accuracy": history.rounds[-1].test_accuracy,
        "engine_accuracy": engine.rounds[-1].test_accuracy,
    }


def paper_numbers(name: str, model: nn.Module) -> int:
    """How many numbers each client sends by the paper's formulas, for a model of linear layers."""
    base = sum(parameter.numel() for parameter in model.parameters())
    layers = [tuple(weight.shape) for weight in model.parameters() if weight.dim() == 2]
    # U (m, r), V (r, n) with (m + n) r <= rho m n, but r >= 1, and the adaptor of the bias (m)
    adaptor = sum((m + n) * max(1, int(BUDGET * m * n / (m + n))) + m for m, n in layers)
    return {"ensemble": NUM_CLUSTERS * base, "floral": base + NUM_CLUSTERS * adaptor}.get(name, base)


def from_files(run: Run, folder: Path) -> Run:
    """The run without its data: each client reads its own file, as in a deployment."""

    def shards(kind: str) -> Population:
        def read(client: int) -> Shard:
            file = load_file(folder / f"client-{client}" / "data.safetensors")
            return Shard(file[f"{kind}_inputs"], file[f"{kind}_targets"])

        return Population(run.task.num_clients, read)

    return run._replace(task=replace(run.task, train=shards("train"), test=shards("test")))


def count(grid: Grid, sizes: dict[str, list[int]]) -> None:
    """Note the size of every message that passes in training."""
    carry = grid.send_and_receive

    def counted(messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        sent = list(messages)
        come = list(carry(sent, timeout=timeout))
        if sent and sent[0].metadata.message_type == "train":
            sizes["message_down"] += map(num_bytes, sent)
            sizes["message_up"] += map(num_bytes, come)
        return come

    grid.send_and_receive = counted  # type: ignore[method-assign]


def num_bytes(message: Message) -> int:
    """The bytes that Flower makes of a message for the network, before gRPC and TLS put them into frames."""
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())


if __name__ == "__main__":
    main()
