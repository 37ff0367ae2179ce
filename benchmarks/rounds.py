"""Seconds a round: the engine, the loop, the naive loop of naive.py, and the floor of floor.py.

    python benchmarks/rounds.py --threads 2

The paper's MNIST and CIFAR-10 federations, and a small convolutional net on images of 8 by 8, with random
pixels. After a round that is not counted, every repeat times all methods, and all who compute them, one after
another, one round each. Ratios are of times from the same repeat. For CIFAR-10 every client has only a part
of its 2,500 samples, so that a round does not take a minute.
"""

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import floor
import pandas as pd
import shapes
import torch
import typer
from measure import RESULTS, Record, interleaved, ratio, save_each
from naive import Ensemble, naive_rounds
from torch import nn

from floral_lite import Floral, Task, methods
from floral_lite.devices import keep_memory
from floral_lite.federation import federated_rounds
from floral_lite.federation.loop import num_sampled
from floral_lite.federation.rounds import Engine

NUM_CLUSTERS = 4
ENGINES: dict[str, Engine] = {"engine": "fast", "loop": "loop"}
RATIOS = (("naive", "engine"), ("loop", "engine"), ("engine", "floor"))

# label: the method's name, its options, and how naive.py makes the server's model of the base
METHODS: dict[str, tuple[str, dict[str, float], Callable[[nn.Module], nn.Module]]] = {
    "FedAvg": ("fedavg", {}, lambda base: base),
    "FLoRAL 1%": (
        *("floral", {"budget": 0.01, "num_clusters": NUM_CLUSTERS}),
        lambda base: Floral(base, budget=0.01, num_clusters=NUM_CLUSTERS),
    ),
    "FLoRAL 10%": (
        *("floral", {"budget": 0.1, "num_clusters": NUM_CLUSTERS}),
        lambda base: Floral(base, budget=0.1, num_clusters=NUM_CLUSTERS),
    ),
    "Ensemble": ("ensemble", {"num_clusters": NUM_CLUSTERS}, lambda base: Ensemble(base, NUM_CLUSTERS)),
}


def contestants(task: Task, label: str, repeats: int) -> dict[str, Callable[[], object]]:
    """One round of a method, by who computes it."""
    name, options, build = METHODS[label]
    rounds: dict[str, Iterator[object]] = {"naive": naive_rounds(task, build)}
    settings = task.settings.with_changes(rounds=repeats + 1, evaluate_every=0)
    for contestant, engine in ENGINES.items():
        method = methods.make(name, task.model, **options)
        rounds[contestant] = federated_rounds(task, method, settings, engine=engine)
    return {contestant: partial(next, federation) for contestant, federation in rounds.items()}


def measure(task: Task, products: list[floor.Product], repeats: int) -> dict[str, Record]:
    """Seconds a round of every method, by who computes it, and their ratios."""
    actions = {
        (label, contestant): action
        for label in METHODS
        for contestant, action in contestants(task, label, repeats).items()
    }
    actions["", "floor"] = partial(floor.run, products)
    interleaved(actions, 1)  # the first round builds, loads and fills caches
    times = interleaved(actions, repeats)
    measured = {}
    for label in METHODS:
        own = {who: taken for (of, who), taken in times.items() if of in (label, "")}
        measured[label] = {
            "seconds": own,
            "median": {who: statistics.median(taken) for who, taken in own.items()},
            "ratios": {
                **{f"{above} / {below}": ratio(own[above], own[below]) for above, below in RATIOS},
                "engine / FedAvg": ratio(own["engine"], times["FedAvg", "engine"]),
            },
        }
    return measured


def measure_all(tasks: dict[str, Task], repeats: int) -> Iterator[Record]:
    """All methods on all tasks, a record each, as the tasks are done."""
    for title, task in tasks.items():
        settings, shard = task.settings, task.train[0]
        sampled = num_sampled(task.num_clients, settings.participation)
        products = floor.fastest(task.model, tuple(shard.inputs.shape[1:]), sampled * len(shard))
        for label, record in measure(task, products, repeats).items():
            about = {
                "task": title,
                "method": label,
                "clients_a_round": sampled,
                "samples_a_client": len(shard),
                "batch_size": settings.batch_size,
            }
            yield about | record


def table(records: list[Record]) -> pd.DataFrame:
    """A row a record: milliseconds a round, then the ratios."""
    rows = [
        {key: record[key] for key in ("task", "method")}
        | {f"{contestant} (ms)": 1000 * value for contestant, value in record["median"].items()}
        | record["ratios"]
        for record in records
    ]
    made: pd.DataFrame = pd.DataFrame(rows)
    return made


def main(
    threads: Annotated[int, typer.Option(help="torch's threads", min=1)] = 2,
    repeats: Annotated[int, typer.Option(help="rounds that are timed", min=1)] = 5,
    cifar_samples: Annotated[int, typer.Option(help="of a client's 2,500, for CIFAR-10", min=1)] = 128,
    out: Annotated[Path, typer.Option(help="where rounds.json goes")] = RESULTS,
) -> None:
    """Measure, print and save."""
    torch.set_num_threads(threads)
    keep_memory()
    tasks = {
        "MNIST": shapes.mnist(),
        "8 x 8, convolutional": shapes.digits(),
        f"CIFAR-10, {cifar_samples} of 2,500 samples a client": shapes.cifar10(cifar_samples),
    }
    save_each("rounds", measure_all(tasks, repeats), table, out)


if __name__ == "__main__":
    typer.run(main)
