"""What a server does that takes the average of the base, but goes a part of the way to that of the adaptors.

    python benchmarks/server_rate.py --seeds 4 --data DIR --out book/results

Algorithm 1 takes both averages as they are. The authors' public code (zeligism/FLoRAL, `get_param_groups`)
gives the server's optimizer the rate 1 for the base and the *clients'* learning rate for the adaptors: 0.1 on
MNIST. Writes server-rate.json: the test accuracy of FLoRAL with optimal routing after all rounds. A case that
is there already is not run again.
"""

import json
from pathlib import Path
from typing import Annotated

import torch
import typer
from measure import RESULTS, save

from floral_lite import Run, methods, tasks, train_runs
from floral_lite.roles import Roles

TASKS = tuple(f"mnist-{kind}{part}" for part in ("", "-reduced") for kind in ("rotate", "label-shift"))
BUDGETS = (0.01, 0.1)


class PartOfTheWay(methods.FLoRAL):
    """FLoRAL whose adaptors go a share of the way that their clients went."""

    remembers_start = True
    share = 1.0

    def finish(self, client: Roles, start: Roles) -> Roles:
        """All clients started alike, so that their average goes that share of the way to the usual one."""
        # a + eta (a^k - a)
        moved = {
            name: torch.lerp(start.clustered[name], tensor, self.share)
            for name, tensor in client.clustered.items()
        }
        return client._replace(clustered=moved)


def main(
    seeds: Annotated[int, typer.Option(help="1, 2, ...")] = 4,
    data: Annotated[Path | None, typer.Option(help="folder of downloaded image sets")] = None,
    rounds: Annotated[int | None, typer.Option(help="the task's own if none")] = None,
    out: Annotated[Path, typer.Option(help="where server-rate.json goes")] = RESULTS,
) -> None:
    """Run what is missing, and save after each run."""
    torch.set_num_threads(1)
    path = out / "server-rate.json"
    results = json.loads(path.read_text())["results"] if path.exists() else []
    done = {(line["task"], line["rho"], line["seed"]) for line in results}
    cases = [(task, rho, seed) for seed in range(1, seeds + 1) for task in TASKS for rho in BUDGETS]
    for case in cases:
        if case in done:
            continue
        name, rho, seed = case
        task = tasks.load(name, seed=seed, data=data)
        rounds_run = rounds or task.settings.rounds
        settings = task.settings.with_changes(rounds=rounds_run, evaluate_every=rounds_run)
        method = PartOfTheWay(task.model, budget=rho, routing="optimal")
        method.share = settings.learning_rate
        (federation,) = train_runs([Run(task, method, seed)], settings)
        last = federation.history.rounds[-1]
        accuracy = 100 * (last.test_accuracy or 0.0)
        results.append(
            {
                "task": name,
                "rho": rho,
                "seed": seed,
                "share": method.share,
                "rounds": settings.rounds,
                "accuracy": round(accuracy, 3),
            }
        )
        print(*results[-1].values(), flush=True)
        save("server-rate", results, out)


if __name__ == "__main__":
    typer.run(main)
