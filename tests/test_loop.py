"""The loop against Algorithm 1 written out plainly, and what a run promises."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from floral_lite import (
    DivergenceError,
    Federation,
    History,
    InputError,
    Settings,
    Shard,
    Task,
    methods,
    tasks,
    train,
)
from floral_lite.adaptors import Convolution, Norms
from floral_lite.devices import device_name
from floral_lite.federation import Engine, Run, federated_rounds, train_runs
from floral_lite.federation.aggregate import mismatch
from floral_lite.federation.loop import sample_clients
from floral_lite.federation.rounds import own_generators
from floral_lite.methods import ROUTER, Method
from floral_lite.roles import Roles
from floral_lite.router import Router, entropy
from floral_lite.seeds import stream

from .federations import identical, make_task, normal, numbers

ROUNDS, SEED = 3, 5


class Plain(nn.Module):
    """A two-layer net whose weights are u + sum_c pi_c a_c, written out without the package."""

    def __init__(
        self, base: dict[str, Tensor], adaptors: list[dict[str, Tensor]], theta: Tensor | None
    ) -> None:
        super().__init__()

        def parameters(tensors: dict[str, Tensor]) -> nn.ParameterDict:
            return nn.ParameterDict(
                {name.replace(".", "_"): nn.Parameter(tensor.clone()) for name, tensor in tensors.items()}
            )

        self.base = parameters(base)
        self.adaptors = nn.ModuleList(parameters(tensors) for tensors in adaptors)
        self.theta = None if theta is None else nn.Parameter(theta.clone())

    def layer(self, name: str, inputs: Tensor) -> Tensor:
        pi = torch.ones(1) if self.theta is None else self.theta.exp() / self.theta.exp().sum()
        weight, bias = self.base[f"{name}_weight"], self.base[f"{name}_bias"]
        for weight_of_c, a in zip(pi, self.adaptors, strict=True):
            weight = weight + weight_of_c * a[f"{name}_weight_U"] @ a[f"{name}_weight_V"].T
            bias = bias + weight_of_c * a[f"{name}_bias_L"]
        return inputs @ weight.T + bias

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer("2", torch.relu(self.layer("0", inputs)))


def precondition_by_hand(adaptor: nn.ParameterDict) -> None:
    """G_U (V^T V + 1e-5 I)^-1 and G_V (U^T U + 1e-5 I)^-1 of both layers."""
    for layer in ("0", "2"):
        u, v = adaptor[f"{layer}_weight_U"], adaptor[f"{layer}_weight_V"]
        for factor, other in ((u, v.detach()), (v, u.detach())):
            factor.grad @= torch.linalg.inv(other.T @ other + 1e-5 * torch.eye(other.shape[1]).double())


def sgd_epochs(net: Plain, task: Task, client: int, number: int, preconditioned: bool = False) -> float:
    """A client's local epochs with torch's own optimizer; returns the mean loss of its steps."""
    settings = task.settings
    weights = {"params": [*net.base.parameters(), *net.adaptors.parameters()], "lr": settings.learning_rate}
    groups = [{**weights, "weight_decay": settings.weight_decay}]
    if net.theta is not None:
        groups.append({"params": [net.theta], "lr": settings.router_learning_rate})
    optimizer = torch.optim.SGD(groups, momentum=settings.momentum)
    inputs, targets = task.train[client]
    generator = stream(SEED, "batches", number, client)
    epochs = [torch.arange(len(inputs))] * settings.local_epochs
    if settings.shuffle:
        epochs = [torch.randperm(len(inputs), generator=generator) for _ in epochs]
    losses = []
    for rows in (rows for order in epochs for rows in order.split(settings.batch_size)):
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(inputs[rows]), targets[rows])
        loss.backward()
        if settings.clip_norm is not None:
            clip_by_hand(net, settings.clip_norm)
        if preconditioned:
            for adaptor in net.adaptors:
                precondition_by_hand(adaptor)
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def clip_by_hand(net: Plain, limit: float) -> None:
    """All gradients, seen as one vector g, times min(1, limit / ||g||)."""
    gradients = [parameter.grad for parameter in net.parameters()]
    length = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
    for gradient in gradients:
        gradient *= min(1, limit / length)


def sampled_in(task: Task, number: int) -> list[int]:
    count = round(task.settings.participation * task.num_clients)
    return torch.randperm(task.num_clients, generator=stream(SEED, "clients", number))[:count].tolist()


def average(tensors: list[Tensor], weights: list[float]) -> Tensor:
    return sum(w * t.detach() for w, t in zip(weights, tensors, strict=True)) / sum(weights)


def slices(clustered: dict[str, Tensor], num_clusters: int) -> list[dict[str, Tensor]]:
    """The adaptors one by one: C dictionaries."""
    return [{name: tensor[c] for name, tensor in clustered.items()} for c in range(num_clusters)]


def same(actual: dict[str, Tensor], expected: dict[str, Tensor], factor: float = 1.0) -> None:
    torch.testing.assert_close(actual, expected, rtol=factor * 1e-10, atol=factor * 1e-12)


@pytest.mark.parametrize(
    ("num_clusters", "options"),
    [
        (1, {}),
        (2, {}),
        (4, {}),
        (3, {"weight_decay": 0.05, "local_epochs": 2}),
        (3, {"shuffle": False, "local_epochs": 2}),
        (3, {"momentum": 0.8, "weight_decay": 0.05, "clip_norm": 0.3, "local_epochs": 2}),
    ],
    ids=str,
)
@pytest.mark.parametrize("stateful", [True, False])
@pytest.mark.parametrize("preconditioned", [False, True])
def test_training_is_algorithm_1(
    ragged_task: Task,
    num_clusters: int,
    stateful: bool,
    preconditioned: bool,
    options: dict[str, Any],
    engine: Engine,
) -> None:
    """Learned routing, three of five ragged clients a round, short last batches, float64."""
    task = replace(ragged_task, settings=replace(ragged_task.settings, **options))
    method = methods.FLoRAL(task.model, num_clusters, rank=2, precondition=preconditioned)
    first = method.initialise(task.clusters, SEED).map(Tensor.detach)
    base, adaptors, theta = first.shared, slices(first.clustered, num_clusters), first.private[ROUTER].clone()
    expected_losses = []
    for number in range(1, ROUNDS + 1):
        nets, losses = {}, {}
        for k in sampled_in(task, number):
            nets[k] = Plain(base, adaptors, theta[k] if stateful else torch.zeros(num_clusters).double())
            losses[k] = sgd_epochs(nets[k], task, k, number, preconditioned)
        n = {k: float(len(task.train[k])) for k in nets}
        pi = {k: torch.softmax(net.theta.detach(), 0) for k, net in nets.items()}
        # u <- sum_k N^k u^k / sum_k N^k; a_c <- sum_k pi_c^k N^k a_c^k / sum_k pi_c^k N^k
        base = {
            name: average([net.base[name.replace(".", "_")] for net in nets.values()], list(n.values()))
            for name in base
        }
        adaptors = [
            {
                name: average(
                    [net.adaptors[c][name.replace(".", "_")] for net in nets.values()],
                    [float(pi[k][c]) * n[k] for k in nets],
                )
                for name in adaptors[c]
            }
            for c in range(num_clusters)
        ]
        for k, net in nets.items():
            theta[k] = net.theta.detach()
        expected_losses.append(sum(n[k] * losses[k] for k in nets) / sum(n.values()))

    history, state, _ = train(task, method, seed=SEED, engine=engine, rounds=ROUNDS, stateful=stateful)
    # beside V = 0 a preconditioner divides by 1e-5, and rounding grows with it
    factor = 100.0 if preconditioned else 1.0
    same(state.shared, base, factor)
    for c in range(num_clusters):
        same(slices(state.clustered, num_clusters)[c], adaptors[c], factor)
    same(state.private, {ROUTER: theta}, factor)
    assert [entry.train_loss for entry in history.rounds] == pytest.approx(
        expected_losses, rel=factor * 1e-10
    )
    # the comparison means something: every role moved
    moved = [not torch.equal(a, b) for a, b in zip(state.tensors(), first.tensors(), strict=True)]
    assert all(moved[:-1])
    assert moved[-1] == (num_clusters > 1)


def test_one_hot_routing_is_a_federation_of_adaptors_per_cluster_over_a_shared_base(
    ragged_task: Task, engine: Engine
) -> None:
    """C plain federations, each averaging its own adaptor; only the base is averaged over all."""
    task, num_clusters = replace(ragged_task, settings=replace(ragged_task.settings, participation=1.0)), 3
    method = methods.FLoRAL(task.model, num_clusters, rank=2, routing="optimal", precondition=False)
    first = method.initialise(task.clusters, SEED).map(Tensor.detach)
    base, adaptor_of = first.shared, slices(first.clustered, num_clusters)
    members = {c: [k for k in range(5) if task.clusters[k] == c] for c in range(num_clusters)}
    assert members == {0: [0, 2], 1: [1, 4], 2: [3]}
    for number in range(1, ROUNDS + 1):
        nets = {}
        for c, clients in members.items():
            for k in clients:
                nets[k] = Plain(base, [adaptor_of[c]], theta=None)
                sgd_epochs(nets[k], task, k, number)
            adaptor_of[c] = {
                name: average(
                    [nets[k].adaptors[0][name.replace(".", "_")] for k in clients],
                    [float(len(task.train[k])) for k in clients],
                )
                for name in adaptor_of[c]
            }
        base = {
            name: average(
                [nets[k].base[name.replace(".", "_")] for k in range(5)],
                [float(len(task.train[k])) for k in range(5)],
            )
            for name in base
        }

    state = train(task, method, seed=SEED, engine=engine, rounds=ROUNDS).state
    same(state.shared, base)
    for c in range(num_clusters):
        same(slices(state.clustered, num_clusters)[c], adaptor_of[c])
    assert torch.equal(state.private[ROUTER], first.private[ROUTER])


class Frozen(methods.FLoRAL):
    """FLoRAL whose adaptors are zero and stay so: rank 0."""

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        state = super().initialise(clusters, seed)
        return state._replace(clustered={name: 0 * tensor for name, tensor in state.clustered.items()})

    def precondition(self, client: Roles, gradients: Roles) -> Roles:
        frozen = {name: torch.zeros_like(tensor) for name, tensor in gradients.clustered.items()}
        return gradients._replace(clustered=frozen)


def test_one_cluster_with_adaptors_frozen_at_zero_is_fedavg(ragged_task: Task, engine: Engine) -> None:
    run = {"seed": SEED, "engine": engine, "rounds": 5}
    fedavg = train(ragged_task, methods.FedAvg(ragged_task.model), **run)
    frozen = train(ragged_task, Frozen(ragged_task.model, num_clusters=1, rank=1), **run)
    # the fast engine takes its steps in another order of sums
    tolerance = {"rtol": 0, "atol": 0} if engine == "loop" else {"rtol": 1e-12, "atol": 1e-14}
    for name, tensor in fedavg.state.shared.items():
        torch.testing.assert_close(frozen.state.shared[name], tensor, **tolerance)
    assert all(not tensor.any() for tensor in frozen.state.clustered.values())
    columns = ["train_loss", "test_loss", "test_accuracy"]
    one, other = (torch.tensor(run.history.frame()[columns].to_numpy()) for run in (fedavg, frozen))
    torch.testing.assert_close(one, other, **tolerance)


def test_a_cluster_whose_clients_are_not_sampled_keeps_its_adaptor(ragged_task: Task, engine: Engine) -> None:
    method = methods.FLoRAL(ragged_task.model, num_clusters=3, rank=1, routing="optimal")
    first = method.initialise(ragged_task.clusters, SEED)
    one = {"rounds": 1, "participation": 0.2, "batch_size": 1}
    state = train(ragged_task, method, seed=SEED, engine=engine, **one).state
    (client,) = sample_clients(5, 0.2, stream(SEED, "clients", 1))
    for name, tensor in state.clustered.items():
        kept = [
            torch.equal(after, before) for after, before in zip(tensor, first.clustered[name], strict=True)
        ]
        assert kept == [c != int(ragged_task.clusters[client]) for c in range(3)]


@given(st.integers(1, 60), st.floats(0.01, 1.0), st.integers(0, 1000))
def test_clients_are_sampled_without_replacement(num_clients: int, participation: float, seed: int) -> None:
    sampled = sample_clients(num_clients, participation, stream(seed))
    assert len(set(sampled)) == len(sampled) == max(1, round(participation * num_clients))
    assert set(sampled) <= set(range(num_clients))


def test_ten_percent_of_three_hundred_clients_are_thirty_and_others_each_round() -> None:
    first, second = (sample_clients(300, 0.1, stream(0, "clients", number)) for number in (1, 2))
    assert len(first) == len(second) == 30
    assert first != second


WHOLE_MODELS = ("ensemble", "mfl", "ifca", "fedem", "federated-clustering")
OPTIONS_OF: dict[str, dict[str, Any]] = {
    "local-adaptor": {"rank": 1},
    "floral": {"num_clusters": 2, "rank": 1},
    "mfl-ws": {"num_clusters": 2, "rank": 1},
    **{name: {"num_clusters": 2} for name in WHOLE_MODELS},
}
# all but those that ask for a norm, which the small models here do not have
ANY_MODEL = [name for name in methods.METHODS if name != "fedbn"]


def run(task: Task, name: str = "floral", **arguments: Any) -> Federation:
    return train(task, methods.make(name, task.model, **OPTIONS_OF.get(name, {})), **arguments)


@pytest.mark.parametrize("name", ANY_MODEL)
def test_the_same_seed_gives_the_same_numbers_bit_for_bit(
    ragged_task: Task, name: str, engine: Engine
) -> None:
    first, again, other = (run(ragged_task, name, seed=seed, engine=engine) for seed in (4, 4, 5))
    identical(first, again)
    assert numbers(first) != numbers(other)
    for a, b in zip(first.state.tensors(), other.state.tensors(), strict=True):
        # of two clusters a client may well choose the same one
        assert a.isinf().any() or not torch.equal(a, b)


def test_evaluating_less_often_changes_no_training_number(ragged_task: Task, engine: Engine) -> None:
    often, seldom = (run(ragged_task, rounds=4, evaluate_every=every, engine=engine) for every in (1, 4))
    assert all(torch.equal(*pair) for pair in zip(often.state.tensors(), seldom.state.tensors(), strict=True))
    assert often.history.frame()["train_loss"].equals(seldom.history.frame()["train_loss"])


def test_momentum_starts_anew_every_round(ragged_task: Task, engine: Engine) -> None:
    """With one step a round the velocity is the gradient itself."""
    with_it, without = (
        run(ragged_task, engine=engine, batch_size=99, momentum=momentum).state for momentum in (0.9, 0.0)
    )
    for one, other in zip(with_it.tensors(), without.tensors(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_a_run_leaves_the_global_generators_and_the_task_alone(ragged_task: Task, engine: Engine) -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    parameters = [parameter.detach().clone() for parameter in ragged_task.model.parameters()]
    task = tasks.load("synthetic-linear", seed=3)
    for problem in (task, ragged_task):
        run(problem, rounds=2, engine=engine)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
    for parameter, old in zip(ragged_task.model.parameters(), parameters, strict=True):
        assert torch.equal(parameter, old)
        assert parameter.grad is None


def test_a_task_that_moves_leaves_its_model_where_it_is(ragged_task: Task) -> None:
    there = ragged_task.to(torch.device("meta"))
    assert [next(task.model.parameters()).is_meta for task in (there, ragged_task)] == [True, False]


def first_loss_task(*clients: tuple[int, float]) -> Task:
    """Regression from w = 0, where a client with n samples of target y has a first loss of y^2."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    shards = [Shard(torch.ones(n, 1), torch.full((n, 1), y)) for n, y in clients]
    clusters = torch.zeros(len(clients), dtype=torch.long)
    settings = Settings(rounds=1, batch_size=99)
    return Task("first-loss", model, functional.mse_loss, shards, shards, clusters, settings, {})


def test_the_train_loss_is_weighted_by_the_training_samples(engine: Engine) -> None:
    (entry,) = run(first_loss_task((1, 1.0), (3, 2.0)), "fedavg", engine=engine).history.rounds
    # (1 * 1^2 + 3 * 2^2) / 4
    assert entry.train_loss == pytest.approx(3.25)


def test_of_a_regression_no_client_has_an_accuracy() -> None:
    history = run(first_loss_task((1, 1.0), (3, 2.0)), "fedavg").history
    assert history.clients()["accuracy"].isna().all()


def test_the_test_numbers_are_weighted_by_the_test_samples(ragged_task: Task, engine: Engine) -> None:
    """Client 0 has 1 test sample and is right; client 1 has 3 and is right once: 2 of 4."""
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
    one, mixed = (
        Shard(torch.eye(2)[:1], torch.tensor([0])),
        Shard(torch.eye(2)[[0, 0, 0]], torch.tensor([0, 1, 1])),
    )
    # many training samples of client 0, so that weighting by them would show
    training = [Shard(torch.eye(2)[[0] * 9], torch.zeros(9, dtype=torch.long)), mixed]
    task = replace(ragged_task, model=model, train=training, test=[one, mixed], clusters=torch.tensor([0, 0]))
    # steps so small that the model stays
    (entry,) = run(task, "fedavg", rounds=1, learning_rate=1e-30, engine=engine).history.rounds
    assert entry.client_accuracy == [1.0, pytest.approx(1 / 3)]
    assert entry.test_accuracy == pytest.approx(0.5)
    right, wrong = math.log(1 + math.e) - 1, math.log(1 + math.e)
    assert entry.client_loss == pytest.approx([right, (right + 2 * wrong) / 3])
    assert entry.test_loss == pytest.approx((2 * right + 2 * wrong) / 4)


def test_clients_are_evaluated_with_their_own_mixtures(ragged_task: Task, engine: Engine) -> None:
    history, state, _ = run(ragged_task, seed=SEED, engine=engine)
    last = history.rounds[-1]
    assert last.mixture == pytest.approx(torch.softmax(state.private[ROUTER], dim=1).numpy())
    assert len({tuple(row) for row in last.mixture}) > 1
    num_train = torch.tensor([float(len(shard)) for shard in ragged_task.train])
    expected = mismatch(torch.tensor(last.mixture), ragged_task.clusters, num_train)
    assert last.mismatch == pytest.approx(expected)
    method = methods.make("floral", ragged_task.model, num_clusters=2, rank=1)
    for client, (inputs, targets) in enumerate(ragged_task.test):
        outputs = functional_call(ragged_task.model, method.personalise(state.of_client(client)), (inputs,))
        assert last.client_loss[client] == pytest.approx(float(functional.cross_entropy(outputs, targets)))


def test_bytes_and_parameters_are_counted() -> None:
    task = first_loss_task((2, 1.0))
    task = replace(
        task, model=nn.Linear(3, 2), train=[Shard(torch.ones(2, 3), torch.ones(2, 2))],
        test=[Shard(torch.ones(2, 3), torch.ones(2, 2))],
    )  # fmt: skip
    # base 3 * 2 + 2 = 8 floats; beside it N^k goes up
    fedavg = run(task, "fedavg").history
    assert (fedavg.bytes_down, fedavg.bytes_up) == (4 * 8, 4 * 8 + 4)
    assert fedavg.parameters == {"base": 8, "added": 0}
    # one adaptor (3 + 2) * 1 + 2 = 7 floats, two of them; beside them pi_c^k N^k of both goes up
    floral = run(task).history
    assert (floral.bytes_down, floral.bytes_up) == (4 * (8 + 14), 4 * (8 + 14) + 2 * 4)
    assert floral.parameters == {"base": 8, "added": 14}


def test_every_nth_round_and_the_last_are_evaluated(ragged_task: Task, engine: Engine) -> None:
    history = run(ragged_task, rounds=5, evaluate_every=2, engine=engine).history
    assert [entry.round for entry in history.rounds] == [1, 2, 3, 4, 5]
    assert [entry.round for entry in history.evaluated] == [2, 4, 5]
    skipped = history.rounds[0]
    assert (skipped.test_loss, skipped.client_loss, skipped.mixture, skipped.mismatch) == (None,) * 4
    assert not run(ragged_task, rounds=2, evaluate_every=0, engine=engine).history.evaluated


class Trained(methods.FLoRAL):
    """FLoRAL that starts from adaptors that are all away from zero."""

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        state, generator = super().initialise(clusters, seed), stream(seed)
        clustered = {
            name: torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
            for name, tensor in state.clustered.items()
        }
        return state._replace(clustered=clustered)


def image_task(task: Task) -> Task:
    """The same clients, whose four numbers are an image of 2 x 2."""
    # the generator was seeded before every test
    model = nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 2, padding=1), nn.GroupNorm(2, 4), nn.ReLU(),
        nn.Flatten(), nn.Linear(4 * 9, 3), nn.LayerNorm(3),
    )  # fmt: skip
    return replace(task, model=model.double())


OPTIONS: list[dict[str, Any]] = [
    {"router": Router(temperature=0.5)},
    {"router": Router(floor=0.01)},
    {"router": Router(noise=1.0)},
    {"router": Router(entropy=0.1)},
    {"router": Router(floor=0.01, noise=1.0, entropy=-0.1), "routing": "optimal"},
    {"init": "authors"},
    {"biases": False},
    {"precondition": False},
]
# of convolutions and norms, which a plain network has not
OF_IMAGES: list[dict[str, Any]] = [
    *({"convolution": kind} for kind in get_args(Convolution)),
    *({"norms": kind} for kind in get_args(Norms)),
]


@pytest.mark.parametrize(
    ("images", "options"),
    [
        *((images, options) for images in (False, True) for options in OPTIONS),
        *((True, options) for options in OF_IMAGES),
    ],
    ids=str,
)
def test_every_option_trains_a_federation(
    ragged_task: Task, options: dict[str, Any], images: bool, engine: Engine
) -> None:
    task = image_task(ragged_task) if images else ragged_task
    method = methods.FLoRAL(task.model, num_clusters=3, rank=2, **options)
    first = method.initialise(task.clusters, SEED)
    history, state, _ = train(task, method, seed=SEED, engine=engine, rounds=2)
    assert all(
        tensor.isfinite().all() for role in (state.shared, state.clustered) for tensor in role.values()
    )
    assert not state.private[ROUTER].isnan().any()
    for name, tensor in state.clustered.items():
        assert not torch.equal(tensor, first.clustered[name])
    # what is told about the clients' mixtures is what the router's options make of theta
    floor = method.router.floor
    expected = floor + (1 - 3 * floor) * torch.softmax(state.private[ROUTER] / method.router.temperature, 1)
    assert history.rounds[-1].mixture == pytest.approx(expected.numpy(), rel=1e-12)
    # and the history can be written
    assert json.loads(json.dumps(history.config))["rank"] == 2


def test_noise_is_drawn_from_the_seed_of_the_run(ragged_task: Task, engine: Engine) -> None:
    method = methods.FLoRAL(ragged_task.model, num_clusters=2, rank=1, router=Router(noise=1.0))
    first, again, other = (train(ragged_task, method, seed=seed, engine=engine) for seed in (4, 4, 5))
    identical(first, again)
    assert numbers(first) != numbers(other)
    # and it is there: without it the same seed gives other numbers
    assert numbers(run(ragged_task, seed=4, engine=engine)) != numbers(first)


def test_the_entropy_regulariser_spreads_mixtures_or_sharpens_them(ragged_task: Task, engine: Engine) -> None:
    def mean_entropy(weight: float) -> float:
        method = Trained(ragged_task.model, num_clusters=3, rank=1, router=Router(entropy=weight))
        slow = {"rounds": 4, "participation": 1.0, "learning_rate": 0.01}
        state = train(ragged_task, method, seed=SEED, engine=engine, **slow).state
        return float(entropy(method.mixture(state.private)).mean())

    sharp, plain, spread = (mean_entropy(weight) for weight in (-0.2, 0.0, 0.2))
    assert sharp + 0.05 < plain < spread - 0.05


def test_stateless_clients_start_every_round_from_the_first_router(ragged_task: Task, engine: Engine) -> None:
    """Where base and adaptors hardly move, a router that is kept drifts on, one that starts anew does not."""
    method = Trained(ragged_task.model, num_clusters=2, rank=1)

    def mixtures(stateful: bool) -> Tensor:
        slow = {"participation": 1.0, "learning_rate": 1e-9, "batch_size": 99, "rounds": 4}
        history = train(ragged_task, method, stateful=stateful, engine=engine, **slow).history
        return torch.tensor([entry.mixture for entry in history.rounds])

    stateful, stateless = mixtures(True), mixtures(False)
    torch.testing.assert_close(stateless, stateless[:1].expand_as(stateless), rtol=0, atol=1e-6)
    assert (stateless[0] - 0.5).abs().max() > 0.01
    assert (stateful[3] - stateful[0]).abs().max() > 0.01
    torch.testing.assert_close(stateful[0], stateless[0])


def test_a_run_can_be_stopped_and_keeps_what_was_done(
    ragged_task: Task, tmp_path: Any, engine: Engine
) -> None:
    seen: list[Federation] = []

    def stop_at_two(federation: Federation) -> None:
        seen.append(federation)
        if len(federation.history.rounds) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(ragged_task, rounds=5, on_round=stop_at_two, engine=engine)
    history, state, _ = seen[-1]
    whole = run(ragged_task, rounds=2, engine=engine)
    assert all(torch.equal(*pair) for pair in zip(state.tensors(), whole.state.tensors(), strict=True))
    history.save(tmp_path / "history.json")
    assert len(History.load(tmp_path / "history.json").rounds) == 2


def test_rounds_are_handed_out_one_by_one(ragged_task: Task, engine: Engine) -> None:
    method = methods.FedAvg(ragged_task.model)
    rounds = federated_rounds(ragged_task, method, ragged_task.settings, engine=engine)
    first, second = next(rounds), next(rounds)
    # what was handed out before stays as it was
    assert [len(federation.history.rounds) for federation in (first, second)] == [1, 2]


def test_the_history_says_what_made_it(ragged_task: Task) -> None:
    history = run(ragged_task, seed=7, rounds=2).history
    expected = {"task": "ragged", "method": "floral", "num_clusters": 2, "rank": 1, "seed": 7, "rounds": 2}
    assert expected.items() <= history.config.items()
    assert history.config["batch_size"] == 4
    assert history.config["engine"] == "fast"
    assert run(ragged_task, rounds=1, engine="loop").history.config["engine"] == "loop"
    assert history.config["device"] == device_name(torch.device("cpu"))
    assert history.clusters == ragged_task.clusters.tolist()


def test_methods_that_mix_nothing_have_one_cluster(ragged_task: Task, engine: Engine) -> None:
    last = run(ragged_task, "fedavg", engine=engine).history.rounds[-1]
    assert last.mixture == [[1.0]] * 5


@pytest.mark.parametrize("name", ANY_MODEL)
def test_a_loss_that_is_not_finite_stops_the_run(ragged_task: Task, name: str, engine: Engine) -> None:
    # every client moves its weights beyond float64 within a few steps
    message = r"training loss of client \d is (nan|inf) in round \d, with learning_rate=1e\+200"
    with pytest.raises(DivergenceError, match=message):
        run(ragged_task, name, learning_rate=1e200, evaluate_every=0, engine=engine)


def test_a_test_loss_that_is_not_finite_stops_the_run(engine: Engine) -> None:
    # one step from w = 0 to 2e30, and its square is beyond float32
    task = first_loss_task((1, 1.0))
    with pytest.raises(DivergenceError, match=r"test loss is inf in round 1, with learning_rate=1e\+30"):
        run(task, "fedavg", learning_rate=1e30, engine=engine)


def test_of_a_loss_that_is_nan_ignored_labels_are_told_too(ragged_task: Task, engine: Engine) -> None:
    """The mean over a batch without any label is 0 / 0."""
    first = torch.tensor([0])
    train = [Shard(own.inputs, own.targets.index_fill(0, first, -100)) for own in ragged_task.train]
    task = replace(ragged_task, train=train, loss=lambda *pair: functional.cross_entropy(*pair))
    with pytest.raises(DivergenceError, match=r"is nan in round 1.*a batch whose labels .* such as -100"):
        run(task, "fedavg", batch_size=1, engine=engine)
    with pytest.raises(DivergenceError, match=r"try a tenth of them$"):  # of infinity they are not the cause
        run(first_loss_task((1, 1.0)), "fedavg", learning_rate=1e30, engine=engine)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"round": 3}, "no setting is called 'round'.*did you mean 'rounds'"),
        ({"settings": Settings()}, r"train takes no settings.* dataclasses\.replace\(task, settings="),
        ({"rounds": 0}, "rounds is 0.*at least 1"),
        ({"learning_rate": 0.0}, r"learning_rate is 0\.0.*positive"),
        ({"router_learning_rate": -0.1}, r"router_learning_rate is -0\.1.*at least 0"),
        ({"participation": 0.0}, r"participation is 0\.0.*in \(0, 1\]"),
        ({"local_epochs": 0}, "local_epochs is 0.*at least 1"),
        ({"evaluate_every": -1}, "evaluate_every is -1.*at least 0"),
        ({"momentum": 1.0}, r"momentum is 1\.0; it must be in \[0, 1\).*0\.9"),
        ({"momentum": -0.1}, r"momentum is -0\.1"),
        ({"weight_decay": -0.1}, r"weight_decay is -0\.1.*at least 0"),
        ({"weight_decay": math.inf}, "weight_decay is inf; it must be at least 0, and finite"),
        ({"learning_rate": math.inf}, "learning_rate is inf; it must be positive, and finite"),
        ({"learning_rate": "0.1"}, "learning_rate is '0.1'; it must be a number"),
        ({"clip_norm": 0.0}, r"clip_norm is 0\.0; it must be positive"),
        ({"server_learning_rate": 0.0}, r"server_learning_rate is 0\.0; it must be positive"),
        ({"server_momentum": 1.0}, r"server_momentum is 1\.0; it must be in \[0, 1\)"),
        ({"server_optimizer": "adamw"}, "server_optimizer is 'adamw'; it must be 'sgd' or 'adam'"),
        (
            {"server_optimizer": "adam", "server_momentum": 0.9},
            r"server_momentum is 0\.9, but server_optimizer is 'adam'.*leave it at 0",
        ),
        ({"statistics": "global"}, "statistics is 'global'; it must be 'local' or 'averaged'"),
        ({"engine": "quick"}, "engine is 'quick'; it must be 'fast' or 'loop'"),
        ({"max_memory": 0}, r"max_memory is 0.*bytes.*2\*\*30"),
        ({"max_memory": -1}, "max_memory is -1.*bytes"),
        ({"max_memory": "1", "engine": "loop"}, "max_memory is '1'; it must be a whole number"),
        ({"checkpoint_every": 0}, "checkpoint_every is 0; it must be at least 1"),
        ({"on_round": 3}, "on_round is 3; it must be a function .*, or None"),
        ({"device": "cuda:99"}, "device is 'cuda:99'.*cpu"),
        ({"seed": -1}, "seed is -1"),
    ],
)
@pytest.mark.parametrize("name", ["fedavg", "floral"])
def test_arguments_out_of_range_are_refused(
    ragged_task: Task, name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        run(ragged_task, name, **changes)


@pytest.mark.parametrize("method", ["floral", methods.FLoRAL, None])
def test_what_is_no_method_is_refused(ragged_task: Task, method: Any) -> None:
    with pytest.raises(
        InputError, match=r"the method is .*; it must be one that was made on the task's model"
    ):
        train(ragged_task, method)
    with pytest.raises(InputError, match="the method is "):
        train_runs([Run(ragged_task, method)], ragged_task.settings)


def test_what_is_no_task_is_refused(ragged_task: Task) -> None:
    with pytest.raises(
        InputError, match=r"the task is 'digits-rotate'; it must be a Task, such as tasks\.load"
    ):
        train("digits-rotate", methods.FedAvg(ragged_task.model))  # type: ignore[arg-type]


@pytest.mark.parametrize("switched_off", [torch.no_grad, torch.inference_mode])
def test_training_without_gradients_is_refused(ragged_task: Task, switched_off: Any, engine: Engine) -> None:
    with switched_off(), pytest.raises(InputError, match=r"switched off here, by torch.no_grad\(\) or"):
        train(ragged_task, methods.FedAvg(ragged_task.model), rounds=1, engine=engine)


def test_a_double_default_type_changes_no_number(ragged_task: Task, engine: Engine) -> None:
    method = methods.FLoRAL(ragged_task.model, num_clusters=2, rank=1, router=Router(noise=1.0))
    usual = train(ragged_task, method, rounds=1, engine=engine).state
    torch.set_default_dtype(torch.float64)
    try:
        double = train(ragged_task, method, rounds=1, engine=engine).state
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(map(torch.equal, usual.tensors(), double.tensors()))


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float16])
def test_a_default_type_that_rounds_the_weights_is_refused(ragged_task: Task, default: torch.dtype) -> None:
    method = methods.FedAvg(ragged_task.model)
    torch.set_default_dtype(default)
    try:
        with pytest.raises(
            InputError, match=rf"default type is {default}, in which the weights N\^k are rou"
        ):
            train(ragged_task, method, rounds=1)
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_is_no_list_of_runs_is_refused(ragged_task: Task) -> None:
    one = Run(ragged_task, methods.FedAvg(ragged_task.model))
    for runs in (one, [tuple(one)]):
        with pytest.raises(InputError, match=r"^a run is .*; each must be a Run\(task, method, seed\)$"):
            train_runs(runs, ragged_task.settings)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"settings is {'rounds': 1}; it must be Settings, such as"):
        train_runs([one], {"rounds": 1})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^runs is empty; give at least one Run"):
        train_runs([], ragged_task.settings)


def test_numpys_integers_and_a_device_of_torch_are_taken(ragged_task: Task, tmp_path: Path) -> None:
    method = methods.FedAvg(ragged_task.model)
    device = torch.device("cpu")
    history = train(ragged_task, method, seed=np.int64(1), rounds=np.int64(2), device=device).history  # type: ignore[arg-type]
    history.save(tmp_path / "history.json")
    assert len(history.rounds) == 2


def label_shift_accuracy(make: Callable[[nn.Module], Method]) -> float:
    task = tasks.load("digits-label-shift")
    history = train(task, make(task.model), rounds=35, evaluate_every=35).history
    accuracy = history.rounds[-1].test_accuracy
    assert accuracy is not None
    return accuracy


def test_adaptors_beat_one_model_where_labels_contradict_and_knowing_the_clusters_helps() -> None:
    """Four names for every digit: one model cannot be right more than about one time in four."""
    fedavg = label_shift_accuracy(methods.FedAvg)
    learned = label_shift_accuracy(lambda model: methods.FLoRAL(model, 4, budget=0.1))
    optimal = label_shift_accuracy(lambda model: methods.FLoRAL(model, 4, budget=0.1, routing="optimal"))
    assert fedavg < 0.35
    assert learned > fedavg + 0.2
    assert optimal >= learned


def test_the_loss_of_synthetic_linear_falls() -> None:
    task = tasks.load("synthetic-linear")
    losses = {}
    for name, options in (("fedavg", {}), ("floral", {"num_clusters": 2, "rank": 1})):
        frame = train(task, methods.make(name, task.model, **options), rounds=60).history.frame()
        losses[name] = frame["train_loss"].tolist()
        assert losses[name][-1] < 0.5 * losses[name][0]
    # one map cannot be both clusters' map
    assert losses["floral"][-1] < 0.25 * losses["fedavg"][-1]


def test_a_method_on_another_model_is_refused(ragged_task: Task) -> None:
    with pytest.raises(InputError, match=r"another model than the task's.*methods\.FLoRAL\(task\.model\)"):
        train(ragged_task, methods.FLoRAL(nn.Linear(4, 3).double(), rank=1))


def test_a_method_of_another_seeds_model_is_refused(engine: Engine) -> None:
    """Of the same shapes, and so trained from other first parameters than the task's."""
    task, other = (tasks.load("digits-rotate", seed=seed, num_clients=4) for seed in (0, 1))
    with pytest.raises(InputError, match=r"another model than the task's.*methods\.FedAvg\(task\.model\)"):
        train(task, methods.FedAvg(other.model), engine=engine, rounds=1)


def test_a_last_batch_of_one_sample_is_refused_where_a_batch_norm_needs_two(engine: Engine) -> None:
    clients: dict[str, Any] = {"sizes": (6, 7), "test_sizes": (2, 2), "clusters": (0, 0)}
    flat = make_task(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), normal(4), **clients)
    with pytest.raises(InputError, match=r"batch_size is 3, and client 1 has 7 training samples.*has one"):
        train(flat, methods.FedAvg(flat.model), engine=engine, rounds=1, batch_size=3)
    train(flat, methods.FedAvg(flat.model), engine=engine, rounds=1, batch_size=4)
    # an image alone has many pixels a channel
    images = make_task(
        lambda: nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(18, 3)),
        normal(2, 3, 3),
        **clients,
    )
    train(images, methods.FedAvg(images.model), engine=engine, rounds=1, batch_size=3)


def test_a_history_and_a_federation_are_shown_in_a_line(ragged_task: Task) -> None:
    federation = train(ragged_task, methods.FedAvg(ragged_task.model))
    assert repr(federation.history) == "History(ragged, fedavg, 3 rounds)"
    assert repr(federation) == "Federation(History(ragged, fedavg, 3 rounds), 4 named tensors)"


def test_on_mps_layers_draw_from_the_runs_seed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: "theirs")
    monkeypatch.setattr(torch.mps, "set_rng_state", told.append)
    monkeypatch.setattr(torch.mps, "manual_seed", told.append)
    with own_generators(torch.device("mps"), 1, 2):
        assert told == [torch.initial_seed()]
    assert told[1:] == ["theirs"]


def test_layers_draw_from_the_seed_the_round_and_the_client() -> None:
    def drawn(*place: int) -> float:
        with own_generators(torch.device("cpu"), *place):
            return float(torch.rand(()))

    assert drawn(1, 2) == drawn(1, 2)
    assert len({drawn(*place) for place in ((1, 2), (2, 2), (1, 3), (1, 2, 0), (1, 2, 1))}) == 5
