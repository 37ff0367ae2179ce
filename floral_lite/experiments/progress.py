"""How far the cells of a table are, and about how long the rest takes."""

import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from statistics import fmean
from time import monotonic

from tqdm import tqdm

from ..federation import Federation
from .cells import Cell
from .results import find

BAR = "{desc} |{bar}| {n_fmt}/{total_fmt} rounds, {elapsed} gone{postfix}"


class Progress:
    """A bar over the rounds of all missing cells.

    The time left is that of this process alone: for each missing cell its rounds times the seconds a
    round took in other seeds of its row and task, or else in its task, or else in all.

    Args:
        cells: all cells of the table, for what those that are there took.
        folder: of results.
    """

    def __init__(self, cells: Sequence[Cell], folder: Path) -> None:
        """Read what is there."""
        self.paces: dict[tuple[str, str], float] = {}
        self.left: dict[Cell, int] = {}
        for cell in cells:
            result = find(cell, folder)
            if result is None:
                self.left[cell] = cell.settings.rounds
            elif result.status == "done":
                self.paces[cell.task, cell.row.name] = result.made["seconds"] / cell.settings.rounds
        self.total = sum(self.left.values())
        self.bar = tqdm(
            total=self.total,
            disable=not self.left,
            bar_format=BAR,
            # a log file keeps every line that a terminal overwrites
            mininterval=0.5 if sys.stderr.isatty() else 30,
        )
        self.began: tuple[Cell, float, int] | None = None

    def show(self, cells: Sequence[Cell], federations: Sequence[Federation]) -> None:
        """After a round of cells that are trained together."""
        done = len(federations[0].history.rounds)
        for cell in cells:
            self.left[cell] = cell.settings.rounds - done
        first = cells[0]
        new = self.began is None or self.began[0] != first
        if self.began is None or new:
            self.began = first, monotonic(), done
        elif done > self.began[2]:
            seconds = (monotonic() - self.began[1]) / len(cells)
            self.paces[first.task, first.row.name] = seconds / (done - self.began[2])
        also = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
        self.bar.set_description_str(f"{first}{also}", refresh=new)
        self.draw()

    def finished(self, cell: Cell, seconds: float) -> None:
        """A cell's result is written, after so many seconds."""
        self.paces[cell.task, cell.row.name] = seconds / cell.settings.rounds
        self.left[cell] = 0
        self.draw()

    def only(self, missing: Sequence[Cell]) -> None:
        """What other processes have done is done."""
        for cell in self.left:
            if cell not in missing:
                self.left[cell] = 0
        self.draw()

    def waiting(self, number: int) -> None:
        """So many cells are left, all with other processes."""
        self.bar.set_description_str(f"waiting for {number} cells that other processes run")

    def draw(self) -> None:
        """Move the bar, if it is time to."""
        seconds = self.seconds_left()
        about = "" if seconds is None else f"about {timedelta(seconds=round(seconds))} left"
        self.bar.set_postfix_str(about, refresh=False)
        self.bar.update(self.total - sum(self.left.values()) - self.bar.n)

    def seconds_left(self) -> float | None:
        """Of all missing cells; None while nothing is known."""
        if not self.paces:
            return None
        everywhere = fmean(self.paces.values())
        of_tasks: dict[str, list[float]] = {}
        for (task, _), pace in self.paces.items():
            of_tasks.setdefault(task, []).append(pace)
        return sum(
            rounds * self.paces.get((cell.task, cell.row.name), fmean(of_tasks.get(cell.task, [everywhere])))
            for cell, rounds in self.left.items()
        )
