"""The adaptive vector: C whole copies beside a bias, or beside gamma and beta of a norm."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from .options import Options


@dataclass(frozen=True)
class VectorAdaptor:
    """Adds sum_c pi_c L_c to a parameter of any shape; a vector has no rank to save.

    Args:
        kind: "bias", "norm" or "batch_nora".
        shape: of the parameter.

    Source: section 'Parameter-Efficient Adaptors', 'Bias'; appendix 'Normalization Layers'.
    """

    kind: str
    shape: tuple[int, ...]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensor of one adaptor: L, in the parameter's shape."""
        return {"L": self.shape}

    @property
    def num_parameters(self) -> int:
        """Of one adaptor: as many as the parameter has."""
        return prod(self.shape)

    def initialise(self, num_clusters: int, generator: torch.Generator) -> dict[str, Tensor]:
        """C fresh adaptors, all zero: L (C, *shape)."""
        return {"L": torch.zeros(num_clusters, *self.shape)}

    def delta(self, factors: Mapping[str, Tensor], mixture: Tensor) -> Tensor:
        """What the mixture adds to the parameter: sum_c pi_c L_c; further axes in front are clients."""
        return mixed(mixture, factors["L"])


def mixed(mixture: Tensor, tensors: Tensor) -> Tensor:
    """sum_c pi_c x_c: mixture (..., C), tensors (..., C, *S), result (..., *S).

    Example:
        >>> mixed(torch.tensor([0.25, 0.75]), torch.tensor([[4.0, 0.0], [0.0, 4.0]]))
        tensor([1., 3.])
        >>> mixed(torch.tensor([0.25, 0.75]), torch.tensor([4.0, 8.0]))  # of numbers, which have no axis
        tensor(7.)
    """
    # S as one axis, since it may have none
    rows = tensors.reshape(*mixture.shape, -1)
    total = torch.einsum("...c,...cl->...l", mixture.to(tensors.dtype), rows)
    return total.reshape(mixture.shape[:-1] + tensors.shape[mixture.dim() :])


def fit_bias(layer: nn.Module, name: str, options: Options) -> VectorAdaptor | None:
    """The adaptor of a bias, or None where biases are not adapted; rank and budget do not matter."""
    return VectorAdaptor("bias", tuple(layer.get_parameter(name).shape)) if options.biases else None
