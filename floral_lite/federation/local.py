"""A client's half of Algorithm 1: its local steps, and the test of a personal model."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..methods import ROUTER, Method
from ..mixing import Route
from ..roles import Roles
from .batch import Batch, average, sample_losses
from .clients import gather
from .draws import Draws, batches
from .forward import run
from .precision import forward_pass
from .settings import Settings
from .shards import NO_LABEL, Changes, Shard
from .task import Task


def local_training(
    task: Task, method: Method, client: Roles, index: int, settings: Settings, draws: Draws
) -> tuple[Roles, float]:
    """A client's epochs of simultaneous gradient steps on router, base and adaptors.

    Args:
        task: gives the model, which is put into training mode, and the loss.
        method: says how the client's model comes out of its parameters.
        client: the parameters that the client starts from.
        index: which client it is, in [0, K): whose training data.
        settings: learning rates and the rest of the client's optimizer.
        draws: the batches, and everything else that is random.

    Returns:
        The trained parameters, and the training loss, mean over the steps. What was given stays as it was.

    Source: section 'Algorithm', 'Simple FLoRAL Averaging', the inner loop.
    """
    losses = []
    shard = task.train[index]
    draws = Draws._make(None if drawn is None else drawn.to(shard.inputs.device) for drawn in draws)
    augmented = [] if draws.augment is None else batches(draws.augment, settings.batch_size)
    # copies: `begin` may write in private tensors
    client = client._replace(private={name: own.clone() for name, own in client.private.items()})
    client = start = method.begin(client, candidate_losses(task, method, client, shard))
    task.model.train()
    velocity = client.map(torch.zeros_like)
    for step, rows in enumerate(batches(draws.order, settings.batch_size)):
        if task.augment is None:
            inputs, targets = shard.inputs[rows], shard.targets[rows]
        else:
            # not from the shard, whose samples a cluster's transform has changed already
            changes = Changes(task.augment, augmented[step][None])
            inputs, targets = (tensor[0] for tensor in gather(task.train, [index], rows[None], changes))
        noise = None if draws.noise is None else draws.noise[step]
        batch = Batch(inputs, targets, None, noise, draws.keys[step])
        take = partial(gradient, task, method, settings, batch, start, "merged")
        client, velocity, loss = local_step(method, settings, client, velocity, take)
        losses.append(loss)
    return method.finish(client, start), float(torch.stack(losses).mean())


def local_step(
    method: Method,
    settings: Settings,
    client: Roles,
    velocity: Roles,
    take: Callable[[Roles], tuple[Roles, tuple[Tensor, Roles]]],
) -> tuple[Roles, Roles, Tensor]:
    """The client after a step, its velocity, and its loss.

    Args:
        method: says where gradients are taken, and preconditions them.
        settings: of the client's optimizer.
        client: its parameters and statistics.
        velocity: its momentum.
        take: `gradient` on the step's batch.
    """
    gradients, (loss, statistics) = take(client)
    if method.inner_learning_rate:
        # g(w - alpha g(w))
        gradients, (loss, statistics) = take(ahead(method, client, gradients))
    with torch.no_grad():
        if settings.clip_norm is not None:
            gradients = clip(gradients, settings.clip_norm)
        client, velocity = gradient_step(client, method.precondition(client, gradients), velocity, settings)
    # the running statistics that its batch norms have moved
    client = Roles(*(role | own for role, own in zip(client, statistics, strict=True)))
    return client, velocity, loss


def gradient(
    task: Task, method: Method, settings: Settings, batch: Batch, start: Roles, route: Route, client: Roles
) -> tuple[Roles, tuple[Tensor, Roles]]:
    """The gradients of what a client minimises on a batch; and its loss, and its statistics as they move."""
    client = client.map(lambda tensor: tensor.detach().requires_grad_())
    minimised, told = objective(task, method, settings, batch, start, route, client)
    gradients = torch.autograd.grad(minimised, client.tensors(), materialize_grads=True)
    return client.with_tensors(gradients), told


def objective(
    task: Task, method: Method, settings: Settings, batch: Batch, start: Roles, route: Route, client: Roles
) -> tuple[Tensor, tuple[Tensor, Roles]]:
    """What a client minimises on a batch; and its loss alone, and its statistics as they move.

    Source: section 'Practical Implementation', (FML); other methods name theirs.
    """
    with forward_pass(settings.precision, batch.inputs.device):
        # f^k(sum_c pi_c^k w_c^k), or whatever else the method makes of its networks
        networks = method.networks(client, batch.noise)
        outputs, statistics = run(task.model, method, client, networks, batch.inputs, batch.keys, route)
        samples = method.losses(
            client,
            outputs,
            lambda output: sample_losses(task.loss, batch.targets[None], output[None])[0],
            batch.noise,
        )
        (loss,) = average(samples[None], batch.weights)
    return loss + method.penalty(client, start), (loss.detach(), statistics)


def ahead(method: Method, client: Roles, gradients: Roles) -> Roles:
    """The parameters at which a step takes its gradient: w - alpha g."""
    return client.map(lambda tensor, slope: tensor - method.inner_learning_rate * slope, gradients)


@torch.no_grad()
def candidate_losses(task: Task, method: Method, client: Roles, shard: Shard) -> Tensor | None:
    """The loss of each of the method's candidates on a client's whole shard, shape (C,); None without any."""
    candidates = method.candidates(client)
    if not candidates:
        return None
    task.model.eval()
    outputs, _ = run(task.model, method, client, candidates, shard.inputs)
    return torch.stack([task.loss(output, shard.targets) for output in outputs])


def clip(gradients: Roles, clip_norm: float) -> Roles:
    """Gradients whose norm, all tensors together, is at most clip_norm; only their common length changes."""
    norm = torch.stack([gradient.norm() for gradient in gradients.tensors()]).norm()
    # g <- g min(1, limit / ||g||)
    scale = (clip_norm / norm).clamp(max=1)
    return gradients.map(lambda gradient: scale * gradient)


def gradient_step(
    client: Roles, gradients: Roles, velocity: Roles, settings: Settings
) -> tuple[Roles, Roles]:
    """One step of all parameters at once, as torch.optim.SGD takes it; the router has an eta of its own."""
    stepped, moving = Roles({}, {}, {}), Roles({}, {}, {})
    for role, parameters in client._asdict().items():
        for name, parameter in parameters.items():
            rate, decay = settings.learning_rate, settings.weight_decay
            if name == ROUTER:
                rate, decay = settings.router_learning_rate, 0.0
            direction = getattr(gradients, role)[name]
            if decay:
                direction = direction + decay * parameter
            if settings.momentum:
                # v <- mu v + g
                direction = settings.momentum * getattr(velocity, role)[name] + direction
                getattr(moving, role)[name] = direction
            # w <- w - eta v
            getattr(stepped, role)[name] = parameter - rate * direction
    return stepped, moving


class Score(NamedTuple):
    """A personal model on its client's test shard; accuracy is None for a regression task."""

    loss: float
    accuracy: float | None


@torch.no_grad()
def evaluate(task: Task, method: Method, client: Roles, shard: Shard) -> Score:
    """The loss and accuracy (in [0, 1]) of one client's personal model on a shard, in evaluation mode.

    Args:
        task: the model and the loss; the model stays in evaluation mode.
        method: who shares what.
        client: the client's parameters, see `Roles.of_client`.
        shard: its test samples, or others.

    Returns:
        The mean loss, and the accuracy, or None where targets are no labels.
    """
    task.model.eval()
    all_outputs, _ = run(task.model, method, client, method.networks(client), shard.inputs)
    outputs = method.predict(client, all_outputs, task.is_classification)
    loss = float(task.loss(outputs, shard.targets))
    if not task.is_classification:
        return Score(loss, None)
    right = int((outputs.argmax(dim=-1) == shard.targets).sum())
    return Score(loss, right / int((shard.targets.long() != NO_LABEL).sum()))
