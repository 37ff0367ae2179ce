"""One copy of the samples for all clients: each has a list of rows, and sees them as its cluster does."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from ..data.images import as_float
from ..devices import send
from ..errors import require
from .shards import Changes, MadeShards, Shard

# inputs (n, ...), targets (n, ...) and a cluster: the same samples as that cluster sees them
Transform = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False, repr=False)
class Pool(MadeShards):
    """Clients that share one copy of the samples; each has a list of rows, and sees them as its cluster does.

    Memory does not grow with clients or clusters: a client's shard is made when it is asked for.

    Args:
        inputs: all samples, shape (N, ...); uint8 is read as x / 255.
        targets: shape (N, ...).
        rows: the row numbers of client 0's samples, then client 1's, and so on, int64, in [0, N).
        sizes: N^k, how many of the rows belong to each client.
        clusters: each client's cluster.
        transform: transform(inputs, targets, cluster) gives samples as a cluster sees them; it gets
            inputs as they are stored, or floats where they have been augmented, many clients' at once, and
            may return floats. If None, all see the same.

    Raises:
        InputError: lengths differ, or a row is out of range.

    Example:
        >>> inputs = torch.tensor([[0], [51], [255]], dtype=torch.uint8)
        >>> targets, rows = torch.tensor([7, 8, 9]), torch.tensor([2, 0, 1])
        >>> pool = Pool(inputs, targets, rows=rows, sizes=(1, 2), clusters=(0, 1))
        >>> pool[1].inputs.tolist(), pool[1].targets.tolist()
        ([[0.0], [0.20000000298023224]], [7, 8])
    """

    inputs: Tensor
    targets: Tensor
    rows: Tensor
    sizes: tuple[int, ...]
    clusters: tuple[int, ...]
    transform: Transform | None = None

    def __post_init__(self) -> None:
        """Refuse rows that are nobody's, or of no sample."""
        for name in ("inputs", "targets", "rows"):
            given = getattr(self, name)
            require(
                isinstance(given, Tensor),
                f"{name} is of type {type(given).__name__}; it must be a tensor, as torch.as_tensor({name}) "
                "gives",
            )
        num_inputs, num_targets = len(self.inputs), len(self.targets)
        require(
            num_inputs == num_targets,
            f"a pool has {num_inputs} inputs and {num_targets} targets; each input needs one",
        )
        require(
            len(self.sizes) == len(self.clusters),
            f"a pool has {len(self.sizes)} sizes and {len(self.clusters)} clusters; each client needs one",
        )
        require(
            self.rows.dim() == 1 and self.rows.dtype == torch.int64,
            f"rows has shape {tuple(self.rows.shape)} and type {self.rows.dtype}; it is one list of "
            "numbers, torch.int64: client 0's, then client 1's, and so on",
        )
        require(
            all(size >= 0 for size in self.sizes) and sum(self.sizes) == len(self.rows),
            f"sizes add up to {sum(self.sizes)}, but there are {len(self.rows)} rows; sizes says how many "
            "of the rows belong to each client, 0 or more",
        )
        if len(self.rows) > 0:
            low, high = int(self.rows.min()), int(self.rows.max())
            require(
                low >= 0 and high < num_inputs,
                f"rows go from {low} to {high}, but there are {num_inputs} samples: "
                f"rows must be 0 to {num_inputs - 1}",
            )

    def __repr__(self) -> str:
        """In a line: its tensors would fill pages."""
        return f"Pool({len(self)} clients, {len(self.rows)} samples of shape {tuple(self.inputs.shape[1:])})"

    def __len__(self) -> int:
        """K, the number of clients."""
        return len(self.sizes)

    @cached_property
    def _starts(self) -> list[int]:
        """Where each client's rows begin."""
        return [0, *accumulate(self.sizes[:-1])]

    def make_shard(self, client: int) -> Shard:
        """All samples of a client, as its cluster sees them."""
        rows = torch.arange(self.sizes[client], device=self.rows.device)
        inputs, targets = self.gather([client], rows[None])
        return Shard(inputs[0], targets[0])

    def gather(self, clients: Sequence[int], rows: Tensor, changes: Changes | None = None) -> Shard:
        """Samples of several clients at once: each cluster's are transformed in one batch.

        Args:
            clients: k numbers in [0, K).
            rows: which of its own samples to take from each, shape (k, B), int64, in [0, N^k).
            changes: how they are augmented before they are transformed; the transform then gets floats.

        Returns:
            Inputs (k, B, ...), bytes as floats, and targets (k, B, ...).
        """
        # the clients of a cluster side by side
        order = sorted(range(len(clients)), key=lambda place: self.clusters[clients[place]])
        clusters = Counter(self.clusters[clients[place]] for place in order)
        starts = torch.tensor([self._starts[clients[place]] for place in order], device=rows.device)
        places = torch.tensor(order, device=rows.device)
        own = send((rows[places] + starts[:, None]).flatten(), self.rows.device)
        # index_select copies whole samples; inputs[...] would go pixel by pixel
        index = self.rows.index_select(0, own)
        inputs, targets = (tensor.index_select(0, index) for tensor in (self.inputs, self.targets))
        if changes is not None:
            stacked = as_float(inputs).reshape(*rows.shape, *inputs.shape[1:])
            inputs = changes.of(order).apply(stacked).flatten(0, 1)
        if self.transform is not None:
            lengths = [count * rows.shape[1] for count in clusters.values()]
            parts = zip(torch.split(inputs, lengths), torch.split(targets, lengths), clusters, strict=True)
            inputs, targets = map(_join, zip(*(self.transform(*part) for part in parts), strict=True))
        inputs, targets = (t.reshape(*rows.shape, *t.shape[1:]) for t in (inputs, targets))
        if order != sorted(order):
            back = send(places.argsort(), inputs.device)
            inputs, targets = (tensor.index_select(0, back) for tensor in (inputs, targets))
        return Shard(as_float(inputs.contiguous()), targets)

    def first(self, counts: Sequence[int]) -> "Pool":
        """The clients with no more than their first samples.

        Args:
            counts: how many each client keeps, 0 to N^k.

        Raises:
            InputError: there is not one count for each client, or a client has fewer samples.
        """
        require(
            len(counts) == len(self),
            f"counts has {len(counts)} numbers, but there are {len(self)} clients; each needs one",
        )
        for client, (count, size) in enumerate(zip(counts, self.sizes, strict=True)):
            require(
                0 <= count <= size,
                f"client {client} is to keep {count} of its {size} samples; count must be 0 to {size}",
            )
        owned = torch.split(self.rows, list(self.sizes))
        kept = [rows[:count] for rows, count in zip(owned, counts, strict=True)]
        return replace(self, rows=torch.cat(kept), sizes=tuple(counts))

    def to(self, device: torch.device, moved: dict[Tensor, Tensor] | None = None) -> "Pool":
        """The same pool on a device.

        Args:
            device: where to.
            moved: inputs and targets that are there already, by those here; the pool's are added. Pools
                that share their samples keep sharing them if all are given the same dictionary.
        """
        moved = {} if moved is None else moved
        for tensor in (self.inputs, self.targets):
            if tensor not in moved:
                moved[tensor] = tensor.to(device)
        return replace(
            self, inputs=moved[self.inputs], targets=moved[self.targets], rows=self.rows.to(device)
        )


def _join(parts: Sequence[Tensor]) -> Tensor:
    """The clusters' samples in one tensor; floats if those of any cluster are."""
    if len({part.dtype for part in parts}) > 1:
        parts = [as_float(part) for part in parts]
    return torch.cat(tuple(parts)) if len(parts) > 1 else parts[0]
