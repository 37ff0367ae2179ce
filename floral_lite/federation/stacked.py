"""A local step of many clients at once, for networks that are a chain of known layers."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..methods import ROUTER, Method
from ..roles import Roles
from .batch import Batch, average, sample_losses
from .layers import Fused, Layers, stacked_forward
from .local import ahead, descend
from .precision import forward_pass
from .settings import Settings
from .task import Task


def stacked_step(
    task: Task,
    method: Method,
    layers: Layers,
    settings: Settings,
    client: Roles,
    velocity: Roles,
    batch: Batch,
    start: Roles,
) -> Tensor:
    """A local step of every client of a stack, in place; see `local.local_training`.

    Args:
        task: gives the loss.
        method: says what the parameters are made of.
        layers: of the task's model.
        settings: of the clients' optimizer.
        client: the clients' parameters, each with an axis of clients in front; they are changed.
        velocity: of their momentum; it is changed.
        batch: their samples.
        start: their parameters at the beginning of the round if the method remembers them, else nothing.

    Returns:
        The training losses, shape (k,).
    """
    take = partial(_gradients, task, method, layers, settings, start, batch)
    plain = not settings.momentum and settings.clip_norm is None
    losses, gradients = take(client, fuse=plain and not method.inner_learning_rate)
    if method.inner_learning_rate:
        losses, gradients = take(ahead(method, client, gradients), fuse=False)
    with torch.no_grad():
        if plain:
            _descend(method, client, gradients, settings)
        else:
            steps = torch.vmap(partial(descend, method, settings=settings))
            stepped, moving = steps(client, gradients, velocity)
            client.copy_(stepped)
            velocity.copy_(moving)
    return losses


def _gradients(
    task: Task,
    method: Method,
    layers: Layers,
    settings: Settings,
    start: Roles,
    batch: Batch,
    client: Roles,
    fuse: bool,
) -> tuple[Tensor, Roles]:
    """The losses (k,) and the gradients, without those of weights that step in the backward pass."""
    leaves = client.map(lambda tensor: tensor.detach().requires_grad_())
    networks = method.networks(leaves, batch.noise)
    # a weight may step in the backward pass if nothing uses it, or its gradient, a second time, as a penalty,
    # another network or a user's own verb may
    verbs = ("parts", "networks", "losses", "penalty", "precondition")
    known = all(getattr(type(method), verb).__module__.startswith("floral_lite.") for verb in verbs)
    fused = Fused(settings, method.preconditioned, set(), set())
    if fuse and known and not method.remembers_start and len(networks) == 1:
        fused.allowed.update(id(leaf) for role in (leaves.shared, leaves.clustered) for leaf in role.values())
    with forward_pass(settings.precision, batch.inputs.device):
        outputs = [stacked_forward(layers, parts, batch.inputs, batch.keys, fused) for parts in networks]
        sample_loss = partial(sample_losses, task.loss, batch.targets)
        losses = average(method.losses(leaves, outputs, sample_loss, batch.noise), batch.weights)
    # no client's loss depends on another's parameters, so the gradient of the sum is every one's own
    objective = losses.sum() + method.penalty(leaves, start)
    # None for weights that have taken their step, and for those that the loss does not use
    found: Any = leaves.with_tensors(torch.autograd.grad(objective, leaves.tensors(), allow_unused=True))
    gradients = Roles(
        *(
            {
                name: torch.zeros_like(leaf) if slopes[name] is None else slopes[name]
                for name, leaf in role.items()
                if id(leaf) not in fused.weights
            }
            for role, slopes in zip(leaves, found, strict=True)
        )
    )
    return losses.detach(), gradients


def _descend(method: Method, client: Roles, gradients: Roles, settings: Settings) -> None:
    """Plain SGD in place; where there is no gradient the step was taken in the backward pass."""
    for parameters, of_role in zip(client, method.precondition(client, gradients), strict=True):
        for name, gradient in of_role.items():
            rate, decay = settings.learning_rate, settings.weight_decay
            if name == ROUTER:
                rate, decay = settings.router_learning_rate, 0.0
            # w <- (1 - eta lambda) w - eta g
            if decay:
                parameters[name].mul_(1 - rate * decay)
            parameters[name].sub_(gradient, alpha=rate)
