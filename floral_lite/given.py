"""Numbers as users give them: tensors, NumPy's arrays, or lists of either."""

from collections.abc import Sequence
from reprlib import repr as shortened
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import InputError, require

Numbers = Tensor | np.ndarray[Any, Any] | Sequence[Any]


def tensor_of(name: str, numbers: Numbers, dtype: torch.dtype | None = None) -> Tensor:
    """The numbers as one tensor, a tensor as it is, or InputError.

    Args:
        name: of the argument.
        numbers: what the user gave for it.
        dtype: what numbers that are no tensor are read as; None for torch's own choice.

    Example:
        >>> tensor_of("outputs", [torch.ones(2), torch.zeros(2)]).shape  # of two models, say
        torch.Size([2, 2])
    """
    try:
        if isinstance(numbers, list | tuple):
            return torch.stack([torch.as_tensor(one, dtype=dtype) for one in numbers])
        return numbers if isinstance(numbers, Tensor) else torch.as_tensor(numbers, dtype=dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name} is {shortened(numbers)} ({str(error).partition(chr(10))[0]}); give a tensor, a NumPy "
            "array, or numbers in a list, all rows of one length"
        ) from None


def precise(numbers: Tensor) -> Tensor:
    """At least in single precision: sums over many samples are lost in half."""
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))


def check_labels(labels: Tensor, num_labels: int) -> None:
    """Raise InputError unless all are integers in [0, L); of any type, as arrays come with many."""
    # torch has no minimum of the larger unsigned types
    numbers = labels if labels.is_floating_point() else labels.long()
    low, high = numbers.min().item(), numbers.max().item()
    require(
        not labels.is_floating_point() and 0 <= low <= high < num_labels,
        f"labels go from {low} to {high}, of {labels.dtype}; they must be integers in [0, {num_labels})",
    )
