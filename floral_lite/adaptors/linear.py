"""The linear LoRA: C low-rank matrices L_c = U_c V_c^T beside one weight."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from .budget import check_rank, linear_rank

Initialisation = Literal["paper", "authors"]


@dataclass(frozen=True)
class LinearAdaptor:
    """Adds sum_c pi_c U_c V_c^T to a weight of shape (m, n).

    Args:
        out_features: m, rows of the weight.
        in_features: n, columns of the weight.
        rank: r >= 1, columns of U and of V.
        init: "paper" makes U random and V zero, as the text says; "authors" makes V
            random and U zero, as the authors' code does. Either way L = 0 at the start.

    Source: section 'Parameter-Efficient Adaptors', 'Linear layer'.
    """

    out_features: int
    in_features: int
    rank: int
    init: Initialisation = "paper"

    @classmethod
    def fit(cls, layer: nn.Module, rank: int | None, budget: float, init: Initialisation) -> "LinearAdaptor":
        """The adaptor of a linear layer's weight at a rank, or at the budget's where it is None."""
        out_features, in_features = layer.get_parameter("weight").shape
        rank = linear_rank(out_features, in_features, budget) if rank is None else rank
        check_rank(rank)
        return cls(out_features, in_features, rank, init)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors of one adaptor: U (m, r) and V (n, r)."""
        return {"U": (self.out_features, self.rank), "V": (self.in_features, self.rank)}

    def initialise(self, num_clusters: int, generator: torch.Generator) -> dict[str, Tensor]:
        """C fresh adaptors, each with U V^T = 0: U (C, m, r) and V (C, n, r)."""
        factors = {name: torch.zeros(num_clusters, *shape) for name, shape in self.shapes.items()}
        if self.init == "paper":
            # variance 1 / m, so that U^T U is about I: the first step on V then moves L by the
            # gradient of W projected on the columns of U, whatever the layer's size
            bound = (3 / self.out_features) ** 0.5
            factors["U"].uniform_(-bound, bound, generator=generator)
        else:
            # V uniform with variance 2 / n
            bound = (6 / self.in_features) ** 0.5
            factors["V"].uniform_(-bound, bound, generator=generator)
        return factors

    def delta(self, factors: Mapping[str, Tensor], mixture: Tensor) -> Tensor:
        """What the mixture of adaptors adds to the weight, shape (m, n).

        Args:
            factors: U (C, m, r) and V (C, n, r).
            mixture: pi, shape (C,), on the simplex.
        """
        # L = sum_c pi_c U_c V_c^T
        return torch.einsum("c,cmr,cnr->mn", mixture, factors["U"], factors["V"])
