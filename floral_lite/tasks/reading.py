"""How a user's own arrays and models are read, and what is refused."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from ..copies import copied
from ..data import as_float
from ..errors import InputError, real_number, require
from ..given import Numbers

ADVICE = (
    "images are (N, channels, H, W): give images[:, None] if they are (N, H, W), and "
    "images.transpose(0, 3, 1, 2), of a numpy array, if channels come last"
)

WORDS = "numbers of words are integers, but not uint8, which is read as x / 255: give them as int64"

INTEGERS = (
    "integers, uint8 apart, are read as numbers of words, each smaller than the embedding: give images as "
    "uint8 or as floats"
)


STATISTICS = (
    "a batch norm that keeps no running statistics has nothing to normalise one sample with: leave "
    "track_running_stats=True"
)


def builder(model: nn.Module | Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A function that builds the model, or copies it if it is there already; else InputError."""
    require(
        callable(model), f"model is {model!r}; give a network, or a function of no arguments that builds one"
    )
    return partial(copied, model) if isinstance(model, nn.Module) else model


def read_arrays(
    images_name: str, images: Numbers, labels_name: str, labels: Numbers
) -> tuple[Tensor, Tensor]:
    """Copies of images and labels as tensors, or InputError."""
    inputs, targets = as_tensor(images_name, images), as_tensor(labels_name, labels)
    if targets.dtype in (torch.uint16, torch.uint32, torch.uint64):
        targets = targets.long()
    require(
        inputs.dim() >= 2 and targets.dim() == 1 and len(inputs) == len(targets) > 0,
        f"{images_name} has shape {tuple(inputs.shape)} and {labels_name} has {tuple(targets.shape)}; they "
        "must be (N, ...), such as (N, channels, H, W), and (N,), which is labels[:, 0] of a column and "
        "labels.argmax(1) of one-hot ones, with the same N of at least 1; numbers to predict, and labels of "
        "every word or pixel, need a loss, as from_clients(..., loss=...) takes",
    )
    require(
        not targets.is_floating_point() and int(targets.min()) >= 0,
        f"{labels_name} is of {targets.dtype} and begins with {targets[:3].tolist()}, the smallest is "
        f"{targets.min().item()}; labels are integers from 0 on: number the classes, or give "
        "`from_clients` a loss for numbers",
    )
    return inputs, targets.long()


def as_tensor(name: str, array: Numbers) -> Tensor:
    """A copy as a tensor, which later changes of the array do not reach, or InputError."""
    if isinstance(array, Tensor):
        require(
            array.layout == torch.strided,
            f"{name} cannot be read as a sparse tensor; give what its to_dense() returns",
        )
        tensor = array.detach().cpu().clone()
    else:
        require(
            not np.ma.is_masked(array),
            f"{name} is a masked array with entries that are masked; fill them with its filled(), or leave "
            "them out",
        )
        try:
            numbers = np.asarray(array)
            # torch takes no array that runs backwards, and no bytes in another order than this machine's
            tensor = torch.from_numpy(numbers.astype(numbers.dtype.newbyteorder("="), order="C"))
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"{name} cannot be read as one array of numbers ({error}); give a tensor, a numpy array or "
                "a list of numbers, all samples of the same shape (pad shorter texts); names of classes "
                "become numbers with np.searchsorted(classes, labels), where classes = np.unique(the labels "
                "of all clients)"
            ) from error
    # as numbers of words it would lose its imaginary part
    require(
        not tensor.is_complex(),
        f"{name} is of {tensor.dtype}, and a task takes real numbers: give torch.view_as_real of it, and use "
        "torch.view_as_complex in the model's forward",
    )
    return tensor


def check_one_kind(inputs: Mapping[str, Tensor]) -> None:
    """Raise InputError unless all inputs are bytes, or all floats, or all integers."""
    kinds: dict[tuple[bool, bool], str] = {}
    for name, tensor in inputs.items():
        kind = tensor.dtype == torch.uint8, tensor.is_floating_point()
        kinds.setdefault(kind, f"{name} is of {tensor.dtype}")
    require(
        len(kinds) < 2,
        f"{' and '.join(kinds.values())}; uint8 is read as x / 255, floats are taken as they are, other "
        "integers are numbers of words: give all in one type",
    )


def in_precision(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Floats in the model's precision, bytes too unless it is float32, other integers as words' numbers."""
    if tensor.is_floating_point():
        return tensor.to(dtype)
    if tensor.dtype == torch.uint8:
        return tensor if dtype == torch.float32 else as_float(tensor).to(dtype)
    return tensor.long()


def first_dtype(model: nn.Module) -> torch.dtype:
    """The precision of a model, or InputError where there is nothing to train."""
    require(
        isinstance(model, nn.Module),
        f"the function model returns {model!r}; it must return the network it builds",
    )
    parameters = list(model.parameters())
    require(len(parameters) > 0, "model has no parameters; give one that can be trained")
    return parameters[0].dtype


def check_model(model: nn.Module, inputs: Tensor) -> None:
    """Raise InputError unless a copy of the model takes such inputs (N, ...)."""
    own = copied(model)  # not below: where a network cannot be copied, the inputs are not to blame
    try:
        with torch.no_grad():
            own.eval()(as_float(inputs[:1]).clone())
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
        told = (str(error).strip() or type(error).__name__).splitlines()[0]
        advice = ADVICE if inputs.is_floating_point() or inputs.dtype == torch.uint8 else INTEGERS
        advice = WORDS if "arguments for embedding" in told else advice
        advice = STATISTICS if "more than 1 value per channel" in told else advice
        raise InputError(
            f"model does not take inputs of shape {tuple(inputs.shape[1:])} ({told}); {advice}; or give "
            "another model"
        ) from error


def split_rows(
    num_samples: int, test_fraction: float, generator: torch.Generator, told: str
) -> tuple[Tensor, Tensor]:
    """Rows to train on and rows to test on, drawn at random, at least one of each, or InputError."""
    share = real_number("test_fraction", test_fraction)
    num_test = round(share * num_samples) if 0 < share < 1 else 0
    require(
        0 < num_test < num_samples,
        f"test_fraction is {test_fraction}, {told}; it is the share kept for tests, in (0, 1), and must "
        "leave at least one on both sides, such as 0.2 of three samples or more: give another share, or what "
        "to test on",
    )
    order = torch.randperm(num_samples, generator=generator)
    return order[num_test:], order[:num_test]
