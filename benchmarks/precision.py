"""What products in fewer bits do to the accuracy of FLoRAL(1%) with optimal routing, and to the seconds.

    python benchmarks/precision.py mnist-rotate --device cuda --data data

All seeds are trained side by side.
"""

import statistics
import time
from pathlib import Path
from typing import Annotated

import typer
from measure import RESULTS, save

from floral_lite import methods, tasks
from floral_lite.devices import device_name, find_device
from floral_lite.federation import Run
from floral_lite.federation.train import train_runs


def main(
    task: Annotated[str, typer.Argument(help="its name")] = "mnist-rotate",
    device: Annotated[str, typer.Option(help="cpu, cuda, mps or auto")] = "cuda",
    seeds: Annotated[int, typer.Option(help="trained side by side: 1, 2, ...", min=1)] = 4,
    rounds: Annotated[int | None, typer.Option(help="the task's own if not given", min=1)] = None,
    data: Annotated[Path | None, typer.Option(help="folder of downloaded image sets")] = None,
    out: Annotated[Path, typer.Option(help="where the JSON file goes")] = RESULTS,
) -> None:
    """Train in each precision, print and save."""
    place = find_device(device)
    loaded = tasks.load_seeds(task, seeds=range(1, seeds + 1), data=data)
    num_clusters = tasks.TASKS[task].num_clusters
    results = {}
    for precision in ("float32", "tf32", "bfloat16") if place.type == "cuda" else ("float32", "bfloat16"):
        runs = [
            Run(one, methods.FLoRAL(one.model, num_clusters, budget=0.01, routing="optimal"), seed)
            for seed, one in enumerate(loaded, start=1)
        ]
        settings = loaded[0].settings.with_changes(precision=precision, evaluate_every=10**9)
        settings = settings if rounds is None else settings.with_changes(rounds=rounds)
        begin = time.perf_counter()
        federations = train_runs(runs, settings, device=device)
        seconds = time.perf_counter() - begin
        accuracies = [federation.history.rounds[-1].test_accuracy for federation in federations]
        results[precision] = {"accuracies": accuracies, "seconds": seconds, "rounds": settings.rounds}
        mean = statistics.fmean(accuracy for accuracy in accuracies if accuracy is not None)
        print(f"{task}, {precision}: accuracy {100 * mean:.2f}%, {seconds:.1f} s for {seeds} seeds")
    print(save(f"precision-{task}", results, out, device=device_name(place)))


if __name__ == "__main__":
    typer.run(main)
