"""Federations in the shapes of the paper's experiments, with random pixels: the speed is the same."""

import torch
from torch import nn
from torch.nn import functional

from floral_lite import Settings, Shard, Task
from floral_lite.models import cnn, mlp, seeded

NUM_LABELS = 10


def shards(num_clients: int, num_samples: int, image: tuple[int, ...], seed: int) -> list[Shard]:
    """Random images, as dark as handwriting and in steps of 1/255, with random labels."""
    generator = torch.Generator().manual_seed(seed)

    def shard() -> Shard:
        pixels = torch.rand(num_samples, *image, generator=generator).pow_(4).mul_(255).round_().div_(255)
        return Shard(pixels, torch.randint(NUM_LABELS, (num_samples,), generator=generator))

    return [shard() for _ in range(num_clients)]


def task(
    name: str,
    model: nn.Module,
    num_clients: int,
    num_samples: int,
    image: tuple[int, ...],
    settings: Settings,
) -> Task:
    """A federation with equal shards, in four clusters; a single sample of each client to test on."""
    return Task(
        name=f"{name}-shaped",
        model=model,
        loss=functional.cross_entropy,
        train=shards(num_clients, num_samples, image, seed=0),
        test=shards(num_clients, 1, image, seed=1),
        clusters=torch.arange(num_clients) % 4,
        settings=settings,
        details={},
    )


def mnist(
    num_clients: int = 300,
    num_samples: int = 200,
    num_hidden: int = 200,
    participation: float = 0.1,
    batch_size: int = 32,
) -> Task:
    """MNIST's: 30 of 300 clients a round, 200 samples each, a two-layer net."""
    settings = Settings(rounds=500, participation=participation, batch_size=batch_size, learning_rate=0.1)
    model = seeded(lambda: mlp(784, num_hidden, NUM_LABELS), 0)
    return task("mnist", model, num_clients, num_samples, (1, 28, 28), settings)


def cifar10(num_samples: int = 2500) -> Task:
    """CIFAR-10's: all of 20 clients, 2,500 samples each, a convolutional net."""
    settings = Settings(rounds=500, batch_size=64, learning_rate=0.03)
    return task("cifar10", seeded(cnn, 0), 20, num_samples, (3, 32, 32), settings)


def digits() -> Task:
    """The embedded digits': all of 20 clients, 72 samples each, a small convolutional net."""
    settings = Settings(rounds=100, batch_size=16, learning_rate=0.1)

    def build() -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(32 * 2 * 2, NUM_LABELS)),
        )

    return task("digits", seeded(build, 0), 20, 72, (1, 8, 8), settings)
