"""How far the cells of a table are."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from ..federation import Federation
from .cells import Cell
from .results import find

BAR = "{desc} |{bar}| {n_fmt}/{total_fmt} rounds, {elapsed} gone, about {remaining} left"


class Progress:
    """A bar over the rounds of all missing cells.

    Args:
        cells: all cells of the table.
        folder: of results.
    """

    def __init__(self, cells: Sequence[Cell], folder: Path) -> None:
        """Look for what is there."""
        self.left = {cell: cell.settings.rounds for cell in cells if find(cell, folder) is None}
        self.total = sum(self.left.values())
        self.bar = tqdm(
            total=self.total,
            disable=not self.left,
            bar_format=BAR,
            # a log file keeps every line that a terminal overwrites
            mininterval=0.5 if sys.stderr.isatty() else 30,
        )

    def show(self, cells: Sequence[Cell], federations: Sequence[Federation]) -> None:
        """After a round of cells that are trained together."""
        for cell in cells:
            self.left[cell] = cell.settings.rounds - len(federations[0].history.rounds)
        also = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
        self.bar.set_description_str(f"{cells[0]}{also}", refresh=False)
        self.draw()

    def finished(self, cell: Cell) -> None:
        """A cell's result is written, of all its rounds or because it diverged."""
        self.left[cell] = 0
        self.draw()

    def only(self, missing: Sequence[Cell]) -> None:
        """What other processes have done is done."""
        self.left = {cell: rounds if cell in missing else 0 for cell, rounds in self.left.items()}
        self.draw()

    def waiting(self, number: int) -> None:
        """So many cells are left, all with other processes."""
        self.bar.set_description_str(f"waiting for {number} cells that other processes run")

    def draw(self) -> None:
        """Move the bar, if it is time to."""
        self.bar.update(self.total - sum(self.left.values()) - self.bar.n)
