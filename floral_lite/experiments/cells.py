"""A cell of a table: a row, a task and a seed, and everything that decides its numbers."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import methods, tasks
from ..data import diagonal_clusters
from ..errors import InputError, check_names, require
from ..federation import History, Run, Settings
from ..federation.aggregate import mismatch
from ..federation.clients import size
from ..federation.record import plain
from ..seeds import check_num_seeds
from .catalogue import find_table
from .schema import Column, Row, Table


@dataclass(frozen=True)
class Cell:
    """One run of a table.

    Attributes:
        row: how to train.
        task: the task's name.
        seed: of the task and of the run.
        rounds: communication rounds; None for the task's own.
    """

    row: Row
    task: str
    seed: int
    rounds: int | None = None

    @property
    def path(self) -> Path:
        """The results file, relative to the folder of results."""
        return Path(self.task) / self.row.name / f"seed-{self.seed}.json"

    @property
    def settings(self) -> Settings:
        """How the cell is trained: the task's settings, the row's changes, the rounds asked for."""
        changes = dict(self.row.changes) | ({} if self.rounds is None else {"rounds": self.rounds})
        return tasks.TASKS[self.task].settings.with_changes(**changes)

    def __str__(self) -> str:
        """What the progress bar calls it."""
        return f"{self.task} {self.row.name} seed {self.seed}"


def cells(
    name: str,
    columns: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    seeds: int = 4,
    rounds: int | None = None,
) -> list[Cell]:
    """The cells of a table, all rows and columns of seed 1 first.

    Args:
        name: of the table.
        columns: tasks; those of the table if None.
        rows: names of rows; all if None.
        seeds: n, 1 to 1000, for the seeds 1..n.
        rounds: communication rounds; each task's own if None.

    Raises:
        InputError: there is no such table, row or task, or seeds is out of range.

    Example:
        >>> [str(cell) for cell in cells("methods", ["digits-rotate"], ["fedavg"], seeds=2)]
        ['digits-rotate fedavg seed 1', 'digits-rotate fedavg seed 2']
    """
    table = find_table(name)
    check_num_seeds(seeds)
    shown_rows, shown_columns = chosen_rows(table, rows), chosen_columns(table, columns)
    return [
        Cell(row, column.name, seed, rounds)
        for seed in range(1, seeds + 1)
        for column in shown_columns
        for row in shown_rows
    ]


def chosen_rows(table: Table, names: Sequence[str] | None) -> list[Row]:
    """The rows of those names, in the table's order; all if None."""
    check_list("rows", names)
    wanted = table.rows if names is None else [table.row(name) for name in names]
    return [row for row in table.rows if row in wanted]


def chosen_columns(table: Table, names: Sequence[str] | None) -> list[Column]:
    """The columns of those names: the table's own, or any other task, for which the paper has no numbers."""
    check_list("columns", names)
    columns = {column.name: column for column in table.columns}
    wanted = list(columns if names is None else dict.fromkeys(names))
    check_names("column (they are the tasks)", wanted, tasks.TASKS)
    return [columns.get(name, Column(name, name)) for name in wanted]


def check_list(argument: str, names: Sequence[str] | None) -> None:
    """Raise InputError unless they are a list with something in it, or left out."""
    require(
        names is None or (len(names) > 0 and not isinstance(names, str)),
        f"{argument} is {names!r}; name at least one, in a list, or leave it out for all of the table's",
    )


def num_clusters(cell: Cell) -> int:
    """C: the true number of clusters of the task times the row's factor."""
    return max(1, round(cell.row.clusters_factor * tasks.TASKS[cell.task].num_clusters))


def method_options(cell: Cell) -> dict[str, Any]:
    """The options of the cell's method, with C where the method has it."""
    has_clusters = "num_clusters" in methods.option_names(cell.row.method)
    return ({"num_clusters": num_clusters(cell)} if has_clusters else {}) | dict(cell.row.options)


def configuration(cell: Cell) -> dict[str, Any]:
    """What decides a cell's numbers beside the seed; results of one configuration may be averaged."""
    recipe = tasks.TASKS[cell.task]
    # as a file has it, so that what is read again is the same
    return plain(
        {
            "task": cell.task,
            "row": cell.row.name,
            "method": cell.row.method,
            "options": method_options(cell),
            "layers": None if cell.row.layers is None else list(cell.row.layers),
            "num_clients": recipe.num_clients,
            "true_clusters": recipe.num_clusters,
            "multiple_of": recipe.multiple_of,
            "data_fraction": recipe.data_fraction,
            "settings": asdict(cell.settings),
        }
    )


def make_runs(cells: Sequence[Cell], data: Path | str | None = None) -> list[Run]:
    """The runs of cells that differ in their seeds only.

    Args:
        cells: one at least.
        data: the folder of downloaded image sets; if None, the one that FLORAL_LITE_DATA names.

    Raises:
        InputError: the data are missing, or the row has nothing to adapt in the task's model, or is never
            evaluated.
    """
    row = cells[0].row
    require(
        cells[0].settings.evaluate_every > 0,
        f"evaluate_every is 0 in the row {row.name}, and a table is made of scores: take 1 or more",
    )
    seeded = tasks.load_seeds(cells[0].task, [cell.seed for cell in cells], data=data)
    runs = []
    for cell, task in zip(cells, seeded, strict=True):
        if row.clusters_factor != 1:
            # optimal routing, which alone looks at the clusters, then sends client k to adaptor k mod C
            task = replace(task, clusters=diagonal_clusters(task.num_clients, num_clusters(cell)))
        method = methods.make(row.method, task.model, **method_options(cell))
        if row.layers is not None:
            adapt_only(method, row.layers)
        runs.append(Run(task, method, cell.seed))
    return runs


def against_true_clusters(cell: Cell, run: Run, history: History) -> History:
    """The history with its mismatches measured against the task's own clusters.

    Where a row has another C, `make_runs` gave the run other clusters.
    """
    if cell.row.clusters_factor == 1:
        return history
    clusters = diagonal_clusters(run.task.num_clients, tasks.TASKS[cell.task].num_clusters)
    num_samples = torch.tensor([float(size(run.task.train, k)) for k in range(run.task.num_clients)])
    rounds = [
        entry
        if entry.mixture is None
        else replace(entry, mismatch=mismatch(torch.tensor(entry.mixture), clusters, num_samples))
        for entry in history.rounds
    ]
    return replace(history, clusters=clusters.tolist(), rounds=rounds)


LAYERS: dict[str, type[nn.Module]] = {"linear": nn.Linear, "conv": nn.Conv2d}


def adapt_only(method: methods.Method, layers: Sequence[str]) -> None:
    """Leave out the adaptors of all other layers, and those of their biases, as the authors' code does.

    Args:
        method: one that plans adaptors, just made.
        layers: of "linear" and "conv".

    Raises:
        InputError: there is no such kind, the method has no adaptors, or none is left.
    """
    if not isinstance(method, methods.FLoRAL | methods.LocalAdaptor):
        raise InputError(f"layers is {list(layers)}, but {method.name} has no adaptors: leave it out")
    check_names("kind of layer", layers, LAYERS)
    kept = tuple(LAYERS[name] for name in layers)
    method.plan = {
        name: adaptor
        for name, adaptor in method.plan.items()
        if isinstance(method.model.get_submodule(name.rpartition(".")[0]), kept)
    }
    require(
        bool(method.plan),
        f"layers is {list(layers)}, but the model has none of them: leave the row out for this task",
    )
