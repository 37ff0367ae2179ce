"""An adapted parameter, and how each layer runs its adaptors as factors beside the weight.

For a linear layer (m, n), C adaptors of rank r and B inputs, mixing the weights first costs
C r m n multiply-adds; running the factors beside the layer costs B C r (m + n). The functions
below return the cost of the factors without the common C r, to compare with the weight's size m n.
"""

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .adaptors import Adaptor, LowRankAdaptor
from .adaptors.vector import mixed
from .roles import along_first


class AdaptedParameter:
    """One parameter with the mixture of its adaptors: u + sum_c pi_c a_c, not yet added up.

    Args:
        base: the parameter u.
        adaptor: what is added to it.
        factors: the adaptor's tensors, each (C, ...), or (k, C, ...) of k clients.
        mixture: pi, shape (C,) or (k, C).
    """

    def __init__(
        self, base: Tensor, adaptor: Adaptor, factors: Mapping[str, Tensor], mixture: Tensor
    ) -> None:
        self.base, self.adaptor, self.factors, self.mixture = base, adaptor, factors, mixture
        self._merged: Tensor | None = None

    def merged(self) -> Tensor:
        """The sum, in the parameter's shape; computed once, and anew if gradients were off then."""
        if self._merged is None or (torch.is_grad_enabled() and not self._merged.requires_grad):
            self._merged = self.base + self.delta()
        return self._merged

    def delta(self) -> Tensor:
        """sum_c pi_c a_c, in the parameter's shape."""
        return self.adaptor.delta(self.factors, self.mixture)

    def stacked(self) -> tuple[Tensor, Tensor]:
        """Of one client all C adaptors as one of rank C R: pi_c U_c (C R, *rows), and V_c (C R, *columns)."""
        u, v = (self.factors[name].movedim(-1, 1) for name in ("U", "V"))
        return (along_first(self.mixture.to(u.dtype), u) * u).flatten(0, 1), v.flatten(0, 1)


class Blend:
    """One parameter as a mixture of C whole ones: sum_c pi_c w_c, not yet added up.

    Args:
        models: w_c, shape (C, ...), or (k, C, ...) of k clients.
        mixture: pi, shape (C,) or (k, C).
    """

    def __init__(self, models: Tensor, mixture: Tensor) -> None:
        self.models, self.mixture = models, mixture

    def merged(self) -> Tensor:
        """The sum, in the parameter's shape."""
        return mixed(self.mixture, self.models)


# What the factors cost, and the call that runs them.
Choice = tuple[float, Callable[[], Tensor]]


def linear(weight: AdaptedParameter, inputs: Tensor, bias: Tensor | None = None) -> Choice:
    """Linear: y = W x + b + (pi U) V^T x."""
    out_features, in_features = weight.adaptor.shape
    batch = inputs.numel() // in_features

    def run() -> Tensor:
        u, v = weight.stacked()
        beside = functional.linear(functional.linear(inputs, v), u.mT)
        return functional.linear(inputs, weight.base, bias) + beside

    return batch * (out_features + in_features), run


def embedding(
    weight: AdaptedParameter, words: Tensor, padding_idx: int | None = None, *args: Any, **kwargs: Any
) -> Choice:
    """The word's vector, plus its coefficients V times (pi U)^T."""

    def run() -> Tensor:
        u, v = weight.stacked()
        beside = functional.embedding(words, v.mT, padding_idx, *args, **kwargs) @ u
        if padding_idx is not None:
            # torch gives the padding word's vector no gradient, so U must not learn from it either
            is_padding = words == padding_idx % len(weight.base)
            beside = torch.where(is_padding[..., None], beside.detach(), beside)
        return functional.embedding(words, weight.base, padding_idx, *args, **kwargs) + beside

    return words.numel() * weight.adaptor.shape[1], run


def convolution(
    function: Callable[..., Tensor],
    weight: AdaptedParameter,
    inputs: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | str | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> Choice:
    """Convolution: y = W * x + b + U * (V * x), each factor along its own sides of the kernel."""
    u_settings, v_settings = _along_own_sides(weight, stride=stride, padding=padding, dilation=dilation)

    def run() -> Tensor:
        u, v = as_kernels(weight)
        inner = function(inputs, v.repeat(groups, *[1] * (v.dim() - 1)), groups=groups, **v_settings)
        beside = function(inner, u.transpose(0, 1), groups=groups, **u_settings)
        return function(inputs, weight.base, bias, stride, padding, dilation, groups) + beside

    in_channels = weight.adaptor.shape[1] * groups
    positions = inputs.numel() / in_channels
    # V runs on the inputs, U on what V leaves of their positions
    stride_of_v = prod(v_settings["stride"])
    cost_of_v = groups * prod(weight.factors["V"].shape[1:-1]) / stride_of_v
    cost_of_u = prod(weight.factors["U"].shape[1:-1]) / (stride_of_v * prod(u_settings["stride"]))
    return positions * (cost_of_v + cost_of_u), run


def transposed_convolution(
    function: Callable[..., Tensor],
    weight: AdaptedParameter,
    inputs: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    output_padding: int | tuple[int, ...] = 0,
    groups: int = 1,
    dilation: int | tuple[int, ...] = 1,
) -> Choice:
    """The same for a transposed convolution, whose weight has the input channels first."""
    u_settings, v_settings = _along_own_sides(
        weight, stride=stride, padding=padding, dilation=dilation, output_padding=output_padding
    )

    def run() -> Tensor:
        u, v = as_kernels(weight)
        inner = function(inputs, v.transpose(0, 1), groups=groups, **v_settings)
        beside = function(inner, u.repeat(groups, *[1] * (u.dim() - 1)), groups=groups, **u_settings)
        base = function(inputs, weight.base, bias, stride, padding, output_padding, groups, dilation)
        return base + beside

    positions = inputs.numel() / weight.adaptor.shape[0]
    cost_of_v = prod(weight.factors["V"].shape[1:-1])
    cost_of_u = groups * prod(weight.factors["U"].shape[1:-1]) * prod(v_settings["stride"])
    return positions * (cost_of_v + cost_of_u), run


def _along_own_sides(weight: AdaptedParameter, **settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings for convolving with U and with V: neutral along sides that are not the factor's own."""
    adaptor = weight.adaptor
    assert isinstance(adaptor, LowRankAdaptor)
    neutral = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}

    def own(axes: tuple[int, ...]) -> dict[str, Any]:
        chosen: dict[str, Any] = {}
        for name, value in settings.items():
            if isinstance(value, str):  # 'same' and 'valid' mean the right thing for each kernel
                chosen[name] = value
                continue
            sides = value if isinstance(value, (tuple, list)) else [value]
            if len(sides) == 1:  # torch takes one number for all
                sides = [*sides] * (len(adaptor.shape) - 2)
            chosen[name] = [v if axis in axes else neutral[name] for axis, v in enumerate(sides, start=2)]
        return chosen

    return own(adaptor.rows), own(adaptor.columns)


def as_kernels(weight: AdaptedParameter) -> tuple[Tensor, Tensor]:
    """The stacked factors as kernels (C R, channels, k_1, k_2), of size 1 along sides that are not theirs."""
    adaptor = weight.adaptor
    assert isinstance(adaptor, LowRankAdaptor)

    def kernel(factor: Tensor, axes: tuple[int, ...]) -> Tensor:
        sides = [size if side in axes else 1 for side, size in enumerate(adaptor.shape)][2:]
        return factor.reshape(*factor.shape[:2], *sides)

    u, v = weight.stacked()
    return kernel(u, adaptor.rows), kernel(v, adaptor.columns)


# For each torch function that can run the factors beside it: the weight's axis that its outputs lie on,
# and the function that says what the factors cost and how they run.
FACTORED: dict[Callable[..., Any], tuple[int, Callable[..., Choice]]] = {
    functional.linear: (0, linear),
    functional.embedding: (1, embedding),
    **{f: (0, partial(convolution, f)) for f in (torch.conv1d, torch.conv2d, torch.conv3d)},
    **{
        f: (1, partial(transposed_convolution, f))
        for f in (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
    },
}
