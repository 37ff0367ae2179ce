"""Dropout whose masks follow from a key alone: the same for one client and for a stack of them.

A random generator hands out numbers in the order of the calls, so the masks of a client would
depend on who is trained beside it. Here every element hashes its own position with the client's
key. Any engine that uses the same key drops the same elements.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .roles import along_first

# Where a mask's axes end: with the inputs' (None), a draw an element; or with the channels, a draw for each.
# As in torch dropout1d reads two axes as (c, n), dropout3d four as one sample; dropout2d has (B, c) first.
DROPOUTS: dict[Callable[..., Any], int | None] = {
    functional.dropout: None,
    functional.dropout1d: -1,
    functional.dropout2d: 2,
    functional.dropout3d: -3,
}

# SplitMix64's factors (Steele et al., 2014), less 2^64, since torch's 64-bit integers have a sign.
GAMMA, FIRST, SECOND = (n - 2**64 for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class Dropout(TorchFunctionMode):
    """While it is entered, torch's dropout functions take their masks from a key.

    Dropout inside attention, and other layers that draw, keep to torch's own generator.

    Args:
        key: an integer, shape (); a step of a client has a key of its own.
    """

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key = key

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Drop by key what a dropout function would drop; leave other functions alone."""
        kwargs = kwargs or {}
        if function not in DROPOUTS:
            return function(*args, **kwargs)
        return self._drop(DROPOUTS[function], *args, **kwargs)

    def _drop(
        self, end: int | None, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        """The inputs times their mask; each call of a step has other masks."""
        if not training or not p:
            return input
        self.key = next_key(self.key)
        kept = along_first(keep(self.key, input.shape[:end], p), input)
        # at p = 1 nothing is kept, and there is nothing to scale
        dropped = input * kept.to(input.dtype) / (1 - p or 1)
        return input.copy_(dropped) if inplace else dropped


def keep(key: Tensor, shape: tuple[int, ...], p: float) -> Tensor:
    """Which elements stay: each with probability 1 - p.

    Args:
        key: integers, shape (...).
        shape: of the mask of one key.
        p: probability that an element is dropped, in [0, 1].

    Returns:
        Booleans, shape (..., *shape).

    Example:
        >>> keep(torch.tensor(1), (2, 3), p=0.5).shape
        torch.Size([2, 3])
    """
    positions = torch.arange(prod(shape), device=key.device)
    bits = _scramble(key[..., None] + positions * GAMMA)
    # the upper 24 bits as a number in [0, 1)
    uniform = ((bits >> 40) & 0xFFFFFF).float() / 2**24
    return (uniform >= p).reshape(*key.shape, *shape)


def next_key(key: Tensor) -> Tensor:
    """The key of the next mask."""
    return _scramble(key + 1)


def _scramble(numbers: Tensor) -> Tensor:
    """SplitMix64's last steps: neighbouring 64-bit integers become unrelated ones."""
    # >> keeps the sign, so its copies are cut off
    numbers = (numbers ^ ((numbers >> 30) & 0x3FFFFFFFF)) * FIRST
    numbers = (numbers ^ ((numbers >> 27) & 0x1FFFFFFFFF)) * SECOND
    return numbers ^ ((numbers >> 31) & 0x1FFFFFFFF)
