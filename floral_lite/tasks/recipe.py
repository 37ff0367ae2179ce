"""What a task is made of, and how it becomes the clients' data."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from ..data import check_data_fraction, diagonal_clusters, num_kept
from ..decimals import as_written
from ..errors import require, whole_number
from ..federation import Settings, Shard, Task
from ..federation.clients import size
from ..federation.pool import Pool
from ..federation.shards import Augment
from ..federation.task import Loss

# (the clients' clusters (K,), C, seed) -> the model, every client's train shard and test shard
Make = Callable[[Tensor, int, int], tuple[nn.Module, Sequence[Shard], Sequence[Shard]]]


@dataclass(frozen=True)
class Recipe:
    """How a task is made and trained.

    Attributes:
        about: one line for `floral-lite tasks`.
        num_clients: K.
        num_clusters: C, the number of true clusters.
        settings: those of the authors' configuration, where the paper has the task; it names few of them.
        loss: of outputs and targets.
        prepare: reads the data folder, and returns what makes the model and the shards for any seed: of
            (clusters (K,), C, seed) the model, K training shards, and K test shards.
        augment: changes training inputs at random, or None.
        data_fraction: share of every client's training data that the task has, in (0, 1]: a reduced
            task is the full one with a smaller share.
        multiple_of: a client's training samples above a multiple of this are not used where they are few,
            less than an eighth of it. As a last batch they would count as much as a full one.
    """

    about: str
    num_clients: int
    num_clusters: int
    settings: Settings
    loss: Loss
    prepare: Callable[[Path | str | None], Make]
    augment: Augment | None = None
    data_fraction: float = 1.0
    multiple_of: int = 1


def make_tasks(
    name: str,
    recipe: Recipe,
    seeds: Sequence[int],
    data_fraction: float,
    num_clients: int | None = None,
    num_clusters: int | None = None,
    data: Path | str | None = None,
) -> list[Task]:
    """A recipe's task for each seed; arguments and errors as in `tasks.load`."""
    require(
        isinstance(seeds, Iterable),
        f"seeds is {seeds!r}; it must have the seed of each task, such as range(4)",
    )
    num_clients = whole_number("num_clients", recipe.num_clients if num_clients is None else num_clients)
    num_clusters = whole_number("num_clusters", recipe.num_clusters if num_clusters is None else num_clusters)
    check_data_fraction(data_fraction)
    require(num_clients >= 1, f"num_clients is {num_clients}; a federation needs at least 1")
    require(
        1 <= num_clusters <= num_clients,
        f"num_clusters is {num_clusters}; it must be 1 to the number of clients, {num_clients}",
    )
    clusters = diagonal_clusters(num_clients, num_clusters)
    make = recipe.prepare(data)
    # as fractions: the product of two floats may fall just below what is written
    share = float(as_written(recipe.data_fraction) * as_written(data_fraction))
    tasks = []
    for seed in seeds:
        model, train, test = make(clusters, num_clusters, seed)
        kept = [num_kept(size(train, client), share) for client in range(num_clients)]
        counts = [_without_few(count, recipe.multiple_of) for count in kept]
        tasks.append(
            Task(
                name=name,
                model=model,
                loss=recipe.loss,
                train=first_samples(train, counts),
                test=test,
                clusters=clusters,
                settings=recipe.settings,
                details={
                    "task_clusters": num_clusters,
                    "num_clients": num_clients,
                    "data_fraction": data_fraction,
                    "task_seed": int(seed),
                },
                augment=recipe.augment,
            )
        )
    return tasks


def _without_few(count: int, multiple_of: int) -> int:
    """A count without what is above a multiple, where that is less than an eighth of it.

    Example:
        >>> [_without_few(count, 64) for count in (5, 71, 72)]
        [5, 64, 72]
    """
    above = count % multiple_of
    return count - above if count > multiple_of and 8 * above < multiple_of else count


def first_samples(shards: Sequence[Shard], counts: Sequence[int]) -> Sequence[Shard]:
    """Each client's first samples, as many as its count says."""
    if isinstance(shards, Pool):
        return shards.first(counts)
    return [Shard(*(tensor[:count] for tensor in shard)) for shard, count in zip(shards, counts, strict=True)]
