"""How the server averages good replies: as the engines do, or so that a few bad ones do little harm."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import real_number, require
from ..federation.aggregate import aggregate
from ..roles import Roles, along_first, is_statistic
from .messages import Trained, by_path

# The largest share that is left out at either end: the mean over the little that remains is the median.
MEDIAN = 0.5 - 1e-6


@dataclass(frozen=True)
class Averaging:
    """Which of the averages a server makes; see `RolesStrategy`, which has the arguments.

    Raises:
        InputError: one is out of range, or asks of sums what needs single replies.
    """

    clip_norm: float | None
    trim: float
    weighted: bool

    def __post_init__(self) -> None:
        """Check the choices."""
        clip_norm, trim = self.clip_norm, self.trim
        require(
            clip_norm is None or real_number("clip_norm", clip_norm) > 0,
            f"clip_norm is {clip_norm}; it must be positive: try 1.0, or None for no limit",
        )
        require(
            0 <= real_number("trim", trim) <= 0.5,
            f"trim is {trim}; it must be in [0, 0.5]: try 0.1, or 0.5 for the median",
        )
        require(
            not self.weighted or (clip_norm is None and trim == 0),
            f"weighted is True, and clip_norm={clip_norm}, trim={trim}: of parameters that come multiplied "
            "by their weights only the sums are used; leave clip_norm and trim out",
        )

    def of(self, before: Roles, replies: Sequence[Trained], as_updates: bool) -> Roles:
        """The average that was chosen; the arguments are those of `average`."""
        if self.clip_norm is not None:
            replies = [
                reply._replace(parameters=clip_update(before, reply.parameters, self.clip_norm))
                for reply in replies
            ]
        if self.trim:
            return trimmed_average(before, replies, self.trim)
        averaged = average_of_sums if self.weighted else average
        return averaged(before, replies, as_updates)


def average(before: Roles, replies: Sequence[Trained], as_updates: bool) -> Roles:
    """The average that the engines make: shared with N^k, slice c of the clustered with pi_c^k N^k.

    Args:
        before: the state that was sent; a cluster in which nobody has weight keeps its slice.
        replies: at least one.
        as_updates: see `aggregate`.
    """
    num_samples = torch.tensor([reply.num_samples for reply in replies], dtype=torch.float64)
    # pi_c^k = pi_c^k N^k / N^k
    mixture = torch.stack([reply.weights for reply in replies]) / num_samples[:, None]
    trained = [reply.parameters for reply in replies]
    return aggregate(before, range(len(replies)), trained, num_samples, mixture, as_updates)


def average_of_sums(before: Roles, replies: Sequence[Trained], as_updates: bool) -> Roles:
    """The same average of replies in the pre-weighted form; it needs only their sums.

    The arguments are those of `average`. Sums do not tell what single clients have changed: with
    `as_updates` a number that differs by no more than the rounding of N^k u^k counts as unchanged.
    """
    first, *others = [reply.parameters for reply in replies]
    sums = first.map(lambda *tensors: torch.stack(tensors).sum(dim=0), *others)
    # u <- sum_k N^k u^k / sum_k N^k
    num_samples = sum(reply.num_samples for reply in replies)
    shared = {name: tensor / num_samples for name, tensor in sums.shared.items()}
    # a_c <- sum_k pi_c^k N^k a_c^k / sum_k pi_c^k N^k
    weights = torch.stack([reply.weights for reply in replies]).sum(dim=0)
    clustered = {}
    for name, tensor in sums.clustered.items():
        each = along_first(weights, tensor).to(tensor)
        clustered[name] = torch.where(each > 0, tensor / each, before.clustered[name])
    found = Roles(shared, clustered, {})
    if not as_updates:
        return found

    def unless_rounded(new: Tensor, old: Tensor) -> Tensor:
        return torch.where((new - old).abs() <= 4 * torch.finfo(old.dtype).eps * old.abs(), old, new)

    return found.map(unless_rounded, before)


def trimmed_average(before: Roles, replies: Sequence[Trained], trim: float) -> Roles:
    """The average with `trimmed_mean` in place of each mean; weights and empty clusters are as in `average`.

    It is taken of what clients have changed: what nobody has changed then stays as it is to the last bit.

    Args:
        before: the state that was sent.
        replies: at least one.
        trim: in (0, 0.5]; see `trimmed_mean`.
    """
    num_samples = torch.tensor([reply.num_samples for reply in replies], dtype=torch.float64)
    weights = torch.stack([reply.weights for reply in replies])
    shared, clustered = {}, {}
    for name, old in before.shared.items():
        moved = torch.stack([reply.parameters.shared[name] - old for reply in replies])
        shared[name] = old + trimmed_mean(moved, num_samples, trim)
    for name, slices in before.clustered.items():
        moved = torch.stack([reply.parameters.clustered[name] - slices for reply in replies], dim=1)
        clustered[name] = torch.stack(
            [
                old + trimmed_mean(moved[c], weights[:, c], trim) if weights[:, c].any() else old
                for c, old in enumerate(slices)
            ]
        )
    return Roles(shared, clustered, {})


def trimmed_mean(values: Tensor, weights: Tensor, trim: float) -> Tensor:
    """The weighted mean of each coordinate, without a share of the weight at its low and its high end.

    Args:
        values: of k clients, shape (k, ...).
        weights: >= 0, shape (k,), not all 0.
        trim: the share at either end, in (0, 0.5]; with 0.5 it is the median.

    Returns:
        Shape (...).

    Source: Yin et al., 2018, 'Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates',
    there without weights.

    Example:
        >>> trimmed_mean(torch.tensor([1.0, 2.0, 3.0, 1000.0]), torch.ones(4), trim=0.25)
        tensor(2.5000)
    """
    trim = min(trim, MEDIAN)
    ordered, order = values.double().sort(dim=0)
    share = (weights.double() / weights.sum())[order]
    # side by side the weights fill [0, 1]; what counts is how much of each lies in [trim, 1 - trim]
    end = share.cumsum(dim=0)
    kept = (end.clamp(max=1 - trim) - (end - share).clamp(min=trim)).clamp(min=0)
    return ((kept * ordered).sum(dim=0) / kept.sum(dim=0)).to(values)


def clip_update(before: Roles, after: Roles, clip_norm: float) -> Roles:
    """The client's parameters with an update of at most that norm, all trained tensors together.

    Args:
        before: the state that was sent.
        after: what the client sends.
        clip_norm: the largest ||after - before||, > 0. Running statistics do not count, and are as they come.
    """
    sent, come = by_path(before), by_path(after)
    trained = [path for path in come if not is_statistic(path.partition("/")[2])]
    update = {path: come[path] - sent[path] for path in trained}
    norm = math.hypot(*(float(tensor.double().norm()) for tensor in update.values()))  # 0 of none
    if norm <= clip_norm:
        return after
    # w <- w_0 + (w - w_0) min(1, limit / ||w - w_0||)
    clipped = {path: sent[path] + clip_norm / norm * tensor for path, tensor in update.items()}
    return after.with_tensors((come | clipped).values())
