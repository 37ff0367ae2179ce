"""What the order of the batches, and a last batch that is nearly empty, do to one of Ensemble's models.

    python benchmarks/batch_order.py cifar10-rotate --data DIR --out book/results

With the true clusters each of Ensemble's models is trained by FedAvg among the clients of its own cluster.
This script trains the model of cluster 0, whose images are as they are in the data set, and tests it on all
test images. Two choices are tried, in all pairs:

- "shuffled" draws new batches in every round. "fixed" keeps them: the authors' public code (zeligism/FLoRAL,
  `get_flwr_data`) does not ask its data loaders to shuffle.
- The last batch of an epoch has a step of its own, however few its images. Of CIFAR-10 as we have it a
  client gets 2,496 or 2,497 images, and of the latter one is left over after 39 batches of 64. "-whole"
  leaves it out, as the task itself does. With "-4" every client has a last batch of four, as with all
  50,000 images.

Writes batch-order-TASK.json, a line a run, with the accuracy after every tenth round. A run that is there
already is not run again.
"""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from measure import RESULTS, save, saved

from floral_lite import Run, Task, methods, tasks, train_runs
from floral_lite.errors import InputError, require
from floral_lite.federation import Pool
from floral_lite.tasks.recipe import make_tasks

# How many samples the last batch of a client has; None for as many as are left over.
LAST = {"": None, "-whole": 0, "-4": 4}
CASES = [order + last for order in ("shuffled", "fixed") for last in LAST]


def of_one_cluster(task: Task, last: int | None) -> Task:
    """The clients of cluster 0 alone; all test images are dealt out among them."""
    if not (isinstance(task.train, Pool) and isinstance(task.test, Pool)):
        raise InputError(f"{task.name} is no task of images")
    clients = [k for k, cluster in enumerate(task.clusters.tolist()) if cluster == 0]
    owned = torch.split(task.train.rows, list(task.train.sizes))
    rows = [owned[k] for k in clients]
    if last is not None:
        size = task.settings.batch_size
        rows = [own[: (len(own) - last) // size * size + last] for own in rows]
    tested = torch.tensor_split(task.test.rows, len(clients))
    train, test = (
        replace(pool, rows=torch.cat(parts), sizes=tuple(map(len, parts)), clusters=(0,) * len(clients))
        for pool, parts in ((task.train, rows), (task.test, tested))
    )
    return replace(task, train=train, test=test, clusters=task.clusters[clients])


def main(
    name: Annotated[str, typer.Argument(help="a task of images")] = "cifar10-rotate",
    cases: Annotated[str, typer.Option(help="what is tried")] = ",".join(CASES),
    seeds: Annotated[int, typer.Option(help="1, 2, ...")] = 1,
    data: Annotated[Path | None, typer.Option(help="folder of downloaded image sets")] = None,
    rounds: Annotated[int | None, typer.Option(help="the task's own if none")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps")] = "cpu",
    checkpoints: Annotated[Path | None, typer.Option(help="folder: a run that is cut off goes on")] = None,
    out: Annotated[Path, typer.Option(help="folder of the JSON file")] = RESULTS,
) -> None:
    """Run what is missing, and save after each run."""
    torch.set_num_threads(1)
    file = f"batch-order-{name}"
    chosen = cases.split(",")
    for case in chosen:
        require(case in CASES, f"{case} is no case: name some of {', '.join(CASES)}")
    for case, seed in itertools.product(chosen, range(1, seeds + 1)):
        length = rounds or tasks.TASKS[name].settings.rounds
        if (case, seed, length) in {
            (line["case"], line["seed"], line["rounds"]) for line in saved(file, out)
        }:
            continue
        order = case.split("-")[0]
        (task,) = make_tasks(name, replace(tasks.TASKS[name], multiple_of=1), [seed], 1.0, data=data)
        task = of_one_cluster(task, LAST[case.removeprefix(order)])
        settings = task.settings.with_changes(rounds=length, evaluate_every=10, shuffle=order == "shuffled")
        unfinished = None if checkpoints is None else checkpoints / f"{name}-{case}-{seed}"
        run = Run(task, methods.FedAvg(task.model), seed)
        (federation,) = train_runs([run], settings, device=device, checkpoints=unfinished)
        tested = federation.history.evaluated
        line: dict[str, object] = {"case": case, "seed": seed, "rounds": length}
        line["images"] = [len(shard) for shard in task.train]
        line["round"] = [each.round for each in tested]
        line["accuracy"] = [round(100 * (each.test_accuracy or 0.0), 3) for each in tested]
        print(name, case, seed, line["accuracy"], flush=True)
        save(file, [*saved(file, out), line], out, task=name)


if __name__ == "__main__":
    typer.run(main)
