"""Clusters in the clients' first gradients: what is found, what is not, and the rounds that it takes."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score
from torch import Tensor, nn
from torch.nn import functional

from floral_lite import Federation, InputError, Settings, Shard, Task, clustering, methods, tasks, train
from floral_lite.clustering import Found, directions, find_clusters, unexplained
from floral_lite.federation import Engine, Population, Run, asking, train_runs
from floral_lite.federation.asking import (
    ask,
    asked_rounds,
    first_gradient,
    first_gradients,
    sample_weights,
)
from floral_lite.methods import ROUTER
from floral_lite.models import seeded

from .federations import agree, first_state, identical, make_task, normal, standing


@pytest.fixture
def less_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the time, where the clusters are clear."""
    monkeypatch.setattr(clustering, "NUM_NOISE", 10)


METHODS: list[tuple[str, dict[str, Any]]] = [
    ("floral", {"num_clusters": 2, "rank": 1}),
    ("ensemble", {"num_clusters": 2}),
    ("ensemble", {"num_clusters": 2, "mix": "outputs"}),
    ("mfl-ws", {"num_clusters": 2, "rank": 1}),
]


def right(found: Tensor, clusters: Tensor) -> float:
    """The adjusted Rand index: 1 if both are the same up to names, near 0 if they have nothing in common."""
    return float(adjusted_rand_score(clusters.tolist(), found.tolist()))


def hidden(num_clients: int, num_clusters: int, apart: float, seed: int = 0) -> tuple[list[Tensor], Tensor]:
    """Gradients of two layers: noise that is large in five directions, and centres that are not."""
    generator = torch.Generator().manual_seed(seed)
    clusters = torch.arange(num_clients) % num_clusters
    centres = apart * torch.randn(num_clusters, 40, generator=generator)
    noise = torch.randn(num_clients, 40, generator=generator)
    noise[:, :5] *= 10
    both = noise + centres[clusters]
    return [both[:, :20].reshape(num_clients, 4, 5), 7 * both[:, 20:]], clusters


def two_kinds(num_clients: int = 20, sizes: Sequence[int] = (40,), **settings: Any) -> Task:
    """Clients of two clusters who call the same inputs by other labels; most are sampled a round."""
    generator = torch.Generator().manual_seed(5)
    truth = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    clusters = torch.arange(num_clients) % 2

    def shard(client: int) -> Shard:
        num_samples = sizes[client % len(sizes)]
        inputs = torch.randn(num_samples, 6, generator=generator, dtype=torch.float64)
        return Shard(inputs, ((inputs @ truth).argmax(dim=1) + int(clusters[client])) % 3)

    usual = {"rounds": 5, "participation": 0.5, "batch_size": 8, "learning_rate": 0.1, "evaluate_every": 1}
    return Task(
        name="two-kinds",
        model=seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), 0).double(),
        loss=functional.cross_entropy,
        train=[shard(client) for client in range(num_clients)],
        test=[shard(client) for client in range(num_clients)],
        clusters=clusters,
        settings=Settings(**usual | {"router_learning_rate": 2.0} | settings),
        details={},
    )


@pytest.mark.usefixtures("less_noise")
@pytest.mark.parametrize(("num_clients", "num_clusters"), [(20, 2), (24, 4), (100, 4)])
def test_clusters_are_found_below_larger_differences(num_clients: int, num_clusters: int) -> None:
    gradients, clusters = hidden(num_clients, num_clusters, apart=6)
    found = find_clusters(gradients, num_clusters)
    assert found is not None
    assert found.stands_out
    assert right(found.clusters, clusters) == 1


@pytest.mark.parametrize(("num_clients", "seed"), [(20, 0), (40, 1)])
def test_nothing_stands_out_where_nothing_is(num_clients: int, seed: int) -> None:
    gradients, _ = hidden(num_clients, num_clusters=4, apart=0, seed=seed)
    found = find_clusters(gradients, num_clusters=4, seed=seed)
    assert found is not None
    assert not found.stands_out


def test_neither_the_lengths_of_layers_matter_nor_what_all_clients_share() -> None:
    first, second = hidden(24, 4, apart=2.5)[0]
    plain = directions([first, second])
    torch.testing.assert_close(directions([100 * first, second]).abs(), plain.abs(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(directions([first + 3, second]).abs(), plain.abs(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1e-30, 1e20, 1e37])
def test_neither_does_the_size_of_all(size: float) -> None:
    """Squares of large gradients are infinite in single precision, those of small ones 0."""
    gradients = [torch.eye(2, 5).repeat(10, 1) + 0.1 * torch.randn(20, 5, generator=torch.Generator())]
    usual, found = (find_clusters([scale * one for one in gradients], 2) for scale in (1.0, size))
    assert usual is not None
    assert found is not None
    assert usual.stands_out
    assert found.clusters.tolist() == usual.clusters.tolist()
    assert found.effect == pytest.approx(usual.effect, rel=1e-3)


def test_directions_are_orthonormal_centred_and_sorted() -> None:
    gradients, _ = hidden(15, 3, apart=1)
    columns = directions(gradients)
    assert columns.dtype == torch.float64
    assert columns.shape == (15, 14)  # the mean has none
    torch.testing.assert_close(columns.T @ columns, torch.eye(14).double(), atol=1e-9, rtol=0)
    torch.testing.assert_close(columns.mean(dim=0), torch.zeros(14).double(), atol=1e-9, rtol=0)
    # one in which clients differ a hundredth as much is there, too
    both = torch.stack([torch.tensor([1, -1]).repeat(8), 0.01 * torch.randn(16)], dim=1)
    assert directions([both.double()]).shape == (16, 2)


@pytest.mark.parametrize(
    ("gradients", "num_clusters"),
    [
        ([torch.randn(10, 4)], 1),  # one cluster
        ([torch.randn(5, 4)], 3),  # too few clients
        ([torch.ones(10, 4)], 2),  # all alike
    ],
)
def test_there_may_be_nothing_to_look_at(gradients: list[Tensor], num_clusters: int) -> None:
    assert find_clusters(gradients, num_clusters) is None


@pytest.mark.usefixtures("less_noise")
def test_two_clients_a_cluster_are_enough() -> None:
    assert find_clusters([torch.randn(6, 4)], num_clusters=3) is not None


@pytest.mark.usefixtures("less_noise")
def test_clients_and_noise_are_looked_at_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    noise: set[bytes] = set()

    def looked_at(places: NDArray[np.float64], *rest: int, starts: int) -> tuple[float, NDArray[np.int32]]:
        seen.append((places.shape[1], starts))
        if starts == 1:
            noise.add(places.tobytes())
        np.testing.assert_allclose(places.T @ places, np.eye(places.shape[1]), atol=1e-9)
        np.testing.assert_allclose(places.mean(axis=0), np.zeros(places.shape[1]), atol=1e-9)
        return unexplained(places, *rest, starts=starts)

    monkeypatch.setattr(clustering, "unexplained", looked_at)
    gradients = [torch.randn(50, 60)]
    find_clusters(gradients, num_clusters=2)
    # in at most half as many directions as there are clients
    tried = (1, 2, 3, 4, 6, 8, 12, 16, 24)
    # the clients from ten starts, which is what an effect above 1.4 was found with
    assert seen == [(d, starts) for d in tried for starts in (10, *[1] * clustering.NUM_NOISE)]
    find_clusters(gradients, num_clusters=2, seed=1)
    # noise is drawn anew each time, and by each seed
    assert len(noise) == 2 * len(tried) * clustering.NUM_NOISE


@pytest.mark.usefixtures("less_noise")
def test_the_effect_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = itertools.cycle([-1.0, -2.0])

    def told(places: NDArray[np.float64], *_: int, starts: int) -> tuple[float, NDArray[np.int32]]:
        d = places.shape[1]
        return {1: -2.5, 2: -3.0, 3: -2.0}.get(d, -1.5) if starts == 10 else next(noise), np.full(16, d)

    monkeypatch.setattr(clustering, "unexplained", told)
    found = find_clusters([torch.randn(16, 20)], num_clusters=2)
    assert found is not None
    # (-1.5 + 3) / (0.5 * sqrt(16)), and the clusters of the d that it belongs to
    assert found.effect == pytest.approx(0.75)
    assert found.clusters.tolist() == [2] * 16


def test_no_client_counts_for_more_because_its_gradient_is_long() -> None:
    half = torch.randn(6, 30, dtype=torch.float64)
    lengths = torch.tensor([50.0, 1, 1, 1, 1, 1])[:, None]
    plain, longer = (directions([torch.cat([some, -some])]) for some in (half, lengths * half))
    torch.testing.assert_close(longer.abs(), plain.abs())


def test_a_client_in_the_middle_of_all_has_no_length_to_divide_by() -> None:
    apart = torch.cat([torch.eye(4), -torch.eye(4), torch.zeros(1, 4)])
    assert directions([apart]).isfinite().all()


def test_of_several_starts_the_best_one_counts() -> None:
    places = np.random.default_rng(0).standard_normal((40, 2))
    one, ten = ([unexplained(places, 8, seed, starts)[0] for seed in range(5)] for starts in (1, 10))
    assert max(ten) < max(one)
    # each seed starts elsewhere
    assert len(set(one)) == 5


def test_what_leaves_nothing_has_a_logarithm() -> None:
    places = np.array([[1.0], [1.0], [-1.0], [-1.0]])
    assert np.isfinite(unexplained(places, 2, seed=0, starts=1)[0])


@pytest.mark.usefixtures("less_noise")
def test_few_different_clients_are_no_reason_to_warn() -> None:
    found = find_clusters([torch.eye(2, 3).repeat(6, 1)], num_clusters=4)
    assert found is not None
    assert right(found.clusters % 2, torch.arange(12) % 2) >= 0


@pytest.mark.parametrize("size", [1, 2])
def test_clusters_of_one_or_two_numbers_say_nothing(size: int) -> None:
    """Divided by its length a number is a sign, and k-means always finds the two signs."""
    assert find_clusters([torch.randn(20, size)], num_clusters=2) is None
    assert find_clusters([torch.randn(20, 1, size), torch.randn(20, 3 - size)], num_clusters=2) is not None


@pytest.mark.usefixtures("less_noise")
def test_a_layers_gradient_may_be_of_a_single_number() -> None:
    numbers, other = torch.tensor([0.0, 5.0]).repeat(6) + 0.1 * torch.randn(12), torch.randn(12, 3)
    flat, column = (find_clusters([one, other], num_clusters=2) for one in (numbers, numbers[:, None]))
    assert flat is not None
    assert column is not None
    assert torch.equal(flat.clusters, column.clusters)


def test_layers_of_different_numbers_of_clients_are_refused() -> None:
    with pytest.raises(InputError, match=r"gradients are of \[4, 5\] clients"):
        find_clusters([torch.randn(4, 2), torch.randn(5, 2)], num_clusters=2)


@pytest.mark.usefixtures("less_noise")
def test_the_same_seed_finds_the_same() -> None:
    gradients, _ = hidden(24, 4, apart=1)
    one, other = (find_clusters(gradients, 4, seed=3) for _ in range(2))
    assert one is not None
    assert other is not None
    assert torch.equal(one.clusters, other.clusters)
    assert one[1:] == other[1:]


def test_every_label_counts_alike() -> None:
    task = two_kinds()
    targets = torch.tensor([0, 0, 0, 2])
    weights = sample_weights(Shard(torch.zeros(4, 6), targets), task)
    assert weights is not None
    torch.testing.assert_close(weights, torch.tensor([1, 1, 1, 3]) / 6)
    # a sentence has many labels, so that all sentences count alike
    sentences = Shard(torch.zeros(2, 3), torch.tensor([[0, 0, 2], [1, 1, 1]]))
    assert torch.equal(sample_weights(sentences, task), torch.tensor([0.5, 0.5]))
    # to have a sample twice, if its label is its own, changes nothing
    shard = Shard(torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 0, 1, 2]))
    twice = Shard(torch.cat([shard.inputs, shard.inputs[2:3]]), torch.tensor([0, 0, 1, 2, 1]))
    two = Task(
        "two", task.model, task.loss, [shard, twice], [shard, twice], torch.tensor([0, 0]), task.settings, {}
    )
    gradients, losses = first_gradients(two)
    for gradient in [*gradients, losses]:
        torch.testing.assert_close(gradient[0], gradient[1])


def test_the_first_gradients_are_those_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    task = two_kinds(num_clients=3, sizes=(40, 9))
    gradients, losses = first_gradients(task)
    assert [tuple(gradient.shape) for gradient in gradients] == [(3, 8, 6), (3, 3, 8)]
    inputs, targets = task.train[1]
    each = functional.cross_entropy(task.model(inputs), targets, reduction="none")
    # the mean over the labels that are there of the mean over their samples
    loss = torch.stack([each[targets == label].mean() for label in targets.unique()]).mean()
    torch.testing.assert_close(losses[1], loss.detach())
    own = torch.autograd.grad(loss, [task.model[0].weight, task.model[2].weight])
    for gradient, expected in zip(gradients, own, strict=True):
        torch.testing.assert_close(gradient[1], expected)
    monkeypatch.setattr(asking, "ROWS", 7)
    for gradient, before in zip(first_gradients(task)[0], gradients, strict=True):
        torch.testing.assert_close(gradient, before)
    assert task.model.training


def test_the_first_model_is_asked_as_it_would_be_tested() -> None:
    task = make_task(lambda: nn.Sequential(nn.Linear(4, 6), nn.Dropout(), nn.Linear(6, 3)), normal(4))
    task.model.train()
    first, _, last = task.model.children()
    without = replace(task, model=nn.Sequential(first, last))
    torch.testing.assert_close(first_gradients(task), first_gradients(without))
    assert task.model.training


def test_a_frozen_weight_has_no_gradient_to_tell() -> None:
    task = two_kinds(num_clients=3)
    whole = first_gradients(task)[0]
    task.model[0].weight.requires_grad_(False)
    (last,) = first_gradients(task)[0]
    torch.testing.assert_close(last, whole[1])


def test_a_model_that_works_in_place_leaves_the_samples_as_they_are() -> None:
    task = make_task(lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)), normal(4))
    before = [shard.inputs.clone() for shard in task.train]
    first_gradients(task)
    for shard, inputs in zip(task.train, before, strict=True):
        assert torch.equal(shard.inputs, inputs)


def test_targets_that_are_no_labels_count_alike_and_other_losses_are_taken_as_they_are() -> None:
    generator = torch.Generator().manual_seed(0)
    shards = [
        Shard(torch.randn(n, 4, generator=generator), torch.randn(n, 2, generator=generator))
        for n in (3, 300)
    ]
    losses: list[Tensor] = []
    for loss in (functional.mse_loss, nn.MSELoss()):
        model, clusters = seeded(lambda: nn.Linear(4, 2), 0), torch.tensor([0, 0])
        task = Task("fit", model, loss, shards, shards, clusters, Settings(), {})
        gradients, told = first_gradients(task)
        losses += [told, *gradients]
        expected = torch.stack([functional.mse_loss(task.model(x), y) for x, y in shards])
        torch.testing.assert_close(told, expected.detach())
    torch.testing.assert_close(losses[1], losses[3])


@pytest.mark.usefixtures("less_noise")
@pytest.mark.parametrize(("name", "options"), METHODS)
def test_a_federation_asks_finds_and_then_trains(name: str, options: dict[str, Any], engine: Engine) -> None:
    task = two_kinds()
    method = methods.make(name, task.model, routing="clustered", **options)
    # 10 of 20 clients a round: two rounds of asking
    assert asked_rounds(task, method, task.settings) == 2
    seen: list[Federation] = []
    train(task, method, on_round=seen.append, engine=engine)
    begun = first_state(task, method)
    everything = {name for role in begun for name in role}
    assert standing(task, method, seen[1]) == everything - {ROUTER}
    assert standing(task, method, seen[2]) != everything - {ROUTER}
    first = seen[-1].history.rounds
    assert [entry.round for entry in first] == [1, 2, 3, 4, 5]
    # in rounds 1 and 2 every client has told its loss at the first model
    told = [first_gradients(task)[1][start::2].mean() for start in (0, 1)]
    assert [first[0].train_loss, first[1].train_loss] == pytest.approx([float(loss) for loss in told])
    begun_with, ended_with = (torch.tensor(seen[-1].history.rounds[index].mixture) for index in (1, -1))
    torch.testing.assert_close(begun_with.max(dim=1).values, torch.full((20,), asking.LEANING))
    assert right(begun_with.argmax(dim=1), task.clusters) == 1
    # and from there they learn
    assert (ended_with != begun_with).any()


@pytest.mark.usefixtures("less_noise")
@pytest.mark.parametrize(("name", "options"), METHODS)
@pytest.mark.parametrize(
    ("routing", "stateful"), [("clustered", True), ("clustered", False), ("closed-form", False)]
)
def test_the_fast_engine_does_the_same(
    name: str, options: dict[str, Any], routing: str, stateful: bool
) -> None:
    task = two_kinds(stateful=stateful, sizes=(7, 12, 3))
    one, other = (
        train(
            task,
            methods.make(name, task.model, routing=routing, router={"temperature": 0.5}, **options),
            engine=engine,
        )
        for engine in ("fast", "loop")
    )
    agree(one, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_enough(dtype: torch.dtype) -> None:
    """Gradients may have squares that it cannot say, and so many samples that it would stop counting."""
    gradients, clusters = hidden(40, 4, apart=6.0)
    long = [(gradient * 1e4 / gradient.norm(dim=1).max()).to(dtype) for gradient in gradients]
    found = find_clusters(long, 4)
    assert found is not None
    assert right(found.clusters, clusters) == 1
    generator = torch.Generator().manual_seed(0)
    many = Shard(torch.randn(50_000, 6, generator=generator), torch.arange(50_000) % 3)
    tasks_of = {
        kind: replace(
            two_kinds(),
            model=seeded(lambda: nn.Linear(6, 3), 0).to(kind),
            train=[Shard(many.inputs.to(kind), many.targets)] * 20,
            test=[Shard(many.inputs[:3].to(kind), many.targets[:3])] * 20,
        )
        for kind in (dtype, torch.float32)
    }
    (rough, rough_loss), (fine, fine_loss) = (
        first_gradient(task, task.train[0]) for task in tasks_of.values()
    )
    torch.testing.assert_close(rough_loss, fine_loss, rtol=0.01, atol=0)
    torch.testing.assert_close(rough[0].float(), fine[0], rtol=0.05, atol=0.005)


def test_labels_may_be_bytes() -> None:
    task = two_kinds()
    small = replace(task, train=[Shard(shard.inputs, shard.targets.byte()) for shard in task.train])
    torch.testing.assert_close(first_gradients(small), first_gradients(task))


def test_where_nothing_stands_out_the_router_is_learned() -> None:
    task = two_kinds(num_clients=3)  # too few to tell
    method = methods.FLoRAL(task.model, num_clusters=2, rank=1, routing="clustered")
    after = train(task, method)
    theta = after.state.private[ROUTER]
    assert theta.any()


class Turned(nn.Module):
    """A matrix in a layer of one's own, which gets no adaptor."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(6, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.matrix


def test_adaptors_that_would_stay_alike_are_refused_where_nothing_stands_out() -> None:
    task = two_kinds(num_clients=3)
    model = nn.Sequential(Turned(), task.model)
    for name, parameter in task.model.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    task = replace(task, model=model)
    with pytest.raises(InputError, match=r"all adaptors start alike.*router="):
        train(task, methods.FLoRAL(model, num_clusters=2, routing="clustered"))
    for options in ({"router": {"noise": 1}}, {"num_clusters": 1}):
        train(task, methods.FLoRAL(model, **{"num_clusters": 2} | options, routing="clustered"))


@pytest.mark.parametrize("stand", [False, True])
def test_routers_lean_on_clusters_that_stand_out_and_on_no_others(
    stand: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = two_kinds()
    found = Found(task.clusters, effect=clustering.STANDS_OUT + (0.1 if stand else -0.1))
    told: list[Any] = []
    monkeypatch.setattr(asking, "find_clusters", lambda *given: told.append(given) or found)
    method = methods.FLoRAL(task.model, num_clusters=2, rank=1)
    before = method.initialise(task.clusters, seed=0)
    after, _ = ask(task, method, before, seed=7)
    assert bool(after.private[ROUTER].any()) == stand
    assert told[0][1:] == (2, 7)  # C and the run's seed


def test_a_client_in_a_wrong_cluster_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    task = two_kinds(rounds=40, evaluate_every=40, participation=1.0)
    wrong = task.clusters.clone()
    wrong[3] = 1 - wrong[3]
    monkeypatch.setattr(asking, "find_clusters", lambda *_: Found(wrong, effect=9.0))
    method = methods.FLoRAL(task.model, num_clusters=2, rank=1, routing="clustered")
    mixture = torch.tensor(train(task, method).history.rounds[-1].mixture)
    assert torch.equal(mixture.argmax(dim=1), task.clusters)


@pytest.mark.usefixtures("less_noise")
def test_seeds_with_and_without_clusters_stand_side_by_side() -> None:
    """Their clients share a stack."""
    one, other = two_kinds(), two_kinds()
    other = replace(other, train=[other.train[0]] * 20)  # all alike
    runs = [
        Run(task, methods.FLoRAL(task.model, num_clusters=2, rank=1, routing="clustered"), seed)
        for task, seed in ((one, 1), (other, 2))
    ]
    together = train_runs(runs, one.settings)
    for run, federation in zip(runs, together, strict=True):
        agree(train(run.task, run.method, seed=run.seed), federation)
    found, learned = (federation.state.private[ROUTER] for federation in together)
    largest = [theta.softmax(dim=1).max(dim=1).values for theta in (found, learned)]
    assert (largest[0] > 0.8).all()
    assert (largest[1] < 0.8).all()
    assert learned.any()


@pytest.mark.usefixtures("less_noise")
def test_an_interrupted_run_goes_on(tmp_path: Path, engine: Engine) -> None:
    task = two_kinds(rounds=4)
    method = methods.FLoRAL(task.model, num_clusters=2, rank=1, routing="clustered")
    whole = train(task, method, engine=engine)
    train(task, method, rounds=3, engine=engine, checkpoints=tmp_path / "late")
    identical(train(task, method, engine=engine, checkpoints=tmp_path / "late"), whole)


@pytest.mark.usefixtures("less_noise")
def test_the_servers_optimizer_begins_when_training_begins() -> None:
    adam = {"server_optimizer": "adam", "server_learning_rate": 0.01}
    task = two_kinds(participation=1.0, **adam)
    method = methods.FLoRAL(task.model, num_clusters=2, rank=1, routing="clustered")
    before, after = first_state(task, method), train(task, method, rounds=2).state
    # the first step of Adam is as long as its learning rate wherever there is a gradient
    moved = (after.shared["2.weight"] - before.shared["2.weight"]).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.01), rtol=1e-3, atol=0)


class WithUnused(nn.Module):
    """A network with a layer that its loss does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.used(inputs)  # type: ignore[no-any-return]


def test_a_weight_that_the_loss_does_not_use_has_a_gradient_of_zero() -> None:
    gradients, _ = first_gradients(make_task(WithUnused, normal(4)))
    assert gradients[0].any()
    assert not gradients[1].any()


@pytest.mark.usefixtures("less_noise")
def test_every_seed_of_a_run_will_do() -> None:
    gradients = [torch.randn(12, 30, generator=torch.Generator().manual_seed(0))]
    assert find_clusters(gradients, 2, seed=2**33) is not None
    with pytest.raises(InputError, match="seed is -1"):
        find_clusters(gradients, 2, seed=-1)


def test_too_few_rounds_are_refused() -> None:
    task = two_kinds(rounds=2)
    method = methods.FLoRAL(task.model, num_clusters=2, rank=1, routing="clustered")
    with pytest.raises(InputError, match=r"rounds is 2, and with participation=0\.5 .* takes 2 of them"):
        train(task, method)


def test_the_last_round_of_asking_may_have_fewer_clients() -> None:
    task = two_kinds(num_clients=5, participation=0.4)
    method = methods.FLoRAL(task.model, num_clusters=2, rank=1, routing="clustered")
    assert asked_rounds(task, method, task.settings) == 3  # of two, two and one


def test_a_population_is_too_large_to_be_asked() -> None:
    task = two_kinds()
    made = Population(20, lambda client: task.train[client])
    many = replace(task, train=made)
    method = methods.FLoRAL(task.model, num_clusters=2, rank=1, routing="clustered")
    with pytest.raises(InputError, match=r"asks every client.*routing='learned'"):
        train(many, method)


def test_a_client_that_begins_in_a_wrong_cluster_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong_for_one(gradients: Sequence[Tensor], num_clusters: int, seed: int) -> Found | None:
        found = find_clusters(gradients, num_clusters, seed)
        assert found is not None
        clusters = found.clusters.clone()
        clusters[0] = (clusters[0] + 1) % num_clusters
        return found._replace(clusters=clusters)

    monkeypatch.setattr(asking, "find_clusters", wrong_for_one)
    task = tasks.load("digits-label-shift", seed=0)
    method = methods.FLoRAL(task.model, budget=0.1, num_clusters=4, routing="clustered")
    rounds = train(task, method, rounds=9, evaluate_every=1).history.rounds
    first, last = (torch.tensor(rounds[index].mixture).argmax(dim=1) for index in (0, -1))
    assert right(first, task.clusters) < 1
    assert right(last, task.clusters) == 1


@pytest.mark.parametrize(("name", "seed"), [("digits-rotate", 100), ("digits-label-shift", 101)])
def test_the_digits_clusters_are_found_in_one_round(name: str, seed: int) -> None:
    """Seeds that nobody has looked at while the rule was made; all clients are asked in the first round."""
    task = tasks.load(name, seed=seed)
    method = methods.FLoRAL(task.model, routing="clustered")
    assert asked_rounds(task, method, task.settings) == 1
    state, _ = ask(task, method, first_state(task, method, seed), seed)
    assert right(state.private[ROUTER].argmax(dim=1), task.clusters) == 1


def test_none_are_found_among_digits_that_are_all_upright() -> None:
    seed = 100
    task = tasks.load("digits-rotate", seed=seed, num_clusters=1)
    method = methods.FLoRAL(task.model, routing="clustered")
    state, _ = ask(task, method, first_state(task, method, seed), seed)
    assert not state.private[ROUTER].any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_gradients_that_are_not_finite_are_no_clusters(bad: float) -> None:
    gradient = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    gradient[7, 1] = bad
    with pytest.raises(InputError, match="not all finite"):
        find_clusters([torch.ones(20, 5), gradient], 2)


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2)])
def test_runs_that_ask_in_other_rounds_are_refused(sizes: tuple[int, int]) -> None:
    some = [tasks.load("digits-rotate", num_clients=size, num_clusters=1) for size in sizes]
    settings = some[0].settings.with_changes(rounds=6, participation=0.34)
    runs = [Run(task, methods.FLoRAL(task.model, 2, routing="clustered"), 0) for task in some]
    with pytest.raises(InputError, match="different numbers of clients"):
        train_runs(runs, settings)
