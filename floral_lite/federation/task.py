"""What a federation works on: a model, a loss, and every client's own data."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..errors import require
from .settings import Settings
from .shards import Shard

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Task:
    """A federated problem.

    Args:
        name: what the task is called.
        model: the base model in its first state.
        loss: loss(outputs, targets), averaged over the batch.
        train: each client's training shard.
        test: each client's test shard, in the same order.
        clusters: the true cluster of each client, integers, shape (K,); 0 for all if unknown.
            Only optimal routing and the reports look at it.
        settings: how the task is trained unless a run says otherwise.
        details: whatever else a record of a run should say of the data.

    Raises:
        InputError: a client is without data, lengths differ, a target is out of range, or the model
            keeps statistics, or has a layer under two names.
    """

    name: str
    model: nn.Module
    loss: Loss
    train: Sequence[Shard]
    test: Sequence[Shard]
    clusters: Tensor
    settings: Settings
    details: dict[str, object]

    def __post_init__(self) -> None:
        """Refuse data on which training would fail later, or mean nothing."""
        sizes = {"train": len(self.train), "test": len(self.test), "clusters": len(self.clusters)}
        require(
            len(set(sizes.values())) == 1 and len(self.train) > 0,
            f"train, test and clusters have {sizes} entries; each needs one per client",
        )
        for split, shards in (("train", self.train), ("test", self.test)):
            for client, shard in enumerate(shards):
                require(
                    len(shard) > 0,
                    f"client {client} has no {split} data; give every client at least one sample, "
                    "or use fewer clients",
                )
                require(
                    len(shard.targets) == len(shard),
                    f"client {client} has {len(shard)} {split} inputs and {len(shard.targets)} targets; "
                    "each input needs one",
                )
        buffers = [name for name, _ in self.model.named_buffers()]
        require(
            not buffers,
            f"the model keeps statistics ({', '.join(buffers[:3])}), which a federation has no average for; "
            "replace BatchNorm by GroupNorm or LayerNorm",
        )
        names: dict[nn.Module, str] = {}
        for name, module in self.model.named_modules(remove_duplicate=False):
            first = names.setdefault(module, name)
            require(
                first == name or not list(module.parameters()),
                f"the model has one layer under two names, {first} and {name}; register it once, "
                "and call it twice",
            )
        if self.is_classification:
            self._check_targets()

    def _check_targets(self) -> None:
        """Every label must be one of the model's outputs."""
        with torch.no_grad(), torch.random.fork_rng(devices=[]):  # dropout may draw
            num_labels = self.model(self.train[0].inputs[:1]).shape[-1]
        for shards in (self.train, self.test):
            for client, shard in enumerate(shards):
                low, high = int(shard.targets.min()), int(shard.targets.max())
                require(
                    low >= 0 and high < num_labels,
                    f"client {client} has targets from {low} to {high}; the model has {num_labels} outputs, "
                    f"so targets must be 0 to {num_labels - 1}",
                )

    @property
    def num_clients(self) -> int:
        """K."""
        return len(self.train)

    @property
    def is_classification(self) -> bool:
        """Targets are labels, so accuracy has a meaning."""
        return not self.train[0].targets.is_floating_point()

    def to(self, device: torch.device) -> "Task":
        """The same task with its model and all data on a device."""
        return replace(
            self,
            model=copy.deepcopy(self.model).to(device),
            train=[Shard(*(tensor.to(device) for tensor in shard)) for shard in self.train],
            test=[Shard(*(tensor.to(device) for tensor in shard)) for shard in self.test],
        )
