"""A step's samples of many clients, and the losses that count only those that are there."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .forward import under_vmap
from .task import ELEMENTWISE, OF_LABELS, Loss

# Torch's losses that are a plain mean over the samples. With them a short batch can be filled up
# with rows that do not count; a batch norm, or another loss, must not see such rows.
MEANS = (*OF_LABELS, *ELEMENTWISE)


class Batch(NamedTuple):
    """A step's samples of k clients; of one client alone everything is without the axis k.

    Attributes:
        inputs: shape (k, B, ...).
        targets: shape (k, B, ...).
        weights: each sample's share of its client's loss, shape (k, B), 0 for those that only fill
            up; None where all B samples of all clients count alike.
        noise: what the method drew, shape (k, ...), or None.
        keys: that dropout's masks follow from, shape (k,).
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor | None
    noise: Tensor | None
    keys: Tensor


def sample_losses(loss: Loss, targets: Tensor, outputs: Tensor) -> Tensor:
    """The loss of every sample, shape (k, B), of targets and outputs (k, B, ...).

    A loss that is not in MEANS has one number for each whole batch, shape (k, 1).
    """
    if loss not in MEANS:
        with under_vmap(loss):
            if len(outputs) == 1:  # without vmap, which cannot follow every loss
                return loss(outputs[0], targets[0])[None, None]
            losses: Tensor = torch.vmap(loss)(outputs, targets)
        return losses[:, None]
    by_sample: Callable[..., Tensor] = loss
    samples = by_sample(outputs.flatten(0, 1), targets.flatten(0, 1), reduction="none")
    return samples.reshape(*outputs.shape[:2], -1).mean(dim=2)


def average(samples: Tensor, weights: Tensor | None) -> Tensor:
    """Each client's loss, shape (k,), of those of its samples, (k, B), with weights as in `Batch`."""
    return samples.mean(dim=1) if weights is None else (weights * samples).sum(dim=1)


def client_losses(loss: Loss, outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    """The losses of a stack of clients, shape (k,).

    Args:
        loss: of outputs and targets, averaged over the batch.
        outputs: shape (k, B, ...).
        targets: shape (k, B, ...).
        weights: see `Batch`; only for the losses in MEANS.
    """
    assert weights is None or loss in MEANS
    return average(sample_losses(loss, targets, outputs), weights)
