"""Clustered routing over Flower: whoever is there is asked for a gradient, and told its cluster."""

import copy
import logging
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'flwr>=1.41'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod

from floral_lite import InputError, Run, Shard, Task, clustering, methods, train
from floral_lite.federation import Population, load_checkpoint
from floral_lite.federation.asking import LEANING
from floral_lite.flower import RolesStrategy, client_app, server_app
from floral_lite.flower.asking import LONGEST, Asking, told_router
from floral_lite.flower.messages import BadMessage
from floral_lite.flower.resume import TOLD
from floral_lite.methods import ROUTER, Method
from floral_lite.models import seeded

from .flower_grid import LocalGrid
from .flower_runs import SEED, Flown, assert_same, server_context
from .test_clustering import METHODS, right, two_kinds


@pytest.fixture(autouse=True)
def less_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the time, where the clusters are clear."""
    monkeypatch.setattr(clustering, "NUM_NOISE", 10)


def floral(task: Task, **options: Any) -> Method:
    return methods.FLoRAL(task.model, num_clusters=2, rank=1, routing="clustered", **options)


def asked(flown: Flown) -> list[int]:
    return [client for client, message, _ in flown.grid.sent if message.metadata.message_type == "train.ask"]


@pytest.mark.parametrize(("name", "options"), METHODS)
@pytest.mark.parametrize("stateful", [True, False])
def test_the_run_is_that_of_the_engine(
    name: str, options: dict[str, Any], stateful: bool, tmp_path: Path
) -> None:
    # evaluated when all have answered: what an ensemble's clients get before depends on their routers
    task = two_kinds(stateful=stateful, sizes=(40, 35, 37), evaluate_every=2)
    method = methods.make(name, task.model, routing="clustered", **options)
    flown = Flown(task, method, tmp_path)
    assert asked(flown) == [*range(0, 20, 2), *range(1, 20, 2)]
    told = torch.tensor(flown.server.history.config[TOLD])
    assert right(told, task.clusters) == 1
    assert_same(flown.federation, train(task, method, seed=SEED))


def test_a_server_whose_optimizer_counts_its_steps_counts_from_the_first(tmp_path: Path) -> None:
    task = two_kinds(participation=1.0, server_optimizer="adam", server_learning_rate=0.05)
    flown = Flown(task, floral(task), tmp_path).federation
    assert_same(flown, train(task, floral(task), seed=SEED))


def test_where_nothing_stands_out_nobody_is_told(tmp_path: Path) -> None:
    task = two_kinds(num_clients=3, participation=1.0)
    flown = Flown(task, floral(task), tmp_path)
    assert flown.server.history.config[TOLD] is None
    assert all("cluster" not in sent[1].content.config_records.get("config", {}) for sent in flown.grid.sent)
    assert_same(flown.federation, train(task, floral(task), seed=SEED))


def test_who_is_absent_is_not_told_and_who_is_late_is_asked_again(tmp_path: Path) -> None:
    task = two_kinds()
    late: set[int] = set()

    def once(client: int, message: Message, reply: Message) -> list[Message]:
        """Client 4's first answer is lost."""
        if message.metadata.message_type == "train.ask" and client == 4 and not late:
            late.add(client)
            return []
        return [reply]

    flown = Flown(task, floral(task), tmp_path, absent=[7], meddle=once)
    assert asked(flown).count(4) == 2
    told = flown.server.history.config[TOLD]
    assert told[7] == -1
    assert right(torch.tensor(told[:7] + told[8:]), torch.cat([task.clusters[:7], task.clusters[8:]])) == 1
    for client, message, _ in flown.grid.sent:
        if message.metadata.message_type == "train":
            assert message.content.config_records["config"]["cluster"] == told[client]


def test_a_turn_that_nobody_takes_is_waited_for_no_longer_than_patience(tmp_path: Path) -> None:
    """Clients 0 and 10 are all of round 1's turn; the others are enough for `min_replies`."""
    task = two_kinds(rounds=11, participation=0.1, evaluate_every=0)
    history = Flown(task, floral(task), tmp_path, absent=[0, 10], min_replies=2).server.history
    told = history.config[TOLD]
    assert [client for client, cluster in enumerate(told) if cluster == -1] == [0, 10]
    assert math.isnan(history.rounds[0].train_loss)


@pytest.mark.parametrize("name", ["local", "fedper", "fedavg", "floral"])
def test_a_client_answers_no_question_that_its_method_does_not_ask(name: str, tmp_path: Path) -> None:
    task = two_kinds()
    question = ask_of(task)
    for method, weighted, reason in (
        (methods.make(name, task.model, **({"rank": 1} if name == "floral" else {})), False, "only routing="),
        (floral(task), True, "weighted is True"),
    ):
        run = Run(task, method, SEED)
        grid = LocalGrid(client_app(lambda _, run=run: run, tmp_path, weighted=weighted), 20)  # type: ignore[misc]
        (reply,) = grid.deliver(question)
        assert reply.has_error()
        assert reason in reply.error.reason


def ask_of(task: Task) -> Message:
    """What the server sends to client 2, at node 102."""
    arrays = Asking(Run(task, floral(task), SEED), 2, max_samples=1e9).arrays
    config = ConfigRecord({"round": 1, "federation": "0" * 16})
    return Message(RecordDict({"arrays": arrays, "config": config}), 102, "train.ask", group_id="1")


def test_a_gradient_is_taken_as_exactly_as_in_the_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a GPU would take it in TF32, where its client trains so."""
    asked: list[str] = []

    def arithmetic(precision: str) -> nullcontext[None]:
        asked.append(precision)
        return nullcontext()

    monkeypatch.setattr("floral_lite.flower.asking.arithmetic", arithmetic)
    task = two_kinds()
    grid = LocalGrid(client_app(lambda _: Run(task, floral(task), SEED), tmp_path), 20)
    (reply,) = grid.deliver(ask_of(task))
    assert not reply.has_error()
    assert asked == ["float32"]


def test_the_server_forgets_the_gradients(tmp_path: Path) -> None:
    task = two_kinds(participation=1.0, rounds=2)
    run = Run(task, floral(task), SEED)
    strategy = RolesStrategy(run, tmp_path / "server", patience=0.01)
    strategy.start(
        LocalGrid(client_app(lambda _: run, tmp_path / "clients"), 20), strategy.arrays, num_rounds=2
    )
    assert strategy.history.config[TOLD] is not None
    assert strategy.asking.answers == {}


@pytest.mark.parametrize("name", ["told", "federation"])
def test_a_task_says_nothing_in_the_servers_name(name: str, tmp_path: Path) -> None:
    task = replace(two_kinds(), details={name: [0] * 20})
    with pytest.raises(InputError, match=f"details has '{name}'"):
        Flown(task, methods.FLoRAL(task.model, 2, rank=1), tmp_path)


def test_more_clients_than_were_told_are_another_run(tmp_path: Path) -> None:
    Flown(task := two_kinds(rounds=3), floral(task), tmp_path)
    more = two_kinds(num_clients=24, rounds=5)
    with pytest.raises(InputError, match=r"the task has 24 clients, .* told the clusters of 20"):
        Flown(more, floral(more), tmp_path)


def with_arrays(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Message], RecordDict]:
    def changed(reply: Message) -> RecordDict:
        arrays = {
            name: Array(change(torch.tensor(array.numpy())).numpy())
            for name, array in reply.content.array_records["arrays"].items()
        }
        return RecordDict({"arrays": ArrayRecord(arrays), "metrics": reply.content.metric_records["metrics"]})

    return changed


def with_metrics(**changes: float) -> Callable[[Message], RecordDict]:
    def changed(reply: Message) -> RecordDict:
        reply.content.metric_records["metrics"].update(changes)
        return reply.content

    return changed


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (with_metrics(**{"num-examples": 1e10}), "num-examples is 10000000000.0; it must be"),
        (with_metrics(**{"train-loss": math.inf}), "train-loss is inf"),
        (with_arrays(lambda gradient: gradient * torch.nan), "numbers that are not finite"),
        (with_arrays(lambda gradient: gradient * 0 + LONGEST), "its gradient has the norm"),
        (with_arrays(lambda gradient: gradient.float()), "it must be float64"),
        (with_arrays(lambda gradient: gradient[:1]), "of shape"),
        (lambda reply: RecordDict({"metrics": reply.content.metric_records["metrics"]}), "arrays"),
    ],
    ids=["samples", "loss", "nan", "long", "type", "shape", "none"],
)
def test_a_bad_answer_does_not_count(
    change: Callable[[Message], RecordDict], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "flwr")
    task = two_kinds(participation=1.0, rounds=2)

    def lie(client: int, message: Message, reply: Message) -> list[Message]:
        if message.metadata.message_type == "train.ask" and client == 3:
            reply.content = change(reply)
        return [reply]

    told = Flown(task, floral(task), tmp_path, meddle=lie).server.history.config[TOLD]
    assert any("client 3 is dropped" in line and reason in line for line in caplog.messages), caplog.messages
    assert [client for client, cluster in enumerate(told) if cluster == -1] == [3]


def test_if_nobody_answers_the_routers_are_learned(tmp_path: Path) -> None:
    task = two_kinds(participation=1.0, rounds=3)

    def lost(client: int, message: Message, reply: Message) -> list[Message]:
        return [] if message.metadata.message_type == "train.ask" else [reply]

    history = Flown(task, floral(task), tmp_path, meddle=lost).server.history
    assert history.config[TOLD] is None
    assert [entry.train_loss > 0 for entry in history.rounds] == [False, True, True]


@pytest.mark.parametrize("killed_in", [2, 4])
def test_a_server_that_dies_asks_again_or_remembers(killed_in: int, tmp_path: Path) -> None:
    task = two_kinds()
    whole = Flown(task, floral(task), tmp_path / "whole")

    class Stop(BaseException):
        pass

    def stop(client: int, message: Message, reply: Message) -> list[Message]:
        if message.content.config_records["config"]["round"] == killed_in:
            raise Stop
        return [reply]

    with pytest.raises(Stop):
        Flown(task, floral(task), tmp_path / "killed", meddle=stop)
    resumed = Flown(task, floral(task), tmp_path / "killed")
    assert len(asked(resumed)) == (20 if killed_in == 2 else 0)
    assert_same(resumed.federation, whole.federation, tolerance=0)


def test_all_clients_answer_at_the_servers_model(tmp_path: Path) -> None:
    """Whatever their own networks begin with; and these stay as they are."""
    task = two_kinds()
    model = copy.deepcopy(task.model)
    for module in model[::2]:
        module.reset_parameters()
    other = replace(task, model=model)
    before = [parameter.clone() for parameter in other.model.parameters()]
    flown = Flown(task, floral(task), tmp_path / "one")
    grid = LocalGrid(client_app(lambda _: Run(other, floral(other), SEED), tmp_path / "clients"), 20)
    server = server_app(lambda _: Run(task, floral(task), SEED), tmp_path / "server", patience=0.01)
    server(grid, server_context())
    answers = [
        [
            reply.content.array_records["arrays"]
            for _, message, reply in sent
            if message.metadata.message_type == "train.ask"
        ]
        for sent in (flown.grid.sent, grid.sent)
    ]
    assert answers[0] == answers[1]
    assert all(torch.equal(*pair) for pair in zip(before, other.model.parameters(), strict=True))


def test_a_client_needs_its_own_data_only_and_a_server_none(tmp_path: Path) -> None:
    task = two_kinds()
    example = Shard(torch.zeros(1, 6).double(), torch.zeros(1, dtype=torch.long))

    def alone(shard: Shard, test: Shard) -> Run:
        own = replace(task, train=Population(20, lambda _: shard), test=Population(20, lambda _: test))
        return Run(own, floral(own), SEED)

    flown = Flown(task, floral(task), tmp_path / "all")
    apps = [
        client_app(lambda _, k=k: alone(task.train[k], task.test[k]), tmp_path / "clients") for k in range(20)
    ]
    flown.grid.app = lambda message, context: apps[int(context.node_config["partition-id"])](message, context)  # type: ignore[assignment]
    before = flown.server
    server_app(lambda _: alone(example, example), tmp_path / "server", patience=0.01)(
        flown.grid, server_context()
    )
    loaded = load_checkpoint(tmp_path / "server")
    assert loaded is not None
    assert_same(loaded[0], before, tolerance=0)


class OnFrozen(nn.Module):
    """A network behind a frozen layer in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 6).bfloat16().requires_grad_(False)
        self.head = nn.Linear(6, 3).double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        features = self.frozen(inputs.bfloat16()).double()
        outputs: torch.Tensor = self.head(torch.relu(features))
        return outputs


def test_what_is_frozen_is_not_sent_and_may_be_in_half_precision(tmp_path: Path) -> None:
    task = replace(two_kinds(participation=1.0, rounds=2), model=seeded(OnFrozen, 0))
    method = methods.Ensemble(task.model, 2, routing="clustered")
    flown = Flown(task, method, tmp_path)
    questions = [s[1] for s in flown.grid.sent if s[1].metadata.message_type == "train.ask"]
    assert len(questions) == 20
    for question in questions:
        assert set(question.content.array_records["arrays"]) == {"shared/head.weight", "shared/head.bias"}
    assert_same(flown.federation, train(task, method, seed=SEED, engine="loop"))


def test_sums_and_modifiers_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = two_kinds(participation=1.0, rounds=2)
    with pytest.raises(InputError, match="weighted is True, and routing is 'clustered'"):
        Flown(task, floral(task), tmp_path, weighted=True)
    caplog.set_level(logging.WARNING, "flwr")
    flown = Flown(task, floral(task), tmp_path, mods=[LocalDpMod(1.0, 2.0, 1.0, 1e-5)])
    assert sum("mods has 1 modifiers" in line for line in caplog.messages) == 20
    assert flown.server.history.config[TOLD] is None


def test_nothing_but_a_gradient_is_answered(tmp_path: Path) -> None:
    task = two_kinds()
    sent = [
        s for s in Flown(task, floral(task), tmp_path).grid.sent if s[1].metadata.message_type == "train.ask"
    ]
    assert len(sent) == 20
    for _, _, reply in sent:
        (metrics,) = reply.content.metric_records.values()
        assert set(metrics) == {"round", "num-examples", "train-loss"}
        weights = {name for name, one in task.model.named_parameters() if one.dim() > 1}
        assert set(reply.content.array_records["arrays"]) == {f"shared/{name}" for name in weights}


def test_a_client_believes_no_cluster_that_there_is_not() -> None:
    for kind in (torch.float32, torch.float64):
        leaning = told_router({ROUTER: torch.zeros(3, dtype=kind)}, 1)[ROUTER].softmax(dim=0)
        wanted = torch.tensor([(1 - LEANING) / 2, LEANING, (1 - LEANING) / 2], dtype=kind)
        torch.testing.assert_close(leaning, wanted)
    for private, cluster in (({ROUTER: torch.zeros(3)}, 3), ({ROUTER: torch.zeros(3)}, -1), ({}, 0)):
        with pytest.raises(BadMessage, match="the server speaks of cluster"):
            told_router(private, cluster)
