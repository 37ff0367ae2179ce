"""A task out of a user's own arrays."""

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

from torch import nn
from torch.nn import functional

from ..data import Images, split_by_label
from ..errors import require
from ..federation import Settings, Task
from ..federation.shards import Augment
from ..given import Numbers
from ..models import seeded
from ..seeds import stream
from .images import ClusterView, Deal, dealt_evenly, image_task, label_shifted, rotated
from .reading import (
    ADVICE,
    builder,
    check_model,
    check_one_kind,
    first_dtype,
    in_precision,
    read_arrays,
    split_rows,
)
from .recipe import Recipe, make_tasks

Transform = Literal["rotate", "label-shift", "label-groups"]


def from_arrays(
    images: Numbers,
    labels: Numbers,
    test_images: Numbers | None = None,
    test_labels: Numbers | None = None,
    *,
    model: nn.Module | Callable[[], nn.Module],
    num_clients: int,
    num_clusters: int = 1,
    transform: Transform | None = None,
    settings: Settings | None = None,
    augment: Augment | None = None,
    data_fraction: float = 1.0,
    test_fraction: float = 0.2,
    seed: int = 0,
    name: str = "own-arrays",
) -> Task:
    """A classification task out of arrays: dealt over clients, in clusters that see them differently.

    A data set of torchvision is two lines away, one of Hugging Face likewise::

        digits = torchvision.datasets.FashionMNIST("data", download=True)
        task = from_arrays(digits.data[:, None], digits.targets, model=..., num_clients=100)

        rows = datasets.load_dataset("cifar10", split="train").with_format("numpy")[:]
        images = rows["img"].transpose(0, 3, 1, 2)
        task = from_arrays(images, rows["label"], model=..., num_clients=20)

    Args:
        images: inputs of any shape (N, ...), as tensors, numpy arrays or lists; images are (N, channels,
            H, W). uint8 is read as x / 255, floats take the model's precision, and other integers are
            numbers of words.
        labels: integers in [0, number of the model's outputs), shape (N,).
        test_images: inputs to test on; if None, a share of the images is kept for it, chosen by the seed.
        test_labels: their labels; give both or neither.
        model: the base model, which is copied; or a function that builds it, such as `lambda: cnn()`, so
            that its first parameters follow from the seed.
        num_clients: K; samples are dealt at random, evenly in each cluster. For a split of your own, such as
            Dirichlet's over labels, give `from_clients` {k: (images[rows], labels[rows]), ...}.
        num_clusters: C, more than 1 if there is a transform, which tells clusters apart.
        transform: "rotate" turns the images of cluster c by 360 c / C degrees; "label-shift" makes class y
            class (y + c) mod the number of labels, which is the largest label plus 1; "label-groups" gives
            each cluster a share of the labels to itself; None makes all clients alike.
        settings: how the task is trained; `Settings()` if None.
        augment: changes training inputs at random, such as `data.FlipAndCrop()`.
        data_fraction: see `tasks.load`.
        test_fraction: share of the images that is kept for tests if no test images are given, in (0, 1).
        seed: of who gets which samples, of the split, and of a model that is built.
        name: what the task is called.

    Raises:
        InputError: lengths or shapes do not fit each other or the model, a label is out of range, an image is
            NaN or infinite somewhere, an argument is out of its range, or there are too few samples.

    Example:
        >>> import numpy as np
        >>> images, labels = np.random.default_rng(0).random((60, 1, 8, 8)), np.arange(60) % 10
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        >>> task = from_arrays(
        ...     images, labels, model=model, num_clients=6, num_clusters=2, transform="rotate")
        >>> task.clusters.tolist(), [len(shard) for shard in task.train], len(task.test[0])
        ([0, 1, 0, 1, 0, 1], [8, 8, 8, 8, 8, 8], 2)
    """
    require(
        transform is None or transform in get_args(Transform),
        f"transform is {transform!r}; it is {', '.join(map(repr, get_args(Transform)))} or None",
    )
    require(
        (transform is None) == (num_clusters == 1),
        f"transform is {transform!r} and num_clusters is {num_clusters}; clusters differ by their transform: "
        "give one of 'rotate', 'label-shift' and 'label-groups' with 2 clusters or more, and None with 1",
    )
    require(
        (test_images is None) == (test_labels is None),
        f"{'test_labels' if test_labels is None else 'test_images'} is None; give both test_images and "
        "test_labels, or neither for a split by the seed",
    )

    build = builder(model)
    first = seeded(build, seed)
    dtype = first_dtype(first)
    train = read_arrays("images", images, "labels", labels)
    if test_images is None or test_labels is None:
        told = f"of {len(train[0])} images"
        kept, rows = split_rows(len(train[0]), test_fraction, stream(seed, "split"), told)
        sets = Images(*(tensor[kept] for tensor in train), *(tensor[rows] for tensor in train))
    else:
        sets = Images(*train, *read_arrays("test_images", test_images, "test_labels", test_labels))
    check_one_kind({"images": sets.train_images, "test_images": sets.test_images})
    sets = sets._replace(
        train_images=in_precision(sets.train_images, dtype), test_images=in_precision(sets.test_images, dtype)
    )
    _check_images(sets, transform, first)
    num_labels = 1 + int(max(sets.train_labels.max(), sets.test_labels.max()))
    views: dict[Transform | None, ClusterView] = {
        "rotate": rotated,
        "label-shift": partial(label_shifted, num_labels=num_labels),
    }
    deals: dict[Transform | None, Deal] = {"label-groups": partial(split_by_label, num_labels=num_labels)}
    recipe = Recipe(
        about="own arrays",
        num_clients=num_clients,
        num_clusters=num_clusters,
        settings=Settings() if settings is None else settings,
        loss=functional.cross_entropy,
        prepare=image_task(lambda _: sets, build, views.get(transform), deals.get(transform, dealt_evenly)),
        augment=augment,
    )
    return make_tasks(name, recipe, [seed], data_fraction)[0]


def _check_images(sets: Images, transform: Transform | None, model: nn.Module) -> None:
    """Raise InputError unless the images can be turned, if they are to be, and the model takes them."""
    shape, test_shape = tuple(sets.train_images.shape[1:]), tuple(sets.test_images.shape[1:])
    require(
        shape == test_shape,
        f"an image has shape {shape}, and one of test_images {test_shape}; give both the same shape",
    )
    require(
        transform != "rotate" or (len(shape) == 3 and shape[1] == shape[2]),
        f"transform is 'rotate', but an image has shape {shape}, which is not (channels, H, W) with H = W; "
        f"{ADVICE}",
    )
    check_model(model, sets.train_images)
