"""Adaptors of normalisation layers: gamma + L_gamma, beta + L_beta, and Batch-NorA."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import require
from ..given import precise
from .options import Options
from .vector import VectorAdaptor


class Statistics(NamedTuple):
    """What a batch norm normalises by: mean mu and variance sigma^2 of each channel, shape (d,)."""

    mean: Tensor
    variance: Tensor


def fit_norm(layer: nn.Module, name: str, options: Options) -> VectorAdaptor | None:
    """The adaptor of a norm's gamma or beta, or None where norms are not adapted.

    Raises:
        InputError: Batch-NorA is asked of a batch norm that keeps no statistics.

    Source: appendix 'Adaptors', 'Normalization Layers'.
    """
    if options.norms == "none":
        return None
    kind = "norm"
    if options.norms == "batch_nora" and isinstance(layer, _BatchNorm):
        kind = "batch_nora"
        require(
            layer.running_mean is not None,
            "norms is 'batch_nora', but the batch norm has track_running_stats=False; Batch-NorA "
            "needs its statistics: use track_running_stats=True or norms='affine'",
        )
    return VectorAdaptor(kind, tuple(layer.get_parameter(name).shape))


def batch_statistics(inputs: Tensor) -> Statistics:
    """Mean and (biased) variance of every channel of a batch (B, d, ...), at least in single precision."""
    inputs = precise(inputs)
    axes = [axis for axis in range(inputs.dim()) if axis != 1]
    variance, mean = torch.var_mean(inputs, dim=axes, correction=0)
    return Statistics(mean, variance)


def batch_nora(
    inputs: Tensor,
    main: Statistics,
    local: Statistics,
    gamma: Tensor,
    beta: Tensor,
    adaptor_gamma: Tensor,
    adaptor_beta: Tensor,
    eps: float = 1e-5,
) -> Tensor:
    """Batch norm plus its adaptor, which has statistics of its own.

    The adaptor's parameters are rescaled so that its statistics cancel: the sum is
    normalisation by the main statistics with gamma + gamma_i and beta + beta_i. What remains
    of the local statistics is in the gradient: gamma_i sees inputs centred by the local mean.

    Args:
        inputs: x, shape (B, d, ...).
        main: mu and sigma^2, which the shared layer normalises by: the batch's in training, as
            the appendix derives it, the running ones in evaluation (the authors' code
            rescales by the running ones always).
        local: mu_i and sigma_i^2, the client's own; they are never sent.
        gamma: of the shared layer, shape (d,).
        beta: of the shared layer, shape (d,).
        adaptor_gamma: gamma_i, shape (d,); zero at the start.
        adaptor_beta: beta_i, shape (d,); zero at the start.
        eps: added to both variances, under the root (the authors' code adds it outside).

    Source: appendix 'Normalization Layers', 'Batch NorA'.
    """
    x = precise(inputs)
    sigma, local_sigma = (main.variance + eps).sqrt(), (local.variance + eps).sqrt()
    # gamma_i -> sigma_i / sigma gamma_i
    scale = local_sigma / sigma * adaptor_gamma
    # beta_i -> beta_i + (mu_i - mu) / sigma sg(gamma_i)
    shift = adaptor_beta + (local.mean - main.mean) / sigma * adaptor_gamma.detach()

    def normalise(mean: Tensor, deviation: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        along_channels = [1, -1, *[1] * (inputs.dim() - 2)]
        mean, weight, bias = (vector.view(along_channels) for vector in (mean, weight / deviation, bias))
        return (x - mean) * weight + bias

    # BN(x; gamma, beta) + BN_i(x; scale, shift)
    outputs = normalise(main.mean, sigma, gamma, beta) + normalise(local.mean, local_sigma, scale, shift)
    return outputs.to(inputs.dtype)
