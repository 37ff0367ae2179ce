"""Federations in the shapes of the paper's experiments, with random pixels: the speed is the same."""

import torch
from torch import nn
from torch.nn import functional

from floral_lite import Settings, Shard, Task
from floral_lite.models import cnn, mlp, seeded, vgg8

IMAGE = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}


def shards(
    num_clients: int, num_samples: int, image: tuple[int, ...], num_labels: int, seed: int
) -> list[Shard]:
    """Random images, as dark as handwriting and in steps of 1/255, with random labels."""
    generator = torch.Generator().manual_seed(seed)

    def shard() -> Shard:
        pixels = torch.rand(num_samples, *image, generator=generator).pow_(4).mul_(255).round_().div_(255)
        return Shard(pixels, torch.randint(num_labels, (num_samples,), generator=generator))

    return [shard() for _ in range(num_clients)]


def task(
    name: str,
    model: nn.Module,
    num_clients: int,
    num_samples: int,
    num_test: int,
    num_clusters: int,
    settings: Settings,
) -> Task:
    """A federation of that shape ("mnist", "cifar10", "cifar100"), with equal shards."""
    num_labels = 100 if name == "cifar100" else 10
    return Task(
        name=f"{name}-shaped",
        model=model,
        loss=functional.cross_entropy,
        train=shards(num_clients, num_samples, IMAGE[name], num_labels, seed=0),
        test=shards(num_clients, num_test, IMAGE[name], num_labels, seed=1),
        clusters=torch.arange(num_clients) % num_clusters,
        settings=settings,
        details={},
    )


def mnist(
    num_clients: int = 300,
    num_samples: int = 200,
    num_test: int = 33,
    num_hidden: int = 200,
    participation: float = 0.1,
    batch_size: int = 32,
) -> Task:
    """MNIST's: 30 of 300 clients a round, 200 samples each, a two-layer net."""
    settings = Settings(rounds=500, participation=participation, batch_size=batch_size, learning_rate=0.1)
    model = seeded(lambda: mlp(784, num_hidden, 10), 0)
    return task("mnist", model, num_clients, num_samples, num_test, 4, settings)


def cifar10(num_clients: int = 20, num_samples: int = 2500, num_test: int = 500) -> Task:
    """CIFAR-10's: all of 20 clients, 2,500 samples each, a convolutional net."""
    settings = Settings(rounds=500, batch_size=64, learning_rate=0.03)
    return task("cifar10", seeded(cnn, 0), num_clients, num_samples, num_test, 4, settings)


def cifar100(num_clients: int = 100, num_samples: int = 500, num_test: int = 100) -> Task:
    """CIFAR-100's: 50 of 100 clients, 500 samples each, VGG-8, Adam at the server."""
    settings = Settings(
        rounds=500,
        participation=0.5,
        batch_size=64,
        learning_rate=0.001,
        server_optimizer="adam",
        server_learning_rate=0.001,
    )
    return task("cifar100", seeded(vgg8, 0), num_clients, num_samples, num_test, 10, settings)
