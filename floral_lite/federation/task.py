"""What a federation works on: a model, a loss, and every client's own data."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..copies import copied
from ..errors import check_module, require
from .checks import (
    check_clients,
    check_finite,
    check_layers,
    check_loss,
    check_targets,
    check_training,
    tested_outputs,
)
from .clients import check_types, to_device
from .settings import Settings, check_settings
from .shards import Augment, Shard

Loss = Callable[[Tensor, Tensor], Tensor]

# Torch's losses of labels (N,) and logits (N, labels), and those that compare numbers one by one with as
# many outputs. All are plain means over the samples.
OF_LABELS: tuple[Loss, ...] = (functional.cross_entropy, functional.nll_loss)
ELEMENTWISE: tuple[Loss, ...] = (
    functional.mse_loss,
    functional.l1_loss,
    functional.smooth_l1_loss,
    functional.huber_loss,
    functional.binary_cross_entropy,
    functional.binary_cross_entropy_with_logits,
)

# These run the network inside with its own parameters, not with those that a client is given; the last adds a
# router, which a federation has itself.
WRAPPERS = ("DataParallel", "DistributedDataParallel", "OptimizedModule", "Floral")


def compares_numbers(loss: Loss) -> bool:
    """Whether it is torch's function or module for targets that are as many numbers as the outputs."""
    modules = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss)
    return loss in ELEMENTWISE or isinstance(loss, modules)


@dataclass(frozen=True, repr=False)
class Task:
    """A federated problem.

    Args:
        name: what the task is called.
        model: the base model in its first state.
        loss: loss(outputs, targets), averaged over the batch. With the functions that OF_LABELS and
            ELEMENTWISE name, and no batch norm, clients of any sizes are trained side by side; else, as with
            a torch.nn.CrossEntropyLoss that may have weights, only those of one size.
        train: each client's training shard.
        test: each client's test shard, in the same order.
        clusters: the true cluster of each client, integers, shape (K,); 0 for all if unknown.
            Only optimal routing and the reports look at it.
        settings: how the task is trained unless a run says otherwise.
        details: whatever else a record of a run should say of the data.
        augment: changes training inputs at random, a new draw each time they are used, and those of a pool
            before its transform; None for nothing.

    Raises:
        InputError: of the data, lengths differ, a client has none, NaN in them, or floats of another type,
            shards or clusters are no tensors, or targets are out of range or of another shape than the
            outputs. Of the model, it is wrapped, as by torch.compile, cannot be run on the inputs, returns no
            tensor, recomputes activations, moves a buffer of its own, or has a layer under two names, a lazy
            layer, a batch norm without momentum, an embedding with a largest norm, sparse or scaled
            gradients, or a parameter that is complex or has the name of routers or statistics. Of the loss,
            it is not one number, has no gradient, is a sum, or compares outputs (N, 1) with each of the
            targets (N,).
    """

    name: str
    model: nn.Module
    loss: Loss
    train: Sequence[Shard]
    test: Sequence[Shard]
    clusters: Tensor
    settings: Settings
    details: dict[str, object]
    augment: Augment | None = None

    def __post_init__(self) -> None:
        """Refuse data on which training would fail later, or mean nothing."""
        check_settings(self.settings)
        require(
            isinstance(self.details, dict),
            f"details are {self.details!r}; give a dictionary, {{}} for nothing",
        )
        require(
            self.augment is None or hasattr(self.augment, "draws"),
            f"augment is {self.augment!r}; it must be an augmentation with draws, such as "
            "data.FlipAndCrop(), or None",
        )
        check_module(self.model)
        wrapper = type(self.model).__name__
        require(
            wrapper not in WRAPPERS,
            f"the model is wrapped in a {wrapper}, and a federation trains the network inside: give that "
            "network, as it was before DataParallel, torch.compile or Floral (methods.FLoRAL adds adaptors)",
        )
        for split, shards in (("train", self.train), ("test", self.test)):
            given: object = shards
            require(
                isinstance(given, Sequence),
                f"{split} is of type {type(given).__name__}; it must be a list of Shards, one a client, as "
                "list(shards.values()) of a dictionary, or a Pool or a Population",
            )
        check_clients(self)
        check_types(self.train, self.test)
        check_finite(self)
        check_layers(self)
        check_training(self)
        numbers = compares_numbers(self.loss)
        if self.is_classification or numbers:
            check_targets(self, self.loss in OF_LABELS, numbers)
        check_loss(self)
        check_pairs(self)

    def __repr__(self) -> str:
        """In a line: its tensors would fill pages."""
        num_clusters = len(set(self.clusters.tolist()))
        return f"Task({self.name}, {self.num_clients} clients, {num_clusters} clusters)"

    @property
    def num_clients(self) -> int:
        """K."""
        return len(self.train)

    @cached_property
    def is_classification(self) -> bool:
        """Targets are labels, so accuracy has a meaning."""
        return not self.train[0].targets.is_floating_point()

    def to(self, device: torch.device, moved: dict[Any, Any] | None = None) -> "Task":
        """The same task with its model, its loss and all data on a device.

        Args:
            device: where to.
            moved: samples and losses that are there already, by those here; tasks that share them keep
                sharing them if all are given the same dictionary.
        """
        moved = {} if moved is None else moved
        loss = self.loss
        if isinstance(loss, nn.Module) and any(each.device != device for each in loss.buffers()):
            loss = moved.setdefault(loss, copy.deepcopy(loss).to(device))  # with its weights of labels
        there = copy.copy(self)  # what was checked is not checked again: a GPU would wait for each client
        there.__dict__.update(
            model=copied(self.model).to(device),
            loss=loss,
            train=to_device(self.train, device, moved),
            test=to_device(self.test, device, moved),
        )
        return there


def check_pairs(task: Task) -> None:
    """A loss must compare each output with its own target: of (N, 1) and (N,) torch makes all pairs.

    Raises:
        InputError: the shapes are those, either way round, and the loss is that of all pairs.
    """
    outputs, targets = tested_outputs(task, 2, "train"), task.train[0].targets[:2]
    if task.is_classification or {outputs.shape[1:], targets.shape[1:]} != {(), (1,)}:
        return
    numbers = torch.tensor([0.25, 0.5, 0.75]).to(outputs)
    given = numbers.reshape(3, *targets.shape[1:])
    with torch.no_grad():
        own, others = (
            float(task.loss(each.reshape(3, *outputs.shape[1:]), given))
            for each in (numbers, numbers.flip(0))
        )
    require(
        not math.isclose(own, others, rel_tol=1e-5),
        f"outputs have the shape {tuple(outputs.shape)} and targets {tuple(targets.shape)}, and the loss "
        "compares each output with the targets of all samples: give both one shape, such as targets[:, None]",
    )
