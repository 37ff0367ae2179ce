"""Tasks by their names."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import check_names
from ..federation import Task
from .catalogue import TASKS
from .recipe import make_tasks


def load(
    name: str,
    *,
    seed: int = 0,
    data_fraction: float = 1.0,
    num_clients: int | None = None,
    num_clusters: int | None = None,
    data: Path | str | None = None,
) -> Task:
    """A task by its name.

    Args:
        name: see `floral-lite tasks`.
        seed: of the model's first parameters, and of who gets which samples.
        data_fraction: share that is kept of every client's training data, in (0, 1], but at least
            10 samples; test shards stay whole. It is a share of what the task has: half of
            'mnist-rotate-reduced', which has 5% of the images of 'mnist-rotate', is 2.5% of them.
            Each client's first samples are kept, so a smaller share is a part of a larger one.
        num_clients: K, the task's own if None: the paper's, where the paper has the task.
        num_clusters: C, the number of true clusters, likewise.
        data: the folder of downloaded image sets; if None, the one that FLORAL_LITE_DATA names, else `data`.

    Raises:
        InputError: there is no such task, a number is out of range, or the data are missing.

    Source: sections 'Experiments' and 'Extra Experimental Details'; for settings see `Recipe`.

    Example:
        >>> task = load("digits-rotate", seed=1, num_clients=8)
        >>> task.num_clients, len(task.train[0]), task.clusters.tolist()
        (8, 180, [0, 1, 2, 3, 0, 1, 2, 3])
    """
    (task,) = load_seeds(
        name,
        [seed],
        data_fraction=data_fraction,
        num_clients=num_clients,
        num_clusters=num_clusters,
        data=data,
    )
    return task


def load_seeds(
    name: str,
    seeds: Sequence[int],
    *,
    data_fraction: float = 1.0,
    num_clients: int | None = None,
    num_clusters: int | None = None,
    data: Path | str | None = None,
) -> list[Task]:
    """The same task for several seeds; image sets are read once, and the tasks share the copy.

    Args:
        name: see `load`, as for the others.
        seeds: one for each task.
        data_fraction: share of the training data that is kept.
        num_clients: K.
        num_clusters: C.
        data: the folder of downloaded image sets.

    Raises:
        InputError: see `load`, or seeds is one number.

    Example:
        >>> first, second = load_seeds("digits-rotate", [1, 2])
        >>> first.train.inputs is second.train.inputs, first.details["task_seed"]
        (True, 1)
    """
    check_names("task", [name], TASKS)
    return make_tasks(name, TASKS[name], seeds, data_fraction, num_clients, num_clusters, data)
