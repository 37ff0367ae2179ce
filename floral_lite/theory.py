"""The paper's convergence theorem as numbers: how evenly clients are dealt, and every term of the bound."""

from collections.abc import Callable

import torch
from torch import Tensor

from .errors import require
from .federation import cluster_probability
from .router import check_simplex

Number = Tensor | float  # one run, or many at once: the arguments broadcast


def evenness(mixture: Tensor, num_samples: Tensor) -> Tensor:
    """U_c: how evenly the clients are dealt to cluster c, from p(c) (some only serve it) to 1 (all alike).

    Args:
        mixture: the true pi, shape (K, C), rows on the simplex.
        num_samples: N^k > 0, shape (K,).

    Returns:
        Shape (C,), in [p(c), 1].

    Raises:
        InputError: a cluster has no clients, a row is not on the simplex, or num_samples does not fit.

    Source: section 'Analysis', the theorem.

    Example:
        >>> clusters = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
        >>> evenness(clusters, num_samples=torch.ones(4))
        tensor([0.2500, 0.7500])
    """
    check_simplex("mixture", mixture)
    require(
        num_samples.shape == mixture.shape[:1] and bool((num_samples > 0).all()),
        f"num_samples is {num_samples.tolist()}; it must be above 0 for each of the {len(mixture)} clients",
    )
    share = cluster_probability(mixture, num_samples)
    empty = torch.nonzero(share == 0).flatten().tolist()
    require(not empty, f"mixture gives no weight to the clusters {empty}; leave their columns out")
    # U_c = min p(c) / pi_c^k over clients with pi_c^k >= p(c), a mean of them: the largest is one
    return (share / mixture.amax(dim=0)).clamp(max=1)


def smallest_offset(
    local_steps: Number, *, smoothness: Number, evenness: Number, rate: Number = 3.0
) -> Tensor:
    """The least s with which the learning rate eta_t = alpha / (t + s) is small enough for the proof.

    Args:
        local_steps: H >= 1.
        smoothness: L > 0.
        evenness: U_c, in (0, 1].
        rate: alpha > 0; at least 3 / mu for the proof to hold.

    Returns:
        s, broadcast over the arguments. (For alpha = 1 / mu the paper has 4 kappa / U_c; its proof needs
        twice as much.)

    Raises:
        InputError: an argument is not positive, or U_c above 1.

    Source: appendix 'Proofs', theorem 'Convergence Rate with decreasing ||delta_c,t||_1^2'.

    Example:
        >>> smallest_offset(4, smoothness=2.0, evenness=0.5)
        tensor(96.)
    """
    _check("positive", _positive, local_steps=local_steps, smoothness=smoothness, rate=rate)
    _check("above 0, and at most 1", lambda numbers: (numbers > 0) & (numbers <= 1), evenness=evenness)
    # s = max(3 H, 8 alpha L / U_c): eta_t0 <= 2 eta_t in a round, and 4 L eta_t p(k | c) <= p_hat(k | c) / 2
    needed = torch.as_tensor(8 * rate * smoothness / evenness)
    return torch.maximum(needed, torch.as_tensor(3 * local_steps))


def bound_terms(
    steps: Number,
    *,
    variance: Number,
    second_moment: Number,
    mismatch: Number,
    decay: Number,
    local_steps: Number,
    offset: Number,
    smoothness: Number,
    convexity: Number = 1.0,
    rate: Number = 3.0,
) -> dict[str, Tensor]:
    """What bounds E f_c(w_hat_T) - f_c(w_c*), term by term; all arguments broadcast.

    As in the paper's proof, each term of the average is in every step another client, drawn with p(k | c).
    Where clients stay for a round of H steps, the noise is H times as large. Where each term is a client of
    its own, as in a federation, wrong weights cost in the order of G^2 ||delta_c,t||_1^2 / mu.

    Args:
        steps: T >= 1.
        variance: sigma~^2 = sigma^2 ||p_c||^2 >= 0.
        second_moment: G^2 >= 0.
        mismatch: ||delta_c,0||_1, 0 to 2. It falls: ||delta_c,t||_1^2 <= (s / (t + s))^beta times its square.
            (The paper prints (t + s)^-beta, which at t = 0 leaves a mismatch of 0 only.)
        decay: beta, in (0, 1).
        local_steps: H >= 1.
        offset: s, from `smallest_offset`.
        smoothness: L >= mu.
        convexity: mu > 0.
        rate: alpha; at least 3 / mu for the proof to hold, 1 / mu for the constants that the paper prints.

    Returns:
        "start", "noise", "mismatch" and "drift"; their sum is the bound.

    Raises:
        InputError: an argument is negative, or 0 where it divides or counts, or beta is not between 0 and 1.

    Source: appendix 'Proofs', theorem 'Convergence Rate with decreasing ||delta_c,t||_1^2'. In the section
    'Analysis' the last three are of the order of sigma~^2 / (mu T), G^2 ||delta_0||_1^2 / (mu T^(1 + beta))
    and kappa G^2 H^2 / (mu T^2).

    Example:
        >>> problem = {"variance": 0.1, "second_moment": 1.0, "smoothness": 2.0}
        >>> run = {"mismatch": 0.0, "decay": 0.5, "local_steps": 1, "offset": 48.0}
        >>> terms = bound_terms(10_000, **problem, **run)
        >>> {name: round(float(term), 6) for name, term in terms.items()}
        {'start': 1e-06, 'noise': 0.000363, 'mismatch': 0.0, 'drift': 9e-06}
    """
    _check("positive", _positive, steps=steps, local_steps=local_steps, offset=offset)
    _check("positive", _positive, smoothness=smoothness, convexity=convexity, rate=rate)
    at_least_zero = {"variance": variance, "second_moment": second_moment, "mismatch": mismatch}
    _check("at least 0", lambda numbers: numbers >= 0, **at_least_zero)
    _check("between 0 and 1", lambda numbers: (numbers > 0) & (numbers < 1), decay=decay)
    T, s, G2 = torch.as_tensor(steps, dtype=torch.float64), offset, second_moment
    beta = torch.as_tensor(decay, dtype=torch.float64)
    return {
        # 24 G^2 (s - 1) s^2 / (alpha mu^2 T^3)
        "start": 24 * G2 * (s - 1) * s**2 / (rate * convexity**2 * T**3),
        # 12 alpha sigma~^2 (1 / T + (2 s - 1) / T^2)
        "noise": 12 * rate * variance * (T + 2 * s - 1) / T**2,
        # 48 alpha G^2 ||delta_0||^2 s^beta (T^(2 - beta) + s^(2 - beta)) / T^3
        "mismatch": 48 * rate * G2 * mismatch**2 * s**beta * (T ** (2 - beta) + s ** (2 - beta)) / T**3,
        # 48 alpha^2 L H^2 G^2 / T^2
        "drift": 48 * rate**2 * smoothness * local_steps**2 * G2 / T**2,
    }


def _check(allowed: str, holds: Callable[[Tensor], Tensor], **arguments: Number) -> None:
    """Raise InputError unless it holds for every number of every argument."""
    for name, given in arguments.items():
        require(bool(holds(torch.as_tensor(given)).all()), f"{name} is {given}; it must be {allowed}")


def _positive(numbers: Tensor) -> Tensor:
    return numbers > 0
