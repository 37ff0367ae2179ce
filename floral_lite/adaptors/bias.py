"""The adaptive bias: C vectors beside one bias, as long as the bias itself."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .linear import Initialisation


@dataclass(frozen=True)
class BiasAdaptor:
    """Adds sum_c pi_c b_c to a bias of shape (m,); a vector has no rank to save.

    Source: section 'Parameter-Efficient Adaptors', 'Bias'.
    """

    features: int

    @classmethod
    def fit(cls, layer: nn.Module, rank: int | None, budget: float, init: Initialisation) -> "BiasAdaptor":
        """The adaptor of a layer's bias; neither rank nor budget changes it."""
        return cls(layer.get_parameter("bias").numel())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensor of one adaptor: L (m,)."""
        return {"L": (self.features,)}

    def initialise(self, num_clusters: int, generator: torch.Generator) -> dict[str, Tensor]:
        """C fresh adaptors, all zero: L (C, m)."""
        return {"L": torch.zeros(num_clusters, self.features)}

    def delta(self, factors: Mapping[str, Tensor], mixture: Tensor) -> Tensor:
        """What the mixture adds to the bias, shape (m,): sum_c pi_c b_c."""
        return mixture @ factors["L"]
