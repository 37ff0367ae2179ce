"""The base models of the paper's tasks."""

from collections.abc import Callable

import torch
from torch import nn


def mlp(num_inputs: int, num_hidden: int, num_outputs: int) -> nn.Module:
    """The two-layer ReLU net of the paper's MNIST task, on flattened inputs.

    Source: section 'Experiments', 'MNIST and CIFAR-10'.
    """
    return nn.Sequential(
        nn.Flatten(), nn.Linear(num_inputs, num_hidden), nn.ReLU(), nn.Linear(num_hidden, num_outputs)
    )


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A model whose first parameters follow from a seed; torch's global generator is left as it was.

    Example:
        >>> first, second = (seeded(lambda: nn.Linear(2, 2), seed=1) for _ in range(2))
        >>> bool(torch.equal(first.weight, second.weight))
        True
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()
