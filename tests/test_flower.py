"""Over Flower a federation comes to the same numbers as on the engines; what is private stays where it is."""

import logging
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'flwr>=1.41'")

from flwr.app import Array, ConfigRecord, Context, Message, RecordDict

from floral_lite import Federation, History, InputError, Run, Shard, Task, methods, train
from floral_lite.centering import center
from floral_lite.federation import Population, cluster_probability, load_checkpoint
from floral_lite.federation.local import Score, evaluate, local_training
from floral_lite.flower import RolesStrategy, client_app, server_app
from floral_lite.flower.asking import told_router
from floral_lite.flower.client import Client
from floral_lite.flower.messages import from_arrays, to_arrays
from floral_lite.flower.resume import TOLD
from floral_lite.methods import METHODS, ROUTER, Method
from floral_lite.roles import Roles

from .federations import agree, first_state, make_task, normal, single
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


@pytest.mark.parametrize("name", [name for name in METHODS if name != "local"])
def test_the_run_is_that_of_the_engine(name: str, tmp_path: Path) -> None:
    build = with_norm if name == "fedbn" else network
    task = make_task(build, normal(4), rounds=5, batch_size=5, learning_rate=0.3)
    method = make(name, task)
    flown = Flown(task, method, tmp_path).federation
    engine = train(task, method, seed=SEED)
    assert_same(flown, engine)
    first = first_state(task, method, SEED)
    assert any(not torch.equal(*pair) for pair in zip(first.tensors(), flown.state.tensors(), strict=True))


@pytest.mark.parametrize("name", ["fedavg", "local-adaptor", "ensemble", "floral"])
def test_in_single_precision_the_paper_s_methods_come_to_the_same(name: str, tmp_path: Path) -> None:
    task = single(a_task())
    method = make(name, task)
    assert_same(Flown(task, method, tmp_path).federation, train(task, method, seed=SEED), tolerance=3e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"server_optimizer": "adam", "server_learning_rate": 0.05},
        {"server_learning_rate": 0.7, "server_momentum": 0.6},
        {"stateful": False},
        {"local_epochs": 2, "momentum": 0.5, "weight_decay": 0.01, "clip_norm": 0.5},
        {"participation": 0.2, "evaluate_every": 2},
        {"evaluate_every": 0},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_so_it_is_under_every_setting(changes: dict[str, Any], tmp_path: Path) -> None:
    task = a_task(**changes)
    method = make("floral", task)
    assert_same(Flown(task, method, tmp_path).federation, train(task, method, seed=SEED))


def test_a_variance_below_0_does_not_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Else nobody's test would have a finite loss any more, whatever the clip."""
    task = make_task(with_norm, normal(4), rounds=1, batch_size=5, statistics="averaged", participation=1.0)

    def turn(client: int, message: Message, reply: Message) -> list[Message]:
        arrays = reply.content.array_records.get("arrays", {})
        for name, array in arrays.items():
            if name.endswith("running_var") and client == 1:
                arrays[name] = Array(-100 * array.numpy())
        return [reply]

    caplog.set_level(logging.WARNING, "flwr")
    history = Flown(
        task, make("floral", task, norms="affine"), tmp_path, meddle=turn, clip_norm=1.0
    ).server.history
    assert history.rounds[0].test_loss is not None
    (line,) = caplog.messages
    assert "client 1 is dropped: 1.running_var has numbers below 0, and is a variance" in line


@pytest.mark.parametrize("statistics", ["local", "averaged"])
@pytest.mark.parametrize("norms", ["affine", "batch_nora"])
def test_so_it_is_with_batch_norms(statistics: str, norms: str, tmp_path: Path) -> None:
    # no last batch of one sample
    task = make_task(with_norm, normal(4), rounds=5, batch_size=5, statistics=statistics)
    method = make("floral", task, norms=norms)
    assert_same(Flown(task, method, tmp_path).federation, train(task, method, seed=SEED))


@pytest.mark.parametrize("stateful", [True, False])
def test_so_it_is_where_a_test_adapts_what_is_private(stateful: bool, tmp_path: Path) -> None:
    task = a_task(rounds=2, stateful=stateful)
    method = make("floral", task)
    method.adaptation = make("floral", task)
    assert_same(Flown(task, method, tmp_path).federation, train(task, method, seed=SEED))


def test_so_it_is_where_the_router_draws_noise(tmp_path: Path) -> None:
    task = a_task()
    method = make("floral", task, router={"noise": 1.0, "floor": 0.01})
    assert_same(Flown(task, method, tmp_path).federation, train(task, method, seed=SEED))


def test_adaptors_are_centered_with_the_weights_that_came_and_a_user_s_words_are_passed_on(
    tmp_path: Path,
) -> None:
    task = a_task(participation=1.0, router_learning_rate=20.0)
    method = make("floral", task)
    run = Run(task, method, SEED)
    strategy = RolesStrategy(run, tmp_path / "server", patience=0.01)
    grid = LocalGrid(client_app(lambda _: run, tmp_path / "clients"), task.num_clients)
    strategy.start(grid, strategy.arrays, num_rounds=5, train_config=ConfigRecord({"mine": 1, "round": 9}))
    asked = [one[1] for one in grid.sent if one[1].metadata.message_type == "train"]
    told = [message.content.config_records["config"] for message in asked]
    assert {(config["mine"], config["round"]) for config in told} == {(1, number) for number in range(1, 6)}
    engine = train(task, method, seed=SEED)
    sizes = torch.tensor([float(len(shard)) for shard in task.train])
    probability = cluster_probability(method.mixtures(engine.state.private, 5), sizes)
    assert probability.max() - probability.min() > 0.01
    torch.testing.assert_close(strategy.probability, probability)
    one = center(method.plan, strategy.state.shared, strategy.state.clustered, strategy.probability)  # type: ignore[attr-defined]
    other = center(method.plan, engine.state.shared, engine.state.clustered, probability)  # type: ignore[attr-defined]
    for name in one.base:
        torch.testing.assert_close(one.base[name], other.base[name])
        assert not torch.equal(one.base[name], engine.state.shared[name])


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


def test_a_server_looks_at_no_data(tmp_path: Path) -> None:
    """Its example may be a single sample, over which a batch norm has no variance; a client's may not."""
    task = make_task(with_norm, normal(4), batch_size=5)
    example = Shard(torch.zeros(1, 4, dtype=torch.float64), torch.zeros(1, dtype=torch.long))
    alone = replace(task, train=Population(5, lambda _: example), test=Population(5, lambda _: example))
    run = Run(alone, make("floral", alone), SEED)
    strategy = RolesStrategy(run, tmp_path)
    config = ConfigRecord({"round": 1, "federation": "0" * 16})
    message = Message(RecordDict({"arrays": strategy.arrays, "config": config}), 100, "train")
    with pytest.raises(InputError, match="its last batch has one"):
        Client(run, 0, tmp_path, message)


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


@pytest.mark.parametrize("name", ["ifca", "federated-clustering", "floral"])
def test_what_nobody_averages_comes_back_as_it_was_sent(name: str, tmp_path: Path) -> None:
    """Weight decay moves it, and centres of momenta; whoever clips an update would count that."""
    task = a_task(rounds=2, weight_decay=0.1)
    options = {"routing": "optimal"} if name == "floral" else {}
    method = make(name, task, num_clusters=3, **options)
    flown = Flown(task, method, tmp_path)
    num_others = 0
    for _, message, reply in flown.grid.sent:
        if message.metadata.message_type == "train":
            sent, come = (
                from_arrays(one.content.array_records["arrays"], first_state(task, method, SEED))
                for one in (message, reply)
            )
            (metrics,) = reply.content.metric_records.values()
            for cluster, weight in enumerate(metrics["weights"]):
                pairs = [(come.clustered[key][cluster], one[cluster]) for key, one in sent.clustered.items()]
                assert weight > 0 or all(torch.equal(*pair) for pair in pairs)
                num_others += weight == 0
    assert num_others == 2 * 4 * 2
    assert_same(flown.federation, train(task, method, seed=SEED))


def test_in_the_pre_weighted_form_the_average_is_the_same(tmp_path: Path) -> None:
    task = a_task()
    for name in ("fedavg", "floral", "ifca"):
        method = make(name, task)
        flown = Flown(task, method, tmp_path / name, weighted=True).federation
        assert_same(flown, train(task, method, seed=SEED), tolerance=1e-9)


@pytest.mark.parametrize("choices", [{"weighted": True}, {"trim": 0.1}], ids=str)
def test_where_a_router_has_as_good_as_left_a_cluster_it_keeps_its_slice(
    choices: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every average: of weights such as 1e-42 products have no digits left."""
    task = single(a_task(rounds=1, router_learning_rate=0.0))
    method = make("floral", task)
    logits = torch.tensor([0.0, 1.0, 2.0, -95.0])
    assert 0 < logits.softmax(dim=0)[3] < 1e-40
    begin = method.initialise
    monkeypatch.setattr(
        method, "initialise", lambda *given: begin(*given)._replace(private={ROUTER: logits.expand(5, -1)})
    )
    first = first_state(task, method, SEED)
    state = Flown(task, method, tmp_path, **choices).server.state
    for name, slices in state.clustered.items():
        assert torch.equal(slices[3], first.clustered[name][3]), name
        assert name.endswith("V") or not torch.equal(slices[0], first.clustered[name][0])


def test_a_server_that_is_started_again_goes_on(tmp_path: Path) -> None:
    task = a_task(server_optimizer="adam", server_learning_rate=0.05)
    method = make("floral", task)
    whole = Flown(task, method, tmp_path / "whole").federation

    class Stop(BaseException):
        pass

    def stop(client: int, message: Message, reply: Message) -> list[Message]:
        """The third round has begun: some clients have trained, and the server dies."""
        config = message.content.config_records["config"]
        if config["round"] == 3 and message.metadata.message_type == "train" and client == 2:
            raise Stop
        return [reply]

    with pytest.raises(Stop):
        Flown(task, method, tmp_path / "killed", meddle=stop)
    resumed = Flown(task, method, tmp_path / "killed")
    assert [entry.round for entry in resumed.server.history.rounds] == [1, 2, 3, 4, 5]
    rounds = {sent[1].content.config_records["config"]["round"] for sent in resumed.grid.sent[5:]}
    assert rounds == {3, 4, 5}
    assert_same(resumed.federation, whole, tolerance=0)
    # once more: nothing is left to do
    again = Flown(task, method, tmp_path / "killed")
    assert again.grid.sent == []
    assert History.load(tmp_path / "killed" / "server" / "history.json").rounds == whole_rounds(resumed)


def test_one_server_at_a_time_is_at_work_in_a_folder(tmp_path: Path) -> None:
    """Two would ask the same clients for different rounds, and the later file would be neither's."""
    task = a_task(rounds=2)
    method = make("floral", task)
    tried = []

    def start_another(client: int, message: Message, reply: Message) -> list[Message]:
        if not tried:
            tried.append(client)
            with pytest.raises(InputError, match="another process is at work in the folder"):
                Flown(task, method, tmp_path / "one")
        return [reply]

    flown = Flown(task, method, tmp_path / "one", meddle=start_another)
    assert len(tried) == 1
    assert_same(flown.federation, Flown(task, method, tmp_path / "alone").federation, tolerance=0)
    assert {path.name for path in (tmp_path / "one" / "server").iterdir()} == {"history.json", "round-000002"}


def whole_rounds(flown: Flown) -> list[Any]:
    return flown.server.history.rounds


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


@pytest.mark.parametrize("name", ["floral", "ensemble"])
def test_so_it_is_with_the_closed_form(name: str, tmp_path: Path) -> None:
    task = a_task(router_learning_rate=0.0)
    method = make(name, task, routing="closed-form", router={"temperature": 0.1})
    flown = Flown(task, method, tmp_path).federation
    assert_same(flown, train(task, method, seed=SEED))
    assert flown.state.private[ROUTER].std() > 0.01


def test_a_method_that_shares_nothing_is_refused(tmp_path: Path) -> None:
    task = a_task()
    with pytest.raises(InputError, match="clients share nothing"):
        Flown(task, make("local", task), tmp_path)


class OtherWeights(methods.FLoRAL):
    """Averages with other weights than those that its networks are mixed with."""

    name = "other-weights"

    def mixture(self, private: dict[str, torch.Tensor]) -> torch.Tensor:
        return (3 * private[ROUTER]).softmax(dim=-1)


class NoRouter(methods.FLoRAL):
    """Loses what is private."""

    name = "no-router"

    def finish(self, client: Roles, start: Roles) -> Roles:
        return client._replace(private={})


@pytest.mark.parametrize("adapts", [False, True])
@pytest.mark.parametrize("kind", [OtherWeights, NoRouter])
def test_a_method_of_one_s_own_that_the_engines_refuse_is_refused(
    kind: type[methods.FLoRAL], adapts: bool, tmp_path: Path
) -> None:
    """Else the one would train something else than its networks, and the other nothing, in every round."""
    task = a_task(rounds=1)
    method = own = kind(task.model, 2, rank=1)
    if adapts:
        method = methods.FLoRAL(task.model, 2, rank=1)
        method.adaptation = own
    with pytest.raises(InputError) as engine:
        train(task, method, seed=SEED, engine="loop")
    with pytest.raises(InputError, match=kind.__name__) as flower:
        Flown(task, method, tmp_path)
    assert str(flower.value) == str(engine.value)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
def test_a_model_in_half_precision_is_refused(kind: torch.dtype, tmp_path: Path) -> None:
    """Its weights would not sum to N^k, and of bfloat16 NumPy knows nothing."""
    task = a_task()
    task.model.to(kind)
    with pytest.raises(InputError, match=rf"parameters of \['{kind}', .*\]; over Flower they must be"):
        RolesStrategy(Run(task, make("floral", task), SEED), tmp_path)


def test_a_server_takes_a_run_only(tmp_path: Path) -> None:
    """What make() forgot to return, say."""
    for wrong in (None, "x"):
        with pytest.raises(InputError, match=rf"a run is {wrong!r}; each must be a Run"):
            RolesStrategy(wrong, tmp_path)  # type: ignore[arg-type]
    task = a_task()
    with pytest.raises(InputError, match=r"min_replies is 1\.5; it must be a whole number"):
        RolesStrategy(Run(task, make("fedavg", task), SEED), tmp_path, min_replies=1.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"min_replies is 5; of the 5 clients 4 are sampled a round"):
        RolesStrategy(Run(task, make("fedavg", task), SEED), tmp_path, min_replies=5)
    # and so does a client
    grid = LocalGrid(client_app(lambda _: None, tmp_path), 1)  # type: ignore[arg-type,return-value]
    (reply,) = grid.deliver(Message(RecordDict(), 100, "train"))
    assert "a run is None; each must be a Run" in reply.error.reason
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), "x", None])
def test_a_server_that_would_wait_for_no_reply_is_refused(timeout: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"timeout is '?{timeout}"):
        server_app(dict, tmp_path, timeout=timeout)  # type: ignore[arg-type]


def test_a_round_waits_for_replies_as_long_as_the_server_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []

    def in_vain(
        grid: LocalGrid, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        waits.append(timeout)
        return []

    monkeypatch.setattr(LocalGrid, "send_and_receive", in_vain)
    task = a_task(rounds=1)
    Flown(task, make("fedavg", task), tmp_path, timeout=7.0)
    assert waits == [7.0, 7.0]  # of the training, and of the test


def test_the_rounds_are_a_part_of_the_time(tmp_path: Path) -> None:
    task = a_task(rounds=2)
    begun = time.perf_counter()
    rounds = Flown(task, make("fedavg", task), tmp_path).server.history.rounds
    assert 0 < sum(entry.seconds for entry in rounds) < time.perf_counter() - begun


def test_a_round_without_a_test_misses_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flwr")
    task = a_task(rounds=1, evaluate_every=0)
    Flown(task, make("fedavg", task), tmp_path)
    assert not any("goes on without" in line for line in caplog.messages)


def test_a_server_s_optimizer_leaves_what_nobody_has_changed(tmp_path: Path) -> None:
    """Adam would take the rounding of an average for a gradient."""
    task = a_task(rounds=2, server_optimizer="adam", server_learning_rate=0.05)
    for shard in task.train:
        shard.inputs[:, 0] = 0
    method = make("fedavg", task)
    before = first_state(task, method, SEED).shared["0.weight"]
    after = Flown(task, method, tmp_path).server.state.shared["0.weight"]
    assert torch.equal(after[:, 0], before[:, 0])
    assert not torch.equal(after[:, 1], before[:, 1])


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


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    task = a_task(rounds=2)
    Flown(task, make("floral", task), tmp_path)
    other = a_task(rounds=2, learning_rate=0.2)
    with pytest.raises(InputError, match=r"learning_rate is 0\.2"):
        Flown(other, make("floral", other), tmp_path)
    fewer = a_task(rounds=1)
    with pytest.raises(InputError, match="rounds is 1, but"):
        Flown(fewer, make("floral", fewer), tmp_path)


def test_a_new_run_has_new_files(tmp_path: Path) -> None:
    task = a_task(rounds=2)
    method = make("floral", task)
    one = Flown(task, method, tmp_path)
    kept = {path: path.read_bytes() for path in (tmp_path / "clients").rglob("*.safetensors")}
    theta = one.federation.state.private[ROUTER]
    shutil.rmtree(tmp_path / "server")
    other = Flown(task, method, tmp_path)
    assert torch.equal(other.federation.state.private[ROUTER], theta)
    assert {path: path.read_bytes() for path in kept} == kept


def test_arrays_have_nothing_private() -> None:
    state = Roles({"a": torch.zeros(2)}, {"b": torch.zeros(2, 3)}, {ROUTER: torch.zeros(4)})
    assert list(to_arrays(state)) == ["shared/a", "clustered/b"]


def test_a_tensor_in_columns_is_sent_row_by_row() -> None:
    state = Roles({"a": torch.arange(6.0).view(2, 3).T}, {}, {})
    assert torch.equal(from_arrays(to_arrays(state), state).shared["a"], state.shared["a"])
