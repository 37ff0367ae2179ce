"""A client over Flower: its own data, its own file, and nothing private in a message."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'flwr>=1.41'")

from flwr.app import ConfigRecord, Message, RecordDict

from floral_lite import Run, Shard, methods
from floral_lite.federation import Population, load_checkpoint
from floral_lite.federation.local import Score, evaluate, local_training
from floral_lite.flower import RolesStrategy, client_app, server_app
from floral_lite.flower.client import Client
from floral_lite.flower.messages import from_arrays, to_arrays
from floral_lite.methods import ROUTER
from floral_lite.roles import Roles

from .federations import first_state, make_task, normal, single
from .flower_grid import LocalGrid
from .flower_runs import SEED, Flown, a_task, assert_same, make, network, server_context, with_norm


def test_a_user_s_clients_have_their_own_data_only(tmp_path: Path) -> None:
    task = a_task()
    method = make("floral", task)

    def alone(shard: Shard, test: Shard) -> Run:
        mine = Population(5, lambda _: shard)
        own = replace(task, train=mine, test=Population(5, lambda _: test))
        return Run(own, method, SEED)

    flown = Flown(task, method, tmp_path / "all")
    grid = flown.grid
    apps = [
        client_app(lambda _, k=k: alone(task.train[k], task.test[k]), tmp_path / "clients") for k in range(5)
    ]
    grid.app = lambda message, context: apps[int(context.node_config["partition-id"])](message, context)  # type: ignore[assignment]
    example = Shard(torch.zeros(1, 4, dtype=torch.float64), torch.zeros(1, dtype=torch.long))
    server = server_app(lambda _: alone(example, example), tmp_path / "server", patience=0.01)
    server(grid, server_context())
    loaded = load_checkpoint(tmp_path / "server")
    assert loaded is not None
    assert_same(loaded[0], flown.server, tolerance=0)


def test_nobody_holds_what_is_private_to_a_million_others(tmp_path: Path) -> None:
    """With Ditto they have a whole model each, 4 terabytes."""
    shard = Shard(torch.zeros(1, 1000), torch.zeros(1, dtype=torch.long))
    task = replace(
        a_task(),
        model=nn.Linear(1000, 1000),
        train=Population(10**6, lambda _: shard),
        test=Population(10**6, lambda _: shard),
        clusters=torch.zeros(10**6, dtype=torch.long),
    )
    run = Run(task, methods.make("ditto", task.model), SEED)
    strategy = RolesStrategy(run, tmp_path)
    config = ConfigRecord({"round": 1, "federation": "0" * 16})
    message = Message(RecordDict({"arrays": strategy.arrays, "config": config}), 100, "train")
    kept = Client(run, 7, tmp_path, message).kept(1)
    assert sorted(tuple(tensor.shape) for tensor in kept.values()) == [(1000,), (1000, 1000)]


def names_sent(message: Message) -> set[str]:
    return {name for record in message.content.array_records.values() for name in record}


@pytest.mark.parametrize("name", ["floral", "local-adaptor", "fedbn", "ditto"])
def test_nothing_private_is_sent(name: str, tmp_path: Path) -> None:
    task = make_task(with_norm, normal(4), rounds=2, batch_size=5)
    method = make(name, task)
    flown = Flown(task, method, tmp_path)
    first = first_state(task, method, SEED)
    allowed = {f"{role}/{tensor}" for role in ("shared", "clustered") for tensor in getattr(first, role)}
    trained = [sent for sent in flown.grid.sent if sent[1].metadata.message_type == "train"]
    assert trained
    for _, _, reply in trained:
        assert names_sent(reply) == allowed
        (metrics,) = reply.content.metric_records.values()
        assert set(metrics) == {"round", "num-examples", "weights", "weighted", "train-loss"}
    for _, _, reply in flown.grid.sent:
        if reply.metadata.message_type == "evaluate":
            (metrics,) = reply.content.metric_records.values()
            assert set(metrics) == {"round", "num-examples", "loss", "accuracy"}
    assert flown.server.state.private == {}
    assert flown.own(trained[0][0]).exists()


def test_arrays_have_nothing_private() -> None:
    state = Roles({"a": torch.zeros(2)}, {"b": torch.zeros(2, 3)}, {ROUTER: torch.zeros(4)})
    assert list(to_arrays(state)) == ["shared/a", "clustered/b"]


def test_a_tensor_in_columns_is_sent_row_by_row() -> None:
    state = Roles({"a": torch.arange(6.0).view(2, 3).T}, {}, {})
    assert torch.equal(from_arrays(to_arrays(state), state).shared["a"], state.shared["a"])


def test_what_is_sent_takes_as_many_bytes_as_the_history_says(tmp_path: Path) -> None:
    task = a_task(rounds=1)
    for name in ("fedavg", "ensemble", "floral", "ifca"):
        flown = Flown(task, make(name, task), tmp_path / name)
        history = flown.server.history
        (_, message, reply) = next(
            sent for sent in flown.grid.sent if sent[1].metadata.message_type == "train"
        )
        down, up = (
            sum(array.numpy().nbytes for array in sent.content.array_records["arrays"].values())
            for sent in (message, reply)
        )
        assert down == history.bytes_down
        (weights,) = (metrics["weights"] for metrics in reply.content.metric_records.values())
        assert isinstance(weights, list)
        assert up + 4 * len(weights) == history.bytes_up


def test_a_client_is_trained_as_asked_and_tested_as_exactly_as_in_the_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a GPU would test a convolution in TF32, whatever the precision of the training."""
    inside, trained, seen = [], [], []

    @contextmanager
    def arithmetic(precision: str) -> Iterator[None]:
        inside.append(precision)
        yield
        inside.pop()

    def training(*arguments: Any) -> tuple[Roles, float]:
        trained.append(list(inside))
        return local_training(*arguments)

    def tested(*arguments: Any) -> Score:
        seen.append(list(inside))
        return evaluate(*arguments)

    monkeypatch.setattr("floral_lite.flower.client.arithmetic", arithmetic)
    monkeypatch.setattr("floral_lite.flower.client.local_training", training)
    monkeypatch.setattr("floral_lite.flower.client.evaluate", tested)
    task = single(a_task(rounds=1, precision="tf32"))
    Flown(task, make("fedavg", task), tmp_path)
    assert trained == [["tf32"]] * 4
    assert seen == [["float32"]] * task.num_clients


def test_layers_that_draw_by_themselves_draw_something_else_at_each_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[float] = []
    in_tests: list[float] = []

    def training(*arguments: Any) -> tuple[Roles, float]:
        drawn.append(float(torch.rand(())))
        return local_training(*arguments)

    def tested(*arguments: Any) -> Score:
        in_tests.append(float(torch.rand(())))
        return evaluate(*arguments)

    monkeypatch.setattr("floral_lite.flower.client.local_training", training)
    monkeypatch.setattr("floral_lite.flower.client.evaluate", tested)
    task = a_task(rounds=2)
    Flown(task, make("fedavg", task), tmp_path / "first")
    Flown(task, make("fedavg", task), tmp_path / "again")
    once, again = drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :]
    assert once == again
    assert len(set(once)) == len(once) == 8
    assert in_tests[:10] == in_tests[10:]
    assert len(set(in_tests)) == 10


def test_a_supernode_s_own_configuration_counts_before_the_app_s_and_has_its_folder(tmp_path: Path) -> None:
    task = a_task(rounds=1)
    run = Run(task, make("floral", task), SEED)
    asked: list[dict[str, Any]] = []

    def made(config: Mapping[str, Any]) -> Run:
        asked.append(dict(config))
        return run

    own = {"folder": str(tmp_path / "own"), "words": "mine"}
    grid = LocalGrid(client_app(made, tmp_path / "unused"), 5, **own)
    server_app(made, tmp_path / "server", patience=0.01)(grid, server_context())
    server, *clients = asked
    assert server == {"words": "the app's"}
    assert {number: own | {"partition-id": number} for number in range(5)} == {
        config["partition-id"]: config for config in clients
    }
    assert {path.parents[1] for path in tmp_path.rglob("client-*")} == {tmp_path / "own"}


def test_a_client_that_diverges_keeps_what_it_had(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = a_task(rounds=1, participation=1.0)
    method = make("local-adaptor", task)
    Flown(task, method, tmp_path)
    files = {path: path.read_bytes() for path in (tmp_path / "clients").rglob("*.safetensors")}
    assert len(files) == 5
    task.train[1].inputs.fill_(1e308)
    caplog.set_level(logging.WARNING, "flwr")
    flown = Flown(replace(task, settings=task.settings.with_changes(rounds=2)), method, tmp_path)
    assert any("client 1 is dropped" in line and "learning rates" in line for line in caplog.messages)
    for path, content in files.items():
        assert (path.read_bytes() == content) == (path == flown.own(1)), path


def test_a_client_that_diverges_downwards_keeps_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only a router may have -inf, which its softmax takes for 0."""

    def diverging(*arguments: Any) -> tuple[Roles, float]:
        after, loss = local_training(*arguments)
        low = {name: torch.full_like(tensor, -torch.inf) for name, tensor in after.private.items()}
        return after._replace(private=low), loss

    monkeypatch.setattr("floral_lite.flower.client.local_training", diverging)
    caplog.set_level(logging.WARNING, "flwr")
    task = a_task(rounds=1)
    Flown(task, make("fedper", task), tmp_path)
    assert sum("came to parameters or a loss" in line for line in caplog.messages) == 4
    assert list((tmp_path / "clients").rglob("*.safetensors")) == []


def test_a_client_whose_loss_alone_diverges_keeps_what_it_had(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of 1e25 the square is infinite in single precision, its gradient is not: the server drops the reply."""
    task = single(make_task(network, normal(4), outputs=3, loss=nn.functional.mse_loss, rounds=1))
    train, test = (
        [Shard(inputs, targets.float()) for inputs, targets in shards] for shards in (task.train, task.test)
    )
    task = replace(task, train=train, test=test)
    task.train[1].targets.fill_(1e25)
    caplog.set_level(logging.WARNING, "flwr")
    flown = Flown(task, make("local-adaptor", task), tmp_path)
    assert [client for client in range(5) if flown.own(client).exists()] == [0, 2, 3]
    assert flown.server.history.rounds[0].test_loss is not None
    assert flown.server.history.rounds[0].client_accuracy is None  # of a regression
    (line,) = caplog.messages
    assert "client 1 is dropped" in line
    assert "learning rates" in line
