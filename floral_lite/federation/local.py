"""A client's half of Algorithm 1: its local steps, and the test of a personal model."""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from ..methods import ROUTER, Method
from ..roles import Roles
from .settings import Settings
from .shards import Shard
from .task import Task


def batches(num_samples: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """The row numbers of one epoch's batches: all samples once, in random order, the last batch short.

    Example:
        >>> [len(rows) for rows in batches(10, 4, torch.Generator().manual_seed(0))]
        [4, 4, 2]
    """
    yield from torch.split(torch.randperm(num_samples, generator=generator), batch_size)


def local_training(
    task: Task, method: Method, client: Roles, shard: Shard, settings: Settings, generator: torch.Generator
) -> tuple[Roles, float]:
    """A client's epochs of simultaneous gradient steps on router, base and adaptors.

    Args:
        task: gives the model and the loss.
        method: says how the client's model comes out of its parameters.
        client: the parameters that the client starts from.
        shard: its training data.
        settings: epochs, batch size and learning rates.
        generator: draws the batches, and what the method draws.

    Returns:
        The trained parameters, and the training loss, mean over the steps.

    Source: section 'Algorithm', 'Simple FLoRAL Averaging', the inner loop.
    """
    losses = []
    epochs = (batches(len(shard), settings.batch_size, generator) for _ in range(settings.local_epochs))
    for rows in chain.from_iterable(epochs):
        client = client.map(lambda tensor: tensor.detach().requires_grad_())
        # f^k(sum_c pi_c^k w_c^k)
        outputs = functional_call(task.model, method.personalise(client, generator), (shard.inputs[rows],))
        loss = task.loss(outputs, shard.targets[rows])
        objective = loss + method.penalty(client)
        gradients = torch.autograd.grad(objective, client.tensors(), materialize_grads=True)
        step = method.precondition(client, client.with_tensors(gradients))
        client = gradient_step(client, step, settings)
        losses.append(loss.detach())
    return client, float(torch.stack(losses).mean())


@torch.no_grad()
def gradient_step(client: Roles, gradients: Roles, settings: Settings) -> Roles:
    """One step of all parameters at once, w <- w - eta grad f(w); the router has an eta of its own."""

    def step(parameters: dict[str, Tensor], gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        rates = {ROUTER: settings.router_learning_rate}
        return {
            name: parameter - rates.get(name, settings.learning_rate) * gradients[name]
            for name, parameter in parameters.items()
        }

    return Roles(*map(step, client, gradients))


class Score(NamedTuple):
    """A personal model on its client's test shard; accuracy is None for a regression task."""

    loss: float
    accuracy: float | None


@torch.no_grad()
def evaluate(task: Task, method: Method, client: Roles, shard: Shard) -> Score:
    """The loss and accuracy (in [0, 1]) of one client's personal model on a shard."""
    outputs = functional_call(task.model, method.personalise(client), (shard.inputs,))
    loss = float(task.loss(outputs, shard.targets))
    if not task.is_classification:
        return Score(loss, None)
    return Score(loss, float((outputs.argmax(dim=-1) == shard.targets).double().mean()))
