"""The server's step: what it makes of the clients' averaged update."""

import torch
from torch import Tensor

from ..roles import Roles, along_first, is_statistic
from .settings import Settings

# Of Adam, as torch.optim has them.
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8

# What a server optimizer remembers between rounds: its moments, each in the shape of the state.
Moments = dict[str, Roles]


def first_moments(state: Roles, settings: Settings) -> Moments:
    """The moments before the first round, all zero; none for plain averaging."""
    names = {"sgd": ["velocity"] if settings.server_momentum else [], "adam": ["mean", "square"]}
    averaged = state._replace(private={})
    return {name: averaged.map(torch.zeros_like) for name in names[settings.server_optimizer]}


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
    if settings.averages_plainly:
        return average, moments
    state = Roles({}, {}, average.private)
    after: Moments = {name: Roles({}, {}, {}) for name in moments}
    for role in ("shared", "clustered"):
        for name, old in getattr(before, role).items():
            new = getattr(average, role)[name]
            kept = {key: getattr(moment, role)[name] for key, moment in moments.items()}
            update = old - new
            step, kept = _step(update, kept, settings, number)
            if is_statistic(name):
                step = update
            elif role == "clustered":
                # a cluster in which nobody had weight stands still
                same = (update == 0).reshape(len(old), -1).all(dim=1)
                step = step.masked_fill(along_first(same, old), 0)
            getattr(state, role)[name] = old - step
            for key, moment in kept.items():
                getattr(after[key], role)[name] = moment
    return state, after


def _step(
    gradient: Tensor, moments: dict[str, Tensor], settings: Settings, number: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """One tensor's step, to be subtracted: the averaged update, old minus new, is its gradient."""
    rate = settings.server_learning_rate
    if settings.server_optimizer == "adam":
        # m <- b_1 m + (1 - b_1) g, v <- b_2 v + (1 - b_2) g^2
        mean = BETA_1 * moments["mean"] + (1 - BETA_1) * gradient
        square = BETA_2 * moments["square"] + (1 - BETA_2) * gradient**2
        # eta m / (1 - b_1^t) / (sqrt(v / (1 - b_2^t)) + eps)
        root = (square / (1 - BETA_2**number)).sqrt() + EPSILON
        return rate / (1 - BETA_1**number) * mean / root, {"mean": mean, "square": square}
    if moments:
        # v <- mu v + g
        gradient = settings.server_momentum * moments["velocity"] + gradient
        moments = {"velocity": gradient}
    return rate * gradient, moments
