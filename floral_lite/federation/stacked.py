"""A local step of many clients at once, for networks that are a chain of known layers."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..methods import ROUTER, Method
from ..roles import Roles
from .batch import Batch
from .layers import Fused, Layers, stacked_forward
from .local import descend
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

    Returns:
        The training losses, shape (k,).
    """
    plain = not settings.momentum and settings.clip_norm is None
    leaves = client.map(lambda tensor: tensor.detach().requires_grad_())
    # never private ones, which a method's penalty may see
    untouched: list[Tensor] = []
    if type(method).precondition is Method.precondition:
        untouched = [*leaves.shared.values(), *leaves.clustered.values()]
    elif not method.preconditions_shared:
        untouched = [*leaves.shared.values()]
    fused = Fused(settings, {id(leaf) for leaf in untouched}, set())
    parts = method.parts(leaves, batch.noise)
    with forward_pass(settings.precision, batch.inputs.device):
        outputs = stacked_forward(layers, parts, batch.inputs, batch.keys, fused if plain else None)
        losses = batch.losses(task.loss, outputs)
    # no client's loss depends on another's parameters, so the gradient of the sum is every one's own
    objective = losses.sum() + method.penalty(leaves.private)
    wanted = leaves.tensors()
    # those whose step is taken on the way have no gradient; others have none if the loss does not use them
    found: Any = torch.autograd.grad(objective, wanted, allow_unused=True)
    gradients: list[Any] = [
        None if id(leaf) in fused.weights else torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(wanted, found, strict=True)
    ]
    with torch.no_grad():
        if plain:
            _descend(method, client, client.with_tensors(gradients), settings)
        else:
            steps = torch.vmap(partial(descend, method, settings=settings))
            stepped = steps(client, client.with_tensors(gradients), velocity)
            for old, new in zip((client, velocity), stepped, strict=True):
                for tensor, after in zip(old.tensors(), new.tensors(), strict=True):
                    tensor.copy_(after)
    return losses.detach()


def _descend(method: Method, client: Roles, gradients: Roles, settings: Settings) -> None:
    """Plain SGD in place; where there is no gradient the step was taken in the backward pass."""
    gradients = method.precondition(client, gradients)
    for parameters, of_role in zip(client, gradients, strict=True):
        for name, gradient in of_role.items():
            if gradient is None:
                continue  # type: ignore[unreachable]
            rate, decay = settings.learning_rate, settings.weight_decay
            if name == ROUTER:
                rate, decay = settings.router_learning_rate, 0.0
            # w <- (1 - eta lambda) w - eta g
            if decay:
                parameters[name].mul_(1 - rate * decay)
            parameters[name].sub_(gradient, alpha=rate)
