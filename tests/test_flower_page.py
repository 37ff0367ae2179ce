"""What the page on Flower says in numbers is what the package counts."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from floral_lite import Settings, Shard, Task, methods
from floral_lite.federation.record import new_history
from floral_lite.models import cnn, mlp, seeded, vgg8

from .federations import first_state

PAGE = (Path(__file__).parent.parent / "book" / "flower.md").read_text(encoding="utf-8")
METHODS = [("fedavg", None), ("floral", 0.01), ("floral", 0.1), ("ensemble", None)]


@pytest.mark.parametrize(
    ("row", "build", "shape", "num_clusters"),
    [
        ("MNIST's MLP", partial(mlp, 784, 200, 10), (1, 28, 28), 4),
        ("CIFAR-10's CNN", cnn, (3, 32, 32), 4),
        ("CIFAR-100's VGG-8", vgg8, (3, 32, 32), 10),
    ],
)
def test_bytes(row: str, build: type[nn.Module], shape: tuple[int, ...], num_clusters: int) -> None:
    shard = Shard(torch.zeros(1, *shape), torch.zeros(1, dtype=torch.long))
    task = Task(
        name=row,
        model=seeded(build, 0),
        loss=functional.cross_entropy,
        train=[shard],
        test=[shard],
        clusters=torch.zeros(1, dtype=torch.long),
        settings=Settings(),
        details={},
    )
    sent = []
    for name, budget in METHODS:
        options = {"num_clusters": num_clusters} if name != "fedavg" else {}
        method = methods.make(name, task.model, **options | ({"budget": budget} if budget else {}))
        first = first_state(task, method)
        history = new_history(task, method, first, task.settings, 0, torch.device("cpu"), "flower")
        sent.append(history.bytes_up)
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {row}")]
    assert [int(cell.strip("| ").split(" (")[0].replace(",", "")) for cell in line.split(" | ")[1:]] == sent
