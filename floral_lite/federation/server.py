"""The server's step: what it makes of the clients' averaged update."""

import torch
from torch import Tensor

from ..given import precise
from ..roles import Roles, along_first, is_statistic
from .settings import Settings

# Of Adam, as torch.optim has them.
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8

# What a server optimizer remembers between rounds: its moments, each in the shape of the state.
Moments = dict[str, Roles]


def first_moments(state: Roles, settings: Settings) -> Moments:
    """The moments before the first round, all zero; none for plain averaging.

    They are in single precision at least: in bfloat16 a second moment would never decay, 0.999 v rounds to v.
    """
    names = {"sgd": ["velocity"] if settings.server_momentum else [], "adam": ["mean", "square"]}
    averaged = state._replace(private={})
    return {
        name: averaged.map(lambda tensor: precise(torch.zeros_like(tensor)))
        for name in names[settings.server_optimizer]
    }


def server_step(
    before: Roles, average: Roles, moments: Moments, settings: Settings, number: int
) -> tuple[Roles, Moments]:
    """Follow the averaged update with the server's optimizer.

    Args:
        before: the state before the round.
        average: what aggregation made of the clients' parameters. For other optimizers than plain
            averaging it must be exact where nobody has changed anything, as the average of updates
            is: Adam would divide one rounding by another.
        moments: what the optimizer remembers.
        settings: which optimizer, and its learning rate.
        number: 1, 2, ...: of the server's step; rounds of asking are not counted.

    Returns:
        The next state and moments. Private parameters and running statistics are taken as they
        come, and so is a cluster's slice that no client of the round has changed.

    Source: the server optimizers of Reddi et al., 2021, with the formulas of torch.optim.
    """
    averaged = before._replace(private={})
    if settings.averages_plainly or not averaged.tensors():
        return average, moments
    # the averaged update, old minus new, is the optimizer's gradient
    update = averaged.map(lambda old, new: precise(old) - precise(new), average)
    steps, moments = _steps(update, moments, settings, number)
    for step, own in zip(steps, update, strict=True):
        step.update({name: tensor for name, tensor in own.items() if is_statistic(name)})
    for name, tensor in update.clustered.items():
        # a cluster in which nobody had weight stands still
        same = (tensor == 0).reshape(len(tensor), -1).all(dim=1)
        steps.clustered[name] = steps.clustered[name].masked_fill(along_first(same, tensor), 0)
    after = averaged.map(lambda old, step: (old - step).to(old.dtype), steps)
    return after._replace(private=average.private), moments


def _steps(gradient: Roles, moments: Moments, settings: Settings, number: int) -> tuple[Roles, Moments]:
    """What is to be subtracted from the state, and the next moments."""
    rate = settings.server_learning_rate
    if settings.server_optimizer == "adam":
        # m <- b_1 m + (1 - b_1) g, v <- b_2 v + (1 - b_2) g^2
        mean = gradient.map(lambda g, m: BETA_1 * m + (1 - BETA_1) * g, moments["mean"])
        square = gradient.map(lambda g, v: BETA_2 * v + (1 - BETA_2) * g**2, moments["square"])

        def step(m: Tensor, v: Tensor) -> Tensor:
            # eta m / (1 - b_1^t) / (sqrt(v / (1 - b_2^t)) + eps)
            root = (v / (1 - BETA_2**number)).sqrt() + EPSILON
            return rate / (1 - BETA_1**number) * m / root

        return mean.map(step, square), {"mean": mean, "square": square}
    if moments:
        # v <- mu v + g
        gradient = gradient.map(lambda g, v: settings.server_momentum * v + g, moments["velocity"])
        moments = {"velocity": gradient}
    return gradient.map(lambda g: rate * g), moments
