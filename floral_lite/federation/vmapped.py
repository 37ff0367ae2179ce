"""A local step of many clients at once, for any network: the readable step under torch.vmap."""

import torch
from torch import Tensor
from torch.func import grad

from ..methods import Method
from ..roles import Roles
from .batch import Batch, average, sample_losses
from .forward import run, under_vmap
from .local import ahead, descend, with_statistics
from .precision import forward_pass
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

        gradients, (loss, moved) = grad(objective, has_aux=True)(client)
        if method.inner_learning_rate:
            gradients, (loss, moved) = grad(objective, has_aux=True)(ahead(method, client, gradients))
        client, velocity = descend(method, client, gradients, velocity, settings)
        return with_statistics(client, moved), velocity, loss

    given = (client, velocity, start, batch.inputs, batch.targets, batch.keys, batch.weights, batch.noise)
    axes = tuple(None if argument is None else 0 for argument in given)
    with under_vmap(task.model):
        stepped, moving, losses = torch.vmap(step, in_dims=axes, randomness="different")(*given)
    client.copy_(stepped)
    velocity.copy_(moving)
    result: Tensor = losses
    return result
