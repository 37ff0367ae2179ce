"""Everything random that happens at a client in a round, drawn before it begins."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InputError, require
from ..methods import Method
from ..seeds import stream
from .settings import Settings
from .task import Task


class Draws(NamedTuple):
    """What chance gives one client in one round; every engine uses the same.

    Attributes:
        order: the client's row numbers as each epoch goes through them, shape (epochs, N).
        noise: what the method draws, a row a step, or None.
        augment: what the task's augmentation draws, in that order, shape (epochs, N, ...), or None.
        keys: integers that dropout's masks follow from, shape (steps,).
    """

    order: Tensor
    noise: Tensor | None
    augment: Tensor | None
    keys: Tensor


def draw(
    task: Task, method: Method, num_samples: int, settings: Settings, seed: int, number: int, client: int
) -> Draws:
    """The draws of a client that has that many samples.

    Args:
        task: says how training data are augmented.
        method: may draw something, such as the router's noise.
        num_samples: N^k.
        settings: batch size, local epochs, and whether to shuffle.
        seed: of the run.
        number: 1, 2, ...: the round.
        client: which one it is, in [0, K).
    """
    epochs = settings.local_epochs
    generator = stream(seed, "batches", number, client)
    if settings.shuffle:
        order = torch.stack([torch.randperm(num_samples, generator=generator) for _ in range(epochs)])
    else:
        order = torch.arange(num_samples).repeat(epochs, 1)
    num_steps = epochs * math.ceil(num_samples / settings.batch_size)
    augment = None
    if task.augment is not None:
        samples = epochs * num_samples
        drawn: Any = task.augment.draws(samples, generator)
        shape = tuple(getattr(drawn, "shape", ()))
        require(
            isinstance(drawn, Tensor) and shape[:1] == (samples,),
            f"{type(task.augment).__name__}.draws gives a {type(drawn).__name__} of shape {shape} for "
            f"{samples} samples; it must give a tensor with a row a sample, ({samples}, ...)",
        )
        augment = drawn.reshape(epochs, num_samples, *drawn.shape[1:])
    return Draws(
        order,
        noise=noise_of(method, num_steps, generator),
        augment=augment,
        keys=torch.randint(2**62, (num_steps,), generator=generator),
    )


def noise_of(method: Method, num_steps: int, generator: torch.Generator) -> Tensor | None:
    """What the method draws; InputError unless it is a tensor with a row a step, or None."""
    noise: object = method.draw(num_steps, generator)
    if noise is None or (isinstance(noise, Tensor) and noise.shape[:1] == (num_steps,)):
        return noise
    raise InputError(
        f"{type(method).__name__}.draw returns a {type(noise).__name__} of shape "
        f"{tuple(getattr(noise, 'shape', ()))} for {num_steps} steps; it must return a tensor with a row a "
        f"step, ({num_steps}, ...), or None"
    )


def batches(in_order: Tensor, batch_size: int) -> list[Tensor]:
    """Cut each epoch into batches; the last one of an epoch is short.

    Example:
        >>> in_order = torch.tensor([[2, 0, 1], [1, 2, 0]])
        >>> [batch.tolist() for batch in batches(in_order, batch_size=2)]
        [[2, 0], [1], [1, 2], [0]]
    """
    return [batch for epoch in in_order for batch in epoch.split(batch_size)]
