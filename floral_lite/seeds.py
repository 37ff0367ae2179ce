"""Random streams: one seed, many independent generators, no global state."""

import numpy as np
import torch

from .errors import require, whole_number

# A larger number of seeds is a seed given under the wrong name.
MOST_SEEDS = 1000


def stream(seed: int, *key: str | int) -> torch.Generator:
    """A random generator of its own for every use that a run makes of its seed.

    The stream depends on nothing but `seed` and `key`. Two engines that ask for
    the batches of client 7 in round 3 therefore draw the same ones, in any order.

    Args:
        seed: the run's seed, from 0 to 2**63 - 1.
        key: what the numbers are for, such as ("batches", 3, 7): words, and integers >= 0.

    Raises:
        InputError: the seed is out of range.

    Example:
        >>> int(torch.randint(100, (), generator=stream(0, "clients", 5)))
        85
        >>> int(torch.randint(100, (), generator=stream(0, "clients", 5)))
        85
    """
    check_seed(seed)
    words = [int.from_bytes(k.encode(), "big") if isinstance(k, str) else k for k in key]
    state = np.random.SeedSequence([int(seed), len(key), *words]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def check_seed(seed: int) -> None:
    """Raise InputError unless both NumPy and torch take the seed."""
    require(
        0 <= whole_number("seed", seed) < 2**63,
        f"seed is {seed}; it must be 0 or more, and smaller than 2**63",
    )


def check_num_seeds(seeds: int) -> None:
    """Raise InputError unless `seeds` can be how many seeds to run."""
    require(
        1 <= whole_number("seeds", seeds) <= MOST_SEEDS,
        f"seeds is {seeds}; it is how many seeds to run, 1 to {MOST_SEEDS}, and not a seed itself",
    )
