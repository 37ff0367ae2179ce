"""The paper's tasks with their settings, and small versions of them that need no download."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from .data import (
    Images,
    cluster_maps,
    diagonal_clusters,
    digits,
    mnist,
    num_kept,
    rotate,
    shift_labels,
    split_evenly,
)
from .errors import require, unknown
from .federation import Settings, Shard, Task
from .federation.task import Loss
from .models import mlp, seeded
from .seeds import stream

Transform = Callable[[Tensor, Tensor, int, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Recipe:
    """How a task is made and trained.

    Attributes:
        about: one line for `floral-lite tasks`.
        num_clients: K.
        num_clusters: C, the number of true clusters.
        settings: the paper's, where the paper has the task.
        loss: of outputs and targets.
        make: builds the model and every client's train and test shard from the clients' clusters (K,),
            C, the seed and the data folder.
    """

    about: str
    num_clients: int
    num_clusters: int
    settings: Settings
    loss: Loss
    make: Callable[..., tuple[nn.Module, list[Shard], list[Shard]]]


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
    model, train, test = recipe.make(clusters=clusters, num_clusters=num_clusters, seed=seed, data=data)
    kept = [num_kept(len(shard), data_fraction) for shard in train]
    return Task(
        name=name,
        model=model,
        loss=recipe.loss,
        train=[
            Shard(*(tensor[:count] for tensor in shard)) for shard, count in zip(train, kept, strict=True)
        ],
        test=test,
        clusters=clusters,
        settings=recipe.settings,
        details={
            "task_clusters": num_clusters,
            "num_clients": num_clients,
            "data_fraction": data_fraction,
            "task_seed": seed,
        },
    )


def rotated(images: Tensor, labels: Tensor, cluster: int, num_clusters: int) -> tuple[Tensor, Tensor]:
    """Cluster c sees every image turned by 360 c / C degrees."""
    return rotate(images, cluster, num_clusters), labels


def label_shifted(images: Tensor, labels: Tensor, cluster: int, num_clusters: int) -> tuple[Tensor, Tensor]:
    """Cluster c calls digit y by the name (y + c) mod 10."""
    return images, shift_labels(labels, cluster, num_labels=10)


def image_task(
    source: Callable[[Path | None], Images], num_hidden: int, transform: Transform
) -> Callable[..., tuple[nn.Module, list[Shard], list[Shard]]]:
    """A maker of image tasks: deal the images evenly, then transform each client's as its cluster says."""

    def make(
        clusters: Tensor, num_clusters: int, seed: int, data: Path | None
    ) -> tuple[nn.Module, list[Shard], list[Shard]]:
        images = source(data)

        def deal(pixels: Tensor, labels: Tensor, split: str) -> list[Shard]:
            rows_of = split_evenly(len(labels), len(clusters), stream(seed, split))
            return [
                Shard(*transform(pixels[rows], labels[rows], cluster, num_clusters))
                for rows, cluster in zip(rows_of, clusters.tolist(), strict=True)
            ]

        model = seeded(lambda: mlp(images.train_images[0].numel(), num_hidden, 10), seed)
        train = deal(images.train_images, images.train_labels, "train")
        return model, train, deal(images.test_images, images.test_labels, "test")

    return make


def synthetic_linear(
    clusters: Tensor, num_clusters: int, seed: int, data: Path | None
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
_DIGITS = Settings(rounds=100, batch_size=16, learning_rate=0.3, router_learning_rate=10.0)
_MNIST = Settings(rounds=500, participation=0.1, batch_size=32, evaluate_every=10)
_SYNTHETIC = Settings(rounds=2000, batch_size=4, evaluate_every=10)

TASKS: dict[str, Recipe] = {
    "synthetic-linear": Recipe(
        "regression: a shared linear map plus a rank-1 difference per cluster",
        10, 2, _SYNTHETIC, functional.mse_loss, synthetic_linear,
    ),
    "digits-rotate": Recipe(
        "8 x 8 digits, each cluster's turned by its own angle; nothing to download",
        20, 4, _DIGITS, functional.cross_entropy, image_task(lambda _: digits(), 32, rotated),
    ),
    "digits-label-shift": Recipe(
        "8 x 8 digits, each cluster's labels moved on by its number; nothing to download",
        20, 4, _DIGITS, functional.cross_entropy, image_task(lambda _: digits(), 32, label_shifted),
    ),
    "mnist-rotate": Recipe(
        "MNIST, each cluster's images turned by its own angle",
        300, 4, _MNIST, functional.cross_entropy, image_task(mnist, 200, rotated),
    ),
    "mnist-label-shift": Recipe(
        "MNIST, each cluster's labels moved on by its number",
        300, 4, _MNIST, functional.cross_entropy, image_task(mnist, 200, label_shifted),
    ),
}  # fmt: skip
