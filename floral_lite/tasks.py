"""The paper's tasks with their settings, and small versions of them that need no download."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from .data import (
    FlipAndCrop,
    Images,
    cifar10,
    cifar100,
    cluster_maps,
    diagonal_clusters,
    digits,
    mnist,
    num_kept,
    rotate,
    shift_labels,
    split_by_label,
    split_evenly,
)
from .errors import require, unknown
from .federation import Settings, Shard, Task
from .federation.clients import size
from .federation.pool import Pool
from .federation.shards import Augment
from .federation.task import Loss
from .models import cnn, mlp, seeded, vgg8
from .seeds import stream

# the model, and every client's train and test shard, of the clients' clusters (K,), C, and a seed
Make = Callable[[Tensor, int, int], tuple[nn.Module, Sequence[Shard], Sequence[Shard]]]
# the rows of each client's samples, of labels (N,), the clients' clusters (K,), C, and a generator
Deal = Callable[[Tensor, Tensor, int, torch.Generator], list[Tensor]]
# samples as a cluster sees them, of inputs, targets, the cluster, and num_clusters=C
ClusterView = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Recipe:
    """How a task is made and trained.

    Attributes:
        about: one line for `floral-lite tasks`.
        num_clients: K.
        num_clusters: C, the number of true clusters.
        settings: the paper's, where the paper has the task.
        loss: of outputs and targets.
        prepare: reads what the data folder holds, and gives what makes model and shards of it for any seed.
        augment: changes training inputs at random, or None.
    """

    about: str
    num_clients: int
    num_clusters: int
    settings: Settings
    loss: Loss
    prepare: Callable[[Path | None], Make]
    augment: Augment | None = None


def load(
    name: str,
    *,
    seed: int = 0,
    data_fraction: float = 1.0,
    num_clients: int | None = None,
    num_clusters: int | None = None,
    data: Path | None = None,
) -> Task:
    """A task by its name.

    Args:
        name: see `floral-lite tasks`.
        seed: of the model's first parameters, and of who gets which samples.
        data_fraction: share of every client's training data that is kept, in (0, 1], but at
            least 10 samples; test shards stay whole. The paper's 'reduced' tasks keep 0.05.
        num_clients: K, the paper's if None.
        num_clusters: C, the number of true clusters, the paper's if None.
        data: the folder of downloaded image sets; if None, the one that FLORAL_LITE_DATA names.

    Raises:
        InputError: there is no such task, a number is out of range, or the data are missing.

    Source: section 'Experiments' and 'Extra Experimental Details'.

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
    data: Path | None = None,
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
        InputError: see `load`.

    Example:
        >>> first, second = load_seeds("digits-rotate", [1, 2])
        >>> first.train.inputs is second.train.inputs, first.details["task_seed"]
        (True, 1)
    """
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    recipe = TASKS[name]
    num_clients = recipe.num_clients if num_clients is None else num_clients
    num_clusters = recipe.num_clusters if num_clusters is None else num_clusters
    require(num_clients >= 1, f"num_clients is {num_clients}; a federation needs at least 1")
    require(
        1 <= num_clusters <= num_clients,
        f"num_clusters is {num_clusters}; it must be 1 to the number of clients, {num_clients}",
    )
    clusters = diagonal_clusters(num_clients, num_clusters)
    make = recipe.prepare(data)
    tasks = []
    for seed in seeds:
        model, train, test = make(clusters, num_clusters, seed)
        counts = [num_kept(size(train, client), data_fraction) for client in range(num_clients)]
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
                    "task_seed": seed,
                },
                augment=recipe.augment,
            )
        )
    return tasks


def first_samples(shards: Sequence[Shard], counts: Sequence[int]) -> Sequence[Shard]:
    """Each client's first samples, as many as its count says."""
    if isinstance(shards, Pool):
        return shards.first(counts)
    return [Shard(*(tensor[:count] for tensor in shard)) for shard, count in zip(shards, counts, strict=True)]


def rotated(images: Tensor, labels: Tensor, cluster: int, num_clusters: int) -> tuple[Tensor, Tensor]:
    """Cluster c sees every image turned by 360 c / C degrees."""
    return rotate(images, cluster, num_clusters), labels


def label_shifted(images: Tensor, labels: Tensor, cluster: int, num_clusters: int) -> tuple[Tensor, Tensor]:
    """Cluster c calls class y by the name (y + c) mod 10."""
    return images, shift_labels(labels, cluster, num_labels=10)


def dealt_evenly(
    labels: Tensor, clusters: Tensor, num_clusters: int, generator: torch.Generator
) -> list[Tensor]:
    """Every client gets images of all labels."""
    return split_evenly(len(labels), len(clusters), generator)


def dealt_by_label(
    labels: Tensor, clusters: Tensor, num_clusters: int, generator: torch.Generator
) -> list[Tensor]:
    """A cluster's clients get images of its share of the 100 labels."""
    return split_by_label(labels, 100, clusters, num_clusters, generator)


def image_task(
    source: Callable[[Path | None], Images],
    build: Callable[[], nn.Module],
    view: ClusterView | None,
    deal: Deal = dealt_evenly,
) -> Callable[[Path | None], Make]:
    """What prepares an image task: read the images, deal them, let each cluster see them in its own way."""

    def prepare(data: Path | None) -> Make:
        images = source(data)

        def make(clusters: Tensor, num_clusters: int, seed: int) -> tuple[nn.Module, Pool, Pool]:
            transform = None if view is None else partial(view, num_clusters=num_clusters)

            def pool(pixels: Tensor, labels: Tensor, split: str) -> Pool:
                rows_of = deal(labels, clusters, num_clusters, stream(seed, split))
                sizes = tuple(map(len, rows_of))
                return Pool(pixels, labels, torch.cat(rows_of), sizes, tuple(clusters.tolist()), transform)

            model = seeded(build, seed)
            train = pool(images.train_images, images.train_labels, "train")
            return model, train, pool(images.test_images, images.test_labels, "test")

        return make

    return prepare


def synthetic_linear(
    clusters: Tensor, num_clusters: int, seed: int
) -> tuple[nn.Module, list[Shard], list[Shard]]:
    """Regression on a shared linear map plus one rank-1 difference a cluster (alpha = 2).

    Every client has 0.25 samples for each parameter of the model, 80% of them to train on:
    too few to fit the map alone, enough together.

    Source: section 'Synthetic Linear'.
    """
    model = seeded(lambda: nn.Linear(10, 3), seed)
    num_samples = int(0.25 * sum(parameter.numel() for parameter in model.parameters()))
    num_train = int(0.8 * num_samples)
    maps = cluster_maps(10, 3, num_clusters, rank=1, scale=2.0, generator=stream(seed, "maps"))
    train, test = [], []
    for client, cluster in enumerate(clusters.tolist()):
        # x ~ N(0, I), y = (W + alpha U_c V_c^T) x
        inputs = torch.randn(num_samples, 10, generator=stream(seed, "samples", client))
        targets = inputs @ maps[cluster].T
        train.append(Shard(inputs[:num_train], targets[:num_train]))
        test.append(Shard(inputs[num_train:], targets[num_train:]))
    return model, train, test


# Ours, not the paper's: the router's large step lets mixtures leave uniform within a minute.
_DIGITS = Settings(rounds=100, batch_size=16, learning_rate=0.3, router_learning_rate=10.0, evaluate_every=1)
_MNIST = Settings(rounds=500, participation=0.1, batch_size=32, evaluate_every=10)
_CIFAR10 = Settings(rounds=500, batch_size=64, learning_rate=0.03, evaluate_every=10)
_CIFAR100 = Settings(
    rounds=500, participation=0.5, batch_size=64, learning_rate=0.001, evaluate_every=10,
    server_optimizer="adam", server_learning_rate=0.001,
)  # fmt: skip
_SYNTHETIC = Settings(rounds=2000, batch_size=4, evaluate_every=10)

_digits = partial(image_task, lambda _: digits(), partial(mlp, 64, 32, 10))
_mnist = partial(image_task, mnist, partial(mlp, 784, 200, 10))
_cifar10 = partial(image_task, cifar10, cnn)

TASKS: dict[str, Recipe] = {
    "synthetic-linear": Recipe(
        "regression: a shared linear map plus a rank-1 difference per cluster",
        10, 2, _SYNTHETIC, functional.mse_loss, lambda _: synthetic_linear,
    ),
    "digits-rotate": Recipe(
        "8 x 8 digits, each cluster's turned by its own angle; nothing to download",
        20, 4, _DIGITS, functional.cross_entropy, _digits(rotated),
    ),
    "digits-label-shift": Recipe(
        "8 x 8 digits, each cluster's labels moved on by its number; nothing to download",
        20, 4, _DIGITS, functional.cross_entropy, _digits(label_shifted),
    ),
    "mnist-rotate": Recipe(
        "MNIST, each cluster's images turned by its own angle",
        300, 4, _MNIST, functional.cross_entropy, _mnist(rotated),
    ),
    "mnist-label-shift": Recipe(
        "MNIST, each cluster's labels moved on by its number",
        300, 4, _MNIST, functional.cross_entropy, _mnist(label_shifted),
    ),
    "cifar10-rotate": Recipe(
        "CIFAR-10, each cluster's images turned by its own angle",
        20, 4, _CIFAR10, functional.cross_entropy, _cifar10(rotated), FlipAndCrop(),
    ),
    "cifar10-label-shift": Recipe(
        "CIFAR-10, each cluster's labels moved on by its number",
        20, 4, _CIFAR10, functional.cross_entropy, _cifar10(label_shifted), FlipAndCrop(),
    ),
    "cifar100": Recipe(
        "CIFAR-100, each cluster has 10 of the labels to itself",
        100, 10, _CIFAR100, functional.cross_entropy,
        image_task(cifar100, vgg8, None, dealt_by_label), FlipAndCrop(),
    ),
}  # fmt: skip
