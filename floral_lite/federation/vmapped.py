"""A local step of many clients at once, for any network: the readable step under torch.vmap."""

from functools import partial

import torch
from torch import Tensor
from torch.func import grad

from ..methods import Method
from ..roles import Roles
from .batch import Batch
from .forward import under_vmap
from .local import gradient, local_step, objective
from .settings import Settings
from .task import Task


def vmapped_step(
    task: Task,
    method: Method,
    settings: Settings,
    client: Roles,
    velocity: Roles,
    batch: Batch,
    start: Roles,
) -> Tensor:
    """A local step of every client of a stack, in place; see `stacked.stacked_step`.

    Raises:
        InputError: the network's way depends on its inputs, which torch.vmap cannot follow.
    """
    if len(batch.inputs) == 1 and not batch.inputs.is_cuda:
        return single_step(task, method, settings, client, velocity, batch, start)

    def step(client: Roles, velocity: Roles, batch: Batch, start: Roles) -> tuple[Roles, Roles, Tensor]:
        def take(client: Roles) -> tuple[Roles, Tensor, Roles]:
            minimised = partial(objective, task, method, settings, batch, start, "auto")
            gradients, (loss, moved) = grad(minimised, has_aux=True)(client)
            return gradients, loss, moved

        return local_step(method, settings, client, velocity, take)

    axes = (0, 0, Batch._make(None if given is None else 0 for given in batch), 0)
    with under_vmap(task.model):
        stepped, moving, losses = torch.vmap(step, axes, randomness="different")(
            client, velocity, batch, start
        )
    client.copy_(stepped)
    velocity.copy_(moving)
    result: Tensor = losses
    return result


def single_step(
    task: Task,
    method: Method,
    settings: Settings,
    client: Roles,
    velocity: Roles,
    batch: Batch,
    start: Roles,
) -> Tensor:
    """The same for a stack of one, as the loop takes it: under vmap norms and pooling take longer."""
    alone = Batch._make(None if given is None else given[0] for given in batch)
    take = partial(gradient, task, method, settings, alone, start.at(0), route="auto")
    stepped, moving, loss = local_step(method, settings, client.at(0), velocity.at(0), take)
    client.copy_(stepped.map(lambda tensor: tensor[None]))
    velocity.copy_(moving.map(lambda tensor: tensor[None]))
    return loss[None]
