"""Seconds a round of every method, and of every optimizer of the clients: the engine and the loop.

    python benchmarks/every_method.py --threads 2

The paper's MNIST federation with random pixels. After a few rounds that are not counted, every repeat times
the two one after another, one round each. Ratios are of times from the same repeat. One below 1 would say
that nothing is gained by training clients side by side.
"""

import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import shapes
import torch
import typer
from measure import RESULTS, Record, interleaved, ratio, save_each

from floral_lite import Task, methods
from floral_lite.devices import keep_memory
from floral_lite.federation import federated_rounds
from floral_lite.federation.rounds import Engine

NUM_CLUSTERS = 4
# rounds until the memory of 300 private models, which a round copies, is not asked of the system any more
WARM_UP = 4
ENGINES: tuple[Engine, ...] = ("fast", "loop")
# the network has no norms that a client could keep
NAMES = [name for name in methods.METHODS if name != "fedbn"]
OPTIMIZERS: dict[str, dict[str, float]] = {
    "momentum": {"momentum": 0.9},
    "momentum and weight decay": {"momentum": 0.9, "weight_decay": 1e-4},
    "clipping": {"clip_norm": 1.0},
}
# method, its options, and the optimizer's name
ROWS: list[tuple[str, dict[str, Any], str]] = [
    *((name, {}, "plain SGD") for name in NAMES),
    ("ensemble", {"mix": "outputs"}, "plain SGD"),
    *((name, {}, optimizer) for name in ("fedavg", "floral", "ensemble") for optimizer in OPTIMIZERS),
]


def measure(task: Task, name: str, options: dict[str, Any], optimizer: str, repeats: int) -> Record:
    """Seconds a round of one method, by engine, and the loop's as a multiple of the engine's."""
    if "num_clusters" in methods.option_names(name):
        options = {**options, "num_clusters": NUM_CLUSTERS}
    settings = task.settings.with_changes(
        rounds=repeats + WARM_UP, evaluate_every=0, **OPTIMIZERS.get(optimizer, {})
    )
    actions = {
        engine: partial(
            next,
            federated_rounds(task, methods.make(name, task.model, **options), settings, engine=engine),
        )
        for engine in ENGINES
    }
    interleaved(actions, WARM_UP)
    times = interleaved(actions, repeats)
    return {
        "method": f"{name} of {options['mix']}" if "mix" in options else name,
        "optimizer": optimizer,
        "seconds": times,
        "median": {engine: statistics.median(values) for engine, values in times.items()},
        "loop / engine": ratio(times["loop"], times["fast"]),
    }


def measure_all(task: Task, repeats: int) -> Iterator[Record]:
    """All rows, a record each, as they come."""
    for name, options, optimizer in ROWS:
        yield measure(task, name, options, optimizer, repeats)


def table(records: list[Record]) -> pd.DataFrame:
    """A row a record: milliseconds a round, and the ratio."""
    rows = [
        {
            "method": record["method"],
            "optimizer": record["optimizer"],
            **{f"{engine} (ms)": 1000 * value for engine, value in record["median"].items()},
            "loop / engine": record["loop / engine"],
        }
        for record in records
    ]
    made: pd.DataFrame = pd.DataFrame(rows)
    return made


def main(
    threads: Annotated[int, typer.Option(help="torch's threads", min=1)] = 2,
    repeats: Annotated[int, typer.Option(help="rounds that are timed", min=1)] = 5,
    out: Annotated[Path, typer.Option(help="where every_method.json goes")] = RESULTS,
) -> None:
    """Measure, print and save."""
    torch.set_num_threads(threads)
    keep_memory()
    save_each("every_method", measure_all(shapes.mnist(), repeats), table, out)


if __name__ == "__main__":
    typer.run(main)
