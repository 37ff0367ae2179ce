"""Is routing="clustered" ever worse than learned routing? Federations whose clusters are not as it hopes.

    python benchmarks/asking.py --out book/results

Clustered routing looks for clusters among the clients' first gradients. Here forty clients of the digits
have clusters that are absent, unequal (then they are 22), soft, or fewer or more than the adaptors. In the
synthetic networks few clients have few samples. Every cell is FLoRAL with learned and with clustered routing
on the same seeds.
A cell that is in asking.json is not run again.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from measure import RESULTS, save, saved
from sklearn.metrics import adjusted_rand_score

from floral_lite import Run, Shard, Task, methods, tasks, train_runs
from floral_lite.clustering import find_clusters
from floral_lite.federation.asking import first_gradients
from floral_lite.methods.routed import Routing
from floral_lite.report import recovered

RULES: tuple[Routing, ...] = ("learned", "clustered")
DIGITS = ("digits-label-shift", "digits-rotate")
SYNTHETIC = ("synthetic-mlp",)


def few(task: Task, sizes: Sequence[int]) -> Task:
    """The first clients of each cluster, as many as its size."""
    of_cluster = [torch.nonzero(task.clusters == c).flatten()[:size] for c, size in enumerate(sizes)]
    kept = torch.cat(of_cluster).tolist()
    return replace(
        task,
        train=[task.train[k] for k in kept],
        test=[task.test[k] for k in kept],
        clusters=task.clusters[kept],
    )


def soft(task: Task) -> Task:
    """Every client has half of its own data, and half of the next client's, who is in the next cluster."""

    def halves(shards: Sequence[Shard]) -> list[Shard]:
        pairs = zip(shards, [*shards[1:], shards[0]], strict=True)
        return [Shard(*(torch.cat([a[::2], b[::2]]) for a, b in zip(*pair, strict=True))) for pair in pairs]

    return replace(task, train=halves(task.train), test=halves(task.test))


# how the federation is made, how many clusters it has, and how many adaptors
FEDERATIONS: dict[str, tuple[Callable[[Task], Task], int, int]] = {
    "as it is": (lambda task: task, 4, 4),
    "nobody differs": (lambda task: task, 1, 4),
    "unequal": (lambda task: few(task, (10, 6, 4, 2)), 4, 4),
    "soft": (soft, 4, 4),
    "two adaptors": (lambda task: task, 4, 2),
    "eight adaptors": (lambda task: task, 4, 8),
}


CELLS = [
    *product(DIGITS, FEDERATIONS, RULES),
    *product(SYNTHETIC, ["as it is"], RULES),
]


def ended(runs: Sequence[Run], rounds: int) -> list[dict[str, Any]]:
    """Where each seed ends: its score, and how far its routers agree with the true clusters."""
    settings = runs[0].task.settings.with_changes(rounds=rounds, evaluate_every=rounds)
    entries = []
    for run, federation in zip(runs, train_runs(runs, settings), strict=True):
        last = federation.history.rounds[-1]
        assert last.mixture is not None
        found = find_clusters(first_gradients(run.task)[0], len(last.mixture[0]), run.seed)
        assert found is not None
        entries.append(
            {
                "seed": run.seed,
                "score": last.test_accuracy if run.task.is_classification else last.test_loss,
                "rand": recovered(last.mixture, run.task.clusters.tolist()),
                "effect": found.effect,
                "rand of the first": float(adjusted_rand_score(run.task.clusters, found.clusters)),
            }
        )
    return entries


def digits(
    name: str, federation: str, rule: Routing, seeds: Sequence[int], rounds: int
) -> list[dict[str, Any]]:
    """All seeds of one of the federations, in one stack."""
    change, true_clusters, adaptors = FEDERATIONS[federation]
    some = [change(tasks.load(name, seed=seed, num_clients=40, num_clusters=true_clusters)) for seed in seeds]
    made = [methods.FLoRAL(task.model, adaptors, budget=0.1, routing=rule) for task in some]
    return ended([Run(*run) for run in zip(some, made, seeds, strict=True)], rounds)


def synthetic(name: str, rule: Routing, seeds: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """A synthetic task as it is; each seed has true weights of its own, and so runs alone."""
    entries = []
    for seed in seeds:
        task = tasks.load(name, seed=seed)
        method = methods.FLoRAL(task.model, num_clusters=4, rank=1, routing=rule)
        entries += ended([Run(task, method, seed)], rounds)
    return entries


def main(
    num_seeds: Annotated[int, typer.Option(help="seeds 1, 2, ...", min=1)] = 4,
    rounds: Annotated[int, typer.Option(help="of the digits", min=2)] = 100,
    synthetic_rounds: Annotated[int, typer.Option(help="of the synthetic tasks", min=2)] = 300,
    out: Annotated[Path, typer.Option(help="where asking.json goes")] = RESULTS,
) -> None:
    """Run the cells that are missing, and save after each."""
    torch.set_num_threads(1)
    path, records = out / "asking.json", saved("asking", out)
    done = {(record["task"], record["federation"], record["rule"]) for record in records}
    seeds = range(1, num_seeds + 1)
    for task, federation, rule in CELLS:
        if (task, federation, rule) in done:
            continue
        if task in DIGITS:
            runs = digits(task, federation, rule, seeds, rounds)
        else:
            runs = synthetic(task, rule, seeds, synthetic_rounds)
        records.append({"task": task, "federation": federation, "rule": rule, "runs": runs})
        path = save("asking", records, out, seeds=list(seeds))
        print(f"{task}, {federation}, {rule}: {[round(run['score'], 3) for run in runs]}")
    print(path)


if __name__ == "__main__":
    typer.run(main)
