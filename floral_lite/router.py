"""The router: a client's mixture pi = softmax(theta) over the C adaptors, and how it is learned."""

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from .errors import real_number, require
from .signatures import check_signatures


@dataclass(frozen=True)
class Router:
    """How logits theta become a mixture pi.

    With the defaults this is the paper's softmax. Its gradient is
    d f / d theta_c = pi_c <grad f(w_hat), w_c - w_hat>, where w_hat = sum_c pi_c w_c.
    A one-hot router is therefore a fixed point.

    Args:
        temperature: tau > 0; below 1 it sharpens the mixture, above 1 it flattens it.
        floor: the smallest weight of an adaptor, in [0, 1 / C); the authors' code has 0.01.
        noise: width >= 0 of the uniform noise on the logits in training; the authors' code has 1.
        entropy: lambda; training adds -lambda H(pi) to the loss. Positive keeps mixtures
            spread, negative sharpens them.

    Raises:
        InputError: a value is no number, or out of its range; of 1 / C that shows where C is known.

    Source: section 'Practical Implementation', 'Learning the mixture weights'.

    Example:
        >>> Router().mixture(torch.zeros(4))
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
        >>> Router(temperature=0.5).mixture(torch.tensor([3.0, 1.0]).log())  # 9 to 1
        tensor([0.9000, 0.1000])

    A rule of your own; its number is recorded:

        >>> @dataclass(frozen=True)
        ... class Floored(Router):
        ...     least: float = 0.1
        ...
        ...     def mixture(self, router_logits, draws=None):
        ...         pi = super().mixture(router_logits, draws).clamp(min=self.least)
        ...         return pi / pi.sum(dim=-1, keepdim=True)
        >>> Floored(least=0.25).mixture(torch.tensor([3.0, 1.0, 0.0]).log())
        tensor([0.6000, 0.2000, 0.2000])
    """

    temperature: float = 1.0
    floor: float = 0.0
    noise: float = 0.0
    entropy: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            require(math.isfinite(real_number(name, value)), f"{name} is {value}; it must be finite")
        require(self.temperature > 0, f"temperature is {self.temperature}; it must be positive: try 1")
        require(0 <= self.floor < 1, f"floor is {self.floor}; it is a mixture weight in [0, 1 / C): try 0.01")
        require(self.noise >= 0, f"noise is {self.noise}; it must be at least 0")

    def options(self) -> dict[str, object]:
        """Its values by name, and the name of the rule where it is one of your own."""
        return asdict(self) | ({} if type(self) is Router else {"rule": type(self).__name__})

    def mixture(self, router_logits: Tensor, draws: Tensor | None = None) -> Tensor:
        """The mixture weights of routers.

        Args:
            router_logits: theta, shape (..., C); -inf stands for a weight of exactly 0.
            draws: in training, what the noise is made of: uniform in [0, 1), shape (..., C). None if the
                router's `noise` is 0: make a rule of your own that draws, such as Gumbel's, with noise=1.

        Returns:
            pi, shape (..., C), at least the floor, each row sums to 1.

        Raises:
            InputError: the floor is not below 1 / C.
        """
        if draws is not None:
            router_logits = router_logits + self.noise * draws.to(router_logits)
        # pi_c = exp(theta_c / tau) / sum_c' exp(theta_c' / tau)
        mixture = torch.softmax(router_logits / self.temperature, dim=-1)
        if not self.floor:
            return mixture
        num_clusters = router_logits.shape[-1]
        require(
            self.floor * num_clusters < 1,
            f"floor is {self.floor}; with {num_clusters} adaptors it must be below {1 / num_clusters:g}",
        )
        # between the mixture and the uniform one, so that the smallest weight is the floor
        return self.floor + (1 - num_clusters * self.floor) * mixture

    def penalty(self, router_logits: Tensor) -> Tensor:
        """What training adds to the loss: -lambda H(pi), a scalar."""
        if not self.entropy:
            return router_logits.new_zeros(())
        return -self.entropy * entropy(self.mixture(router_logits)).sum()


def entropy(mixture: Tensor) -> Tensor:
    """H(pi) = -sum_c pi_c log pi_c of mixtures (..., C), in nats: from 0 (one-hot) to log C (uniform).

    Example:
        >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
        tensor([0.6931, 0.0000])
    """
    # 0 log 0 = 1 log 1 = 0; at a weight of 0 the slope of -pi log pi is infinite, and its gradient NaN
    entropies: Tensor = torch.special.entr(mixture.masked_fill(mixture == 0, 1)).sum(dim=-1)
    return entropies


def closed_form(losses: Tensor, learning_rate: float) -> Tensor:
    """The exact update of a router that was reset: pi_c prop exp(-eta f^k(w_c)).

    It minimises <pi, f> - H(pi) / eta over the simplex, and is what a gradient step on
    theta, from uniform, approximates with an error of second order in ||w_c - w_hat|| (with eta / C).

    Args:
        losses: f^k(w_c), the client's own loss of each cluster's model, shape (..., C). (The
            paper prints f_c; its derivation has f^k.)
        learning_rate: eta >= 0; 0 gives the uniform mixture.

    Returns:
        pi, shape (..., C), on the simplex.

    Raises:
        InputError: the learning rate is negative.

    Source: section 'Analysis', the router update, and appendix 'Router Update'.

    Example:
        >>> closed_form(torch.tensor([0.0, 0.6931]), learning_rate=1.0)  # 1 to 1/2
        tensor([0.6667, 0.3333])
    """
    return momentum_form(torch.ones_like(losses), losses, learning_rate)


def momentum_form(mixture: Tensor, losses: Tensor, learning_rate: float) -> Tensor:
    """The same update of a router that is kept: pi_c prop pi_c exp(-eta f^k(w_c)).

    Args:
        mixture: pi before the update, shape (..., C).
        losses: f^k(w_c), shape (..., C).
        learning_rate: eta >= 0.

    Returns:
        pi after it, shape (..., C). A weight of 0 stays 0.

    Raises:
        InputError: the learning rate is negative.

    Source: appendix 'Router Update'.
    """
    require(learning_rate >= 0, f"learning_rate is {learning_rate}; it must be at least 0")
    # pi_c <- pi_c exp(-eta f(w_c)) / sum_c' pi_c' exp(-eta f(w_c'))
    return torch.softmax(mixture.log() - learning_rate * losses, dim=-1)


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
        >>> Router().mixture(one_hot_logits(torch.tensor([2]), 4))
        tensor([[0., 0., 1., 0.]])
    """
    # theta = log pi: log 1 = 0 and log 0 = -inf
    return torch.nn.functional.one_hot(clusters.long() % num_clusters, num_clusters).log()


def leaning_logits(clusters: Tensor, num_clusters: int, weight: float) -> Tensor:
    """Routers that lean on one adaptor each, and that can still learn another, shape (K, C).

    Args:
        clusters: the adaptor of each client, integers in [0, C), shape (K,).
        num_clusters: C >= 2.
        weight: of that adaptor at temperature 1, in (0, 1); the others share the rest evenly.

    Raises:
        InputError: there is one adaptor only, which leaves nothing to lean from, or the weight is no such.

    Example:
        >>> Router().mixture(leaning_logits(torch.tensor([2]), 4, weight=0.7))
        tensor([[0.1000, 0.1000, 0.7000, 0.1000]])
    """
    require(num_clusters > 1, f"num_clusters is {num_clusters}; it must be at least 2 to lean on one")
    require(0 < weight < 1, f"weight is {weight}; it must be in (0, 1): for 1 take one_hot_logits")
    chosen = torch.nn.functional.one_hot(clusters.long(), num_clusters)
    others = (1 - weight) / (num_clusters - 1)
    return (others + (weight - others) * chosen).log()


def check_simplex(name: str, rows: Tensor) -> None:
    """Raise InputError unless each row is of numbers >= 0 that sum to 1, to the rounding of their type."""
    require(rows.numel() > 0, f"{name} has the shape {tuple(rows.shape)}, which is empty; give numbers")
    rows = rows.detach() + 0.0  # integers too
    sums = rows.sum(dim=-1)
    rounding = max(1e-5, 2 * torch.finfo(rows.dtype).eps)
    require(
        bool((rows >= 0).all()) and bool((sums - 1).abs().max() < rounding),
        f"{name} has sums {sums.tolist()} and a smallest entry {float(rows.min()):g}; entries must "
        "be at least 0 and sum to 1: divide by the sum",
    )


def check_rule(router: Router, num_clusters: int) -> None:
    """Raise InputError unless the router makes C weights of C logits: a floor may leave no choice."""
    check_signatures(router, Router)
    rule = f"{type(router).__name__}.mixture"
    logits = torch.rand(num_clusters, generator=torch.Generator().manual_seed(0))
    weights = router.mixture(logits)
    require(
        getattr(weights, "shape", None) == logits.shape,
        f"{rule} gives {weights!r} for {num_clusters} logits; it must give a tensor, a weight for each",
    )
    check_simplex(rule, weights)
