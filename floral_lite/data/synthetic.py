"""The paper's synthetic regressions: a shared map plus a low-rank difference per cluster."""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Truth(NamedTuple):
    """The parameters that made synthetic data, which training is to recover.

    Attributes:
        base: W, shape (d_h, d_x), what all clusters share; d_h is d_y where the target is linear.
        left: U_c of all clusters, shape (C, d_h, r).
        right: V_c of all clusters, shape (C, d_x, r).
        scale: alpha, how far the clusters lie apart.
        outer: Phi, shape (d_y, d_h), what follows the ReLU; None where the target is linear.
        normalised: each hidden unit is normalised over the client's samples before the ReLU.

    Source: appendix 'Extra Experimental Details', the targets y^k in 'Synthetic Linear' and 'Synthetic MLP';
    'Normalization Layers', 'Experiment'.
    """

    base: Tensor
    left: Tensor
    right: Tensor
    scale: float
    outer: Tensor | None = None
    normalised: bool = False

    def maps(self) -> Tensor:
        """W + alpha U_c V_c^T of all clusters, shape (C, d_h, d_x)."""
        return self.base + self.scale * self.left @ self.right.mT

    def targets(self, inputs: Tensor, cluster: int) -> Tensor:
        """The y of a client in that cluster, shape (N, d_y), of all its inputs (N, d_x)."""
        hidden = inputs @ self.maps()[cluster].T
        if self.normalised:
            # over the client's own samples, as its batch norm will see them
            hidden = (hidden - hidden.mean(dim=0)) / hidden.std(dim=0, unbiased=False)
        # y = Phi (h)_+
        return hidden if self.outer is None else hidden.relu() @ self.outer.T


def draw_truth(
    sizes: tuple[int, ...],
    num_clusters: int,
    rank: int,
    scale: float,
    generator: torch.Generator,
    normalised: bool = False,
) -> Truth:
    """True parameters, drawn at random.

    The entries of a matrix are normal with standard deviation 1 / sqrt(d_in), where d_in
    is what the matrix takes in: d_x for W and V^T, r for U, d_h for Phi. (The paper's N(0, 1/sqrt(d_in))
    does not say whether it names a variance; we read a standard deviation.)

    Args:
        sizes: (d_x, d_y) for a linear target, (d_x, d_h, d_y) for one with a ReLU between.
        num_clusters: C.
        rank: r of the differences.
        scale: alpha, how far the clusters lie apart.
        generator: draws W, U, V and Phi.
        normalised: see `Truth`.

    Source: as for `Truth`.
    """

    def normal(*shape: int, fan_in: int) -> Tensor:
        return torch.randn(*shape, generator=generator) / math.sqrt(fan_in)

    num_inputs, num_hidden, *num_outputs = sizes
    base = normal(num_hidden, num_inputs, fan_in=num_inputs)
    left = normal(num_clusters, num_hidden, rank, fan_in=rank)
    right = normal(num_clusters, num_inputs, rank, fan_in=num_inputs)
    outer = normal(*num_outputs, num_hidden, fan_in=num_hidden) if num_outputs else None
    return Truth(base, left, right, scale, outer, normalised)
