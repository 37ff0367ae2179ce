"""What a server does that takes the average of the base, but goes a part of the way to that of the adaptors.

    python benchmarks/server_rate.py mnist-rotate --seeds 4 --data DIR --out book/results

Algorithm 1 takes both averages as they are. The authors' public code (zeligism/FLoRAL, `get_param_groups`)
gives the server's optimizer the rate 1 for the base and the *clients'* learning rate for the adaptors: 0.1 on
MNIST. With --all-of-it its initialisation and its router's noise and floor are taken as well. Writes
server-rate-TASK.json, or authors-TASK.json: the test accuracy of FLoRAL after all rounds, otherwise with the
settings of the first table. A case that is there already is not run again.
The accuracy is over all test images; on MNIST that is the table's mean over clients to 0.03 points.
"""

import itertools
import json
from pathlib import Path
from typing import Annotated

import torch
import typer
from measure import RESULTS, save

from floral_lite import Run, methods, tasks, train_runs
from floral_lite.methods.routed import Routing
from floral_lite.roles import Roles
from floral_lite.router import Router

ROUTINGS: tuple[Routing, ...] = ("optimal", "learned")
BUDGETS = (0.1, 0.01)


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
    name: Annotated[str, typer.Argument(help="a task of images")],
    seeds: Annotated[int, typer.Option(help="1, 2, ...")] = 4,
    data: Annotated[Path | None, typer.Option(help="folder of downloaded image sets")] = None,
    rounds: Annotated[int | None, typer.Option(help="the task's own if none")] = None,
    all_of_it: Annotated[bool, typer.Option("--all-of-it", help="initialisation and router too")] = False,
    out: Annotated[Path, typer.Option(help="folder of the JSON file")] = RESULTS,
) -> None:
    """Run what is missing, and save after each run."""
    torch.set_num_threads(1)
    path = out / f"{'authors' if all_of_it else 'server-rate'}-{name}.json"
    theirs = {"init": "authors", "router": Router(noise=1.0, floor=0.01)} if all_of_it else {}
    results = json.loads(path.read_text())["results"] if path.exists() else []
    done = {(line["seed"], line["rho"], line["routing"]) for line in results}
    for seed, rho, routing in itertools.product(range(1, seeds + 1), BUDGETS, ROUTINGS):
        if (seed, rho, routing) in done:
            continue
        task = tasks.load(name, seed=seed, data=data)
        length = rounds or task.settings.rounds
        settings = task.settings.with_changes(rounds=length, evaluate_every=length)
        method = PartOfTheWay(task.model, budget=rho, routing=routing, **theirs)
        method.share = settings.learning_rate
        (federation,) = train_runs([Run(task, method, seed)], settings)
        last = federation.history.rounds[-1]
        line = {"seed": seed, "rho": rho, "routing": routing, "share": method.share, "rounds": length}
        results.append({**line, "accuracy": round(100 * (last.test_accuracy or 0.0), 3)})
        print(name, *results[-1].values(), flush=True)
        save(path.stem, results, out, task=name)


if __name__ == "__main__":
    typer.run(main)
