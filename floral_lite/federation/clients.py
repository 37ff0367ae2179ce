"""What the engines ask of clients' data, in whichever way they are kept."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..devices import send
from ..errors import require
from .pool import Pool
from .shards import Changes, Population, Shard


def size(shards: Sequence[Shard], client: int) -> int:
    """N^k, how many samples a client has; a population must make them to tell."""
    return shards.sizes[client] if isinstance(shards, Pool) else len(shards[client])


def known(shards: Sequence[Shard]) -> range:
    """The clients whose data can be looked through beforehand: all, but only the first of a population."""
    return range(1 if isinstance(shards, Population) else len(shards))


def check_types(train: Sequence[Shard], test: Sequence[Shard]) -> None:
    """Raise InputError unless floats are of one type, as layers want them; integers may be of several."""
    first = train[0]
    for split, shards in (("train", train), ("test", test)):
        # a pool's samples lie in one tensor
        for client in known(shards) if not isinstance(shards, Pool) else [0]:
            for what, tensor, like in zip(("inputs", "targets"), shards[client], first, strict=True):
                require(
                    tensor.dtype == like.dtype
                    or not (tensor.is_floating_point() or like.is_floating_point()),
                    f"client {client} has {split} {what} of {tensor.dtype}, and client 0 has train {what} of "
                    f"{like.dtype}: give all clients' one type, such as .to({like.dtype})",
                )


def gather(
    shards: Sequence[Shard], clients: Sequence[int], rows: Tensor, changes: Changes | None = None
) -> Shard:
    """Samples of several clients, stacked.

    Args:
        shards: every client's.
        clients: k numbers in [0, K).
        rows: which of its own samples to take from each, shape (k, B), int64, in [0, N^k).
        changes: how they are augmented; in a pool before its transform: an image is mirrored, then turned.

    Returns:
        Inputs (k, B, ...) and targets (k, B, ...).

    Raises:
        InputError: the clients' samples have different shapes, or types.

    Example:
        >>> shards = [Shard(torch.arange(3.0) + 10 * k, torch.arange(3)) for k in range(4)]
        >>> gather(shards, [3, 1], torch.tensor([[0, 2], [1, 1]])).inputs
        tensor([[30., 32.],
                [11., 11.]])
    """
    if isinstance(shards, Pool):
        return shards.gather(clients, rows, changes)
    inputs, targets = (_picked(parts, rows) for parts in zip(*(shards[k] for k in clients), strict=True))
    return Shard(inputs if changes is None else changes.apply(inputs), targets)


def _picked(tensors: Sequence[Tensor], rows: Tensor) -> Tensor:
    """Rows of its own from each tensor, copied once, whole samples at a time, into the stack."""
    shapes = sorted({tuple(tensor.shape[1:]) for tensor in tensors})
    kinds = {tensor.dtype for tensor in tensors}
    require(
        len(shapes) == len(kinds) == 1,
        f"samples of the shapes {shapes} and types {kinds} cannot lie side by side: give all clients' one "
        "shape and type, or use engine='loop'",
    )
    stacked = tensors[0].new_empty(*rows.shape, *tensors[0].shape[1:])
    for tensor, own, place in zip(tensors, send(rows, stacked.device), stacked, strict=True):
        torch.index_select(tensor.detach(), 0, own, out=place)
    return stacked


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
