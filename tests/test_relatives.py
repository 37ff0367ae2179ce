"""Methods that need more than roles: their rounds by hand, and beside implementations of a few lines."""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from floral_lite import Federation, InputError, Settings, Shard, Task, methods, train
from floral_lite.federation import Engine, Run, train_runs
from floral_lite.federation.aggregate import aggregate
from floral_lite.federation.loop import federated_round
from floral_lite.methods import METHODS, ROUTER, Method
from floral_lite.models import reinitialised
from floral_lite.roles import Roles, num_bytes
from floral_lite.router import one_hot_logits

from .federations import Jitter, agree, first_state, identical, make_task, normal

CLUSTERS = torch.tensor([0, 1, 2, 0, 1])
OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {"num_clusters": 3} for name in ("ensemble", "mfl", "ifca", "fedem", "federated-clustering")},
    "floral": {"num_clusters": 3, "rank": 1},
    "mfl-ws": {"num_clusters": 3, "rank": 1},
    "local-adaptor": {"rank": 1},
}
# Those of this file.
NAMES = [
    "mfl", "mfl-ws", "fine-tuned", "fedprox", "ditto", "per-fedavg", "ifca", "fedem", "federated-clustering",
]  # fmt: skip
STATELESS = [name for name in NAMES if name != "federated-clustering"]


def make(name: str, model: nn.Module, **options: Any) -> Method:
    return methods.make(name, model, **OPTIONS.get(name, {}) | options)


def names(role: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in role.items()}


@pytest.mark.parametrize("name", ["fine-tuned", "fedprox", "per-fedavg"])
def test_some_share_everything(name: str) -> None:
    state = make(name, nn.Linear(4, 2)).initialise(CLUSTERS, seed=0)
    assert names(state.shared) == {"weight": (2, 4), "bias": (2,)}
    assert not state.clustered
    assert not state.private


def test_ditto_has_a_shared_model_and_one_of_each_clients_own() -> None:
    method = methods.Ditto(nn.Linear(4, 2))
    state = method.initialise(CLUSTERS, seed=0)
    assert names(state.shared) == {"weight": (2, 4), "bias": (2,)}
    assert not state.clustered
    assert names(state.private) == {"own.weight": (5, 2, 4), "own.bias": (5, 2)}
    state.private["own.bias"] = state.private["own.bias"] + torch.arange(5.0)[:, None]
    # which is the one that is tested
    personal = method.personalise(state.of_client(3))
    assert torch.equal(personal["bias"], state.shared["bias"] + 3)
    assert [len(network) for network in method.networks(state.of_client(3))] == [2, 2]


@pytest.mark.parametrize("name", ["mfl", "fedem", "ifca"])
def test_some_cluster_the_whole_model(name: str) -> None:
    state = make(name, nn.Linear(4, 2)).initialise(CLUSTERS, seed=0)
    assert not state.shared
    assert names(state.clustered) == {"weight": (3, 2, 4), "bias": (3, 2)}
    assert names(state.private) == {ROUTER: (5, 3)}
    assert not torch.equal(*state.clustered["weight"][:2])


def test_mfl_ws_has_the_roles_of_floral() -> None:
    ours, floral = (make(name, nn.Linear(4, 2)).initialise(CLUSTERS, seed=0) for name in ("mfl-ws", "floral"))
    assert [names(role) for role in ours] == [names(role) for role in floral]


def test_federated_clustering_clusters_models_and_centres() -> None:
    state = methods.FederatedClustering(nn.Linear(4, 2), 3).initialise(CLUSTERS, seed=0)
    assert not state.shared
    tensors = {"weight": (2, 4), "bias": (2,), "momentum of weight": (2, 4), "momentum of bias": (2,)}
    assert names(state.clustered) == {name: (3, *shape) for name, shape in tensors.items()}
    own = {name: (5, *shape) for name, shape in tensors.items() if "momentum" in name}
    assert names(state.private) == {ROUTER: (5, 3), **own}
    # models alike, clients in clusters by chance
    assert torch.equal(*state.clustered["weight"][:2])
    assert len(state.private[ROUTER].argmax(dim=1).unique()) > 1
    again, other = (methods.FederatedClustering(nn.Linear(4, 2), 3).initialise(CLUSTERS, n) for n in (0, 1))
    assert torch.equal(state.private[ROUTER], again.private[ROUTER])
    assert not torch.equal(state.private[ROUTER], other.private[ROUTER])


@pytest.mark.parametrize("name", METHODS)
def test_a_client_in_one_cluster_sends_that_alone(name: str) -> None:
    # a norm for FedBN
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3)).double()
    task = replace(ragged(0, rounds=1), model=model)
    method = make(name, task.model)
    history, state, _ = train(task, method)
    shared, clustered = num_bytes(state.shared), num_bytes(state.clustered)
    # one model (and one momentum) of three, N^k, and which one it is
    alone = clustered // 3 + 2 * 4
    every = shared + clustered + 4 * len(method.mixture(state.of_client(0).private))
    sent = {"ifca": alone, "federated-clustering": alone, "local": 0}.get(name, every)
    assert (history.bytes_up, history.bytes_down) == (sent, shared + clustered)


@pytest.mark.parametrize("name", ["ifca", "federated-clustering"])
def test_the_server_needs_no_more_of_a_client_in_one_cluster(name: str) -> None:
    task = ragged(0, rounds=1)
    method = make(name, task.model)
    state = train(task, method).state
    assert method.sends_one_cluster

    def alone(client: Roles) -> Roles:
        """Without what other clusters have."""
        cluster = method.mixture(client.private).argmax()
        sent = {key: torch.zeros_like(tensor) for key, tensor in client.clustered.items()}
        for key, tensor in client.clustered.items():
            sent[key][cluster] = tensor[cluster]
        return client._replace(clustered=sent)

    clients = [state.of_client(k) for k in range(task.num_clients)]
    sizes = torch.tensor([float(len(shard)) for shard in task.train])
    mixtures = torch.stack([method.mixture(client.private) for client in clients])
    every, one = (
        aggregate(state, range(task.num_clients), sent, sizes, mixtures)
        for sent in (clients, [alone(client) for client in clients])
    )
    assert len(mixtures.argmax(dim=1).unique()) > 1
    assert all(torch.equal(*pair) for pair in zip(every.tensors(), one.tensors(), strict=True))


def one_number(targets: Sequence[float], start: float = 1.0, **settings: Any) -> Task:
    """The model w x, the loss (w x - y)^2 whose slope at x = 1 is 2 (w - y), one sample a client."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, start)

    def shard(target: float) -> Shard:
        return Shard(torch.ones(1, 1).double(), torch.tensor([[target]]).double())

    usual = {"rounds": 1, "learning_rate": 0.1, "router_learning_rate": 1.0, "evaluate_every": 1}
    shards = [shard(target) for target in targets]
    return Task(
        name="one number",
        model=model,
        loss=functional.mse_loss,
        train=shards,
        test=shards,
        clusters=torch.zeros(len(targets), dtype=torch.long),
        settings=Settings(**usual | settings),
        details={},
    )


def weight(federation: Federation) -> float:
    return float(federation.state.shared["weight"])


def test_fedprox_pulls_towards_the_model_that_the_round_began_with(engine: Engine) -> None:
    task = one_number([0.0], local_epochs=2)
    # 1 - 0.1 * 2 = 0.8, and 0.8 - 0.1 * (1.6 + mu (0.8 - 1))
    for proximal, expected in ((0.0, 0.64), (1.0, 0.66), (3.0, 0.70)):
        after = train(task, methods.FedProx(task.model, proximal), engine=engine)
        assert weight(after) == pytest.approx(expected)
    # from then on towards what the second round began with, and no longer towards 1
    after = train(task, methods.FedProx(task.model, 1.0), engine=engine, rounds=2)
    assert weight(after) == pytest.approx(0.66**2)


def test_ditto_trains_a_global_model_and_one_of_its_own_beside_it(engine: Engine) -> None:
    task = one_number([0.0, 2.0], local_epochs=2)
    after = train(task, methods.Ditto(task.model, proximal=1.0), engine=engine)
    # the global one is the average of 0.64 and 2 - 0.64
    assert weight(after) == pytest.approx(1.0)
    own = after.state.private["own.weight"].flatten().tolist()
    assert own == pytest.approx([0.66, 1.34])
    assert after.history.rounds[-1].client_loss == pytest.approx([0.66**2, 0.66**2])
    # in the first round both lose the same: 1, then 0.64
    assert after.history.rounds[-1].train_loss == pytest.approx(2 * (1 + 0.64) / 2)


def test_per_fedavg_takes_the_gradient_a_step_ahead(engine: Engine) -> None:
    task = one_number([0.0])
    after = train(task, methods.PerFedAvg(task.model, inner_learning_rate=0.25), engine=engine)
    # ahead is 1 - 0.25 * 2 = 0.5, where the slope is 1
    assert weight(after) == pytest.approx(0.9)
    assert after.history.rounds[-1].train_loss == pytest.approx(0.25)
    # tested after a plain step of size 0.1: 0.9 - 0.1 * 1.8
    assert after.history.rounds[-1].test_loss == pytest.approx(0.72**2)


def test_fine_tuned_models_are_tested_and_forgotten(engine: Engine) -> None:
    task = one_number([0.0, 2.0])
    plain, tuned = (
        train(task, method(task.model), engine=engine, rounds=3)
        for method in (methods.FedAvg, methods.FineTuned)
    )
    assert weight(tuned) == weight(plain)
    assert [entry.train_loss for entry in tuned.history.rounds] == [
        entry.train_loss for entry in plain.history.rounds
    ]
    # from 1 to 0.8 or 1.2
    assert plain.history.rounds[-1].client_loss == pytest.approx([1.0, 1.0])
    assert tuned.history.rounds[-1].client_loss == pytest.approx([0.64, 0.64])


def test_tuning_takes_the_batches_and_the_draws_of_the_next_round(engine: Engine) -> None:
    """What a client would send then, were it alone: tested, it has the loss of the next round's model."""
    alone: dict[str, Any] = {"sizes": (7,), "test_sizes": (5,), "clusters": (0,)}
    task = make_task(lambda: nn.Sequential(Jitter(), nn.Linear(4, 3)), normal(4), **alone)
    tuned = train(task, methods.FineTuned(task.model), engine=engine, rounds=2)
    plain = train(task, methods.FedAvg(task.model), engine=engine, rounds=3)
    losses = [[entry.test_loss for entry in run.history.rounds] for run in (tuned, plain)]
    assert losses[0] == pytest.approx(losses[1][1:])


def a_round(task: Task, method: Method, models: Sequence[float], logits: Tensor) -> Roles:
    """A round of the readable loop, from models w_c and routers."""
    state = Roles({}, {"weight": torch.tensor(models).double().view(-1, 1, 1)}, {ROUTER: logits.double()})
    after, _ = federated_round(task, method, state, state, task.settings, seed=0, number=1)
    return after


def test_mfl_weighs_losses_with_the_mixture() -> None:
    task = one_number([0.0])
    after = a_round(task, methods.MFL(task.model, 2), [1.0, 3.0], torch.zeros(1, 2))
    # w_c - 0.1 * pi_c * 2 w_c
    assert after.clustered["weight"].flatten().tolist() == pytest.approx([0.9, 2.7])
    # pi_c (f(w_c) - sum_c' pi_c' f(w_c')) with losses 1 and 9
    assert after.private[ROUTER][0].tolist() == pytest.approx([2.0, -2.0])


def test_fedem_weighs_samples_with_their_responsibilities() -> None:
    task = one_number([0.0])
    logits = torch.tensor([[math.log(0.2), math.log(0.8)]])
    after = a_round(task, methods.FedEM(task.model, 2), [1.0, 0.5], logits)
    # losses 1 and 0.25
    weights = [0.2 * math.exp(-1), 0.8 * math.exp(-0.25)]
    q = [one / sum(weights) for one in weights]
    expected = [1 - 0.1 * q[0] * 2 * 1.0, 0.5 - 0.1 * q[1] * 2 * 0.5]
    assert after.clustered["weight"].flatten().tolist() == pytest.approx(expected)
    moved = [math.log(0.2) - (0.2 - q[0]), math.log(0.8) - (0.8 - q[1])]
    assert after.private[ROUTER][0].tolist() == pytest.approx(moved, abs=1e-7)


def test_ifca_trains_the_model_that_fits_best() -> None:
    task = one_number([0.0, 4.0, 3.0])
    method = methods.IFCA(task.model, 3)
    after = a_round(task, method, [1.0, 3.0, 9.0], one_hot_logits(torch.zeros(3).long(), 3))
    chosen = method.only_cluster(after.private)
    assert chosen is not None
    assert chosen.tolist() == [0, 1, 1]
    # 1 - 0.1 * 2; the average of 3 + 0.1 * 2 and 3; nobody's
    assert after.clustered["weight"].flatten().tolist() == pytest.approx([0.8, 3.1, 9.0])


def test_momentum_clustering_follows_the_nearest_centre() -> None:
    task = one_number([0.0, 0.5, 4.0], start=1.0)
    method = methods.FederatedClustering(task.model, 2, update_momentum=0.75)
    state = first_state(task, method)
    state.private[ROUTER].copy_(one_hot_logits(torch.tensor([0, 1, 1]), 2))

    def next_round(state: Roles, number: int) -> Roles:
        return federated_round(task, method, state, state, task.settings, 0, number)[0]

    first = next_round(state, 1)
    # nobody moves without momentum; updates are 0.1 * 2 (1 - y)
    assert first.private[ROUTER].argmax(dim=1).tolist() == [0, 1, 1]
    assert first.private["momentum of weight"].flatten().tolist() == pytest.approx([0.2, 0.1, -0.6])
    assert first.clustered["momentum of weight"].flatten().tolist() == pytest.approx([0.2, -0.25])
    assert first.clustered["weight"].flatten().tolist() == pytest.approx([0.8, 1.25])
    second = next_round(first, 2)
    # 0.1 is nearer to 0.2 than to -0.25, so the second client trains from 0.8
    assert second.private[ROUTER].argmax(dim=1).tolist() == [0, 0, 1]
    updates = [0.2 * (0.8 - 0.0), 0.2 * (0.8 - 0.5), 0.2 * (1.25 - 4.0)]
    momenta = [0.75 * m + 0.25 * u for m, u in zip([0.2, 0.1, -0.6], updates, strict=True)]
    assert second.private["momentum of weight"].flatten().tolist() == pytest.approx(momenta)
    centres = second.clustered["momentum of weight"].flatten().tolist()
    assert centres == pytest.approx([(momenta[0] + momenta[1]) / 2, momenta[2]])


def test_a_layer_may_be_called_momentum() -> None:
    models = [nn.Sequential(OrderedDict({name: nn.Linear(4, 3).double()})) for name in ("momentum", "layer")]
    models[0].load_state_dict(dict(zip(models[0].state_dict(), models[1].state_dict().values(), strict=True)))
    task = make_task(lambda: models[1], normal(4), participation=1.0)
    runs = [
        train(replace(task, model=model), methods.FederatedClustering(model, 2), rounds=2) for model in models
    ]
    for one, other in zip(*(run.state.tensors() for run in runs), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_a_momentum_may_have_zeros_in_it(beta: float) -> None:
    """As behind a unit that is dead: only one that is all zero is none yet."""
    method = methods.FederatedClustering(nn.Linear(2, 1, bias=False), 2, update_momentum=beta)
    clustered = {
        "weight": torch.zeros(2, 1, 2),
        "momentum of weight": torch.tensor([[[0.0, 0.0]], [[0.0, 1.0]]]),
    }
    own = {ROUTER: one_hot_logits(torch.tensor(0), 2), "momentum of weight": torch.tensor([[0.0, 1.0]])}
    start = method.begin(Roles({}, clustered, own), None)
    assert method.only_cluster(start.private) == 1
    end = start._replace(clustered=clustered | {"weight": torch.full((2, 1, 2), -2.0)})
    # beta (0, 1) + (1 - beta) (2, 2)
    expected = torch.tensor([[2 - 2 * beta, 2 - beta]])
    torch.testing.assert_close(method.finish(end, start).private["momentum of weight"], expected)


def whole_batches(name: str, **options: Any) -> tuple[Task, Method, Roles, Federation]:
    """A classifier on ragged clients, three rounds of one step a client, in the fast engine."""
    task = make_task(
        lambda: nn.Linear(4, 3), normal(4), participation=1.0, batch_size=100, router_learning_rate=0.5
    )
    method = make(name, task.model, **options)
    return task, method, first_state(task, method), train(task, method)


Vector = list[Tensor]


def cross_entropies(models: Vector, shard: Shard) -> Vector:
    """Of linear classifiers (3, 5), whose last column is the bias, each sample's loss."""
    return [
        functional.cross_entropy(shard.inputs @ w[:, :4].T + w[:, 4], shard.targets, reduction="none")
        for w in models
    ]


def joined(state: Roles) -> Vector:
    parts = torch.cat([state.clustered["weight"], state.clustered["bias"][..., None]], dim=2)
    return list(parts.unbind())


def test_ifca_beside_an_implementation_of_its_own() -> None:
    task, _, first, after = whole_batches("ifca")
    models = joined(first)
    for _ in range(3):
        sums, sizes = [torch.zeros(3, 5).double() for _ in models], [0, 0, 0]
        for shard in task.train:
            best = min(range(3), key=lambda c: float(cross_entropies(models, shard)[c].mean()))
            w = models[best].clone().requires_grad_()
            (slope,) = torch.autograd.grad(cross_entropies([w], shard)[0].mean(), w)
            sums[best] += len(shard) * (w - 0.1 * slope).detach()
            sizes[best] += len(shard)
        models = [total / n if n else w for total, n, w in zip(sums, sizes, models, strict=True)]
    torch.testing.assert_close(torch.stack(joined(after.state)), torch.stack(models))


def test_fedem_beside_an_implementation_of_its_own() -> None:
    """E-step, weighted gradients and a step of pi, written out without a likelihood."""
    task, _, first, after = whole_batches("fedem")
    models, theta = joined(first), [torch.zeros(3).double() for _ in task.train]
    for _ in range(3):
        sums = [torch.zeros(3, 5).double() for _ in models]
        totals = torch.zeros(3).double()
        for k, shard in enumerate(task.train):
            pi = theta[k].softmax(0)
            own = [w.clone().requires_grad_() for w in models]
            losses = cross_entropies(own, shard)
            joint = torch.stack([pi[c] * (-losses[c].detach()).exp() for c in range(3)])
            q = joint / joint.sum(dim=0)
            slopes = [torch.autograd.grad((q[c] * losses[c]).mean(), own[c])[0] for c in range(3)]
            theta[k] = theta[k] - 0.5 * (pi - q.mean(dim=1))
            weights = len(shard) * theta[k].softmax(0)
            totals += weights
            for c in range(3):
                sums[c] += weights[c] * (own[c] - 0.1 * slopes[c]).detach()
        models = [total / n for total, n in zip(sums, totals, strict=True)]
    torch.testing.assert_close(torch.stack(joined(after.state)), torch.stack(models))
    torch.testing.assert_close(after.state.private[ROUTER], torch.stack(theta))


def test_one_hot_ensembles_are_so_many_federations() -> None:
    """C times FedAvg, each of its own clients; with whole batches, whose order says nothing."""
    task, _, _, after = whole_batches("ensemble", routing="optimal")
    for c in range(3):
        mine = [k for k, cluster in enumerate(task.clusters.tolist()) if cluster == c]
        model = reinitialised(task.model, 0, c) if c else task.model
        alone = replace(
            task,
            model=model,
            train=[task.train[k] for k in mine],
            test=[task.test[k] for k in mine],
            clusters=torch.zeros(len(mine), dtype=torch.long),
        )
        federation = train(alone, methods.FedAvg(model))
        for name, tensor in federation.state.shared.items():
            torch.testing.assert_close(after.state.clustered[name][c], tensor, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["mfl", "fedem", "ensemble of outputs"])
@pytest.mark.parametrize("network", ["deep", "batch norm"])
def test_with_one_hot_routes_it_does_not_matter_what_is_mixed(
    name: str, network: str, engine: Engine
) -> None:
    """Weights, outputs, losses or likelihoods."""
    norm: Callable[[], nn.Module] = nn.ReLU if network == "deep" else lambda: nn.BatchNorm1d(6)
    task = make_task(
        lambda: nn.Sequential(nn.Linear(4, 6), norm(), nn.Linear(6, 3)), normal(4), clusters=(0, 1, 0, 1, 1)
    )
    options: dict[str, Any] = {"num_clusters": 2, "routing": "optimal"}
    weights = train(task, methods.Ensemble(task.model, **options), engine=engine)
    other = methods.Ensemble(task.model, **options, mix="outputs")
    if name != "ensemble of outputs":
        other = methods.make(name, task.model, **options)  # type: ignore[assignment]
    mixed = train(task, other, engine=engine)
    for one, another in zip(mixed.history.rounds, weights.history.rounds, strict=True):
        assert one.train_loss == pytest.approx(another.train_loss, rel=1e-12)
        assert one.client_loss == pytest.approx(another.client_loss, rel=1e-12)
        assert one.client_accuracy == another.client_accuracy
    for tensor, expected in zip(
        mixed.state.clustered.values(), weights.state.clustered.values(), strict=True
    ):
        torch.testing.assert_close(tensor, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("classifies", [True, False])
def test_mixtures_predict_mixtures(classifies: bool) -> None:
    method = methods.MFL(nn.Linear(4, 3), 2)
    client = Roles({}, {}, {ROUTER: torch.tensor([0.3, 0.7]).log()})
    outputs = [torch.randn(5, 3), torch.randn(5, 3)]
    predicted = method.predict(client, outputs, classifies)
    if classifies:
        expected = 0.3 * outputs[0].softmax(dim=1) + 0.7 * outputs[1].softmax(dim=1)
        predicted = predicted.exp()
    else:
        expected = 0.3 * outputs[0] + 0.7 * outputs[1]
    torch.testing.assert_close(predicted, expected)


def test_a_batch_norm_has_statistics_of_its_own_in_each_network() -> None:
    task = make_task(
        lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), normal(4), rounds=1
    )
    for statistics in ("local", "averaged"):
        state = train(task, make("mfl", task.model), statistics=statistics).state
        means = (state.private if statistics == "local" else state.shared)["1.running_mean"]
        assert means.shape == ((5, 3, 6) if statistics == "local" else (3, 6))
        of_networks = means[0] if statistics == "local" else means
        assert (of_networks[0] - of_networks[1]).abs().min() > 1e-4


def ragged(seed: int, **settings: Any) -> Task:
    del seed
    return make_task(
        lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), normal(4), **settings
    )


@pytest.mark.parametrize(
    ("name", "stateful"),
    [(name, stateful) for name in NAMES for stateful in (True, False) if stateful or name in STATELESS],
)
def test_a_resumed_run_is_the_uninterrupted_one(
    name: str, stateful: bool, tmp_path: Path, engine: Engine
) -> None:
    task = ragged(0, rounds=4, stateful=stateful)
    method = make(name, task.model)
    whole = train(task, method, engine=engine)
    train(task, method, engine=engine, checkpoints=tmp_path, rounds=2)
    identical(train(task, method, engine=engine, checkpoints=tmp_path), whole)


@pytest.mark.parametrize("name", NAMES)
def test_stacked_seeds_are_the_seeds_alone(name: str) -> None:
    tasks = [ragged(seed) for seed in (1, 2)]
    runs = [Run(task, make(name, task.model), seed) for seed, task in enumerate(tasks)]
    for federation, run in zip(train_runs(runs, runs[0].task.settings), runs, strict=True):
        agree(federation, train(run.task, run.method, seed=run.seed))


@pytest.mark.parametrize("limit", [1, 20000])
@pytest.mark.parametrize("name", NAMES)
def test_little_memory_makes_the_same_run(name: str, limit: int) -> None:
    """Stacks of one client, and of some."""
    task = ragged(0)
    agree(train(task, make(name, task.model), max_memory=limit), train(task, make(name, task.model)))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedprox", {"proximal": -1.0}, r"proximal is -1\.0"),
        ("fedprox", {"proximal": math.inf}, "proximal is inf"),
        ("ditto", {"proximal": math.nan}, "proximal is nan"),
        ("ditto", {"proximal": math.inf}, "proximal is inf"),
        ("per-fedavg", {"inner_learning_rate": 0.0}, r"inner_learning_rate is 0\.0"),
        ("per-fedavg", {"inner_learning_rate": math.inf}, "inner_learning_rate is inf"),
        ("federated-clustering", {"update_momentum": 1.0}, r"update_momentum is 1\.0"),
        ("federated-clustering", {"num_clusters": 0}, "num_clusters is 0"),
        ("ensemble", {"mix": "losses"}, "mix is 'losses'; it must be 'weights' or 'outputs'"),
        ("mfl", {"routing": "best"}, "routing is 'best'"),
    ],
)
def test_options_out_of_range_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(name, nn.Linear(4, 2), **options)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            {"stateful": False},
            "stateful is False, with which federated-clustering does not work: leave it True",
        ),
        ({"server_optimizer": "adam"}, "server_optimizer is 'adam', with which .* leave it 'sgd'"),
        ({"server_learning_rate": 0.5}, r"server_learning_rate is 0\.5, with which .* leave it 1\.0"),
        ({"server_momentum": 0.9}, r"server_momentum is 0\.9, with which .* leave it 0\.0"),
    ],
)
def test_settings_with_which_momentum_clustering_does_not_work_are_refused(
    setting: dict[str, Any], message: str, engine: Engine
) -> None:
    task = ragged(0, rounds=1)
    with pytest.raises(InputError, match=message):
        train(task, make("federated-clustering", task.model), engine=engine, **setting)
    # which other methods take
    train(task, make("ifca", task.model), engine=engine, **setting)


def test_mixed_losses_have_no_statistics_of_one_network() -> None:
    method = make("mfl-ws", nn.Linear(4, 2), norms="batch_nora")
    with pytest.raises(InputError, match="norms is 'batch_nora'"):
        method.initialise(torch.arange(4), 0)


@pytest.mark.parametrize("name", METHODS)
def test_options_say_how_to_make_the_method_again(name: str) -> None:
    # a norm for FedBN, and two layers for FedPer
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    method = make(name, model)
    again = methods.make(name, model, **method.options())
    assert again.options() == method.options()
