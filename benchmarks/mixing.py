"""Mix the weights first, or run the adaptors as factors? Ratios of time for forward and backward.

    python benchmarks/mixing.py --device cpu

A row is one layer and batch, with three ratios: the time with factors over the time with merged weights, the
automatic choice's time over the better of these two, and the better one's time over the base layer's alone.
"""

from collections.abc import Callable
from typing import Annotated

import pandas as pd
import torch
import typer
from torch import nn
from torch.utils.benchmark import Timer

from floral_lite import Floral
from floral_lite.devices import device_name, find_device

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear 784 -> 200": (lambda: nn.Linear(784, 200), (784,)),
    "linear 200 -> 10": (lambda: nn.Linear(200, 10), (200,)),
    "linear 768 -> 3072": (lambda: nn.Linear(768, 3072), (768,)),
    "conv 32 -> 64, 3 x 3, 14 x 14": (lambda: nn.Conv2d(32, 64, 3), (32, 14, 14)),
    "conv 512 -> 512, 3 x 3, 4 x 4": (lambda: nn.Conv2d(512, 512, 3, padding=1), (512, 4, 4)),
}
BATCHES = (1, 32, 256)


def seconds(model: nn.Module, inputs: torch.Tensor, min_seconds: float) -> float:
    """Median time of a forward and backward pass."""

    def step() -> None:
        model(inputs).square().sum().backward()

    timer = Timer("step()", globals={"step": step}, num_threads=torch.get_num_threads())
    return float(timer.blocked_autorange(min_run_time=min_seconds).median)


def ratios(name: str, batch: int, device: torch.device, min_seconds: float) -> dict[str, object]:
    """One row of the table: C = 4 adaptors at a budget of 10%."""
    build, shape = LAYERS[name]
    base = build().to(device)
    model = Floral(base, budget=0.1, num_clusters=4)
    inputs = torch.randn(batch, *shape, device=device)
    alone = seconds(base, inputs, min_seconds)
    times = {}
    for mixing in ("merged", "factored", "auto"):
        model.mixing = mixing
        times[mixing] = seconds(model, inputs, min_seconds)
    better = min(times["merged"], times["factored"])
    return {
        "layer": name,
        "batch": batch,
        "factored / merged": times["factored"] / times["merged"],
        "auto / better": times["auto"] / better,
        "better / base": better / alone,
    }


def main(
    device: Annotated[str, typer.Option(help="cpu, cuda, mps or auto")] = "cpu",
    min_seconds: Annotated[float, typer.Option(help="how long each case is repeated")] = 0.3,
) -> None:
    """Measure every layer and batch, and print the table."""
    place = find_device(device)
    rows = [ratios(name, batch, place, min_seconds) for name in LAYERS for batch in BATCHES]
    print(device_name(place))
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.2f}".format))


if __name__ == "__main__":
    typer.run(main)
