"""Centering: what all adaptors have in common belongs into the base."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .adaptors import Adaptor, LowRankAdaptor, VectorAdaptor, factors_of
from .errors import real_number, require
from .given import tensor_of
from .router import check_simplex


class Centered(NamedTuple):
    """A base and adaptors whose mean is zero, up to what the truncation lost.

    Attributes:
        base: u + E_c[a_c], by name.
        clustered: a_c - E_c[a_c] at the old rank, by name ("0.weight.U"), each (C, ...).
        lost: for each adapted parameter, the relative Frobenius error of the truncation over all
            C adaptors, in [0, 1]; 0 for vectors, which are centered exactly.
    """

    base: dict[str, Tensor]
    clustered: dict[str, Tensor]
    lost: dict[str, float]


@torch.no_grad()
def center(
    adaptors: Mapping[str, Adaptor],
    base: Mapping[str, Tensor],
    clustered: Mapping[str, Tensor],
    probability: Tensor | Sequence[float] | None = None,
    p: float = 2.0,
    q: float = 2.0,
) -> Centered:
    """Move the mean of the adaptors into the base.

    A centered adaptor has a rank of up to C R, of which only the best R is kept; where nothing is lost by
    that, the personalised models stay the same. Every kind of low-rank adaptor is a matrix product, so
    this holds for convolutions as for linear layers. A mean of zero changes nothing; a single adaptor
    (C = 1) moves into the base and becomes zero.

    Args:
        adaptors: the plan.
        base: u, the base's parameters by name.
        clustered: the adaptors' tensors by name ("0.weight.U"), each (C, ...).
        probability: p(c), shape (C,), on the simplex: the weights of the mean; uniform if None.
        p: U gets Sigma^(1/p); 1/p + 1/q = 1, and infinity is allowed.
        q: V gets Sigma^(1/q).

    Raises:
        InputError: 1/p + 1/q is not 1, the probability is of no numbers or not on the simplex, or an adaptor
            is of a class of your own, whose mean cannot be taken out.

    Source: appendix 'Centering LoRAs'.
    """
    require(
        real_number("p", p) >= 1 and real_number("q", q) >= 1 and abs(1 / p + 1 / q - 1) < 1e-9,
        f"p is {p} and q is {q}; 1/p + 1/q must be 1: try p=2, q=2",
    )
    num_clusters = len(next(iter(clustered.values())))
    if probability is None:
        probability = [1 / num_clusters] * num_clusters
    probability = tensor_of("probability", probability, torch.float64)
    require(
        probability.shape == (num_clusters,),
        f"probability has the shape {tuple(probability.shape)}; give p(c) of each of {num_clusters} adaptors",
    )
    check_simplex("probability", probability)
    result = Centered(dict(base), dict(clustered), {})
    for name, adaptor in adaptors.items():
        require(
            isinstance(adaptor, LowRankAdaptor) or type(adaptor).delta is VectorAdaptor.delta,
            f"{name} has an adaptor of type {type(adaptor).__name__}, and only a LowRankAdaptor or a "
            "VectorAdaptor can be centered: leave the adaptors as they are, or adapt it with one of these",
        )
        factors = factors_of(name, adaptor, clustered)
        weights = probability.to(base[name])
        mean = adaptor.delta(factors, weights)
        result.lost[name] = 0.0
        if not mean.any():
            continue  # nothing to move; fresh adaptors keep their random factor
        # u <- u + E_c[a_c]
        result.base[name] = base[name] + mean
        if isinstance(adaptor, LowRankAdaptor):
            u, v, result.lost[name] = _truncated(*adaptor.matrices(factors), weights, p, q)
            centered = adaptor.factors(u, v)
        else:
            # a_c <- a_c - E_c[a_c]
            centered = {"L": factors["L"] - mean}
        result.clustered.update({f"{name}.{factor}": tensor for factor, tensor in centered.items()})
    return result


def _truncated(u: Tensor, v: Tensor, probability: Tensor, p: float, q: float) -> tuple[Tensor, Tensor, float]:
    """The best rank-R parts of U_c V_c^T - E_c[U_c V_c^T], as (C, m, R) and (C, n, R), and what they lose."""
    num_clusters, _, rank = u.shape
    precision = torch.promote_types(u.dtype, torch.float32)
    # U_c V_c^T - E[U V^T] = sum_j (delta_cj - p(j)) U_j V_j^T: thin factors, the large matrix is never made
    coefficients = torch.eye(num_clusters, dtype=precision, device=u.device) - probability.to(precision)
    left = torch.einsum("cj,jmr->cmjr", coefficients, u.to(precision)).flatten(2)
    right = v.to(precision).movedim(0, 1).flatten(1)
    basis_left, left = torch.linalg.qr(left)
    basis_right, right = torch.linalg.qr(right)
    # U, Sigma, V^T <- Trunc-SVD_R(...)
    inner_u, sigma, inner_v = torch.linalg.svd(left @ right.mT, full_matrices=False)
    # where all cancels, what is left is rounding
    scale = torch.linalg.matrix_norm(u.to(precision)) * torch.linalg.matrix_norm(v.to(precision))
    sigma = sigma.masked_fill(sigma <= 10 * torch.finfo(precision).eps * scale.max(), 0)
    kept = sigma[:, :rank]
    singular_u = basis_left @ inner_u[..., :rank]
    singular_v = basis_right @ inner_v.mT[..., :rank]
    # U_c <- U Sigma^(1/p), V_c <- V Sigma^(1/q)
    new_u = singular_u * kept[:, None] ** (1 / p)
    new_v = singular_v * kept[:, None] ** (1 / q)
    # where nothing is left, U = V = 0 would never learn again: there U keeps a direction, and V is 0
    nothing = (kept == 0)[:, None]
    new_u = torch.where(nothing, singular_u, new_u)
    new_v = new_v.masked_fill(nothing, 0)
    # a matrix smaller than the rank has fewer singular values
    found = kept.shape[-1]
    new_u = torch.cat([new_u.to(u), u[..., found:]], dim=-1)
    new_v = torch.nn.functional.pad(new_v, (0, rank - found)).to(v)
    whole = float(sigma.norm())
    return new_u, new_v, float(sigma[:, rank:].norm()) / whole if whole else 0.0
