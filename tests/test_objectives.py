"""The objectives: each contains the one before it, and Jensen's inequality stands between the last two."""

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from floral_lite import InputError
from floral_lite.federation.aggregate import client_given_cluster, cluster_probability
from floral_lite.objectives import Loss, cfl, fl, fml, mfl, mfl_ws, pfl, weight_sharing, with_base

SIZE = 3


def random(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def quadratic(generator: torch.Generator) -> Loss:
    """1/2 (w - m)^T A (w - m) with A positive semi-definite, of rank 2."""
    root, centre = random(generator, 2, SIZE), random(generator, SIZE)
    return lambda w: 0.5 * (root @ (w - centre)).square().sum()


def logistic(generator: torch.Generator) -> Loss:
    inputs, labels = random(generator, 6, SIZE), random(generator, 6).sign()
    return lambda w: torch.nn.functional.softplus(-labels * (inputs @ w)).mean()


def largest(generator: torch.Generator) -> Loss:
    """The maximum of affine functions: convex, with kinks."""
    slopes, offsets = random(generator, 5, SIZE), random(generator, 5)
    return lambda w: (slopes @ w + offsets).amax()


def affine(generator: torch.Generator) -> Loss:
    slope = random(generator, SIZE)
    return lambda w: slope @ w + 1


CONVEX = [quadratic, logistic, largest]


class Case:
    """Random convex losses, unequal weights, models and mixtures."""

    def __init__(self, seed: int, num_clients: int = 5, num_models: int = 3) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.losses: Sequence[Loss] = [CONVEX[k % 3](self.generator) for k in range(num_clients)]
        samples = torch.randint(1, 50, (num_clients,), generator=self.generator).double()
        self.samples, self.weights = samples, samples / samples.sum()
        self.models = 3 * random(self.generator, num_models, SIZE)
        self.mixtures = torch.softmax(2 * random(self.generator, num_clients, num_models), dim=1)
        # every cluster has a client
        self.clusters = torch.arange(num_clients) % num_models
        self.one_hot = torch.nn.functional.one_hot(self.clusters, num_models).double()


def same(left: Tensor, right: Tensor) -> None:
    assert left.shape == ()
    assert left.dtype == torch.float64
    torch.testing.assert_close(left, right, rtol=1e-14, atol=1e-14)


SEEDS = st.integers(0, 10**6)


def test_values_by_hand() -> None:
    losses = [lambda w: (w - 1) ** 2, lambda w: (w - 5) ** 2, lambda w: 3 * w]
    weights = torch.tensor([0.5, 0.25, 0.25]).double()
    models = torch.tensor([1.0, 3.0]).double()
    # 1/2 * 4 + 1/4 * 4 + 1/4 * 9
    assert float(fl(losses, weights, models[1])) == 5.25
    # 1/2 * 0 + 1/4 * 4 + 1/4 * 6, and Gamma = 10
    own = torch.tensor([1.0, 3.0, 2.0]).double()
    assert float(pfl(losses, weights, own)) == 2.5
    assert float(pfl(losses, weights, own, lambda _: torch.tensor(10.0))) == 12.5
    # clients 0 and 1 in cluster 0, with 2/3 and 1/3: 16/3; client 2 in cluster 1: 9
    clusters = torch.tensor([0, 0, 1])
    assert float(cfl(losses, weights, models, clusters)) == pytest.approx(16 / 3 + 9, abs=1e-12)
    shares = torch.tensor([0.75, 0.25]).double()
    assert float(cfl(losses, weights, models, clusters, shares)) == pytest.approx(4 + 9 / 4, abs=1e-12)
    # 1/2 (1/4 * 0 + 3/4 * 4) + 1/4 (1 * 16) + 1/4 (1/2 * 3 + 1/2 * 9)
    mixtures = torch.tensor([[0.25, 0.75], [1, 0], [0.5, 0.5]]).double()
    assert float(mfl(losses, weights, models, mixtures)) == 1.5 + 4 + 1.5
    # w^k = 5/2, 1, 2: 1/2 * 9/4 + 1/4 * 16 + 1/4 * 6
    assert float(fml(losses, weights, models, mixtures)) == 1.125 + 4 + 1.5
    # Gamma looks at the C models, not at the clients' mixtures of them: 1 + 3
    assert float(fml(losses, weights, models, mixtures, torch.sum)) == 6.625 + 4


@given(SEEDS)
def test_fl_is_pfl_with_models_that_are_all_alike(seed: int) -> None:
    case = Case(seed)
    model = case.models[0]
    same(fl(case.losses, case.weights, model), pfl(case.losses, case.weights, model.expand(5, -1)))


@given(SEEDS)
def test_pfl_is_cfl_with_a_cluster_for_each_client(seed: int) -> None:
    case = Case(seed, num_models=5)
    alone = torch.randperm(5, generator=case.generator)
    right = cfl(case.losses, case.weights, case.models, alone, case.weights[alone.argsort()])
    same(pfl(case.losses, case.weights, case.models[alone]), right)


@given(SEEDS)
def test_cfl_is_mfl_with_one_hot_mixtures(seed: int) -> None:
    case = Case(seed)
    shares = cluster_probability(case.one_hot, case.samples)
    right = mfl(case.losses, case.weights, case.models, case.one_hot)
    same(cfl(case.losses, case.weights, case.models, case.clusters, shares), right)
    # as the paper prints it, each cluster counts alike: another number, of the same pieces
    of_members = client_given_cluster(case.one_hot, case.samples)
    pieces = [fl(case.losses, of_members[:, c], case.models[c]) for c in range(3)]
    same(cfl(case.losses, case.weights, case.models, case.clusters), torch.stack(pieces).sum())


@given(SEEDS)
def test_mfl_is_mfl_ws_with_an_empty_base(seed: int) -> None:
    case = Case(seed)
    nothing = case.models.new_zeros(0)
    right = mfl_ws(case.losses, case.weights, nothing, case.models, case.mixtures)
    same(mfl(case.losses, case.weights, case.models, case.mixtures), right)


@given(SEEDS, st.integers(0, SIZE))
def test_mfl_ws_is_mfl_with_the_papers_regularizer(seed: int, num_shared: int) -> None:
    case = Case(seed)
    base, adaptors = case.models[0, :num_shared], case.models[:, num_shared:]
    gamma, tied = weight_sharing(num_shared), with_base(base, adaptors)
    right = mfl(case.losses, case.weights, tied, case.mixtures, gamma)
    same(mfl_ws(case.losses, case.weights, base, adaptors, case.mixtures), right)
    loose = mfl(case.losses, case.weights, case.models, case.mixtures, gamma)
    assert torch.isinf(loose) == (num_shared > 0)


@given(SEEDS, st.integers(0, SIZE))
def test_mfl_ws_is_fml_with_one_hot_mixtures(seed: int, num_shared: int) -> None:
    case = Case(seed)
    base, adaptors = case.models[0, :num_shared], case.models[:, num_shared:]
    right = fml(case.losses, case.weights, with_base(base, adaptors), case.one_hot)
    same(mfl_ws(case.losses, case.weights, base, adaptors, case.one_hot), right)


def test_models_of_whole_numbers_are_mixed_as_others_are() -> None:
    losses = [lambda w: (w - 0.5).square(), lambda w: (w + 0.5).square()]
    half = torch.tensor([0.5, 0.5])
    whole, others = (
        fml(losses, half, models, half.repeat(2, 1))
        for models in (torch.arange(3)[1:], torch.arange(3.0)[1:])
    )
    assert float(whole) == float(others) == 2.5
    assert torch.isinf(weight_sharing(1)(torch.tensor([[1, 2], [3, 2]])))


@given(SEEDS)
def test_a_mixture_of_models_with_a_base_has_that_base(seed: int) -> None:
    case = Case(seed)
    base, adaptors = case.models[0, :1], case.models[:, 1:]
    personal = case.mixtures @ with_base(base, adaptors)
    torch.testing.assert_close(personal, torch.cat([base.expand(5, -1), case.mixtures @ adaptors], dim=1))


@given(SEEDS)
def test_jensen_fml_is_at_most_mfl_for_convex_losses(seed: int) -> None:
    case = Case(seed)
    upper = mfl(case.losses, case.weights, case.models, case.mixtures)
    lower = fml(case.losses, case.weights, case.models, case.mixtures)
    assert lower <= upper + 1e-12
    base, adaptors = case.models[0, :1], case.models[:, 1:]
    upper = mfl_ws(case.losses, case.weights, base, adaptors, case.mixtures)
    assert fml(case.losses, case.weights, with_base(base, adaptors), case.mixtures) <= upper + 1e-12


def test_jensen_is_strict_for_a_strictly_convex_loss_an_equality_for_an_affine_one() -> None:
    case, one = Case(0), torch.ones(1).double()
    pi = torch.tensor([[0.25, 0.25, 0.5]]).double()
    # the gap of 1/2 ||w||^2 is 1/2 sum_c pi_c ||w_c - w_hat||^2
    half_square = [lambda w: 0.5 * w.square().sum()]
    gap = mfl(half_square, one, case.models, pi) - fml(half_square, one, case.models, pi)
    away = case.models - pi @ case.models
    same(gap, 0.5 * (pi[0] * away.square().sum(dim=1)).sum())
    assert gap > 0.1
    line = [affine(case.generator)]
    same(mfl(line, one, case.models, pi), fml(line, one, case.models, pi))


def test_without_convexity_jensen_may_turn_round() -> None:
    valleys, one = [lambda w: (w**2 - 1).square().sum()], torch.ones(1).double()
    models, half = torch.tensor([[-1.0], [1.0]]).double(), torch.full((1, 2), 0.5).double()
    assert float(mfl(valleys, one, models, half)) == 0
    assert float(fml(valleys, one, models, half)) == 1


def test_gradients_reach_models_and_mixtures() -> None:
    case = Case(1)
    base, adaptors, logits = case.models[0, :1], case.models[:, 1:], case.mixtures.log()
    leaves = [leaf.clone().requires_grad_() for leaf in (base, adaptors, logits)]

    def floral(u: Tensor, a: Tensor, theta: Tensor) -> Tensor:
        return fml(case.losses, case.weights, with_base(u, a), torch.softmax(theta, dim=1))

    def shared(u: Tensor, a: Tensor, theta: Tensor) -> Tensor:
        return mfl_ws(case.losses, case.weights, u, a, torch.softmax(theta, dim=1))

    assert torch.autograd.gradcheck(floral, leaves)
    assert torch.autograd.gradcheck(shared, leaves)


def test_a_cluster_without_clients_adds_nothing() -> None:
    case = Case(2, num_models=4)
    clusters = case.clusters.clamp(max=2)
    value = cfl(case.losses, case.weights, case.models, clusters)
    same(value, cfl(case.losses, case.weights, case.models[:3], clusters))


def test_a_cluster_of_next_to_no_weight_counts_like_the_others() -> None:
    case, rare = Case(2, num_clients=2, num_models=2), torch.tensor([1, 1e-30]).double()
    each = [loss(model) for loss, model in zip(case.losses, case.models, strict=True)]
    same(cfl(case.losses, rare, case.models, torch.arange(2)), each[0] + each[1])


def test_weights_and_mixtures_may_be_of_another_type() -> None:
    models, ends = torch.tensor([[1.0, -1.0], [2.0, 0.5]]), torch.tensor([0, 1])
    losses: list[Loss] = [lambda w: (w - 1).square().sum(), lambda w: (w + 1).square().sum()]
    one_hot, half = torch.nn.functional.one_hot(ends), torch.tensor([0.5, 0.5])
    for weights in (half.double(), torch.tensor([1, 0])):
        torch.testing.assert_close(fl(losses, weights, models[0]), fl(losses, weights.float(), models[0]))
        wanted = mfl(losses, weights.float(), models, one_hot.float())
        for objective in (mfl, fml):
            torch.testing.assert_close(objective(losses, weights, models, one_hot), wanted)
        torch.testing.assert_close(cfl(losses, weights, models, ends, weights), wanted)


def test_what_is_no_distribution_is_refused() -> None:
    case = Case(3)
    with pytest.raises(InputError, match=r"weights has the shape \(4,\) for 5 clients"):
        fl(case.losses, case.weights[:4], case.models[0])
    for total in (0.5, 2.0):
        with pytest.raises(InputError, match=f"weights has sums {total}.*sum to 1"):
            fl(case.losses, total * case.weights, case.models[0])
    with pytest.raises(InputError, match=r"weights has the shape \(0,\), which is empty"):
        fl([], case.weights[:0], case.models[0])
    for rows in (3, 6):
        with pytest.raises(InputError, match=f"models has {rows} rows for 5 clients"):
            pfl(case.losses, case.weights, case.models[:1].expand(rows, -1))
    for clusters in ([0, 0, 1, 2, -1], [0, 0, 1, 2, 3], [0, 0, 1, 2], [0.0, 0.0, 1.0, 2.0, 1.0]):
        with pytest.raises(InputError, match=r"each of the 5 needs an integer in \[0, 3\)"):
            cfl(case.losses, case.weights, case.models[:3], torch.tensor(clusters))
    for counts in (case.weights[:2], torch.tensor(1.0)):
        with pytest.raises(InputError, match=r"weights has the shape \(.*\) for 3 losses; give a weight"):
            cfl(case.losses, case.weights, case.models[:3], torch.zeros(5, dtype=torch.long), counts)
    for objective in (mfl, fml):
        with pytest.raises(InputError, match=r"weights has the shape \(4,\) for 5 clients"):
            objective(case.losses, case.weights[:4], case.models, case.mixtures)
        with pytest.raises(InputError, match=r"mixtures has the shape \(5, 2\); it must be \(5, 3\)"):
            objective(case.losses, case.weights, case.models, case.mixtures[:, :2])
        with pytest.raises(InputError, match=r"mixtures has sums.*smallest entry -0\.33"):
            objective(case.losses, case.weights, case.models, 2 * case.one_hot - 1 / 3)


@pytest.mark.parametrize(
    "objective",
    [
        lambda losses, half, w: fl(losses, half, w[0]),
        lambda losses, half, w: pfl(losses, half, w),
        lambda losses, half, w: cfl(losses, half, w, torch.tensor([0, 1])),
        lambda losses, half, w: mfl(losses, half, w, half.repeat(2, 1)),
        lambda losses, half, w: fml(losses, half, w, half.repeat(2, 1)),
    ],
)
def test_integers_and_losses_that_are_no_scalars_are_refused(objective: Callable[..., Tensor]) -> None:
    half = torch.tensor([0.5, 0.5])
    with pytest.raises(InputError, match=r"losses are torch\.int64 of shape \(\); each is a scalar"):
        objective([lambda w: ((w - 1) ** 2).long()] * 2, half, torch.tensor([0, 0]))
    with pytest.raises(InputError, match=r"of shape \(3,\); each is a scalar"):
        objective([lambda w: w * torch.ones(3)] * 2, half, torch.tensor([0.0, 0.0]))


@pytest.mark.parametrize("objective", [mfl, fml])
def test_an_objective_has_the_precision_of_the_losses(objective: Callable[..., Tensor]) -> None:
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    assert objective([torch.square] * 2, half, torch.ones(2), half.repeat(2, 1)).dtype == torch.float32
