"""Adaptors by hand: what they add, how they start, and the rank that a matrix can have."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from floral_lite import Floral, InputError
from floral_lite.adaptors import (
    KINDS,
    Initialisation,
    LowRankAdaptor,
    Options,
    VectorAdaptor,
    plan,
)
from floral_lite.adaptors.embedding import fit_embedding
from floral_lite.adaptors.linear import fit_linear

C = 3
ROUTES = ("merged", "factored", "auto")


def close(actual: Tensor, expected: Tensor) -> None:
    """Equal to the rounding of double precision."""
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)


def test_the_linear_delta_by_hand() -> None:
    adaptor = fit_linear(nn.Linear(3, 2), "weight", Options(rank=1))
    factors = {
        "U": torch.tensor([[[1.0], [2.0]], [[0.0], [1.0]]]),
        "V": torch.tensor([[[1.0], [0.0], [3.0]], [[4.0], [4.0], [4.0]]]),
    }
    # 0.5 (1, 2)^T (1, 0, 3) + 0.25 (0, 1)^T (4, 4, 4)
    expected = torch.tensor([[0.5, 0.0, 1.5], [2.0, 1.0, 4.0]])
    assert torch.equal(adaptor.delta(factors, torch.tensor([0.5, 0.25])), expected)


def test_the_embedding_delta_by_hand() -> None:
    adaptor = fit_embedding(nn.Embedding(3, 2), "weight", Options(rank=1))
    # U (features, r) and V (words, r): the weight is (words, features), so V U^T is added
    factors = {"U": torch.tensor([[[1.0], [2.0]]]), "V": torch.tensor([[[1.0], [0.0], [3.0]]])}
    expected = torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 6.0]])
    assert torch.equal(adaptor.delta(factors, torch.ones(1)), expected)


def test_the_vector_delta_by_hand() -> None:
    factors = {"L": torch.tensor([[1.0, 2.0], [10.0, 20.0]])}
    delta = VectorAdaptor("bias", (2,)).delta(factors, torch.tensor([0.5, 0.25]))
    assert torch.equal(delta, torch.tensor([3.0, 6.0]))


def test_the_vector_of_the_padding_stays_as_it_is() -> None:
    layer = nn.Embedding(4, 3, padding_idx=1)
    model = Floral(layer, 2, C, init="authors")  # V random
    assert not model.get_parameter("adaptors.weight.V")[:, 1].any()
    words = torch.tensor([0, 1, 1, 2])
    for model.mixing in ROUTES:
        model.zero_grad()
        with torch.no_grad():
            model.get_parameter("adaptors.weight.U").normal_()
        model(words).square().sum().backward()
        gradient = model.get_parameter("adaptors.weight.V").grad
        assert gradient is not None
        assert gradient[:, 0].any()
        assert not gradient[:, 1].any()
        assert torch.equal(model(words)[1], torch.zeros(3))


LAYERS = [nn.Linear(7, 5), nn.Embedding(7, 5), nn.Conv2d(4, 6, (3, 2), groups=2)]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize(("init", "random", "zero"), [("paper", "U", "V"), ("authors", "V", "U")])
def test_one_factor_starts_at_random(layer: nn.Module, init: Initialisation, random: str, zero: str) -> None:
    adaptors = plan(layer, Options(rank=2, init=init))
    first, again, other = (
        adaptors["weight"].initialise(C, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert not first[zero].any()
    assert first[random].all()
    assert torch.equal(first[random], again[random])
    assert not torch.equal(first[random], other[random])


@pytest.mark.parametrize(
    ("layer", "init", "factor", "variance"),
    # 1 / m and 2 / n, of the matrix that the factors make
    [
        (nn.Linear(500, 400), "paper", "U", 1 / 400),
        (nn.Linear(500, 400), "authors", "V", 2 / 500),
        (nn.Embedding(500, 400), "paper", "U", 1 / 400),
        (nn.Embedding(500, 400), "authors", "V", 2 / 500),
        (nn.Conv2d(100, 80, 5), "paper", "U", 1 / 400),
        (nn.Conv2d(100, 80, 5), "authors", "V", 2 / 500),
    ],
    ids=str,
)
def test_the_random_factor_has_the_stated_variance(
    layer: nn.Module, init: Initialisation, factor: str, variance: float
) -> None:
    adaptors = plan(layer, Options(rank=4, init=init))
    values = adaptors["weight"].initialise(5, torch.Generator().manual_seed(0))[factor]
    # the mean and variance of 8,000 or more uniform numbers, whose bound is sqrt(3 variance)
    assert float(values.mean()) == pytest.approx(0.0, abs=4 * (variance / 8000) ** 0.5)
    assert float(values.var()) == pytest.approx(variance, rel=0.05)
    assert float(values.abs().max()) == pytest.approx((3 * variance) ** 0.5, rel=0.01)


@pytest.mark.parametrize("rows", [400, 4])
def test_the_first_step_is_the_weights_own_projected(rows: int) -> None:
    layer = nn.Linear(9, rows, dtype=torch.float64)
    model = Floral(layer, 4, 1, generator=torch.Generator().manual_seed(0))
    (model(torch.eye(9, dtype=torch.float64)) * torch.randn(9, rows, dtype=torch.float64)).sum().backward()
    before = layer.weight.detach().clone()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    own = before - layer.weight.detach()
    assert layer.weight.grad is not None
    torch.testing.assert_close(own, layer.weight.grad)
    u, v = (model.get_parameter(f"adaptors.weight.{factor}").detach()[0] for factor in ("U", "V"))
    torch.testing.assert_close(-u @ v.T, u @ u.T @ own)
    # U U^T is a projection on its R columns, but for chance
    along = torch.linalg.svdvals(u).square().mean()
    assert float(along) == pytest.approx(1, rel=0.35)


@pytest.mark.parametrize(
    ("layer", "most"),
    [
        (nn.Linear(50, 2), 2),
        (nn.Linear(3, 50), 3),
        (nn.Embedding(50, 4), 4),
        (nn.Conv2d(1, 8, 3), 1 * 3),  # as a matrix of 8 k rows and 1 k columns
    ],
    ids=str,
)
def test_no_rank_is_larger_than_a_matrix_can_have(layer: nn.Module, most: int) -> None:
    """Else U^T U has no inverse, and the preconditioner magnifies rounding."""
    for rank in (most, most + 1, 10**9):
        adaptor = plan(layer, Options(rank=rank))["weight"]
        assert isinstance(adaptor, LowRankAdaptor)
        assert adaptor.rank == most


@pytest.mark.parametrize("rank", [1, 3, 9])
@pytest.mark.parametrize("layer", [nn.Linear(7, 5), nn.Embedding(6, 4)], ids=str)
def test_the_equivalent_rank_of_a_matrix_is_the_rank_it_can_have(layer: nn.Module, rank: int) -> None:
    adaptor = plan(layer, Options(rank=rank))["weight"]
    assert isinstance(adaptor, LowRankAdaptor)
    factors = {name: torch.randn(1, *shape, dtype=torch.float64) for name, shape in adaptor.shapes.items()}
    matrix = adaptor.delta(factors, torch.ones(1, dtype=torch.float64))
    assert adaptor.equivalent_rank == int(torch.linalg.matrix_rank(matrix)) == min(rank, *adaptor.shape)


def test_a_subclass_that_adds_something_else_is_told() -> None:
    with pytest.raises(InputError, match=r"Scaled has a delta of its own.*adaptors\.Adaptor"):

        class Scaled(LowRankAdaptor):
            def delta(self, factors: Mapping[str, Tensor], mixture: Tensor) -> Tensor:
                return 2 * super().delta(factors, mixture)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": None}, "rank is None"),
        ({"rows": 0}, r"rows is 0; it must be a tuple, such as \(0,\)"),
        ({"columns": (1,)}, r"rows are \(0,\) and columns \(1,\); each axis of the shape \(4, 3, 2\)"),
        ({"columns": (0, 1, 2)}, "must be in one of them"),
        ({"columns": (1, 3)}, "must be in one of them"),
        ({"rows": (0, 1, 2), "columns": ()}, r"columns \(\); .* both need one: .* VectorAdaptor"),
        ({"rows": (0, 2, 1), "columns": (3,), "shape": (4, 3, 2, 5)}, r"rows are .*; write \(0, 1, 2\)"),
        ({"columns": (1, 3, 2), "shape": (4, 3, 2, 5)}, r"columns are .*; write \(1, 2, 3\)"),
    ],
)
def test_factors_that_do_not_share_the_axes_are_refused(changes: dict[str, Any], message: str) -> None:
    choices: dict[str, Any] = {"shape": (4, 3, 2), "rows": (0,), "columns": (1, 2), "rank": 1} | changes
    with pytest.raises(InputError, match=message):
        LowRankAdaptor("own", **choices)


@pytest.mark.parametrize(
    ("layer", "rows", "columns", "wanted"),
    [
        (nn.Linear(6, 6), (1,), (0,), r"\(1, 0\); those of Linear begin with \(0, 1\)"),
        (nn.Embedding(5, 6), (0,), (1,), r"\(0, 1\); those of Embedding begin with \(1, 0\)"),
        (nn.ConvTranspose2d(4, 4, 3), (0, 2), (1, 3), r"begin with \(1, 0\)"),
        (nn.Conv2d(4, 4, 3), (0, 1), (2, 3), r"\(0, 2\); .* begin with \(0, 1\)"),
    ],
)
def test_an_adaptor_of_ones_own_that_turns_a_weight_is_refused(
    layer: nn.Module,
    rows: tuple[int, ...],
    columns: tuple[int, ...],
    wanted: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside the weight its factors would run as those of another weight."""
    own = LowRankAdaptor("own", tuple(layer.get_parameter("weight").shape), rows, columns, rank=1)
    monkeypatch.setitem(KINDS, type(layer), {"weight": lambda *_: own})
    with pytest.raises(InputError, match=wanted):
        plan(nn.Sequential(layer), Options(rank=1))
