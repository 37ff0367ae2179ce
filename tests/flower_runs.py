"""Small federations over Flower, and what it means that one comes to the engine's numbers."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import nn

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'flwr>=1.41'")

from flwr.app import Context, RecordDict

from floral_lite import Federation, Run, Task, methods
from floral_lite.federation import load_checkpoint
from floral_lite.flower import client_app, server_app
from floral_lite.flower.asking import told_router
from floral_lite.flower.resume import TOLD
from floral_lite.methods import ROUTER, Method

from .federations import agree, first_state, make_task, normal
from .flower_grid import RUN_CONFIG, LocalGrid, Meddle

SEED = 3
# What the engines' histories have and Flower's has not: it would need the routers.
UNKNOWN = ("mixture", "mismatch")


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def with_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def a_task(**settings: Any) -> Task:
    """Five clients with 7, 3, 10, 7 and 3 samples, four of which are sampled a round."""
    return make_task(network, normal(4), **{"rounds": 5, "learning_rate": 0.3} | settings)


def make(name: str, task: Task, **options: Any) -> Method:
    adapts = {"floral", "mfl-ws", "local-adaptor"}
    return methods.make(name, task.model, **({"rank": 1} if name in adapts else {}) | options)


def server_context() -> Context:
    return Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=RUN_CONFIG)


class Flown:
    """A federation over Flower after its rounds: what the server has, and the clients' files."""

    def __init__(
        self,
        task: Task,
        method: Method,
        folder: Path,
        *,
        meddle: Meddle | None = None,
        absent: Iterable[int] = (),
        weighted: bool = False,
        mods: Sequence[Any] = (),
        **choices: Any,
    ) -> None:
        run = Run(task, method, SEED)
        self.folder, self.task, self.method = folder, task, method
        app = client_app(lambda _: run, folder / "clients", weighted=weighted, mods=mods)
        self.grid = LocalGrid(app, task.num_clients, meddle, absent)
        choices = {"patience": 0.01, "weighted": weighted} | choices
        server_app(lambda _: run, folder / "server", **choices)(self.grid, server_context())

    @property
    def server(self) -> Federation:
        loaded = load_checkpoint(self.folder / "server")
        assert loaded is not None
        return loaded[0]

    def own(self, client: int) -> Path:
        name = self.server.history.config["federation"]
        return self.folder / "clients" / name / f"client-{client}.safetensors"

    @property
    def federation(self) -> Federation:
        """With what the clients have in their files; who was never sampled has none, and begins as told."""
        private = {
            name: tensor.clone() for name, tensor in first_state(self.task, self.method, SEED).private.items()
        }
        told = self.server.history.config.get(TOLD) or [-1] * self.task.num_clients
        for client in range(self.task.num_clients):
            if self.own(client).exists():
                file = load_file(self.own(client))
                for name, tensors in private.items():
                    tensors[client] = file[f"after/{name}"]
            elif told[client] >= 0:
                first = {name: tensors[client] for name, tensors in private.items()}
                private[ROUTER][client] = told_router(first, told[client])[ROUTER]
        return self.server._replace(state=self.server.state._replace(private=private))


assert_same = partial(agree, without=UNKNOWN)
