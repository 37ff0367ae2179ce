"""The paper's synthetic regression: a shared linear map plus a low-rank difference per cluster."""

import math

import torch
from torch import Tensor


def cluster_maps(
    num_inputs: int, num_outputs: int, num_clusters: int, rank: int, scale: float, generator: torch.Generator
) -> Tensor:
    """The true maps W + alpha U_c V_c^T of all clusters.

    The entries of a matrix are normal with standard deviation 1 / sqrt(d_in), where d_in
    is what the matrix takes in: d_x for W and V^T, r for U. (The paper's N(0, 1/sqrt(d_in))
    does not say whether it names a variance; we read a standard deviation.)

    Args:
        num_inputs: d_x.
        num_outputs: d_y.
        num_clusters: C.
        rank: r of the differences.
        scale: alpha, how far the clusters lie apart.
        generator: draws W, U and V.

    Returns:
        Shape (C, d_y, d_x).

    Source: section 'Synthetic Linear', equation (eq:synthetic-linear-model).
    """

    def normal(*shape: int, fan_in: int) -> Tensor:
        return torch.randn(*shape, generator=generator) / math.sqrt(fan_in)

    base = normal(num_outputs, num_inputs, fan_in=num_inputs)
    left = normal(num_clusters, num_outputs, rank, fan_in=rank)
    right = normal(num_clusters, num_inputs, rank, fan_in=num_inputs)
    # W + alpha U_c V_c^T
    return base + scale * left @ right.transpose(1, 2)
