"""What rounder arithmetic costs in accuracy and what it saves in seconds, with FLoRAL and optimal routing.

    python benchmarks/precision.py digits-rotate digits-label-shift --device cuda

Writes precision-TASK.json: for each precision the final accuracy of every seed, in per cent, and the seconds
a round of one seed. The seeds are trained side by side.
"""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from measure import RESULTS, save

from floral_lite import Run, methods, train_runs
from floral_lite.devices import device_name, find_device
from floral_lite.tasks import load_seeds


def main(
    names: Annotated[list[str], typer.Argument(help="tasks")],
    seeds: Annotated[int, typer.Option(help="how many: 1, 2, ...", min=1)] = 4,
    rounds: Annotated[int | None, typer.Option(help="the task's own if none")] = None,
    budget: Annotated[float, typer.Option(help="of the adaptors, rho")] = 0.1,
    data: Annotated[Path | None, typer.Option(help="folder of downloaded image sets")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps")] = "cpu",
    out: Annotated[Path, typer.Option(help="folder of the JSON files")] = RESULTS,
) -> None:
    """Measure, print and save, task by task."""
    where = find_device(device)
    precisions = ["float32", "bfloat16", *(["tf32"] if where.type == "cuda" else [])]
    for name in names:
        all_tasks = load_seeds(name, list(range(1, seeds + 1)), data=data)
        own = all_tasks[0].settings
        num_clusters: Any = all_tasks[0].details["task_clusters"]
        results = {}
        for precision in precisions:
            length = rounds or own.rounds
            settings = own.with_changes(rounds=length, evaluate_every=length, precision=precision)
            runs = [
                Run(task, methods.FLoRAL(task.model, num_clusters, budget=budget, routing="optimal"), seed)
                for seed, task in enumerate(all_tasks, start=1)
            ]
            histories = [one.history for one in train_runs(runs, settings, device=device)]
            accuracy = [100 * (history.rounds[-1].test_accuracy or 0) for history in histories]
            # the median, since a stack's first rounds also set things up
            seconds = sorted(entry.seconds for entry in histories[0].rounds)[length // 2]
            results[precision] = {"accuracy": accuracy, "seconds_a_round": seconds}
            told = torch.tensor(accuracy)
            spread = float(told.std()) if seeds > 1 else 0.0
            print(
                f"{name} {precision}: {told.mean():.2f} +- {spread:.2f}, {1000 * seconds:.2f} ms", flush=True
            )
        save(f"precision-{name}", results, out, device=device_name(where), rounds=length, budget=budget)


if __name__ == "__main__":
    typer.run(main)
