"""Tasks made of images: who gets which, and how each cluster sees them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ..data import Images, rotate, shift_labels, split_evenly
from ..errors import require
from ..federation.pool import Pool
from ..models import seeded
from ..seeds import stream
from .recipe import Make

# (labels (N,), the clients' clusters (K,), C, generator) -> the rows of each client's samples
Deal = Callable[[Tensor, Tensor, int, torch.Generator], list[Tensor]]
# (inputs, targets, cluster, num_clusters=C) -> the samples as that cluster sees them
ClusterView = Callable[..., tuple[Tensor, Tensor]]


def rotated(images: Tensor, labels: Tensor, cluster: int, num_clusters: int) -> tuple[Tensor, Tensor]:
    """Cluster c sees every image turned by 360 c / C degrees."""
    return rotate(images, cluster, num_clusters), labels


def label_shifted(
    images: Tensor, labels: Tensor, cluster: int, num_clusters: int, num_labels: int = 10
) -> tuple[Tensor, Tensor]:
    """Cluster c calls class y by the name (y + c) mod num_labels."""
    require(
        num_clusters <= num_labels,
        f"num_clusters is {num_clusters}, but {num_labels} labels can be shifted in {num_labels} ways only: "
        "use fewer clusters",
    )
    return images, shift_labels(labels, cluster, num_labels)


def dealt_evenly(
    labels: Tensor, clusters: Tensor, num_clusters: int, generator: torch.Generator
) -> list[Tensor]:
    """Every client gets images of all labels."""
    return split_evenly(len(labels), len(clusters), generator)


def image_task(
    source: Callable[[Path | str | None], Images],
    build: Callable[[], nn.Module],
    view: ClusterView | None = None,
    deal: Deal = dealt_evenly,
) -> Callable[[Path | str | None], Make]:
    """What `Recipe.prepare` is for images: read them, deal them, let each cluster see them in its own way."""
    return lambda data: partial(_make, source(data), build, view, deal)


def _make(
    images: Images,
    build: Callable[[], nn.Module],
    view: ClusterView | None,
    deal: Deal,
    clusters: Tensor,
    num_clusters: int,
    seed: int,
) -> tuple[nn.Module, Pool, Pool]:
    """The model, and every client's train and test images."""
    transform = None if view is None else partial(view, num_clusters=num_clusters)

    def pool(pixels: Tensor, labels: Tensor, split: str) -> Pool:
        rows_of = deal(labels, clusters, num_clusters, stream(seed, split))
        sizes = tuple(map(len, rows_of))
        return Pool(pixels, labels, torch.cat(rows_of), sizes, tuple(clusters.tolist()), transform)

    model = seeded(build, seed)
    train = pool(images.train_images, images.train_labels, "train")
    return model, train, pool(images.test_images, images.test_labels, "test")
