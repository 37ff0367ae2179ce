"""Over Flower a federation comes to the same numbers as on the engines."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'flwr>=1.41'")

from flwr.app import ConfigRecord

from floral_lite import Run, train
from floral_lite.centering import center
from floral_lite.federation import cluster_probability
from floral_lite.flower import RolesStrategy, client_app
from floral_lite.flower.messages import from_arrays
from floral_lite.methods import METHODS, ROUTER

from .federations import first_state, make_task, normal, single
from .flower_grid import LocalGrid
from .flower_runs import SEED, Flown, a_task, assert_same, make, network, with_norm


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


def test_a_user_s_words_are_passed_on(tmp_path: Path) -> None:
    task = a_task(participation=1.0, evaluate_every=0)
    run = Run(task, make("fedavg", task), SEED)
    strategy = RolesStrategy(run, tmp_path / "server", patience=0.01)
    grid = LocalGrid(client_app(lambda _: run, tmp_path / "clients"), task.num_clients)
    strategy.start(grid, strategy.arrays, num_rounds=2, train_config=ConfigRecord({"mine": 1, "round": 9}))
    asked = [one[1] for one in grid.sent if one[1].metadata.message_type == "train"]
    told = [message.content.config_records["config"] for message in asked]
    assert [(config["mine"], config["round"]) for config in told] == [(1, 1)] * 5 + [(1, 2)] * 5


def test_adaptors_are_centered_with_the_weights_that_came(tmp_path: Path) -> None:
    task = a_task(participation=1.0, router_learning_rate=20.0)
    method = make("floral", task)
    run = Run(task, method, SEED)
    strategy = RolesStrategy(run, tmp_path / "server", patience=0.01)
    grid = LocalGrid(client_app(lambda _: run, tmp_path / "clients"), task.num_clients)
    strategy.start(grid, strategy.arrays, num_rounds=5)
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


@pytest.mark.parametrize("name", ["floral", "ensemble"])
def test_so_it_is_with_the_closed_form(name: str, tmp_path: Path) -> None:
    task = a_task(router_learning_rate=0.0)
    method = make(name, task, routing="closed-form", router={"temperature": 0.1})
    flown = Flown(task, method, tmp_path).federation
    assert_same(flown, train(task, method, seed=SEED))
    assert flown.state.private[ROUTER].std() > 0.01


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
