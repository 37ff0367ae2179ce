"""Convolution LoRA: the paper's sums, the chain of two convolutions, and any geometry."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

import pytest
import torch
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from floral_lite import Floral
from floral_lite.adaptors import (
    Convolution,
    LowRankAdaptor,
    Options,
)
from floral_lite.adaptors.conv import fit_conv

ROUTES = ("merged", "factored", "auto")
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")


def close(actual: Tensor, expected: Tensor) -> None:
    """Equal to the rounding of double precision."""
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)


def can_be_split_into_filters(layer: nn.Module) -> bool:
    kernel = layer.get_parameter("weight").shape[2:]
    return len(kernel) == 2 and max(kernel) > 1


def trained_factors(adaptor: LowRankAdaptor, num_clusters: int) -> dict[str, Tensor]:
    return {
        name: torch.randn(num_clusters, *shape, dtype=torch.float64) for name, shape in adaptor.shapes.items()
    }


def kernel_adaptor(layer: nn.Module, kind: Convolution, rank: int = 2) -> LowRankAdaptor:
    return fit_conv(layer, "weight", Options(rank=rank, convolution=kind))


STRIDE, PADDING, DILATION, GROUPS = (2, 3), (1, 2), (2, 1), 2


def channel_out_chain(inputs: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """V (c_in, r) is 1 x 1, U (c_out, k_1, k_2, r) is the convolution; all groups share V."""
    inner = functional.conv2d(inputs, torch.cat([v.T[:, :, None, None]] * GROUPS), groups=GROUPS)
    return functional.conv2d(inner, u.permute(0, 3, 1, 2), None, STRIDE, PADDING, DILATION, GROUPS)


def channel_in_chain(inputs: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """V (c_in, k_1, k_2, r) is the convolution, U (c_out, r) is 1 x 1."""
    kernel = torch.cat([v.permute(3, 0, 1, 2)] * GROUPS)
    inner = functional.conv2d(inputs, kernel, None, STRIDE, PADDING, DILATION, GROUPS)
    return functional.conv2d(inner, u[:, :, None, None], groups=GROUPS)


def balanced_chain(inputs: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """V (c_in, k_1, r) goes down the image, U (c_out, k_2, r) across."""
    down, across = ([n[side] for n in (STRIDE, PADDING, DILATION)] for side in range(2))
    kernel = torch.cat([v.permute(2, 0, 1)[:, :, :, None]] * GROUPS)
    inner = functional.conv2d(inputs, kernel, None, (down[0], 1), (down[1], 0), (down[2], 1), GROUPS)
    kernel = u.permute(0, 2, 1)[:, :, None, :]
    return functional.conv2d(inner, kernel, None, (1, across[0]), (0, across[1]), (1, across[2]), GROUPS)


@pytest.mark.parametrize(
    ("kind", "chain"),
    [
        ("channel_out", channel_out_chain),
        ("channel_in", channel_in_chain),
        ("balanced", balanced_chain),  # 6 * 2 + 2 * 3 is less than 6 * 3 + 2 * 2: U has the side of 2
        ("filter", balanced_chain),
    ],
)
def test_adding_to_the_kernel_is_adding_a_chain_of_two_convolutions(
    kind: Convolution, chain: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> None:
    layer = nn.Conv2d(4, 6, (3, 2), STRIDE, PADDING, DILATION, GROUPS, dtype=torch.float64)
    inputs = torch.randn(2, 4, 9, 8, dtype=torch.float64)
    adaptor = kernel_adaptor(layer, kind)
    factors, mixture = trained_factors(adaptor, 2), torch.tensor([0.3, 0.7], dtype=torch.float64)
    kernel = layer.weight + adaptor.delta(factors, mixture)
    together = functional.conv2d(inputs, kernel, layer.bias, STRIDE, PADDING, DILATION, GROUPS)
    chains = [chain(inputs, u, v) for u, v in zip(factors["U"], factors["V"], strict=True)]
    close(together, layer(inputs) + 0.3 * chains[0] + 0.7 * chains[1])


@pytest.mark.parametrize(
    ("kind", "shape", "entry"),
    [
        # sum_k U_ikab V_kj11
        ("channel_out", (3, 4, 2, 3), lambda u, v, i, j, a, b: sum(u[i, a, b] * v[j])),
        ("channel_in", (3, 4, 2, 3), lambda u, v, i, j, a, b: sum(u[i] * v[j, a, b])),
        # the cheaper of the two: 3 * 6 + 4 < 3 + 4 * 6, and 4 + 3 * 6 < 4 * 6 + 3
        ("channel", (3, 4, 2, 3), lambda u, v, i, j, a, b: sum(u[i, a, b] * v[j])),
        ("channel", (4, 3, 2, 3), lambda u, v, i, j, a, b: sum(u[i] * v[j, a, b])),
        # both cost the same: the sides go with U
        ("channel", (3, 3, 2, 3), lambda u, v, i, j, a, b: sum(u[i, a, b] * v[j])),
        # sum_k U_ik1b V_kja1: 4 * 2 + 3 * 3 < 4 * 3 + 3 * 2, and the other way round
        ("balanced", (4, 3, 3, 2), lambda u, v, i, j, a, b: sum(u[i, b] * v[j, a])),
        ("balanced", (4, 3, 2, 3), lambda u, v, i, j, a, b: sum(u[i, a] * v[j, b])),
        # a square kernel costs the same both ways: as printed
        ("balanced", (4, 3, 2, 2), lambda u, v, i, j, a, b: sum(u[i, b] * v[j, a])),
        # the same sum, over c_out r channels
        ("filter", (4, 3, 2, 3), lambda u, v, i, j, a, b: sum(u[i, b] * v[j, a])),
        # L^linear_{(k_1 k_2 i + k_2 a + b) j} of U (c_out k_1 k_2, r) and V (c_in, r)
        (
            "reshaped",
            (3, 4, 2, 3),
            lambda u, v, i, j, a, b: (u.reshape(3 * 6, -1) @ v.T)[2 * 3 * i + 3 * a + b, j],
        ),
    ],
)
def test_the_kernels_are_the_papers_sums(
    kind: Convolution, shape: tuple[int, ...], entry: Callable[..., Tensor]
) -> None:
    c_out, c_in, *kernel = shape
    adaptor = kernel_adaptor(nn.Conv2d(c_in, c_out, kernel), kind)
    factors = trained_factors(adaptor, 1)
    added = adaptor.delta(factors, torch.ones(1, dtype=torch.float64))
    assert added.shape == shape
    for index in itertools.product(*map(range, shape)):
        close(added[index], entry(factors["U"][0], factors["V"][0], *index))


class Drawn(NamedTuple):
    """A convolution that hypothesis drew, the kind of its adaptor, and inputs that fit."""

    layer: nn.Module
    kind: Convolution
    inputs: Tensor


@st.composite
def convolutions(draw: st.DrawFn) -> Drawn:
    """Any channels, kernel, stride, padding, padding_mode, dilation, groups and size, transposed or not."""
    sides, transposed = draw(st.integers(1, 3)), draw(st.booleans())

    def each(largest: int, smallest: int = 1) -> list[int]:
        return draw(st.lists(st.integers(smallest, largest), min_size=sides, max_size=sides))

    kernel, stride, dilation = each(3), each(3), each(2)
    # each side of the input is at least as long as the dilated kernel
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    size = [r + more for r, more in zip(reach, each(3), strict=True)]
    groups = draw(st.integers(1, 3))
    channels = [groups * draw(st.integers(1, 3)) for _ in range(2)]
    settings: dict[str, Any] = {"dilation": dilation, "groups": groups, "bias": draw(st.booleans())}
    if transposed:
        padding = [draw(st.integers(0, r // 2)) for r in reach]
        more = [draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)]
        settings |= {"stride": stride, "padding": padding, "output_padding": more}
    elif draw(st.booleans()):
        settings |= {"padding": draw(st.sampled_from(["same", "valid"]))}  # 'same' takes no stride
    else:
        settings |= {"stride": stride, "padding": [draw(st.integers(0, max(0, n - 1))) for n in size]}
    if not transposed:
        settings["padding_mode"] = draw(st.sampled_from(["zeros", "circular", "reflect", "replicate"]))
    layers = [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d]
    layer = (layers if transposed else [nn.Conv1d, nn.Conv2d, nn.Conv3d])[sides - 1](
        *channels, kernel, **settings, dtype=torch.float64
    )
    kinds = [kind for kind in get_args(Convolution) if kind != "filter" or can_be_split_into_filters(layer)]
    inputs = torch.randn(2, channels[0], *size, dtype=torch.float64)
    return Drawn(layer, draw(st.sampled_from(kinds)), inputs)


@hypothesis_settings(max_examples=200)
@given(convolutions(), st.integers(1, 3))
# U has two of three sides
@example(Drawn(nn.Conv3d(8, 1, (2, 3, 4)).double(), "balanced", torch.randn(2, 8, 3, 4, 5).double()), 2)
def test_any_convolution_computes_what_the_merged_one_computes(drawn: Drawn, rank: int) -> None:
    model = Floral(drawn.layer, rank, 3, convolution=drawn.kind)
    close(model(drawn.inputs), drawn.layer(drawn.inputs))
    with torch.no_grad():
        for parameter in [*model.adaptors.parameters(), model.router_logits]:
            parameter.normal_()
    expected = model.merge()(drawn.inputs)
    for model.mixing in ROUTES:
        close(model(drawn.inputs), expected)


@hypothesis_settings(max_examples=150)
@given(convolutions(), st.integers(1, 7))
def test_the_equivalent_rank_is_that_of_the_matrix(drawn: Drawn, rank: int) -> None:
    adaptor = kernel_adaptor(drawn.layer, drawn.kind, rank)
    kernel = adaptor.delta(trained_factors(adaptor, 1), torch.ones(1, dtype=torch.float64))
    # (c_out, everything else); a transposed kernel has its outputs on the second axis
    outputs = 1 if "Transpose" in type(drawn.layer).__name__ else 0
    matrix = kernel.movedim(outputs, 0).flatten(1)
    assert adaptor.equivalent_rank == int(torch.linalg.matrix_rank(matrix))


@pytest.mark.parametrize(
    ("kind", "equivalent_rank"),
    [
        ("channel_out", 2 * 3 * 5),  # r k_1 k_2
        ("channel_in", 2),
        ("channel", 2),
        ("reshaped", 2),
        ("balanced", 2 * 3),  # 64 * 3 + 32 * 5 is less than 64 * 5 + 32 * 3: U has the side of 3
        ("filter", 64),
    ],
)
def test_the_equivalent_rank_by_hand(kind: Convolution, equivalent_rank: int) -> None:
    assert kernel_adaptor(nn.Conv2d(32, 64, (3, 5)), kind).equivalent_rank == equivalent_rank


def test_groups_share_v_and_transposed_ones_share_u() -> None:
    for layer, sizes in (
        (nn.Conv2d(8, 12, 3, groups=4), (12, 2)),
        (nn.ConvTranspose2d(8, 12, 3, groups=4), (3, 8)),
    ):
        shapes = Floral(layer, rank=2).plan["weight"].shapes
        assert (shapes["U"][0], shapes["V"][0]) == sizes
