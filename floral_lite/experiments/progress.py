"""How far the cells of a table are."""

import sys
from collections.abc import Sequence

from tqdm import tqdm

from ..federation import Federation
from .cells import Cell

BAR = "{desc} |{bar}| {n_fmt}/{total_fmt} rounds, {elapsed} gone, about {remaining} left"


class Progress:
    """A bar over the rounds of all missing cells.

    Args:
        missing: the cells that have no result yet.
    """

    def __init__(self, missing: Sequence[Cell]) -> None:
        """Count their rounds."""
        self.left = {cell: cell.settings.rounds for cell in missing}
        self.total = sum(self.left.values())
        self.doing = ""
        self.bar = tqdm(
            total=self.total,
            disable=not self.left,
            bar_format=BAR,
            # a log file keeps every line that a terminal overwrites
            mininterval=0.5 if sys.stderr.isatty() else 30,
        )

    def resume(self, cells: Sequence[Cell], rounds_done: int) -> None:
        """Count the rounds of a checkpoint from which cells go on."""
        for cell in cells:
            self.left[cell] = cell.settings.rounds - rounds_done
        self.draw(ours=False)

    def show(self, cells: Sequence[Cell], federations: Sequence[Federation]) -> None:
        """Move the bar after a round of cells that are trained together."""
        for cell in cells:
            self.left[cell] = cell.settings.rounds - len(federations[0].history.rounds)
        also = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
        before, self.doing = self.doing, f"{cells[0]}{also}"
        # in a log file too one reads at once what has begun
        self.bar.set_description_str(self.doing, refresh=self.doing != before)
        self.draw()

    def finished(self, cell: Cell) -> None:
        """Count a cell as done: its result is written, also where it diverged before its last round."""
        self.left[cell] = 0
        self.draw()

    def only(self, missing: Sequence[Cell]) -> None:
        """Count all cells as done but these: other processes have done the rest."""
        self.left = {cell: rounds if cell in missing else 0 for cell, rounds in self.left.items()}
        self.draw(ours=False)

    def waiting(self, number: int) -> None:
        """Say how many cells are left, all with other processes."""
        self.bar.set_description_str(f"waiting for {number} cells that other processes run")

    def draw(self, ours: bool = True) -> None:
        """Move the bar to the rounds that are done; those that are not ours took none of the time gone."""
        if self.bar.disable:
            return
        moved = self.total - sum(self.left.values()) - self.bar.n
        if not ours:  # they count in neither of the speeds from which tqdm estimates the time left
            self.bar.initial += moved
            self.bar.last_print_n += moved
            self.bar.n += moved
            moved = 0
        self.bar.update(moved)
