"""How many adaptors, and how large? What a federation could know, and what is true.

    python benchmarks/choosing.py digits-rotate adaptors --out book/results

Every client keeps a fifth of its training samples for validation. Of the three parts "adaptors" changes C,
"budgets" changes rho as well, "counts" trains eight adaptors where there are one, two or three clusters, or
four and less data. Writes choosing-TASK-PART.json: for each federation the validation loss, the effective
number of adaptors, the sizes, and the test accuracy, which no rule may look at.
"""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
from measure import RESULTS, save

from floral_lite import Run, Task, methods, tasks, train_runs
from floral_lite.federation import Federation, Shard
from floral_lite.federation.local import evaluate
from floral_lite.report import effective_number

NUM_ADAPTORS = (1, 2, 3, 4, 6, 8)
# true clusters, share of the data, adaptors C, budgets rho
CASES = {
    "adaptors": [(4, 1.0, C, 0.1) for C in NUM_ADAPTORS],
    "budgets": [(4, 1.0, C, rho) for C, rho in itertools.product((1, 2, 4, 8), (0.05, 0.3))],
    "counts": [(1, 1.0, 8, 0.1), (2, 1.0, 8, 0.1), (3, 1.0, 8, 0.1), (4, 0.5, 8, 0.1), (4, 0.25, 8, 0.1)],
}
SEEDS = {"adaptors": 6, "budgets": 2, "counts": 4}
VALIDATION = 5  # one sample in so many


def split(task: Task) -> tuple[Task, list[Shard]]:
    """The task without every client's last samples, and these samples."""
    kept, away = [], []
    for shard in task.train:
        first = len(shard) - len(shard) // VALIDATION
        kept.append(Shard(shard.inputs[:first], shard.targets[:first]))
        away.append(Shard(shard.inputs[first:], shard.targets[first:]))
    return replace(task, train=kept), away


def validation_loss(run: Run, federation: Federation, away: list[Shard]) -> float:
    """The mean over clients, weighted by their samples."""
    losses = [
        evaluate(run.task, run.method, federation.state.of_client(client), shard).loss * len(shard)
        for client, shard in enumerate(away)
    ]
    return sum(losses) / sum(map(len, away))


def main(
    task: str,
    part: Literal["adaptors", "budgets", "counts"],
    first: Annotated[int, typer.Option(help="The first seed.")] = 10,
    rounds: Annotated[int | None, typer.Option(help="The task's own if not given.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the JSON file.")] = RESULTS,
) -> None:
    """Train the federations of a part."""
    torch.set_num_threads(1)
    seeds, results = range(first, first + SEEDS[part]), []
    for clusters, fraction, num_adaptors, rho in CASES[part]:
        loaded = [
            split(one) for one in tasks.load_seeds(task, seeds, num_clusters=clusters, data_fraction=fraction)
        ]
        runs = [
            Run(one, methods.FLoRAL(one.model, num_adaptors, budget=rho), seed)
            for seed, (one, _) in zip(seeds, loaded, strict=True)
        ]
        settings = loaded[0][0].settings.with_changes(evaluate_every=1000)
        trained = train_runs(runs, settings if rounds is None else settings.with_changes(rounds=rounds))
        for run, (_, away), federation in zip(runs, loaded, trained, strict=True):
            history = federation.history
            last = history.rounds[-1]
            line = {
                "clusters": clusters,
                "fraction": fraction,
                "C": num_adaptors,
                "rho": rho,
                "seed": run.seed,
            }
            line["validation loss"] = round(validation_loss(run, federation, away), 5)
            line["effective"] = round(float(effective_number(torch.tensor(last.mixture))), 4)
            line["accuracy"] = round(last.test_accuracy or 0.0, 5)
            results.append({**line, "added": history.parameters["added"], "bytes_up": history.bytes_up})
    print(save(f"choosing-{task}-{part}", results, out, task=task))


if __name__ == "__main__":
    typer.run(main)
