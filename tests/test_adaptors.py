"""Adaptors: one contract for every kind, and the numbers of each."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from floral_lite import Floral, InputError
from floral_lite.adaptors import (
    KINDS,
    Adaptor,
    BiasAdaptor,
    Initialisation,
    LinearAdaptor,
    initialise,
    linear_rank,
    num_parameters,
    personalise,
    plan,
)

C = 3
RANK = 2
# A layer of each type in the registry with an input for it; a new type must join this table.
LAYERS: dict[type[nn.Module], tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    nn.Linear: (lambda: nn.Linear(7, 5), (4, 7)),
    nn.Conv1d: (lambda: nn.Conv1d(2, 5, 3), (4, 2, 6)),
    nn.Conv2d: (lambda: nn.Conv2d(2, 5, 3), (4, 2, 6, 6)),
    nn.Conv3d: (lambda: nn.Conv3d(2, 5, 3), (4, 2, 4, 4, 4)),
}
# Parameters of one adaptor: r (m + n) of a weight 5 x 7 at rank 2, m of a bias of 5.
COUNTS = {(nn.Linear, "weight"): 2 * (5 + 7)} | {(layer, "bias"): 5 for layer in LAYERS}
# The factors that start at random; all others start at zero.
RANDOM = {("weight", "paper"): {"U"}, ("weight", "authors"): {"V"}}
INITS = get_args(Initialisation)


class Case:
    """One kind of adaptor on one parameter of one layer."""

    def __init__(self, layer_type: type[nn.Module], parameter: str, init: Initialisation) -> None:
        build, self.input_shape = LAYERS[layer_type]
        self.layer = build().double()
        self.key, self.parameter, self.init = (layer_type, parameter), parameter, init
        self.adaptor: Adaptor = KINDS[layer_type][parameter].fit(self.layer, RANK, 1.0, init)
        self.base = self.layer.get_parameter(parameter).detach()

    def fresh(self, seed: int = 0) -> dict[str, Tensor]:
        return self.adaptor.initialise(C, torch.Generator().manual_seed(seed))

    def trained(self) -> dict[str, Tensor]:
        """Factors that are all away from zero."""
        generator = torch.Generator().manual_seed(1)
        return {
            name: torch.randn(C, *shape, generator=generator, dtype=torch.float64)
            for name, shape in self.adaptor.shapes.items()
        }


CASES = [
    pytest.param((layer, parameter, init), id=f"{layer.__name__}.{parameter}-{init}")
    for layer, parameters in KINDS.items()
    for parameter in parameters
    for init in INITS
]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(*request.param)


def simplex(*weights: float) -> Tensor:
    return torch.tensor(weights, dtype=torch.float64)


def test_the_contract_covers_every_layer_of_the_registry() -> None:
    assert set(LAYERS) == set(KINDS)


def test_adds_nothing_at_the_start(case: Case) -> None:
    delta = case.adaptor.delta(case.fresh(), torch.tensor([0.2, 0.3, 0.5]))
    assert torch.equal(delta, torch.zeros(case.base.shape))


def test_only_the_expected_factor_starts_at_random(case: Case) -> None:
    random = {name for name, tensor in case.fresh().items() if tensor.abs().max() > 0}
    assert random == RANDOM.get((case.parameter, case.init), set())


def test_one_tensor_per_shape_with_a_leading_axis_of_clusters(case: Case) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in case.fresh().items()}
    assert shapes == {name: (C, *shape) for name, shape in case.adaptor.shapes.items()}


def test_parameters_are_counted(case: Case) -> None:
    assert num_parameters({"weight": case.adaptor}) == COUNTS[case.key]


def test_the_same_generator_seed_gives_the_same_factors(case: Case) -> None:
    first, again, other = case.fresh(0), case.fresh(0), case.fresh(1)
    for name, tensor in first.items():
        assert torch.equal(tensor, again[name])
        random = name in RANDOM.get((case.parameter, case.init), set())
        assert torch.equal(tensor, other[name]) != random


def test_the_delta_is_linear_in_the_mixture(case: Case) -> None:
    first, second = simplex(0.2, 0.3, 0.5), simplex(0.7, 0.3, 0.0)
    together = case.adaptor.delta(case.trained(), 0.4 * first + 0.6 * second)
    apart = [case.adaptor.delta(case.trained(), mixture) for mixture in (first, second)]
    torch.testing.assert_close(together, 0.4 * apart[0] + 0.6 * apart[1])


def test_the_delta_is_the_weighted_sum_of_the_single_adaptors(case: Case) -> None:
    mixture = simplex(0.2, 0.3, 0.5)
    singles = [case.adaptor.delta(case.trained(), one_hot) for one_hot in torch.eye(C, dtype=torch.float64)]
    expected = sum(weight * single for weight, single in zip(mixture, singles, strict=True))
    assert not torch.allclose(singles[0], singles[1])
    torch.testing.assert_close(case.adaptor.delta(case.trained(), mixture), expected)


def test_the_gradients_agree_with_finite_differences(case: Case) -> None:
    names = list(case.adaptor.shapes)

    def delta(mixture: Tensor, *factors: Tensor) -> Tensor:
        return case.adaptor.delta(dict(zip(names, factors, strict=True)), mixture)

    inputs = [simplex(0.2, 0.3, 0.5), *case.trained().values()]
    assert torch.autograd.gradcheck(delta, [tensor.requires_grad_() for tensor in inputs])


def test_merged_computes_what_unmerged_computes(case: Case) -> None:
    model = Floral(case.layer, RANK, C, init=case.init).double()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in [*model.adaptors.parameters(), model.router_logits]:
            parameter.normal_(generator=generator)
    inputs = torch.randn(case.input_shape, generator=generator, dtype=torch.float64)
    merged = model.merge()
    assert not torch.allclose(merged(inputs), case.layer(inputs))
    torch.testing.assert_close(merged(inputs), model(inputs))


def test_the_linear_delta_by_hand() -> None:
    adaptor = LinearAdaptor(out_features=2, in_features=3, rank=1)
    factors = {
        "U": torch.tensor([[[1.0], [2.0]], [[0.0], [1.0]]]),
        "V": torch.tensor([[[1.0], [0.0], [3.0]], [[4.0], [4.0], [4.0]]]),
    }
    # 0.5 (1, 2)^T (1, 0, 3) + 0.25 (0, 1)^T (4, 4, 4)
    expected = torch.tensor([[0.5, 0.0, 1.5], [2.0, 1.0, 4.0]])
    assert torch.equal(adaptor.delta(factors, torch.tensor([0.5, 0.25])), expected)


def test_the_bias_delta_by_hand() -> None:
    factors = {"L": torch.tensor([[1.0, 2.0], [10.0, 20.0]])}
    delta = BiasAdaptor(features=2).delta(factors, torch.tensor([0.5, 0.25]))
    assert torch.equal(delta, torch.tensor([3.0, 6.0]))


@pytest.mark.parametrize(
    ("init", "factor", "variance"),
    [("paper", "U", 1 / 400), ("authors", "V", 2 / 500)],  # 1 / m and 2 / n
)
def test_the_random_factor_has_the_stated_variance(
    init: Initialisation, factor: str, variance: float
) -> None:
    factors = LinearAdaptor(400, 500, rank=4, init=init).initialise(5, torch.Generator().manual_seed(0))
    # the mean and variance of 8,000 or more uniform numbers
    assert float(factors[factor].mean()) == pytest.approx(0.0, abs=4 * (variance / 8000) ** 0.5)
    assert float(factors[factor].var()) == pytest.approx(variance, rel=0.05)


@pytest.mark.parametrize(
    ("m", "n", "budget", "rank"),
    # r = max(1, floor(rho m n / (m + n))); 0.1 * 200 * 784 / 984 = 15.9; 0.5 * 16 / 8 = 1
    [
        (200, 784, 0.01, 1),
        (200, 784, 0.1, 15),
        (10, 200, 0.1, 1),
        (4, 4, 0.5, 1),
        (4, 4, 1.0, 2),
        (1, 9, 1, 1),
        (200, 200, 0.29, 29),  # floating point would say 28
    ],
)
def test_ranks_by_hand(m: int, n: int, budget: float, rank: int) -> None:
    assert linear_rank(m, n, budget) == rank


@given(st.integers(1, 2000), st.integers(1, 2000), st.floats(1e-4, 1.0))
def test_the_rank_is_the_largest_that_keeps_to_the_budget(m: int, n: int, budget: float) -> None:
    rank = linear_rank(m, n, budget)
    allowed = Fraction(str(budget)) * m * n
    assert rank >= 1
    assert rank == 1 or (m + n) * rank <= allowed
    assert (m + n) * (rank + 1) > allowed


def test_fit_takes_the_rank_or_the_budgets_rank() -> None:
    layer = nn.Linear(784, 200)
    assert LinearAdaptor.fit(layer, 3, 1.0, "paper") == LinearAdaptor(200, 784, 3, "paper")
    assert LinearAdaptor.fit(layer, None, 0.1, "authors") == LinearAdaptor(200, 784, 15, "authors")


class Block(nn.Module):
    """A module with adaptable layers below it, and parameters that no adaptor fits."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
        self.head = nn.Linear(4, 2, bias=False)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.inner(inputs)) * self.scale
        return outputs


class MyLinear(nn.Linear):
    """A linear layer by another name."""


def test_the_plan_names_the_parameters_that_are_adapted() -> None:
    assert list(plan(Block(), rank=1)) == ["inner.0.weight", "inner.0.bias", "head.weight"]
    assert list(plan(nn.Linear(3, 2), rank=1)) == ["weight", "bias"]
    assert list(plan(MyLinear(3, 2), rank=1)) == ["weight", "bias"]


def test_frozen_parameters_get_no_adaptor() -> None:
    model = Block()
    model.inner.requires_grad_(False)
    assert list(plan(model, rank=1)) == ["head.weight"]


def test_a_layer_used_twice_gets_one_adaptor() -> None:
    layer = nn.Linear(3, 3)
    assert list(plan(nn.Sequential(layer, nn.ReLU(), layer), rank=1)) == ["0.weight", "0.bias"]


def test_the_budget_gives_each_layer_its_own_rank() -> None:
    adaptors = plan(nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10)), budget=0.1)
    assert adaptors["0.weight"] == LinearAdaptor(200, 784, 15)
    assert adaptors["2.weight"] == LinearAdaptor(10, 200, 1)  # 0.1 * 2000 / 210 < 1
    # 15 (200 + 784) + 200 + (10 + 200) + 10
    assert num_parameters(adaptors) == 15180


def test_personalise_adds_to_adapted_parameters_and_keeps_the_others() -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.LayerNorm(1))
    base = dict(model.named_parameters())
    clustered = {
        "0.weight.U": torch.tensor([[[1.0]], [[2.0]]]),
        "0.weight.V": torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]]),
        "0.bias.L": torch.tensor([[4.0], [8.0]]),
    }
    personal = personalise(plan(model, rank=1), base, clustered, torch.tensor([0.5, 0.5]))
    # 0.5 * 1 * (1, 2) + 0.5 * 2 * (3, 4) = (3.5, 5)
    torch.testing.assert_close(personal["0.weight"], base["0.weight"] + torch.tensor([[3.5, 5.0]]))
    torch.testing.assert_close(personal["0.bias"], base["0.bias"] + 6.0)
    assert personal["1.weight"] is base["1.weight"]
    assert list(personal) == list(base)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "rank is None and budget is None.*exactly one"),
        ({"rank": 8, "budget": 0.1}, "rank is 8 and budget is 0.1.*exactly one"),
        ({"rank": 0}, "rank is 0.*at least 1"),
        ({"rank": -2}, "rank is -2"),
        ({"budget": 0.0}, r"budget is 0\.0.*\(0, 1\]"),
        ({"budget": 1.5}, r"budget is 1\.5.*\(0, 1\]"),
        ({"budget": -0.1}, r"budget is -0\.1"),
        ({"budget": float("nan")}, "budget is nan"),
        ({"rank": 1, "init": "zeros"}, "init is 'zeros'.*'paper' or 'authors'"),
    ],
)
def test_a_plan_out_of_range_is_refused(arguments: Mapping[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(nn.Linear(3, 2), **arguments)


@pytest.mark.parametrize("num_clusters", [0, -1])
def test_fewer_than_one_cluster_is_refused(num_clusters: int) -> None:
    with pytest.raises(InputError, match=f"num_clusters is {num_clusters}.*at least 1"):
        initialise(plan(nn.Linear(3, 2), rank=1), num_clusters, torch.Generator())


@pytest.mark.parametrize(
    "model",
    [nn.ReLU(), nn.LayerNorm(3), nn.Linear(2, 2).requires_grad_(False)],
    ids=["none", "norm", "frozen"],
)
def test_a_model_with_nothing_to_adapt_is_refused(model: nn.Module) -> None:
    with pytest.raises(InputError, match=f"{type(model).__name__} has nothing to adapt.*Linear"):
        plan(model, rank=1)
