"""The router: a client's mixture pi = softmax(theta) over the C adaptors."""

import torch
from torch import Tensor


def mixture(router_logits: Tensor) -> Tensor:
    """The mixture weights of a router.

    Its gradient is the paper's: d f / d theta_c = pi_c <grad f(w_hat), w_c - w_hat>,
    where w_hat = sum_c pi_c w_c. A one-hot router is therefore a fixed point.

    Args:
        router_logits: theta, shape (..., C); -inf stands for a weight of exactly 0.

    Returns:
        pi, shape (..., C), non-negative, each row sums to 1.

    Source: section 'Practical Implementation', 'Learning the mixture weights'.

    Example:
        >>> mixture(torch.zeros(4))
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    # pi_c = exp(theta_c) / sum_c' exp(theta_c')
    return torch.softmax(router_logits, dim=-1)


def uniform_logits(num_clients: int, num_clusters: int) -> Tensor:
    """Routers that use every adaptor alike, theta = 0, shape (K, C)."""
    return torch.zeros(num_clients, num_clusters)


def one_hot_logits(clusters: Tensor, num_clusters: int) -> Tensor:
    """Routers that use one adaptor each, shape (K, C): 0 at the client's cluster, -inf elsewhere.

    Gradient descent leaves them where they are, so 'optimal' routing needs no special case.

    Args:
        clusters: the adaptor of each client, integers, shape (K,); taken modulo C.
        num_clusters: C.

    Example:
        >>> mixture(one_hot_logits(torch.tensor([2]), 4))
        tensor([[0., 0., 1., 0.]])
    """
    chosen = torch.nn.functional.one_hot(clusters % num_clusters, num_clusters).bool()
    return torch.zeros(chosen.shape).masked_fill(~chosen, -torch.inf)
