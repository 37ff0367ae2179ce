"""A local step of many clients at once, for any network: the readable step under torch.vmap."""

from functools import partial

import torch
from torch import Tensor
from torch.func import grad

from ..methods import Method
from ..roles import Roles
from .batch import Batch, average, sample_losses
from .forward import run, under_vmap
from .local import gradient, local_step
from .precision import forward_pass
from .settings import Settings
from .shards import Shard
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

    def step(
        client: Roles,
        velocity: Roles,
        start: Roles,
        inputs: Tensor,
        targets: Tensor,
        key: Tensor,
        weights: Tensor | None,
        noise: Tensor | None,
    ) -> tuple[Roles, Roles, Tensor]:
        def objective(client: Roles) -> tuple[Tensor, tuple[Tensor, Roles]]:
            with forward_pass(settings.precision, key.device):
                networks = method.networks(client, noise)
                outputs, moved = run(task.model, method, client, networks, inputs, key, route="auto")
                samples = method.losses(
                    client,
                    outputs,
                    lambda output: sample_losses(task.loss, targets[None], output[None])[0],
                    noise,
                )
                (loss,) = average(samples[None], weights)
            return loss + method.penalty(client, start), (loss.detach(), moved)

        def take(client: Roles) -> tuple[Roles, Tensor, Roles]:
            gradients, (loss, moved) = grad(objective, has_aux=True)(client)
            return gradients, loss, moved

        return local_step(method, settings, client, velocity, take)

    given = (client, velocity, start, batch.inputs, batch.targets, batch.keys, batch.weights, batch.noise)
    axes = tuple(None if argument is None else 0 for argument in given)
    with under_vmap(task.model):
        stepped, moving, losses = torch.vmap(step, in_dims=axes, randomness="different")(*given)
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
    shard = Shard(batch.inputs[0], batch.targets[0])
    noise = None if batch.noise is None else batch.noise[0]
    take = partial(gradient, task, method, start.at(0), shard, settings, noise, batch.keys[0], route="auto")
    stepped, moving, loss = local_step(method, settings, client.at(0), velocity.at(0), take)
    client.copy_(stepped.map(lambda tensor: tensor[None]))
    velocity.copy_(moving.map(lambda tensor: tensor[None]))
    return loss[None]
