"""Clients' own data: a shard each, listed, or made when one asks for it."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, cast, overload

import torch
from torch import Tensor

from ..devices import send
from ..errors import require, whole_number

# The label of what has none, such as padding: torch's cross-entropy leaves it out, and so does the accuracy.
# Compare targets.long() with it: in a byte -100 becomes 156.
NO_LABEL = -100


class Shard(NamedTuple):
    """One client's samples.

    Attributes:
        inputs: shape (N, ...).
        targets: labels, shape (N,), or what the loss compares, shape (N, ...).
    """

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        """N, the number of samples (not of fields, so `_replace` fails: write Shard(inputs, targets))."""
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


class Changes(NamedTuple):
    """What an augmentation does to the samples of several clients.

    Attributes:
        augment: the augmentation.
        draws: what it drew for each sample, shape (k, B, ...).
    """

    augment: Augment
    draws: Tensor

    def of(self, places: list[int]) -> "Changes":
        """Those of some of the clients."""
        return self._replace(draws=self.draws[places])

    def apply(self, inputs: Tensor) -> Tensor:
        """The inputs (k, B, ...) as changed; InputError unless as many come back, of their type."""
        draws, given = send(self.draws.flatten(0, 1), inputs.device), inputs.flatten(0, 1)
        changed = self.augment(given, draws)
        shape, dtype = tuple(getattr(changed, "shape", ())), getattr(changed, "dtype", None)
        require(
            shape[:1] == (len(given),) and dtype == given.dtype,
            f"{type(self.augment).__name__} gives a {type(changed).__name__} of shape {shape}, {dtype}, for "
            f"{len(given)} inputs, {given.dtype}; it must give a tensor of as many, of the inputs' type",
        )
        return changed.reshape(*inputs.shape[:2], *changed.shape[1:])


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


@dataclass(frozen=True, eq=False)
class Population(MadeShards):
    """Clients whose samples are made when they are asked for: a million of them take no memory.

    Args:
        num_clients: K, at least 1.
        make: make(client) gives the shard of a client in [0, K), the same whenever it is asked, and of sizes
            and types that can be trained: a Task looks at client 0 alone.

    Raises:
        InputError: num_clients is no whole number, or smaller than 1.

    Example:
        >>> make = lambda client: Shard(torch.ones(2, 1) * client, torch.zeros(2, 1))
        >>> Population(10**6, make)[-1].inputs.tolist()
        [[999999.0], [999999.0]]
    """

    num_clients: int
    make: Callable[[int], Shard]

    def __post_init__(self) -> None:
        """Refuse a population of nobody."""
        num_clients = whole_number("num_clients", self.num_clients)
        require(num_clients >= 1, f"num_clients is {self.num_clients}; a population needs at least 1")

    def __len__(self) -> int:
        """K, the number of clients."""
        return self.num_clients

    def make_shard(self, client: int) -> Shard:
        """The shard of a client.

        Raises:
            InputError: `make` gives something else, or an empty one, arrays in place of tensors, inputs
                without targets, or numbers that are NaN or infinite.
        """
        shard: Any = self.make(client)
        made = f"make({client}) gives"
        a_shard = "it must give a Shard of at least one sample"
        require(isinstance(shard, Shard), f"{made} a {type(shard).__name__}; {a_shard}")
        for name, given in shard._asdict().items():
            require(
                isinstance(given, Tensor),
                f"{made} {name} of type {type(given).__name__}; a Shard has tensors: torch.as_tensor(...)",
            )
        require(len(shard) > 0, f"{made} an empty Shard; {a_shard}")
        require(
            len(shard.targets) == len(shard),
            f"{made} {len(shard)} inputs and {len(shard.targets)} targets; each input needs one",
        )
        for name, tensor in shard._asdict().items():
            # not once more where `to` has moved them: a GPU would be waited for
            require(
                tensor.device.type != "cpu"
                or not tensor.is_floating_point()
                or bool(tensor.isfinite().all()),
                f"{made} {name} that are NaN or infinite: fill in what is missing, or leave "
                "those samples out",
            )
        return cast(Shard, shard)

    def to(self, device: torch.device) -> "Population":
        """The same population, each shard moved to a device when it is made."""
        return replace(self, make=lambda client: self.make_shard(client).to(device))
