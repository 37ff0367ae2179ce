"""A task out of the data of clients that are there already: hospitals, writers, phones."""

from collections.abc import Callable, Hashable, Mapping
from textwrap import shorten

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data import as_float
from ..errors import require
from ..federation import Settings, Shard, Task
from ..federation.shards import Augment
from ..federation.task import Loss, compares_numbers
from ..given import Numbers
from ..models import seeded
from ..seeds import stream
from .reading import (
    as_tensor,
    builder,
    check_model,
    check_one_kind,
    first_dtype,
    in_precision,
    read_arrays,
    split_rows,
)

# a client's inputs (N, ...) and targets (N,) or (N, outputs)
Pair = tuple[Numbers, Numbers]


def from_clients(
    train: Mapping[str, Pair],
    test: Mapping[str, Pair] | None = None,
    *,
    model: nn.Module | Callable[[], nn.Module],
    clusters: Mapping[str, Hashable] | None = None,
    loss: Loss = functional.cross_entropy,
    settings: Settings | None = None,
    augment: Augment | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    name: str = "own-clients",
) -> Task:
    """A task out of data that already belong to clients: nothing is dealt, turned or renamed.

    Where a column says whose a sample is, the clients are a line away::

        rows = {w: writers == w for w in np.unique(writers)}
        task = from_clients({w: (images[own], labels[own]) for w, own in rows.items()}, model=...)

    Args:
        train: each client's inputs (N, ...), read as by `from_arrays`, and targets by the client's name, in
            the order of the task's clients. Targets are labels from 0 on, shape (N,); with a loss that
            compares outputs one by one, numbers of the outputs' shape, (N, outputs). Labels of every word
            or pixel, (N, ...), need outputs (N, ..., labels) and a loss of your own of the two; -100 stands
            for what is not to count, such as padding, where your loss leaves it out.
        test: the same clients' test data, at least one sample each; if None, a share of each client's
            samples is kept for tests, chosen by the seed.
        model: the base model, which is copied, or what builds it.
        clusters: what is known of each client's group, by the client's name: any word or number. Only
            optimal routing and reports look at it. None if nothing is known: all are in one group then, and
            optimal routing gives all of them the same adaptor.
        loss: loss(outputs, targets), averaged over the batch, such as torch.nn.functional.mse_loss.
        settings: how the task is trained; `Settings()` if None.
        augment: changes training inputs at random.
        test_fraction: share of each client's samples that is kept for tests, in (0, 1): at least one.
        seed: of the split, and of a model that is built.
        name: what the task is called.

    Raises:
        InputError: the clients of `train`, `test` and `clusters` are not the same, lengths or shapes do not
            fit each other or the model, some inputs are bytes or words and others not, a label is out of
            range, a number is NaN or infinite, or a client has too few samples.

    Example:
        >>> import numpy as np
        >>> ward = lambda n: (np.random.default_rng(n).random((n, 4)), np.arange(n) % 2)
        >>> wards = {"north": ward(10), "south": ward(20)}
        >>> groups = {"north": "old", "south": "new"}
        >>> task = from_clients(wards, model=nn.Linear(4, 2), clusters=groups)
        >>> task.clusters.tolist(), [len(shard) for shard in task.train], len(task.test[1])
        ([0, 1], [8, 16], 4)
    """
    for other, given in (("train", train), ("test", test), ("clusters", clusters)):
        given = train if given is None else given  # test and clusters may be left out
        require(
            isinstance(given, Mapping),
            f"{other} is of type {type(given).__name__}; it must be a dictionary by the clients' names, such "
            f"as dict(enumerate({other}))",
        )
        missing = sorted(map(str, given.keys() ^ train.keys()))
        way_out = ": keep some training samples for those, or leave test out" if other == "test" else ""
        require(
            not missing,
            f"train and {other} must name the same clients, and {missing[:3]} are in one of them only"
            f"{way_out}",
        )
    names = list(train)
    require(len(names) > 0, "train is empty; give at least one client's inputs and targets")

    first = seeded(builder(model), seed)
    dtype = first_dtype(first)
    shards = {client: _read(f"train[{client!r}]", pair, loss, dtype) for client, pair in train.items()}
    if test is None:
        tested = {}
        for number, (client, shard) in enumerate(shards.items()):
            generator = stream(seed, "split", number)
            told = f"of the {len(shard)} samples of client {client!r}"
            kept, rows = split_rows(len(shard), test_fraction, generator, told)
            tested[client] = Shard(*(tensor[rows] for tensor in shard))
            shards[client] = Shard(*(tensor[kept] for tensor in shard))
    else:
        tested = {client: _read(f"test[{client!r}]", test[client], loss, dtype) for client in names}
    shapes = {tuple(shard.inputs.shape[1:]) for shard in (*shards.values(), *tested.values())}
    require(len(shapes) == 1, f"inputs have the shapes {sorted(shapes)}; all clients need the same one")
    splits = {"train": shards, "test": tested}
    check_one_kind(
        {f"{split}[{client!r}]": shard.inputs for split in splits for client, shard in splits[split].items()}
    )
    for of_split in splits.values():
        for client, shard in of_split.items():
            of_split[client] = Shard(in_precision(as_float(shard.inputs), dtype), shard.targets)
    check_model(first, shards[names[0]].inputs)
    # equal numbers of a tensor are different keys
    group_of = [None if clusters is None else _as_word(clusters[client]) for client in names]
    groups = list(dict.fromkeys(group_of))
    return Task(
        name=name,
        model=first,
        loss=loss,
        train=list(shards.values()),
        test=list(tested.values()),
        clusters=torch.tensor([groups.index(group) for group in group_of]),
        settings=Settings() if settings is None else settings,
        details={"task_clusters": len(groups), "num_clients": len(names), "task_seed": int(seed)},
        augment=augment,
    )


def _as_word(group: object) -> object:
    """A cluster's name, of a tensor its number; InputError for what cannot be a key, such as a list."""
    if isinstance(group, Tensor) and group.numel() == 1:
        group = group.item()
    require(
        not isinstance(group, Tensor) and isinstance(group, Hashable),
        f"a cluster is called {shorten(repr(group), 60)}; it must be a word or a number",
    )
    # what pandas has where nothing is known equals nothing: NaN == NaN is False, and NA == NA is NA
    require(
        str(group == group) == "True",
        f"a cluster is called {group!r}; name a group for the clients that have none",
    )
    return group


def _read(name: str, pair: object, loss: Loss, dtype: torch.dtype) -> Shard:
    """Copies of a client's samples: inputs in the type that they have, targets as the loss takes them."""
    given = pair if isinstance(pair, (tuple, list)) else ()
    require(
        len(given) == 2,
        f"{name} is of type {type(pair).__name__}; it must be a pair of inputs and targets, such as "
        "tuple(zip(*dataset)) of a Dataset",
    )
    inputs_name, targets_name = f"the inputs of {name}", f"the targets of {name}"
    if loss is functional.cross_entropy:
        return Shard(*read_arrays(inputs_name, given[0], targets_name, given[1]))
    inputs, targets = as_tensor(inputs_name, given[0]), as_tensor(targets_name, given[1])
    require(
        inputs.dim() >= 2 and targets.dim() >= 1 and len(inputs) == len(targets) > 0,
        f"{inputs_name} have shape {tuple(inputs.shape)} and its targets {tuple(targets.shape)}; they must "
        "be (N, ...) and (N,) or (N, outputs), with the same N of at least 1",
    )
    numbers = targets.is_floating_point() or compares_numbers(loss)  # 0 and 1 too, where a loss compares them
    targets = targets.to(dtype) if numbers else targets.long()
    return Shard(inputs, targets)
