"""All tasks by name: the paper's with its settings, and small versions that need no download."""

from dataclasses import replace
from functools import partial

from torch.nn import functional

from ..data import FlipAndCrop, cifar10, cifar100, digits, mnist, split_by_label
from ..federation import Settings
from ..models import cnn, mlp, vgg8
from .images import image_task, label_shifted, rotated
from .recipe import Recipe
from .synthetic import SYNTHETIC

# Ours, not the paper's: the router's large step lets mixtures leave uniform within a minute.
_DIGITS = Settings(rounds=100, batch_size=16, learning_rate=0.3, router_learning_rate=10.0, evaluate_every=1)
_MNIST = Settings(rounds=500, participation=0.1, batch_size=32, evaluate_every=10)
_CIFAR10 = Settings(rounds=500, batch_size=64, learning_rate=0.03, evaluate_every=10)
_CIFAR100 = Settings(
    rounds=500, participation=0.5, batch_size=64, learning_rate=0.001, evaluate_every=10,
    server_optimizer="adam", server_learning_rate=0.001,
)  # fmt: skip
_LINEAR = Settings(rounds=2000, batch_size=4, evaluate_every=10)
_MLP = Settings(rounds=2000, batch_size=8, learning_rate=0.03, evaluate_every=10)

_digits = partial(image_task, lambda _: digits(), partial(mlp, 64, 32, 10))
_mnist = partial(image_task, mnist, partial(mlp, 784, 200, 10))
_cifar10 = partial(image_task, cifar10, cnn)

_SYNTHETICS: dict[str, Recipe] = {
    "synthetic-linear": Recipe(
        "regression: a shared linear map plus a rank-1 difference per cluster",
        10, 2, _LINEAR, functional.mse_loss, lambda _: SYNTHETIC["synthetic-linear"].make,
    ),
    "synthetic-mlp": Recipe(
        "the same as the first layer of a ReLU net",
        20, 4, _MLP, functional.mse_loss, lambda _: SYNTHETIC["synthetic-mlp"].make,
    ),
    "synthetic-mlp-norm": Recipe(
        "the same, each client's hidden layer normalised; for batch norms",
        20, 4, _MLP.with_changes(batch_size=5), functional.mse_loss,
        lambda _: SYNTHETIC["synthetic-mlp-norm"].make,
    ),
}  # fmt: skip
_DIGITS_TASKS: dict[str, Recipe] = {
    "digits-rotate": Recipe(
        "8 x 8 digits, each cluster's turned by its own angle; nothing to download",
        20, 4, _DIGITS, functional.cross_entropy, _digits(rotated),
    ),
    "digits-label-shift": Recipe(
        "8 x 8 digits, each cluster's labels moved on by its number; nothing to download",
        20, 4, _DIGITS, functional.cross_entropy, _digits(label_shifted),
    ),
    "digits-label-groups": Recipe(
        "8 x 8 digits, each cluster has 2 of the labels to itself; nothing to download",
        20, 5, _DIGITS, functional.cross_entropy, _digits(deal=partial(split_by_label, num_labels=10)),
    ),
}  # fmt: skip
_IMAGES: dict[str, Recipe] = {
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
        20, 4, _CIFAR10, functional.cross_entropy, _cifar10(rotated), FlipAndCrop(), multiple_of=64,
    ),
    "cifar10-label-shift": Recipe(
        "CIFAR-10, each cluster's labels moved on by its number",
        20, 4, _CIFAR10, functional.cross_entropy, _cifar10(label_shifted), FlipAndCrop(), multiple_of=64,
    ),
    "cifar100": Recipe(
        "CIFAR-100, each cluster has 10 of the labels to itself",
        100, 10, _CIFAR100, functional.cross_entropy,
        image_task(cifar100, vgg8, deal=partial(split_by_label, num_labels=100)), FlipAndCrop(),
    ),
}  # fmt: skip


def reduced(full: dict[str, Recipe], data_fraction: float, **changes: float) -> dict[str, Recipe]:
    """The tasks with a share of each client's training data and changed settings, named X-reduced."""
    return {
        f"{name}-reduced": replace(
            recipe,
            about=f"{name} with {data_fraction:.0%} of the training data",
            settings=recipe.settings.with_changes(**changes),
            data_fraction=data_fraction,
        )
        for name, recipe in full.items()
    }


TASKS: dict[str, Recipe] = {
    **_SYNTHETICS,
    **_DIGITS_TASKS,
    # a client has 14 images, one step a round instead of five
    **reduced(_DIGITS_TASKS, 0.2, rounds=300),
    **_IMAGES,
    # 5% is the paper's, the rest from the authors' configuration
    **reduced(_IMAGES, 0.05, rounds=1500, router_learning_rate=0.3),
}
