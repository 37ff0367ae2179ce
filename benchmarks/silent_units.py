"""Batch-NorA and affine norm adaptors, with and without units that are zero in a whole batch.

    python benchmarks/silent_units.py --out book/results

The norms of the task `synthetic-mlp-norm` stand behind its ReLU and see batches of five, so a unit may be
zero in a whole batch. Larger batches, or norms before the ReLU, have few such units or none. Writes
silent-units.json: for each of these three cases, each rule and each seed, the test loss at the end, or the
round in which a client's loss stopped being a number.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from measure import RESULTS, save
from torch import nn

from floral_lite import Run, methods, tasks
from floral_lite.adaptors import Norms
from floral_lite.errors import DivergenceError
from floral_lite.federation import Federation, Settings, stacked_rounds
from floral_lite.models import seeded

TASK = "synthetic-mlp-norm"
# before or after the ReLU, and samples in a batch
CASES = (("after", 5), ("after", 16), ("before", 5))
RULES: tuple[Norms, ...] = ("affine", "batch_nora")


def norm_first() -> nn.Module:
    """The task's net with the norm before the ReLU."""
    return nn.Sequential(nn.Linear(10, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 1))


def make_run(seed: int, place: str, rule: Norms) -> Run:
    """FLoRAL as the table `batch-nora` has it, with optimal routing and the authors' initialisation."""
    task = tasks.load(TASK, seed=seed)
    if place == "before":
        task = replace(task, model=seeded(norm_first, seed))
    method = methods.FLoRAL(task.model, 4, budget=0.01, routing="optimal", init="authors", norms=rule)
    return Run(task, method, seed)


def ends(runs: Sequence[Run], settings: Settings) -> Iterator[dict[str, object]]:
    """Each run's seed, last test loss, and the round in which it diverged: one of the latter two is None."""
    done = 0
    federations: list[Federation] = []
    try:
        for federations in stacked_rounds(runs, settings):
            done = len(federations[0].history.rounds)
    except DivergenceError:
        if len(runs) > 1:  # one of them diverged, but the error does not say which
            for run in runs:
                yield from ends([run], settings)
        else:
            yield {"seed": runs[0].seed, "test loss": None, "diverged in": done + 1}
        return
    for run, federation in zip(runs, federations, strict=True):
        yield {"seed": run.seed, "test loss": federation.history.rounds[-1].test_loss, "diverged in": None}


def main(
    seeds: Annotated[int, typer.Option(help="1, 2, ... for each case.")] = 4,
    rounds: Annotated[int, typer.Option(help="Of each run.")] = 40,
    out: Annotated[Path, typer.Option(help="Folder of the JSON file.")] = RESULTS,
) -> None:
    """Train all cases by both rules."""
    results = []
    for place, batch_size in CASES:
        for rule in RULES:
            runs = [make_run(seed, place, rule) for seed in range(1, seeds + 1)]
            settings = runs[0].task.settings.with_changes(
                rounds=rounds, batch_size=batch_size, evaluate_every=rounds
            )
            for end in ends(runs, settings):
                results.append({"norm": place, "batch": batch_size, "rule": rule, **end})
    print(save("silent-units", results, out, task=TASK, rounds=rounds))


if __name__ == "__main__":
    typer.run(main)
