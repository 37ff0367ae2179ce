"""What CIFAR-100's accuracies are on the clients' training images, beside those on test images.

    python benchmarks/tested_on.py cifar100-reduced --data DIR --out book/results

The authors' public code (zeligism/FLoRAL, `get_partitioners`) gives one partitioner to the training and to
the test split of CIFAR-100. If both then read the training split, a client is tested on all its training
images, even where it is trained on only 5% of them. Here the same personal models are scored on the client's
test images, on the images that they were trained on, and on all training images of the client's shard.

A row that ends with "-public" also starts as that code does, with its initialisation and its adaptors' biases
(see server_rate.py), and its groups of labels are those with the same last digit.

Writes tested-on-TASK.json, a line a run. A run that is there already is not run again.
"""

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import torch
import typer
from measure import RESULTS, save, saved
from server_rate import PartOfTheWay
from torch import nn

from floral_lite import Run, Task, methods, personal_model, tasks, train_runs
from floral_lite.data import Images, cifar100, split_by_label
from floral_lite.errors import require
from floral_lite.federation import Shard
from floral_lite.models import vgg8
from floral_lite.tasks.images import image_task
from floral_lite.tasks.recipe import make_tasks

ROWS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "floral-1-optimal": {"method": "floral", "budget": 0.01, "routing": "optimal"},
    "floral-1-learned": {"method": "floral", "budget": 0.01, "routing": "learned"},
    "floral-10-optimal": {"method": "floral", "budget": 0.1, "routing": "optimal"},
    "floral-1-optimal-public": {"budget": 0.01, "routing": "optimal", "init": "authors"},
}


def by_last_digit(data: Path | str | None) -> Images:
    """CIFAR-100 with its labels renamed: 7, 17, ..., 97 become 70, 71, ..., 79: one cluster's group."""
    images = cifar100(data)
    train, test = (10 * (y % 10) + y // 10 for y in (images.train_labels, images.test_labels))
    return images._replace(train_labels=train, test_labels=test)


def load(name: str, row: str, seed: int, data: Path | None) -> Task:
    """The task, with the public code's groups of labels for the rows that ask for them."""
    if not row.endswith("-public"):
        return tasks.load(name, seed=seed, data=data)
    require(
        name.startswith("cifar100"),
        f"{row} has CIFAR-100's labels, and the task is {name}: name others with --rows",
    )
    deal = partial(split_by_label, num_labels=100)
    recipe = replace(tasks.TASKS[name], prepare=image_task(by_last_digit, vgg8, deal=deal))
    (task,) = make_tasks(name, recipe, [seed], 1.0, data=data)
    return task


@torch.no_grad()
def accuracy(model: nn.Module, shard: Shard) -> float:
    """Accuracy in per cent."""
    found = torch.cat([model(inputs).argmax(dim=1) for inputs in torch.split(shard.inputs, 500)])
    return 100 * (found == shard.targets).double().mean().item()


def main(
    name: Annotated[str, typer.Argument(help="a task of images with little data")] = "cifar100-reduced",
    rows: Annotated[str, typer.Option(help="of the first table")] = ",".join(ROWS),
    seeds: Annotated[int, typer.Option(help="1, 2, ...")] = 1,
    data: Annotated[Path | None, typer.Option(help="folder of downloaded image sets")] = None,
    rounds: Annotated[int | None, typer.Option(help="the task's own if none")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps")] = "cpu",
    checkpoints: Annotated[Path | None, typer.Option(help="folder: a run that is cut off goes on")] = None,
    out: Annotated[Path, typer.Option(help="folder of the JSON file")] = RESULTS,
) -> None:
    """Run what is missing, and save after each run."""
    torch.set_num_threads(1)
    for row in rows.split(","):
        require(row in ROWS, f"{row} is no row: name some of {', '.join(ROWS)}")
    file = f"tested-on-{name}"
    for row, seed in itertools.product(rows.split(","), range(1, seeds + 1)):
        length = rounds or tasks.TASKS[name].settings.rounds
        if (row, seed, length) in {(line["row"], line["seed"], line["rounds"]) for line in saved(file, out)}:
            continue
        task, whole = (load(each, row, seed, data) for each in (name, name.removesuffix("-reduced")))
        # tested as often as for a table, so that a table's checkpoint goes on here
        settings = task.settings.with_changes(rounds=length)
        options = dict(ROWS[row])
        method: methods.Method
        if "budget" in options:
            options["num_clusters"] = task.details["task_clusters"]
        if row.endswith("-public"):
            # its share is 1: Algorithm 1's server
            method = PartOfTheWay(task.model, **options)
            method.draws_biases = True
        else:
            method = methods.make(options.pop("method"), task.model, **options)
        unfinished = None if checkpoints is None else checkpoints / f"{name}-{row}-{seed}"
        (federation,) = train_runs([Run(task, method, seed)], settings, device=device, checkpoints=unfinished)
        line: dict[str, object] = {"row": row, "seed": seed, "rounds": length}
        shards = {"test": task.test, "trained on": task.train, "all training images": whole.train}
        models = [personal_model(task, method, federation, k).eval() for k in range(task.num_clients)]
        for label, of_clients in shards.items():
            scores = [accuracy(model, of_clients[k]) for k, model in enumerate(models)]
            line[label] = round(fmean(scores), 2)
        print(name, *line.values(), flush=True)
        save(file, [*saved(file, out), line], out, task=name)


if __name__ == "__main__":
    typer.run(main)
