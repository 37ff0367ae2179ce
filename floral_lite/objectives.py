"""The objectives, from one model for all to a mixture for each: FL, PFL, CFL, MFL, MFL-WS, FML.

Each is a differentiable scalar to minimise, of the clients' losses f^k, their weights p(k), and parameters.
The docstrings say when one becomes another. Weights and mixtures may be of any type, one-hot integers too.

Raises:
    InputError: weights, mixtures, models or clusters do not fit the clients, or are not on the simplex.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .errors import require
from .router import check_simplex

Loss = Callable[[Tensor], Tensor]  # f^k: parameters of one model, shape S, to a scalar
Regularizer = Callable[[Tensor], Tensor]  # Gamma: all models, shape (C, *S), to a scalar


def fl(losses: Sequence[Loss], weights: Tensor, model: Tensor) -> Tensor:
    """One model for everyone.

    Args:
        losses: f^k, one a client.
        weights: p(k) >= 0, shape (K,), sums to 1; usually N^k / N.
        model: w, shape S.

    Returns:
        E_k[f^k(w)], a scalar.

    Source: section 'Federated Learning', (FL).

    Example:
        >>> clients = [lambda w: (w - 1) ** 2, lambda w: (w + 1) ** 2]
        >>> fl(clients, torch.tensor([0.5, 0.5]), torch.tensor(0.0))
        tensor(1.)
    """
    check_clients(losses, weights)
    # E_k[f^k(w)] = sum_k p(k) f^k(w)
    return _mean(weights, torch.stack([loss(model) for loss in losses]))


def pfl(
    losses: Sequence[Loss], weights: Tensor, models: Tensor, regularizer: Regularizer | None = None
) -> Tensor:
    """A model for each client, and a reason to stay together.

    Args:
        losses: f^k, one a client.
        weights: p(k), shape (K,), sums to 1.
        models: w^k, shape (K, *S).
        regularizer: Gamma(w^1, ..., w^K); None for 0.

    Returns:
        E_k[f^k(w^k)] + Gamma, a scalar. With all w^k alike and Gamma = 0 it is (FL).

    Source: section 'Federated Learning', (PFL).
    """
    check_clients(losses, weights)
    require(
        len(models) == len(losses),
        f"models has {len(models)} rows for {len(losses)} clients; give each client a row of its own",
    )
    # E_k[f^k(w^k)]
    own = _mean(weights, torch.stack([loss(model) for loss, model in zip(losses, models, strict=True)]))
    return own if regularizer is None else own + regularizer(models)


def cfl(
    losses: Sequence[Loss],
    weights: Tensor,
    models: Tensor,
    clusters: Tensor,
    cluster_weights: Tensor | None = None,
) -> Tensor:
    """A model for each cluster, the clusters being known.

    Args:
        losses: f^k, one a client.
        weights: p(k) > 0, shape (K,), sums to 1.
        models: w_c, shape (C, *S).
        clusters: of each client, integers in [0, C), shape (K,).
        cluster_weights: what each cluster's mean counts, shape (C,). None for 1, as the paper prints it;
            p(c), the cluster's share of the weights, makes it a special case of (MFL).

    Returns:
        sum_c E_{k|c}[f^k(w_c)], a scalar; a cluster without clients adds nothing. With C = K, a cluster
        for each client and the cluster_weights p(k) it is (PFL) without Gamma.

    Source: section 'Federated Learning', (CFL).
    """
    check_clients(losses, weights)
    given = clusters.flatten().tolist()
    require(
        clusters.shape == (len(losses),) and all(type(c) is int and 0 <= c < len(models) for c in given),
        f"clusters are {given[:3]}... of {len(given)} clients; each of the {len(losses)} needs an integer in "
        f"[0, {len(models)})",
    )
    of_clients = torch.stack([loss(models[c]) for loss, c in zip(losses, given, strict=True)])
    weights = weights.to(_mean(weights, of_clients))  # _mean refuses losses that are no scalars
    # E_{k|c}[f^k(w_c)] = sum_{k in c} p(k) f^k(w_c) / p(c)
    zeros, indices = of_clients.new_zeros(len(models)), clusters.long()
    shares = zeros.index_add(0, indices, weights).clamp(min=torch.finfo(weights.dtype).tiny)
    each = zeros.index_add(0, indices, weights * of_clients) / shares
    return each.sum() if cluster_weights is None else _mean(cluster_weights, each)


def mfl(
    losses: Sequence[Loss],
    weights: Tensor,
    models: Tensor,
    mixtures: Tensor,
    regularizer: Regularizer | None = None,
) -> Tensor:
    """C models, and for each client a mixture of their losses.

    Args:
        losses: f^k, one a client.
        weights: p(k), shape (K,), sums to 1.
        models: w_c, shape (C, *S).
        mixtures: pi^k, shape (K, C), rows on the simplex.
        regularizer: Gamma(w_1, ..., w_C); None for 0.

    Returns:
        E_k[sum_c pi_c^k f^k(w_c)] + Gamma, a scalar. With one-hot mixtures and Gamma = 0 it is (CFL)
        with the cluster_weights p(c).

    Source: section 'Federated Learning', (MFL).
    """
    check_clients(losses, weights)
    check_mixtures(mixtures, len(losses), len(models))
    each = [torch.stack([loss(model) for model in models]) for loss in losses]
    # E_k[sum_c pi_c^k f^k(w_c)]
    mixed = _mean(weights, torch.stack([_mean(pi, own) for pi, own in zip(mixtures, each, strict=True)]))
    return mixed if regularizer is None else mixed + regularizer(models)


def mfl_ws(
    losses: Sequence[Loss], weights: Tensor, base: Tensor, adaptors: Tensor, mixtures: Tensor
) -> Tensor:
    """(MFL) with models that share a base by construction: w_c = (u, a_c).

    Args:
        losses: f^k, one a client, of vectors.
        weights: p(k), shape (K,), sums to 1.
        base: u, shape (s,).
        adaptors: a_c, shape (C, t).
        mixtures: pi^k, shape (K, C), rows on the simplex.

    Returns:
        E_k[sum_c pi_c^k f^k(u, a_c)], a scalar. With an empty base it is (MFL) without Gamma.

    Source: section 'Federated Learning', (MFL-WS).
    """
    return mfl(losses, weights, with_base(base, adaptors), mixtures)


def fml(
    losses: Sequence[Loss],
    weights: Tensor,
    models: Tensor,
    mixtures: Tensor,
    regularizer: Regularizer | None = None,
) -> Tensor:
    """C models, and for each client the loss of a mixture of them: one evaluation a client.

    Args:
        losses: f^k, one a client.
        weights: p(k), shape (K,), sums to 1.
        models: w_c, shape (C, *S); those of `with_base` share a base, which is the paper's FLoRAL.
        mixtures: pi^k, shape (K, C), rows on the simplex.
        regularizer: Gamma(w_1, ..., w_C); None for 0.

    Returns:
        E_k[f^k(sum_c pi_c^k w_c)] + Gamma, a scalar. With one-hot mixtures it is (MFL), and on models
        with a base (MFL-WS); for convex f^k it is never more than these.

    Source: section 'Practical Implementation', (FML).

    Example:
        >>> clients = [lambda w: (w - 1) ** 2, lambda w: (w + 1) ** 2]
        >>> half, ends = torch.tensor([0.5, 0.5]), torch.tensor([-1.0, 1.0])
        >>> mfl(clients, half, ends, half.repeat(2, 1)), fml(clients, half, ends, half.repeat(2, 1))
        (tensor(2.), tensor(1.))
    """
    check_mixtures(mixtures, len(losses), len(models))
    # w^k = sum_c pi_c^k w_c
    personal = torch.einsum("kc,c...->k...", mixtures.to(models + 0.0), models + 0.0)  # integers too
    mixed = pfl(losses, weights, personal)
    return mixed if regularizer is None else mixed + regularizer(models)


def with_base(base: Tensor, adaptors: Tensor) -> Tensor:
    """The models w_c = (u, a_c) of a base (s,) and adaptors (C, t), shape (C, s + t).

    Example:
        >>> with_base(torch.tensor([7.0]), torch.tensor([[1.0], [2.0]])).tolist()
        [[7.0, 1.0], [7.0, 2.0]]
    """
    return torch.cat([base.expand(len(adaptors), -1), adaptors], dim=1)


def weight_sharing(num_shared: int) -> Regularizer:
    """The Gamma that turns (MFL) into (MFL-WS): 0 if the models agree in their first numbers, else infinity.

    Args:
        num_shared: s, how many numbers of a model (s + t,) are the base.

    Source: section 'Federated Learning', before (MFL-WS).

    Example:
        >>> gamma = weight_sharing(1)
        >>> [float(gamma(torch.tensor([[7.0, 1.0], [base, 2.0]]))) for base in (7.0, 6.0)]
        [0.0, inf]
    """

    def regularizer(models: Tensor) -> Tensor:
        bases = models[:, :num_shared]
        return torch.tensor(0.0 if bool((bases == bases[0]).all()) else torch.inf)

    return regularizer


def _mean(weights: Tensor, losses: Tensor) -> Tensor:
    """sum_k p(k) f_k, in the precision of the losses."""
    told = f"losses are {losses.dtype} of shape {tuple(losses.shape[1:])}; each is a scalar, and no integer"
    require(losses.dim() == 1 and losses.is_floating_point(), told)  # as integers the weights would be 0
    told = f"weights has the shape {tuple(weights.shape)} for {len(losses)} losses; give a weight for each"
    require(weights.shape == losses.shape, told)
    return weights.to(losses) @ losses


def check_clients(losses: Sequence[Loss], weights: Tensor) -> None:
    """Raise InputError unless every client has a weight, and the weights are a distribution."""
    require(
        weights.shape == (len(losses),),
        f"weights has the shape {tuple(weights.shape)} for {len(losses)} clients; give p(k) of each",
    )
    check_simplex("weights", weights)


def check_mixtures(mixtures: Tensor, num_clients: int, num_clusters: int) -> None:
    """Raise InputError unless every client has a mixture of all models."""
    require(
        mixtures.shape == (num_clients, num_clusters),
        f"mixtures has the shape {tuple(mixtures.shape)}; it must be ({num_clients}, {num_clusters})",
    )
    check_simplex("mixtures", mixtures)
