"""How well do methods find the parameters that made the synthetic linear task, and what does it depend on?

    python benchmarks/recovery.py --out book/results

Writes recovery.json with two kinds of lines. "bend" changes the scale alpha of the clusters' differences and
a client's number of training samples, for four methods. "clusters" is FLoRAL with optimal routing on two,
three and four clusters. Each line has a number for each seed; see `found`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from measure import RESULTS, save
from torch import Tensor, nn

from floral_lite import Run, Task, methods, tasks, train_runs
from floral_lite.data import Truth, draw_truth
from floral_lite.federation import Federation, Shard
from floral_lite.report import recovered
from floral_lite.seeds import stream

SIZES, RANK = (10, 3), 1
ALPHAS = (0.0, 0.5, 1.0, 2.0, 4.0)
SAMPLES = (4, 6, 12)
CLUSTERS = (2, 3, 4)
USUAL_ALPHA, USUAL_SAMPLES = 2.0, 6  # the task's own

Make = Callable[[nn.Module], methods.Method]
METHODS: dict[str, Make] = {
    "FedAvg": methods.FedAvg,
    "Local Adaptor": lambda model: methods.LocalAdaptor(model, rank=RANK),
    "FLoRAL, learned": lambda model: methods.FLoRAL(model, 2, rank=RANK),
    "FLoRAL, optimal": lambda model: methods.FLoRAL(model, 2, rank=RANK, routing="optimal"),
}


def make_task(seed: int, num_clusters: int, alpha: float, samples: int) -> tuple[Task, Truth]:
    """The synthetic linear task with another scale and other numbers of samples, and what made it."""
    task = tasks.load("synthetic-linear", seed=seed, num_clients=5 * num_clusters, num_clusters=num_clusters)
    truth = draw_truth(SIZES, num_clusters, RANK, alpha, stream(seed, "maps"))
    shards = []
    for client, cluster in enumerate(task.clusters.tolist()):
        inputs = torch.randn(samples + 2, SIZES[0], generator=stream(seed, "samples", client))
        shards.append(Shard(inputs, truth.targets(inputs, cluster)))
    train = [Shard(*(tensor[:samples] for tensor in shard)) for shard in shards]
    test = [Shard(*(tensor[samples:] for tensor in shard)) for shard in shards]
    return replace(task, train=train, test=test), truth


def distance(found: Tensor, true: Tensor) -> float:
    """The Frobenius norm of the difference over that of the truth."""
    return float((found - true).norm() / true.norm())


def found(run: Run, federation: Federation, truth: Truth) -> dict[str, float]:
    """Relative errors of the models, of the base, and of the base after centering; the Rand index."""
    state, clusters = federation.state, run.task.clusters
    num_clients = len(clusters)
    learned = [run.method.personalise(state.of_client(k))["weight"] for k in range(num_clients)]
    models = torch.stack(learned)
    numbers = {
        "models": distance(models, truth.maps()[clusters]),
        "base": distance(state.shared["weight"], truth.base),
        # all clients have equally many samples, so the centered base is the mean of their models
        "centered base": distance(models.mean(dim=0), truth.maps().mean(dim=0)),
    }
    if isinstance(run.method, methods.FLoRAL):
        mixtures = run.method.mixtures(state.private, num_clients)
        numbers["Rand index"] = recovered(mixtures.tolist(), clusters.tolist())
    return numbers


def measure(
    make: Make, cases: Sequence[tuple[int, float, int]], seeds: Sequence[int], rounds: int
) -> list[dict[str, list[float]]]:
    """Train all seeds of all cases (clusters, alpha, samples) side by side; for each case what was found."""
    made = [(seed, *make_task(seed, *case)) for case in cases for seed in seeds]
    runs = [Run(task, make(task.model), seed) for seed, task, _ in made]
    settings = runs[0].task.settings.with_changes(rounds=rounds, evaluate_every=0)
    numbers = [
        found(run, federation, truth)
        for run, federation, (_, _, truth) in zip(runs, train_runs(runs, settings), made, strict=True)
    ]
    of_cases = [numbers[place : place + len(seeds)] for place in range(0, len(numbers), len(seeds))]
    return [{name: [round(one[name], 6) for one in case] for name in case[0]} for case in of_cases]


def main(
    seeds: Annotated[int, typer.Option(help="1, 2, ... for each case.")] = 4,
    rounds: Annotated[int, typer.Option(help="Of the bent tasks.")] = 200,
    longer: Annotated[int, typer.Option(help="Rounds for two, three and four clusters.")] = 1000,
    out: Annotated[Path, typer.Option(help="Folder of the JSON file.")] = RESULTS,
) -> None:
    """Train on bent tasks, and compare what was learned with what made the data."""
    torch.set_num_threads(1)
    each = range(1, seeds + 1)
    results: list[dict[str, object]] = []
    for samples in SAMPLES:
        for name, make in METHODS.items():
            measured = measure(make, [(2, alpha, samples) for alpha in ALPHAS], each, rounds)
            for alpha, numbers in zip(ALPHAS, measured, strict=True):
                results.append(
                    {"kind": "bend", "method": name, "alpha": alpha, "samples": samples, **numbers}
                )
    for num in CLUSTERS:
        (numbers,) = measure(
            partial(methods.FLoRAL, num_clusters=num, rank=RANK, routing="optimal"),
            [(num, USUAL_ALPHA, USUAL_SAMPLES)],
            each,
            longer,
        )
        results.append({"kind": "clusters", "clusters": num, **numbers})
    more = {"seeds": list(each), "rounds": rounds, "longer": longer}
    print(save("recovery", results, out, **more))


if __name__ == "__main__":
    typer.run(main)
