"""Every client's own data: a list of shards, a pool of samples that clients share, or a made population."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, Protocol, overload

import torch
from torch import Tensor

from ..data.images import as_float
from ..errors import InputError, require

# inputs (n, ...), targets (n, ...) and a cluster: the same samples as that cluster sees them
Transform = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]


class Shard(NamedTuple):
    """One client's samples: inputs (N, ...) and targets (N,) or (N, outputs)."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        """N, the number of samples (not the number of fields)."""
        return len(self.inputs)

    def to(self, device: torch.device) -> "Shard":
        """The same samples on a device."""
        return Shard(self.inputs.to(device), self.targets.to(device))


class Augment(Protocol):
    """A random change of training inputs, whose random numbers are drawn apart from it.

    Engines that draw a client's numbers from the same generator therefore change its samples alike,
    whether they take one client at a time or all at once.
    """

    def draws(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """What chance decides for each of n samples, shape (n, ...)."""

    def __call__(self, inputs: Tensor, draws: Tensor) -> Tensor:
        """The inputs (n, ...) as changed by their draws (n, ...)."""


class MadeShards(Sequence[Shard]):
    """Clients' shards that are made anew whenever one asks for them: shards[k], shards[2:5], a loop."""

    @abstractmethod
    def make_shard(self, client: int) -> Shard:
        """The shard of a client in [0, K)."""

    @overload
    def __getitem__(self, index: int) -> Shard: ...

    @overload
    def __getitem__(self, index: slice) -> list[Shard]: ...

    def __getitem__(self, index: int | slice) -> Shard | list[Shard]:
        """One client's shard, or a list of them; as in a list, -1 is the last client."""
        if isinstance(index, slice):
            return [self.make_shard(client) for client in range(len(self))[index]]
        return self.make_shard(range(len(self))[index])


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
            inputs as they are stored, many clients' at once, and may return floats. If None, all see
            the same.

    Raises:
        InputError: lengths differ, or a row is out of range.

    Example:
        >>> pool = Pool(torch.tensor([[0], [51], [255]], dtype=torch.uint8), torch.tensor([7, 8, 9]),
        ...     rows=torch.tensor([2, 0, 1]), sizes=(1, 2), clusters=(0, 1))
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

    def size(self, client: int) -> int:
        """N^k, without making the shard."""
        return self.sizes[client]

    def make_shard(self, client: int) -> Shard:
        """All samples of a client, as its cluster sees them."""
        rows = torch.arange(self.sizes[client], device=self.rows.device)
        inputs, targets = self.gather([client], rows[None])
        return Shard(inputs[0], targets[0])

    def gather(self, clients: Sequence[int], rows: Tensor) -> Shard:
        """Samples of several clients at once: each cluster's are transformed in one batch.

        Args:
            clients: k numbers in [0, K).
            rows: which of its own samples to take from each, shape (k, B), int64, in [0, N^k);
                that they are in range is checked where they lie on the CPU.

        Returns:
            Inputs (k, B, ...), floats, and targets (k, B, ...).

        Raises:
            InputError: a row is not one of the client's.
        """
        _check_rows(rows, [self.sizes[client] for client in clients])
        # the clients of a cluster side by side
        order = sorted(range(len(clients)), key=lambda place: self.clusters[clients[place]])
        clusters = Counter(self.clusters[clients[place]] for place in order)
        starts = torch.tensor([self._starts[clients[place]] for place in order], device=rows.device)
        places = torch.tensor(order, device=rows.device)
        own = (rows[places] + starts[:, None]).flatten().to(self.rows.device)
        # index_select copies whole samples; inputs[...] would go pixel by pixel
        index = self.rows.index_select(0, own)
        inputs, targets = (tensor.index_select(0, index) for tensor in (self.inputs, self.targets))
        if self.transform is not None:
            lengths = [count * rows.shape[1] for count in clusters.values()]
            parts = zip(torch.split(inputs, lengths), torch.split(targets, lengths), clusters, strict=True)
            inputs, targets = map(_join, zip(*(self.transform(*part) for part in parts), strict=True))
        inputs, targets = (t.reshape(*rows.shape, *t.shape[1:]) for t in (inputs, targets))
        if order != sorted(order):
            back = places.argsort().to(inputs.device)
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


@dataclass(frozen=True, eq=False)
class Population(MadeShards):
    """Clients whose samples are made when they are asked for: a million of them take no memory.

    Args:
        num_clients: K, at least 1.
        make: make(client) gives the shard of a client in [0, K), the same whenever it is asked.

    Raises:
        InputError: num_clients is smaller than 1.

    Example:
        >>> population = Population(10**6, lambda client: Shard(torch.ones(2, 1) * client, torch.zeros(2, 1)))
        >>> population[-1].inputs.tolist()
        [[999999.0], [999999.0]]
    """

    num_clients: int
    make: Callable[[int], Shard]

    def __post_init__(self) -> None:
        """Refuse a population of nobody."""
        require(self.num_clients >= 1, f"num_clients is {self.num_clients}; a population needs at least 1")

    def __len__(self) -> int:
        """K, the number of clients."""
        return self.num_clients

    def make_shard(self, client: int) -> Shard:
        """The shard of a client."""
        return self.make(client)

    def to(self, device: torch.device) -> "Population":
        """The same population, each shard moved to a device when it is made."""
        return replace(self, make=lambda client: self.make(client).to(device))


def size(shards: Sequence[Shard], client: int) -> int:
    """N^k, how many samples a client has; a population must make them to tell."""
    return shards.size(client) if isinstance(shards, Pool) else len(shards[client])


def known(shards: Sequence[Shard]) -> range:
    """The clients whose data can be looked through beforehand: all, but only the first of a population."""
    return range(1 if isinstance(shards, Population) else len(shards))


def gather(shards: Sequence[Shard], clients: Sequence[int], rows: Tensor) -> Shard:
    """Samples of several clients, stacked.

    Args:
        shards: every client's.
        clients: k numbers in [0, K).
        rows: which of its own samples to take from each, shape (k, B), int64, in [0, N^k).

    Returns:
        Inputs (k, B, ...) and targets (k, B, ...).

    Example:
        >>> shards = [Shard(torch.arange(3.0) + 10 * k, torch.arange(3)) for k in range(4)]
        >>> gather(shards, [3, 1], torch.tensor([[0, 2], [1, 1]])).inputs
        tensor([[30., 32.],
                [11., 11.]])
    """
    if isinstance(shards, Pool):
        return shards.gather(clients, rows)
    taken = [shards[client] for client in clients]
    _check_rows(rows, [len(shard) for shard in taken])
    picked = [
        [tensor[own.to(tensor.device)] for tensor in shard] for shard, own in zip(taken, rows, strict=True)
    ]
    inputs, targets = (torch.stack(parts) for parts in zip(*picked, strict=True))
    return Shard(inputs, targets)


def to_device(
    shards: Sequence[Shard], device: torch.device, moved: dict[Tensor, Tensor] | None = None
) -> Sequence[Shard]:
    """The same shards on a device; pools and populations stay what they are.

    Args:
        shards: every client's.
        device: where to.
        moved: see `Pool.to`.
    """
    if isinstance(shards, Pool):
        return shards.to(device, moved)
    if isinstance(shards, Population):
        return shards.to(device)
    return [shard.to(device) for shard in shards]


def _check_rows(rows: Tensor, sizes: Sequence[int]) -> None:
    """Raise InputError unless each client's rows are its own; a device is not kept waiting to look."""
    require(
        rows.dim() == 2 and len(rows) == len(sizes) > 0,
        f"rows has shape {tuple(rows.shape)}; it must be (clients, samples), with {len(sizes)} clients here",
    )
    if rows.is_cpu:
        wrong = ((rows < 0) | (rows >= torch.tensor(sizes)[:, None])).any(dim=1)
        if wrong.any():
            place = int(wrong.int().argmax())
            raise InputError(
                f"rows[{place}] goes from {int(rows[place].min())} to {int(rows[place].max())}, but that "
                f"client has {sizes[place]} samples: its rows must be 0 to {sizes[place] - 1}"
            )


def _join(parts: Sequence[Tensor]) -> Tensor:
    """The clusters' samples in one tensor; floats if those of any cluster are."""
    if len({part.dtype for part in parts}) > 1:
        parts = [as_float(part) for part in parts]
    return torch.cat(tuple(parts)) if len(parts) > 1 else parts[0]
