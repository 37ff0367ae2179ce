"""A table from results: ours beside the paper's, best and second best marked, and what differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, nan
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from .. import tasks
from ..federation.task import compares_numbers
from ..seeds import check_num_seeds
from .catalogue import find_table
from .cells import Cell, chosen_columns, chosen_rows
from .results import Result, find
from .schema import Column, Row, Value

if TYPE_CHECKING:
    import pandas as pd

# after a number that differs from the paper's
OFF = "†"


@dataclass(frozen=True)
class Entry:
    """What a row came to on a task.

    Attributes:
        row: which.
        column: the task.
        results: one a seed that is there.
        paper: the paper's number, or None.
    """

    row: Row
    column: Column
    results: Sequence[Result]
    paper: Value | None

    @property
    def ours(self) -> Value | None:
        """Mean and sample standard deviation over the seeds; None where none is there or one diverged."""
        scores = [result.score for result in self.results if result.score is not None]
        if self.diverged or not scores:
            return None
        return Value(fmean(scores), stdev(scores) if len(scores) > 1 else None)

    @property
    def diverged(self) -> bool:
        """Whether a seed did."""
        return any(result.status == "diverged" for result in self.results)

    @property
    def off(self) -> bool:
        """Whether ours and the paper's differ by more than two standard deviations.

        |ours - paper| > 2 sqrt(sd_ours^2 + sd_paper^2): the deviation of the difference of two single
        seeds, one of each. Never where one of them has no deviation.
        """
        if self.ours is None or self.paper is None or self.ours.sd is None or self.paper.sd is None:
            return False
        return abs(self.ours.mean - self.paper.mean) > 2 * hypot(self.ours.sd, self.paper.sd)


@dataclass(frozen=True)
class Filled:
    """A table with what is there.

    Attributes:
        title: in a line.
        seeds: how many were asked for.
        rows: of the table.
        columns: of the table.
        entries: by the names of row and column.
    """

    title: str
    seeds: int
    rows: Sequence[Row]
    columns: Sequence[Column]
    entries: dict[tuple[str, str], Entry]

    def has_paper(self, column: Column) -> bool:
        """Whether the paper has numbers for a column."""
        return any(self.entries[row.name, column.name].paper is not None for row in self.rows)

    def ranks(self, column: Column, paper: bool) -> dict[str, int]:
        """Which rows are best (0) and second best (1) in a column, as they are printed: equal ones share."""
        regression = is_regression(column.name)
        scores = {}
        for row in self.rows:
            entry = self.entries[row.name, column.name]
            value = entry.paper if paper else entry.ours
            if value is not None:
                scores[row.name] = float(number(value.mean, column)) * (1 if regression else -1)
        places = sorted(set(scores.values()))[:2]
        return {row: places.index(score) for row, score in scores.items() if score in places}

    def notes(self) -> list[str]:
        """What the numbers are, and what made them."""
        scores = {"test loss" if is_regression(c.name) else "accuracy in per cent" for c in self.columns}
        what = " or ".join(sorted(scores))
        ours = "ours | the paper's" if any(map(self.has_paper, self.columns)) else "ours"
        several = f"Mean and standard deviation over seeds 1 to {self.seeds}"
        seeds = several if self.seeds > 1 else "Of seed 1"
        notes = [f"{seeds}, the clients' mean {what}, {ours}. Best bold, second best italic."]
        if any(entry.off for entry in self.entries.values()):
            notes.append(f"{OFF} differs from the paper by more than 2 sqrt(sd_ours^2 + sd_paper^2).")
        if any(0 < len(entry.results) < self.seeds for entry in self.entries.values()):
            notes.append(f"[n]: only n of the {self.seeds} seeds.")
        for column in self.columns:
            results = [result for row in self.rows for result in self.entries[row.name, column.name].results]
            if results:
                rounds = sorted({result.configuration["settings"]["rounds"] for result in results})
                full = tasks.TASKS[column.name].settings.rounds
                instead = "" if rounds == [full] else f" instead of the task's {full}"
                told = f"{' or '.join(map(str, rounds))} rounds{instead}"
                devices = ", ".join(sorted({result.made["device"] for result in results}))
                notes.append(f"{column.label}: {told}, on {devices}.")
        return notes


def is_regression(task: str) -> bool:
    """Whether a task has no labels, so that its score is a loss."""
    return compares_numbers(tasks.TASKS[task].loss)


def number(value: float, column: Column) -> str:
    """As it is printed: accuracy with one digit, as in the paper; a loss with three significant ones."""
    return f"{value:#.3g}".rstrip(".") if is_regression(column.name) else f"{value:.1f}"


def collect(
    name: str,
    folder: Path | str,
    columns: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    seeds: int = 4,
    rounds: int | None = None,
) -> Filled:
    """What there is of a table in a folder of results.

    Args:
        name: of the table.
        folder: of results.
        columns: tasks; those of the table if None.
        rows: names of rows; all if None.
        seeds: n, 1 to 1000: look at the seeds 1..n.
        rounds: that the results must have; if None any number, but the same in a whole column, except in rows
            that change theirs.

    Raises:
        InputError: there is no such table, row or column, seeds is out of range, or a file is of another
            configuration.
    """
    table = find_table(name)
    check_num_seeds(seeds)
    shown_rows, shown_columns = chosen_rows(table, rows), chosen_columns(table, columns)
    entries = {}
    for column in shown_columns:
        of_column = rounds  # if any will do, the first result decides for the whole column
        for row in shown_rows:
            own = "rounds" in row.changes
            wanted = Cell(row, column.name, 1, rounds).settings.rounds if own else of_column
            results = []
            for seed in range(1, seeds + 1):
                cell = Cell(row, column.name, seed, wanted)
                result = find(cell, Path(folder), same_rounds=wanted is not None)
                if result is not None:
                    results.append(result)
                    if wanted is None:
                        wanted = of_column = result.configuration["settings"]["rounds"]
            paper = table.paper.get(row.name, {}).get(column.name)
            entries[row.name, column.name] = Entry(row, column, results, paper)
    return Filled(table.title, seeds, shown_rows, shown_columns, entries)


def frame(filled: Filled) -> pd.DataFrame:
    """The table in numbers.

    Returns:
        One line for each row and column: row, column, mean, sd, seeds (how many), status ("done",
        "partial", "missing" or "diverged"), paper_mean, paper_sd, difference (ours - paper), off. Accuracies
        are in per cent; what is not there is NaN.
    """
    import pandas as pd  # here: it takes longer to load than this whole package

    lines = []
    for entry in filled.entries.values():
        ours, theirs = (value or Value(nan) for value in (entry.ours, entry.paper))
        count = len(entry.results)
        status = "missing" if count == 0 else "partial" if count < filled.seeds else "done"
        lines.append(
            {
                "row": entry.row.name,
                "column": entry.column.name,
                "mean": ours.mean,
                "sd": ours.sd,
                "seeds": count,
                "status": "diverged" if entry.diverged else status,
                "paper_mean": theirs.mean,
                "paper_sd": theirs.sd,
                "difference": ours.mean - theirs.mean,
                "off": entry.off,
            }
        )
    numbers = ("mean", "sd", "paper_mean", "paper_sd", "difference")
    made: pd.DataFrame = pd.DataFrame(lines).astype(dict.fromkeys(numbers, float))
    return made
