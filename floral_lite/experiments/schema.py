"""What a table of experiments is: rows, columns, and the numbers that it is compared with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from ..errors import check_names, require

Curve = Literal["test_loss", "test_accuracy", "train_loss", "mismatch"]


class Value(NamedTuple):
    """A number of a table, the paper's or ours.

    Attributes:
        mean: accuracy in per cent, or a loss where the task has no labels.
        sd: its standard deviation over the seeds; None where there is one seed.
    """

    mean: float
    sd: float | None = None


@dataclass(frozen=True)
class Row:
    """One way to train: a method and what is chosen about it.

    Attributes:
        name: of the row, and of its folder in the results; the same name is the same configuration in
            every table.
        label: what the row is called in a table.
        method: the method's name.
        options: of the method, beside the number of clusters.
        clusters_factor: C over the true number of clusters.
        layers: which kinds of layers have adaptors, of "linear" and "conv"; None for all there are.
        changes: settings that differ from the task's own.
    """

    name: str
    label: str
    method: str
    options: Mapping[str, object] = field(default_factory=dict, hash=False)
    clusters_factor: float = 1.0
    layers: tuple[str, ...] | None = None
    changes: Mapping[str, object] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Raise InputError where the name is that of no single folder."""
        require(
            Path(self.name).name == self.name and self.name.strip(".") != "",
            f"name is {self.name!r}; a row's results are in a folder of that name: leave out slashes",
        )


@dataclass(frozen=True)
class Column:
    """One task.

    Attributes:
        name: the task's name.
        label: what the column is called in a table.
    """

    name: str
    label: str


@dataclass(frozen=True)
class Table:
    """A table, the paper's or ours, and the figure of the same runs over the rounds.

    Attributes:
        name: on the command line.
        title: in a line.
        rows: in the paper's order.
        columns: in the paper's order.
        paper: the paper's numbers, by the name of the row and then of the column; empty where it has none.
        curve: what its figure shows over the rounds.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    paper: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    curve: Curve = "test_loss"

    def row(self, name: str) -> Row:
        """The row of that name; InputError where there is none."""
        rows = {row.name: row for row in self.rows}
        check_names(f"row of the table {self.name}", [name], rows)
        return rows[name]
