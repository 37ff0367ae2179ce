"""A federation over Flower: digits that each client turns by its own angle and never sends anywhere."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import load_file
from torch.nn import functional

from floral_lite import Run, Settings, Shard, Task, methods
from floral_lite.federation import Population
from floral_lite.flower import client_app, server_app
from floral_lite.models import mlp, seeded


def make(config: Mapping[str, Any]) -> Run:
    """Task, method and seed, the same on every machine; only the data are each machine's own."""
    num_clients = config["num-clients"]
    train = test = Shard(torch.zeros(1, 64), torch.zeros(1, dtype=torch.long))  # the server's
    if "data" in config:
        data = load_file(config["data"])
        train, test = (Shard(data[f"{kind}_inputs"], data[f"{kind}_targets"]) for kind in ("train", "test"))
    task = Task(
        name="digits",
        model=seeded(lambda: mlp(64, 32, 10), 0),
        loss=functional.cross_entropy,
        train=Population(num_clients, lambda _: train),
        test=Population(num_clients, lambda _: test),
        clusters=torch.zeros(num_clients, dtype=torch.long),
        settings=Settings(
            rounds=config["rounds"],
            batch_size=16,
            learning_rate=0.3,
            router_learning_rate=10.0,
            evaluate_every=config["evaluate-every"],
        ),
        details={},
    )
    return Run(task, methods.make(config["method"], task.model), seed=0)


client = client_app(make, Path.home() / "floral-digits")
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Take the folder from the configuration, so that another federation can have another folder."""
    server_app(make, str(context.run_config["folder"]), min_replies=2, patience=60, timeout=600)(
        grid, context
    )
