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
        # one client as the loop takes it: under vmap norms and pooling take longer
        own, moving = client.at(0), velocity.at(0)
        alone = Batch._make(None if given is None else given[0] for given in batch)
        take = partial(gradient, task, method, settings, alone, start.at(0), "auto")
        stepped, moved, loss = local_step(method, settings, own, moving, take)
        own.copy_(stepped)
        moving.copy_(moved)
        return loss[None]

    def step(client: Roles, velocity: Roles, batch: Batch, start: Roles) -> tuple[Roles, Roles, Tensor]:
        take = grad(partial(objective, task, method, settings, batch, start, "auto"), has_aux=True)
        return local_step(method, settings, client, velocity, take)

    axes = (0, 0, Batch._make(None if given is None else 0 for given in batch), 0)
    with under_vmap(task.model):
        stepped, moved, losses = torch.vmap(step, axes, randomness="different")(
            client, velocity, batch, start
        )
    client.copy_(stepped)
    velocity.copy_(moved)
    result: Tensor = losses
    return result
