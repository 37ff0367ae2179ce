"""What a federation works on: a model, a loss, and every client's own data."""

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from ..errors import InputError, require
from ..roles import is_statistic
from .clients import known, size, to_device
from .pool import Pool
from .settings import Settings
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
        loss: loss(outputs, targets), averaged over the batch. With the functions of torch.nn.functional
            clients of any sizes are trained side by side; with others, such as a torch.nn.CrossEntropyLoss
            that may have weights, only those of one size.
        train: each client's training shard.
        test: each client's test shard, in the same order.
        clusters: the true cluster of each client, integers, shape (K,); 0 for all if unknown.
            Only optimal routing and the reports look at it.
        settings: how the task is trained unless a run says otherwise.
        details: whatever else a record of a run should say of the data.
        augment: changes training inputs at random, a new draw each time they are used, and those of a pool
            before its transform; None for nothing.

    Raises:
        InputError: a client is without data, lengths differ, a target is out of range or of another shape
            than the outputs, or the model has a layer under two names, a batch norm without momentum, a
            buffer of its own that training moves, or outputs that are no tensor.
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
        sizes = {"train": len(self.train), "test": len(self.test), "clusters": len(self.clusters)}
        require(
            len(set(sizes.values())) == 1 and len(self.train) > 0,
            f"train, test and clusters have {sizes} entries; each needs one per client",
        )
        for split, shards in (("train", self.train), ("test", self.test)):
            for client in known(shards):
                require(
                    size(shards, client) > 0,
                    f"client {client} has no {split} data; give every client at least one sample, "
                    "or use fewer clients",
                )
                require(
                    isinstance(shards, Pool) or len(shards[client].targets) == len(shards[client]),
                    f"client {client} has {len(shards[client])} {split} inputs and "
                    f"{len(shards[client].targets)} targets; each input needs one",
                )
        for name, module in self.model.named_modules():
            require(
                not (
                    isinstance(module, _NormBase) and module.track_running_stats and module.momentum is None
                ),
                f"the batch norm {name} has momentum=None, a mean over all batches, which means nothing once "
                "it is averaged or reset: give it a momentum, such as 0.1",
            )
        names: dict[nn.Module, str] = {}
        for name, module in self.model.named_modules(remove_duplicate=False):
            first = names.setdefault(module, name)
            require(
                first == name or not list(module.parameters()),
                f"the model has one layer under two names, {first} and {name}; register it once, "
                "and call it twice",
            )
        for name, parameter in self.model.named_parameters():
            require(
                not (parameter.requires_grad and is_statistic(name)),
                f"the model has a parameter {name}, which norms call a statistic and nobody trains: give it "
                "another name",
            )
        self._check_buffers()
        if self.is_classification or compares_numbers(self.loss):
            self._check_targets()

    def __repr__(self) -> str:
        """In a line: its tensors would fill pages."""
        num_clusters = len(set(self.clusters.tolist()))
        return f"Task({self.name}, {self.num_clients} clients, {num_clusters} clusters)"

    def _check_buffers(self) -> None:
        """A forward pass of training may move the statistics of torch's own norms, and no other buffer."""
        model, inputs = copy.deepcopy(self.model).train(), self.train[0].inputs[:2].clone()
        norms = {name for name, layer in model.named_modules() if isinstance(layer, _NormBase)}
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        # a model that cannot run says so when it is trained; its dropout must not touch the global generator
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=[inputs.device] if inputs.is_cuda else []),
            suppress(RuntimeError, ValueError, TypeError, IndexError),
        ):
            model(inputs)
        for name, buffer in model.named_buffers():
            require(
                name.rpartition(".")[0] in norms or name not in before or torch.equal(buffer, before[name]),
                f"the model's forward pass changes its buffer {name}, and a federation keeps only the "
                "statistics of torch's own norms: use one of these, or a layer that keeps nothing",
            )

    def _check_targets(self) -> None:
        """Labels must be among the model's outputs; numbers must be as many as the outputs."""
        model = copy.deepcopy(self.model).eval()
        with torch.no_grad():
            outputs = model(self.train[0].inputs[:1].clone())
        require(
            isinstance(outputs, Tensor),
            f"the model returns a {type(outputs).__name__}, and a task needs one tensor, the logits: put it "
            "into a module whose forward returns that part alone",
        )
        require(
            self.loss not in OF_LABELS or outputs.dim() == 2,
            f"the model's outputs have shape {tuple(outputs.shape)}, and this loss is of one label for each "
            "sample: give a model with outputs (N, labels), or a loss of your own, of (N, ..., labels)",
        )
        require(
            outputs.dim() > 0,
            "the model's outputs for one sample have no axis, as after .squeeze(): use .squeeze(-1), so that "
            "N samples have N outputs",
        )
        numbers = compares_numbers(self.loss)
        wanted = outputs.shape[1:] if numbers else outputs.shape[1:-1]
        for split, shards in (("train", self.train), ("test", self.test)):
            for client in known(shards):
                targets = shards[client].targets
                told = f"client {client} has {split} targets"
                require(
                    targets.shape[1:] == wanted,  # else a loss compares each sample with the targets of all
                    f"{told} of shape {tuple(targets.shape)}, and the model's outputs have shape "
                    f"{(len(targets), *outputs.shape[1:])}: give targets of shape "
                    f"{(len(targets), *wanted)}, such as targets[:, None] for one output, targets[:, 0] for "
                    "labels",
                )
                require(
                    not numbers or targets.is_floating_point(),
                    f"{told} of {targets.dtype}, which this loss compares with the model's outputs: give "
                    f"targets.to({outputs.dtype})",
                )
                low, high, num_labels = targets.min().item(), targets.max().item(), outputs.shape[-1]
                require(
                    numbers or (low >= 0 and high < num_labels),
                    f"{told} from {low} to {high}; the model has {num_labels} outputs, and integers are read "
                    f"as labels, so they must be 0 to {num_labels - 1}; give numbers as floats",
                )

    def check_batches(self, batch_size: int) -> None:
        """Refuse a batch of one sample where a batch norm would take the mean over it.

        Args:
            batch_size: samples a batch; the last batch of an epoch has what is left.

        Raises:
            InputError: the model's batch norms cannot normalise the last batch of a client.
        """
        model = copy.deepcopy(self.model).eval()
        norms = [module.train() for module in model.modules() if isinstance(module, _BatchNorm)]
        for client in known(self.train) if norms else ():
            num_samples = size(self.train, client)
            if (num_samples - 1) % batch_size == 0:
                try:
                    with torch.no_grad():
                        model(self.train[client].inputs[:1].clone())
                except ValueError as error:  # an image has many pixels a channel, and raises nothing
                    raise InputError(
                        f"batch_size is {batch_size}, and client {client} has {num_samples} training "
                        "samples: its last batch has one, over which a batch norm has no variance; choose "
                        "another batch_size"
                    ) from error
                return

    @property
    def num_clients(self) -> int:
        """K."""
        return len(self.train)

    @cached_property
    def is_classification(self) -> bool:
        """Targets are labels, so accuracy has a meaning."""
        return not self.train[0].targets.is_floating_point()

    def to(self, device: torch.device, moved: dict[Tensor, Tensor] | None = None) -> "Task":
        """The same task with its model and all data on a device.

        Args:
            device: where to.
            moved: samples that are there already, by those here; tasks that share their images keep
                sharing them if all are given the same dictionary.
        """
        there = copy.copy(self)  # what was checked is not checked again: a GPU would wait for each client
        there.__dict__.update(
            model=copy.deepcopy(self.model).to(device),
            train=to_device(self.train, device, moved),
            test=to_device(self.test, device, moved),
        )
        return there
