"""The paper's image federations on a GPU: seconds, share of the matrix-product rate, and where time goes.

    python benchmarks/gpu.py

These are whole runs with evaluation, on data of the right shapes with random pixels. To try the script itself
without a GPU: `--device cpu --rounds 2 --share 0.05`.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import floor
import torch
import typer
from measure import RESULTS, save
from torch import Tensor, nn
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from floral_lite import Task, methods, train
from floral_lite.data import FlipAndCrop
from floral_lite.devices import device_name
from floral_lite.federation import federated_rounds
from floral_lite.federation.loop import num_sampled
from floral_lite.models import cnn, mlp, vgg8
from floral_lite.tasks import TASKS, from_arrays

LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")
GRAPHS = ("cudaGraphLaunch",)


def tasks(share: float) -> dict[str, tuple[Task, int]]:
    """The federations, each with this share of all samples, and C."""
    augment = FlipAndCrop()
    return {
        "mnist": federation("mnist-rotate", share * 60_000, (1, 28, 28), 10, lambda: mlp(784, 200, 10)),
        "cifar10": federation("cifar10-rotate", share * 50_000, (3, 32, 32), 10, cnn, augment),
        "cifar100": federation("cifar100", share * 50_000, (3, 32, 32), 100, vgg8, augment),
    }


def federation(
    name: str,
    num_samples: float,
    image: tuple[int, ...],
    num_labels: int,
    model: Callable[[], nn.Module],
    augment: FlipAndCrop | None = None,
) -> tuple[Task, int]:
    """The task of that name on noise, with a sixth as many images to test on; and its C."""
    recipe = TASKS[name]
    generator = torch.Generator().manual_seed(0)

    def drawn(count: int) -> tuple[Tensor, Tensor]:
        pixels = torch.randint(256, (count, *image), generator=generator, dtype=torch.uint8)
        return pixels, torch.arange(count) % num_labels

    task = from_arrays(
        *drawn(round(num_samples)),
        *drawn(round(num_samples / 6)),
        model=model,
        num_clients=recipe.num_clients,
        num_clusters=recipe.num_clusters,
        transform="rotate" if num_labels == 10 else "label-groups",
        settings=recipe.settings,
        augment=augment,
    )
    return task, recipe.num_clusters


def synchronise(device: str) -> None:
    """Wait for the GPU, if there is one."""
    if device != "cpu":
        torch.cuda.synchronize()


def product_rate(device: str, size: int) -> float:
    """Flops a second of float32 matrix products as torch is set here: the best of ten."""
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    rates = []
    for _ in range(10):
        synchronise(device)
        begin = time.perf_counter()
        a @ b
        synchronise(device)
        rates.append(2 * size**3 / (time.perf_counter() - begin))
    return max(rates)


def flops_a_round(task: Task) -> int:
    """Flops of the base model's products in a round, forward and backward."""
    sampled = num_sampled(task.num_clients, task.settings.participation)
    shape = tuple(task.train[0].inputs.shape[1:])
    one = floor.products(task.model, shape, num_samples=1)
    return sampled * len(task.train[0]) * sum(product.flops for product in one)


def measure(task: Task, num_clusters: int, rounds: int, device: str, rate: float) -> dict[str, Any]:
    """A whole run of FLoRAL at 1%: seconds, and the share of the rate that its products make up."""

    def run(rounds: int) -> float:
        method = methods.FLoRAL(task.model, num_clusters=num_clusters, budget=0.01)
        history = train(task, method, device=device, rounds=rounds).history
        synchronise(device)
        return sum(entry.seconds for entry in history.rounds)

    run(1)  # loads libraries, chooses algorithms
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    training = run(rounds)
    total = time.perf_counter() - begin
    return {
        "rounds": rounds,
        "samples_a_client": len(task.train[0]),
        "seconds": total,
        "seconds_of_training": training,
        "seconds_a_round": training / rounds,
        "flops_a_round": flops_a_round(task),
        "share_of_the_rate": rounds * flops_a_round(task) / training / rate,
        "peak_bytes": 0 if device == "cpu" else torch.cuda.max_memory_allocated(),
    }


def where_time_goes(task: Task, num_clusters: int, device: str) -> tuple[dict[str, Any], str]:
    """Seconds and calls of the second round, on device and host; and the profiler's table."""
    method = methods.FLoRAL(task.model, num_clusters=num_clusters, budget=0.01)
    settings = task.settings.with_changes(rounds=2, evaluate_every=0)
    run = federated_rounds(task, method, settings, device=device)
    next(run)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device != "cpu" else [])
    synchronise(device)
    with profile(activities=activities) as profiled:
        begin = time.perf_counter()
        next(run)
        synchronise(device)
        wall = time.perf_counter() - begin
    averages = profiled.key_averages()
    launches = [event for event in averages if event.key in LAUNCHES + GRAPHS]
    kernels = [event for event in averages if event.device_type == DeviceType.CUDA]
    kernel_seconds = sum(event.self_device_time_total for event in kernels) / 1e6
    parts = {
        "seconds": wall,
        "kernels": sum(event.count for event in kernels),
        "seconds_in_kernels": kernel_seconds,
        "launches": sum(event.count for event in launches),
        "graph_launches": sum(event.count for event in launches if event.key in GRAPHS),
        "seconds_in_launches": sum(event.self_cpu_time_total for event in launches) / 1e6,
        "seconds_without_a_kernel": wall - kernel_seconds,
    }
    by = "self_cpu_time_total" if device == "cpu" else "self_device_time_total"
    return parts, averages.table(sort_by=by, row_limit=15, max_name_column_width=60)


def main(
    device: Annotated[str, typer.Option(help="cuda, or cpu to try the script")] = "cuda",
    rounds: Annotated[int, typer.Option(help="of the MNIST-shaped run", min=1)] = 500,
    cifar_rounds: Annotated[int, typer.Option(help="of the others, at most", min=1)] = 20,
    share: Annotated[float, typer.Option(help="of every client's samples", min=0, max=1)] = 1.0,
    out: Annotated[Path, typer.Option(help="where gpu.json goes")] = RESULTS,
) -> None:
    """Measure, print and save."""
    if device != "cpu" and not torch.cuda.is_available():
        print("This needs a GPU with CUDA. To try it without: --device cpu --rounds 2 --share 0.05")
        raise typer.Exit(1)
    rate = product_rate(device, size=512 if device == "cpu" else 8192)
    print(f"{device_name(torch.device(device))}: {rate / 1e9:,.0f} GFLOP/s in float32 products")
    results: dict[str, object] = {"flops_a_second_of_products": rate}
    for name, (task, num_clusters) in tasks(share).items():
        num_rounds = rounds if name == "mnist" else min(rounds, cifar_rounds)
        result = measure(task, num_clusters, num_rounds, device, rate)
        parts, table = where_time_goes(task, num_clusters, device)
        results[name] = {**result, "profile": parts, "table": table.splitlines()}
        print(
            f"\n{name}: {num_rounds} rounds in {result['seconds']:.1f} s, of which training "
            f"{result['seconds_of_training']:.1f} s at {100 * result['share_of_the_rate']:.1f}% of that rate"
        )
        print(", ".join(f"{key.replace('_', ' ')} {value:.4g}" for key, value in parts.items()))
        print(table)
    print(save("gpu", results, out, device=device_name(torch.device(device))))


if __name__ == "__main__":
    typer.run(main)
