"""What a server may ask before it trains: every client's gradient at the first model, to find who is alike.

An answer is no longer than an update, and each client gives one, in place of a round of training. If a tenth
of the clients train in a round, all have answered after ten rounds; the history has their losses at the first
model for these.
"""

import math

import torch
from torch import Tensor, nn

from ..clustering import find_clusters
from ..copies import copied
from ..errors import require
from ..given import precise
from ..methods import ROUTER, Method
from ..methods.base import trainable
from ..methods.routed import Routed
from ..roles import Roles
from ..router import leaning_logits
from .batch import MEANS, client_losses
from .loop import num_sampled
from .settings import Settings
from .shards import Population, Shard
from .task import Task

# Samples of a client that the model sees at once.
ROWS = 256
# A router's first weight of its cluster's adaptor. At 1 a client in a wrong cluster would stay there.
LEANING = 0.9


def asked_rounds(task: Task, method: Method, settings: Settings) -> int:
    """How many of a run's rounds go to asking every client once; 0 where the method does not ask.

    Raises:
        InputError: no round is left for training, or all of the base's weights are frozen.
    """
    if not method.asks_first:
        return 0
    require(
        len(asked_weights(task.model)) > 0,
        "routing is 'clustered', which looks at gradients of the base's weights, but all of them are frozen: "
        "use routing='learned'",
    )
    # as many a round as are trained in one, every client once
    asked = math.ceil(task.num_clients / num_sampled(task.num_clients, settings.participation))
    require(
        settings.rounds > asked,
        f"rounds is {settings.rounds}, and with participation={settings.participation} routing='clustered' "
        f"takes {asked} of them to ask every client once: give more rounds",
    )
    return asked


def ask(task: Task, method: Method, state: Roles, seed: int) -> tuple[Roles, Tensor]:
    """Ask every client, and start the routers at the clusters that are found.

    Args:
        task: the clients' data and the first model. (All adaptors add nothing to it yet.)
        method: who shares what.
        state: the federation before its first round, with routers (K, C).
        seed: of the run.

    Returns:
        The state with routers that lean on their cluster's adaptor; as it was if no clusters stand out. And
        every client's loss at the first model, shape (K,).

    Raises:
        InputError: the clients are a population; or no clusters stand out, and all adaptors are alike.
    """
    require(
        not isinstance(task.train, Population),
        "routing is 'clustered', which asks every client for a gradient, but the clients of a population are "
        "made when they are needed: use routing='learned'",
    )
    gradients, losses = first_gradients(task)
    logits = state.private[ROUTER]
    found = find_clusters(gradients, logits.shape[1], seed)
    if found is not None and found.stands_out:
        logits = leaning_logits(found.clusters, logits.shape[1], LEANING).to(logits)
    elif isinstance(method, Routed):
        method.check_apart(state.clustered)
    return state._replace(private=state.private | {ROUTER: logits}), losses


def asked_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights whose gradients a client is asked for, by name: those with at least two axes.

    The gradient of a bias says how often a client has each label, which is chance.
    """
    return {name: weight for name, weight in trainable(model).items() if weight.dim() > 1}


def first_gradients(task: Task) -> tuple[list[Tensor], Tensor]:
    """Every client's gradient at the task's model; see `first_gradient`.

    Returns:
        A tensor a weight, each (K, ...), and the losses (K,).
    """
    weights = list(asked_weights(task.model).values())
    gradients = [weight.new_zeros(task.num_clients, *weight.shape) for weight in weights]
    losses = []
    for client, shard in enumerate(task.train):
        own, loss = first_gradient(task, shard)
        losses.append(loss)
        for gradient, part in zip(gradients, own, strict=True):
            gradient[client] = part
    return gradients, torch.stack(losses)


def first_gradient(task: Task, shard: Shard) -> tuple[list[Tensor], Tensor]:
    """One client's gradient of its whole training loss at the task's model, in evaluation mode.

    Every label counts alike: who has more sevens than others is chance, and in a small shard it would hide
    everything else.

    Returns:
        A tensor a weight of `asked_weights`, and the loss, a scalar of single precision at least.
    """
    model = copied(task.model).eval()
    weights = list(asked_weights(model).values())
    # sums in bfloat16 soon stop growing
    gradient = [precise(torch.zeros_like(weight)) for weight in weights]
    total = gradient[0].new_zeros(())
    shares = sample_weights(shard, task)
    size = ROWS if shares is not None else len(shard)
    for start in range(0, len(shard), size):
        rows = slice(start, start + size)
        # a copy, since a model may work in place
        outputs, targets = model(shard.inputs[rows].clone())[None], shard.targets[rows][None]
        part = None if shares is None else shares[rows][None]
        loss = client_losses(task.loss, outputs, targets, part).sum()
        total += loss.detach()
        slopes = torch.autograd.grad(loss, weights, materialize_grads=True)
        for sum_so_far, slope in zip(gradient, slopes, strict=True):
            sum_so_far += slope
    return [whole.to(weight.dtype) for whole, weight in zip(gradient, weights, strict=True)], total


def sample_weights(shard: Shard, task: Task) -> Tensor | None:
    """What each sample counts in a client's loss, (N,), sum 1: every label alike, 1 / (L N_y) for label y.

    All alike where targets are no labels; None where the loss is no plain mean over the samples.

    Example:
        >>> from types import SimpleNamespace
        >>> task = SimpleNamespace(loss=torch.nn.functional.cross_entropy, is_classification=True)
        >>> sample_weights(Shard(torch.zeros(4, 1), torch.tensor([7, 7, 7, 2])), task)
        tensor([0.1667, 0.1667, 0.1667, 0.5000])
    """
    if task.loss not in MEANS:
        return None
    targets = shard.targets
    if not task.is_classification or targets.dim() > 1:
        return torch.full((len(shard),), 1 / len(shard), device=targets.device)
    targets = targets.long()  # bytes would choose, as a mask does
    counts = torch.bincount(targets)
    return 1 / (counts.count_nonzero() * counts[targets])
