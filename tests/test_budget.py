"""The budget: how many parameters an adaptor has, and which rank that allows."""

import itertools
from collections.abc import Callable
from fractions import Fraction
from math import prod
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import nn

from floral_lite import InputError
from floral_lite.adaptors import (
    Convolution,
    LowRankAdaptor,
    Options,
    largest_rank,
    num_parameters,
    plan,
)
from floral_lite.adaptors.conv import fit_conv
from floral_lite.adaptors.linear import fit_linear


@pytest.mark.parametrize(
    ("layer", "kind", "of_a_rank"),
    [
        (nn.Linear(7, 5), "balanced", 5 + 7),  # m + n
        (nn.Embedding(7, 5), "balanced", 5 + 7),
        (nn.Conv2d(32, 64, (5, 3)), "channel_out", 64 * 15 + 32),  # c_out k_1 k_2 + c_in
        (nn.Conv2d(32, 64, (5, 3)), "channel_in", 64 + 32 * 15),
        (nn.Conv2d(32, 64, (5, 3)), "channel", 64 + 32 * 15),  # the smaller of the two
        (nn.Conv2d(64, 32, (5, 3)), "channel", 32 * 15 + 64),
        (nn.Conv2d(32, 64, (5, 3)), "reshaped", 64 + 32 * 15),
        (nn.Conv2d(32, 64, (5, 3)), "balanced", 32 * 5 + 64 * 3),  # c_min k_max + c_max k_min
        (nn.Conv2d(64, 32, (5, 3)), "balanced", 32 * 5 + 64 * 3),
        (nn.Conv2d(32, 64, (3, 5)), "balanced", 32 * 5 + 64 * 3),
        (nn.Conv2d(32, 64, (5, 3)), "filter", (64 * 3 + 32 * 5) * 64),  # (c_out k_2 + c_in k_1) c_out
        (nn.Conv2d(32, 64, (3, 5)), "filter", (64 * 5 + 32 * 3) * 64),
        (nn.Conv1d(4, 6, 5), "balanced", 6 + 4 * 5),  # one side: the cheaper channel kind
        # sides 2, 3, 5 to be dealt: 6 * 5 + 4 * 6 is the least of 72, 58, 54, 56, 68, 98
        (nn.Conv3d(4, 6, (2, 3, 5)), "balanced", 6 * 5 + 4 * 6),
        (nn.Conv2d(8, 8, 3, groups=8), "balanced", 8 * 3 + 1 * 3),  # depthwise: one channel a group
        (nn.Conv2d(8, 12, 3, groups=2), "channel_in", 12 + 4 * 9),
        (nn.Conv2d(8, 12, 1), "balanced", 12 + 8),
        # a transposed kernel is (c_in, c_out / groups, k_1, k_2): 8 * 3 + 6 * 5 < 8 * 5 + 6 * 3
        (nn.ConvTranspose2d(8, 12, (3, 5), groups=2), "balanced", 8 * 3 + 6 * 5),
        (nn.ConvTranspose2d(8, 12, (3, 5), groups=2), "channel_out", 6 * 15 + 8),
        (nn.ConvTranspose2d(8, 12, (3, 5), groups=2), "channel_in", 6 + 8 * 15),
    ],
    ids=str,
)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_parameters_are_counted(layer: nn.Module, kind: Convolution, of_a_rank: int, rank: int) -> None:
    adaptors = plan(layer, Options(rank=rank, convolution=kind, biases=False))
    assert num_parameters(adaptors) == of_a_rank * rank


@pytest.mark.parametrize(
    ("layer", "count"),
    [
        (nn.Linear(7, 5), 2 * 12 + 5),
        (nn.Linear(7, 5, bias=False), 2 * 12),
        (nn.BatchNorm2d(6), 6 + 6),
        (nn.LayerNorm((3, 4)), 12 + 12),
        (nn.RMSNorm(6), 6),
        # query, key and value in one weight 12 x 4, the output 4 x 4, and biases of 12 and 4
        (nn.MultiheadAttention(4, 2), 2 * (12 + 4) + 2 * (4 + 4) + 12 + 4),
        # apart: 4 x 4, 4 x 3, 4 x 5; with one more key and value of 4
        (
            nn.MultiheadAttention(4, 2, kdim=3, vdim=5, add_bias_kv=True),
            2 * (8 + 7 + 9) + 2 * 8 + 12 + 4 + 2 * 4,
        ),
    ],
    ids=str,
)
def test_vectors_are_adapted_whole(layer: nn.Module, count: int) -> None:
    assert num_parameters(plan(layer, Options(rank=2))) == count


def mnist_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))


def cifar_cnn() -> nn.Module:
    convolutions = [nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU()]
    head = [nn.MaxPool2d(3), nn.Flatten(), nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 10)]
    return nn.Sequential(*convolutions, *head)


def vgg_8() -> nn.Module:
    channels = [3, 16, 32, 64, 128, 512]
    convolutions = [nn.Conv2d(*pair, 3, padding=1) for pair in itertools.pairwise(channels)]
    return nn.Sequential(*convolutions, nn.Linear(512, 512), nn.Linear(512, 512), nn.Linear(512, 100))


@pytest.mark.parametrize(
    ("build", "budget", "ranks", "count"),
    [
        # floor(rho m n / (m + n)): 156,800 and 2,000 numbers, 984 and 210 a rank; 1.6 and 0.1
        (mnist_mlp, 0.01, [1, 1], 984 + 210 + 210),
        (mnist_mlp, 0.1, [15, 1], 15 * 984 + 210 + 210),  # 15.9 and 0.95
        # kernels of 2,400 and 18,432, 32 * 5 + 3 * 5 = 175 and 64 * 3 + 32 * 3 = 288 a rank;
        # 65,536 at 1,088 and 640 at 74; biases of 32 + 64 + 64 + 10
        (cifar_cnn, 0.01, [1, 1, 1, 1], 175 + 288 + 1088 + 74 + 170),
        (cifar_cnn, 0.1, [1, 6, 6, 1], 175 + 6 * 288 + 6 * 1088 + 74 + 170),  # 1.4, 6.4, 6.02, 0.9
        # kernels of 432, 4,608, 18,432, 73,728, 589,824 at 57, 144, 288, 576, 1,920 a rank;
        # 262,144 at 1,024 twice and 51,200 at 612; biases of 752 and 1,124
        (
            vgg_8,
            0.01,
            [1, 1, 1, 1, 3, 2, 2, 1],  # 0.08, 0.3, 0.6, 1.3, 3.1, 2.6, 2.6, 0.8
            57 + 144 + 288 + 576 + 3 * 1920 + 2 * 2 * 1024 + 612 + 1876,
        ),
        (
            vgg_8,
            0.1,
            [1, 3, 6, 12, 30, 25, 25, 8],  # 0.8, 3.2, 6.4, 12.8, 30.7, 25.6, 25.6, 8.4
            57 + 3 * 144 + 6 * 288 + 12 * 576 + 30 * 1920 + 2 * 25 * 1024 + 8 * 612 + 1876,
        ),
    ],
)
def test_the_papers_models(
    build: Callable[[], nn.Module], budget: float, ranks: list[int], count: int
) -> None:
    adaptors = plan(build(), Options(budget=budget))
    assert [one.rank for one in adaptors.values() if isinstance(one, LowRankAdaptor)] == ranks
    assert num_parameters(adaptors) == count


@pytest.mark.parametrize(
    ("m", "n", "budget", "rank"),
    [
        (4, 4, 0.5, 1),  # 0.5 * 16 / 8 = 1
        (4, 4, 1.0, 2),
        (1, 9, 1, 1),  # 0.9
        (200, 200, 0.57, 57),  # 56.999... in floating point
    ],
)
def test_ranks_by_hand(m: int, n: int, budget: float, rank: int) -> None:
    assert largest_rank(m * n, m + n, budget) == rank
    assert fit_linear(nn.Linear(n, m), "weight", Options(budget=budget)).rank == rank


@pytest.mark.parametrize("budget", [0.0, 1.5])
def test_a_budget_out_of_range_is_refused(budget: float) -> None:
    with pytest.raises(InputError, match=f"budget is {budget}"):
        largest_rank(16, 8, budget)


@pytest.mark.parametrize(
    ("budget", "rank"),
    # (8 * 7 + 64 * 7) 8 r = 4032 r <= rho 25088, in steps of c_out = 8: 3.1 at half, 0.6 at a tenth
    [(0.5, 3 * 8), (0.1, 8)],
)
def test_the_filter_wise_rank_by_hand(budget: float, rank: int) -> None:
    layer = nn.Conv2d(64, 8, 7)
    assert fit_conv(layer, "weight", Options(budget=budget, convolution="filter")).rank == rank


CHANNELS, SIDES = st.integers(1, 64), st.integers(1, 7)


BUDGETS = st.floats(1e-3, 1.0)


@st.composite
def any_layers(draw: st.DrawFn) -> nn.Module:
    """A layer with a low-rank adaptor, without memory for its numbers."""
    kind = draw(st.sampled_from(["linear", "embedding", "convolution", "transposed"]))
    inputs, outputs = draw(CHANNELS), draw(CHANNELS)
    if kind == "linear":
        return nn.Linear(inputs, outputs, device="meta")
    if kind == "embedding":
        return nn.Embedding(inputs, outputs, device="meta")
    kernel, groups = draw(st.lists(SIDES, min_size=1, max_size=3)), draw(st.integers(1, 4))
    layers: list[Callable[..., nn.Module]] = [nn.Conv1d, nn.Conv2d, nn.Conv3d]
    if kind == "transposed":
        layers = [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d]
    return layers[len(kernel) - 1](inputs * groups, outputs * groups, kernel, groups=groups, device="meta")


@pytest.mark.parametrize("kind", get_args(Convolution))
@hypothesis_settings(max_examples=100)
@given(layer=any_layers(), budget=BUDGETS)
def test_the_rank_is_the_largest_that_keeps_to_the_budget(
    layer: nn.Module, kind: Convolution, budget: float
) -> None:
    kernel = layer.get_parameter("weight").shape[2:]
    if kind == "filter" and (len(kernel) != 2 or max(kernel) == 1):
        kind = "balanced"
    adaptor = plan(layer, Options(budget=budget, convolution=kind, biases=False))["weight"]
    assert isinstance(adaptor, LowRankAdaptor)
    # filters come c_out ranks at a time
    least = adaptor.shape[adaptor.rows[0]] if adaptor.kind == "filter" else 1
    of_the_least = adaptor.num_parameters * least // adaptor.rank
    allowed = Fraction(str(budget)) * prod(adaptor.shape)
    assert adaptor.rank == least or adaptor.num_parameters <= allowed
    assert adaptor.num_parameters + of_the_least > allowed


@given(CHANNELS, CHANNELS, SIDES, SIDES, BUDGETS)
def test_a_balanced_rank_is_the_papers(c_in: int, c_out: int, k_1: int, k_2: int, budget: float) -> None:
    layer = nn.Conv2d(c_in, c_out, (k_1, k_2), device="meta")
    rank = fit_conv(layer, "weight", Options(budget=budget)).rank
    # (c_min k_max + c_max k_min) r <= rho c_min c_max k_min k_max
    (c_min, c_max), (k_min, k_max) = sorted((c_in, c_out)), sorted((k_1, k_2))
    of_a_rank, allowed = c_min * k_max + c_max * k_min, Fraction(str(budget)) * c_min * c_max * k_min * k_max
    assert rank == 1 or of_a_rank * rank <= allowed
    assert of_a_rank * (rank + 1) > allowed


@given(CHANNELS, CHANNELS, st.lists(SIDES, min_size=2, max_size=3), BUDGETS)
def test_no_other_split_of_the_kernel_has_a_larger_rank(
    c_in: int, c_out: int, kernel: list[int], budget: float
) -> None:
    layers: list[Callable[..., nn.Module]] = [nn.Conv2d, nn.Conv3d]
    layer = layers[len(kernel) - 2](c_in, c_out, kernel, device="meta")
    rank = fit_conv(layer, "weight", Options(budget=budget)).rank
    for with_u in itertools.product([True, False], repeat=len(kernel)):
        if any(with_u) and not all(with_u):  # each factor gets a side
            u_side = prod(side for side, mine in zip(kernel, with_u, strict=True) if mine)
            v_side = prod(kernel) // u_side
            other = Fraction(str(budget)) * c_in * c_out * prod(kernel) / (c_out * u_side + c_in * v_side)
            assert rank >= int(other)
