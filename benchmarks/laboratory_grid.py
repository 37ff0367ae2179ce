"""The grid behind the laboratory's page: C x rho x data fraction x method on turned digits.

    python benchmarks/laboratory_grid.py

It takes some minutes on one core. Every finished line of the grid is saved at once. Called again, the script
goes on where it was interrupted.
"""

import json
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from floral_lite import Run, methods, tasks, train_runs
from floral_lite.experiments.provenance import provenance
from floral_lite.files import write_whole

OUT = Path(__file__).parents[1] / "book" / "results" / "laboratory.json"
TASK = "digits-rotate"
SEEDS = (1, 2, 3)
FRACTIONS = (0.25, 0.5, 1.0)
CLUSTERS = (1, 2, 4, 8)
# of these small layers' 1%, 10% and 20% come adaptors of rank 1, 2 and 4; with 40% some runs diverge
BUDGETS = (0.01, 0.1, 0.2)


def grid() -> Iterator[tuple[float, str, dict[str, Any]]]:
    """Data fraction, method and its options; the options have C and rho where the method knows them."""
    for fraction in FRACTIONS:
        yield fraction, "fedavg", {}
        for budget in BUDGETS:
            yield fraction, "local-adaptor", {"budget": budget}
        for num_clusters, routing in product(CLUSTERS, ("learned", "optimal")):
            routed = {"num_clusters": num_clusters, "routing": routing}
            yield fraction, "ensemble", routed
            for budget in BUDGETS:
                yield fraction, "floral", {**routed, "budget": budget}


def compute(fraction: float, method: str, options: dict[str, Any], rounds: int, every: int) -> dict[str, Any]:
    """One line of the grid, all seeds side by side.

    Returns:
        What was asked for; the evaluated rounds; the accuracy and the test loss, a list a seed, of these
        rounds; what a client holds and sends; seconds.
    """
    begin = time.perf_counter()
    loaded = tasks.load_seeds(TASK, SEEDS, data_fraction=fraction)
    runs = [
        Run(task, methods.make(method, task.model, **options), seed)
        for task, seed in zip(loaded, SEEDS, strict=True)
    ]
    settings = loaded[0].settings.with_changes(rounds=rounds, evaluate_every=every)
    histories = [federation.history for federation in train_runs(runs, settings)]
    evaluated = [history.evaluated for history in histories]
    return {
        "fraction": fraction,
        "method": method,
        "options": options,
        "round": [entry.round for entry in evaluated[0]],
        "accuracy": [[round(entry.test_accuracy or 0.0, 5) for entry in seed] for seed in evaluated],
        "loss": [[round(entry.test_loss or 0.0, 5) for entry in seed] for seed in evaluated],
        "parameters": histories[0].parameters,
        "bytes_up": histories[0].bytes_up,
        "seconds": round(time.perf_counter() - begin, 1),
    }


def main(
    out: Annotated[Path, typer.Option(help="the file of the grid")] = OUT,
    rounds: Annotated[int, typer.Option(help="communication rounds", min=1)] = 80,
    every: Annotated[int, typer.Option(help="rounds between two evaluations", min=1)] = 8,
) -> None:
    """Compute what is missing, and save it line by line."""
    torch.set_num_threads(1)
    command = f"python benchmarks/laboratory_grid.py --rounds {rounds} --every {every}"
    asked = {"task": TASK, "seeds": list(SEEDS), "rounds": rounds}
    made = provenance(torch.device("cpu"), command)
    content: dict[str, Any] = {**asked, "made": made, "runs": []}
    if out.exists():
        content = json.loads(out.read_text(encoding="utf-8"))
        if {key: content[key] for key in asked} != asked or content["made"]["command"] != command:
            raise typer.BadParameter(f"{out} is of another grid: move it away")
    done = [(run["fraction"], run["method"], run["options"]) for run in content["runs"]]
    for line in grid():
        if line not in done:
            content["runs"].append(compute(*line, rounds, every))
            write_whole(out, as_lines(content).encode())
            print(*line, f"{content['runs'][-1]['seconds']:.0f} s", flush=True)


def as_lines(content: dict[str, Any]) -> str:
    """JSON with a line for each run."""
    first = "".join(f"{json.dumps(key)}: {json.dumps(content[key])},\n" for key in content if key != "runs")
    runs = ",\n".join(json.dumps(run) for run in content["runs"])
    return f'{{\n{first}"runs": [\n{runs}\n]\n}}\n'


if __name__ == "__main__":
    typer.run(main)
