"""A local step of many clients at once, for networks that are a chain of known layers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..factored import AdaptedParameter, Blend
from ..methods import ROUTER, Method
from ..methods.base import Part
from ..roles import Roles
from .batch import Batch, average, sample_losses
from .layers import Fused, Layers, stacked_forward
from .local import ahead, clip
from .own_method import ours
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
    take = partial(_gradients, task, method, layers, settings, velocity, start, batch)
    losses, gradients = take(client)
    if method.inner_learning_rate:
        losses, gradients = take(ahead(method, client, gradients))
    with torch.no_grad():
        if settings.clip_norm is not None:
            gradients = torch.vmap(partial(clip, clip_norm=settings.clip_norm))(gradients)
        _descend(method, client, gradients, velocity, settings)
    return losses


def _gradients(
    task: Task,
    method: Method,
    layers: Layers,
    settings: Settings,
    velocity: Roles,
    start: Roles,
    batch: Batch,
    client: Roles,
) -> tuple[Tensor, Roles]:
    """The losses (k,) and the gradients, without those of weights that step in the backward pass."""
    leaves = client.map(lambda tensor: tensor.detach().requires_grad_())
    tensors = leaves.tensors()
    networks = method.networks(leaves, batch.noise)
    all_needed = needs_all_gradients(method, settings)
    owners = {} if all_needed else used_once(networks, tensors)
    velocities = dict(zip(map(id, tensors), velocity.tensors(), strict=False))  # none without momentum
    allowed = {
        used: velocities.get(id(owner))
        for used, owner in owners.items()
        if used == id(owner) or not settings.momentum  # a slice's velocity would be a slice, too
    }
    fused = Fused(settings, method.preconditioned, allowed, set())
    with forward_pass(settings.precision, batch.inputs.device):
        outputs = [stacked_forward(layers, parts, batch.inputs, batch.keys, fused) for parts in networks]
        sample_loss = partial(sample_losses, task.loss, batch.targets)
        losses = average(method.losses(leaves, outputs, sample_loss, batch.noise), batch.weights)
    pulls: Any = [None] * len(tensors)
    penalty = method.penalty(leaves, start)
    if isinstance(penalty, Tensor) and penalty.requires_grad:  # before any weight steps
        pulls = torch.autograd.grad(penalty, tensors, retain_graph=True, allow_unused=True)
    # no client's loss depends on another's parameters, so the gradient of the sum is every one's own; None
    # for weights that have taken their step, and for those that the loss does not use
    slopes: Any = torch.autograd.grad(losses.sum(), tensors, allow_unused=True)
    stepped = {id(owners[used]) for used in fused.stepping}
    gradients: list[Any] = []
    for leaf, *terms in zip(tensors, slopes, pulls, strict=True):
        there = [term for term in terms if term is not None]
        gradient = sum(there) if there else None
        if id(leaf) in stepped:
            if gradient is not None:
                _pull(leaf, velocities.get(id(leaf)), gradient, settings.learning_rate)
            gradient = None
        elif gradient is None and (all_needed or settings.momentum or settings.weight_decay):
            gradient = torch.zeros_like(leaf)  # these may move what nothing pulls
        gradients.append(gradient)
    named: Any = leaves.with_tensors(gradients)
    return losses.detach(), Roles(*({k: g for k, g in role.items() if g is not None} for role in named))


def needs_all_gradients(method: Method, settings: Settings) -> bool:
    """Whether old weights and gradients are used after the backward pass, so that none may step in it.

    Clipping and an inner step use them, and a verb of a user's own may.
    """
    verbs = ("parts", "networks", "losses", "penalty", "precondition")
    own = not all(ours(getattr(method, verb)) for verb in verbs)
    return own or settings.clip_norm is not None or bool(method.inner_learning_rate)


def used_once(networks: Sequence[Mapping[str, Part]], leaves: Sequence[Tensor]) -> dict[int, Tensor]:
    """The leaves that networks use once, whole or as a slice: each by the identity of what is used."""
    used: list[Tensor] = []
    for part in (part for parts in networks for part in parts.values()):
        if isinstance(part, AdaptedParameter):
            used += [part.base, *part.factors.values()]
        else:
            used.append(part.models if isinstance(part, Blend) else part)
    times = Counter(tensor.data_ptr() for tensor in used)  # two views of a leaf are two tensors
    by_identity = {id(leaf): leaf for leaf in leaves}
    owners = {}
    for tensor in used:
        leaf = by_identity.get(id(tensor if tensor._base is None else tensor._base))
        if leaf is not None and times[tensor.data_ptr()] == 1:
            owners[id(tensor)] = leaf
    return owners


@torch.no_grad()
def _pull(weight: Tensor, velocity: Tensor | None, gradient: Tensor, rate: float) -> None:
    """Let a weight that has taken its step follow one more gradient, a penalty's."""
    if velocity is not None:
        velocity.add_(gradient)
    weight.sub_(gradient, alpha=rate)


def _descend(method: Method, client: Roles, gradients: Roles, velocity: Roles, settings: Settings) -> None:
    """SGD in place, of what has a gradient: the others have stepped in the backward pass, or stand still."""
    slopes = method.precondition(client, gradients)
    for parameters, of_role, moving in zip(client, slopes, velocity, strict=True):
        for name, gradient in of_role.items():
            rate, decay = settings.learning_rate, settings.weight_decay
            if name == ROUTER:
                rate, decay = settings.router_learning_rate, 0.0
            if settings.momentum:
                # v <- mu v + g + lambda w
                moving[name].mul_(settings.momentum).add_(gradient)
                if decay:
                    moving[name].add_(parameters[name], alpha=decay)
                gradient = moving[name]
            elif decay:
                # w <- (1 - eta lambda) w - eta g
                parameters[name].mul_(1 - rate * decay)
            # w <- w - eta v
            parameters[name].sub_(gradient, alpha=rate)
