"""The relative parameter budget rho: how large an adaptor may be, and its rank."""

import math

from ..decimals import as_written
from ..errors import real_number, require, whole_number


def check_budget(budget: float) -> float:
    """The budget as a float, as a file keeps it, or InputError unless it lies in (0, 1]."""
    share = real_number("budget", budget)
    require(
        0 < share <= 1,
        f"budget is {budget}; it is an adaptor's share of its weight's size, in (0, 1]: try 0.01 or 0.1",
    )
    return share


def check_rank(rank: int) -> int:
    """The rank, or InputError unless it is a whole number of at least 1."""
    rank = whole_number("rank", rank)
    require(rank >= 1, f"rank is {rank}; a low-rank adaptor needs at least 1: try 8")
    return rank


def largest_rank(weight_size: int, cost_of_a_rank: int, budget: float) -> int:
    """The largest rank whose adaptor keeps to the budget, but at least 1.

    Args:
        weight_size: parameters of the weight, m n for a linear layer.
        cost_of_a_rank: parameters of an adaptor of rank 1, m + n for a linear layer.
        budget: rho in (0, 1], the adaptor's parameters relative to the weight's.

    Raises:
        InputError: the budget is out of range.

    Source: section 'Parameter-Efficient Adaptors', 'Relative parameter budget'.

    Example:
        >>> [largest_rank(200 * 784, 200 + 784, budget) for budget in (0.01, 0.1)]
        [1, 15]
        >>> largest_rank(10 * 200, 10 + 200, budget=0.01)  # 0.095 fits: the minimum is 1
        1
    """
    check_budget(budget)
    # r = max(1, floor(rho m n / (m + n)))
    return max(1, math.floor(as_written(budget) * weight_size / cost_of_a_rank))
