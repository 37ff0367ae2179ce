"""Figures that compare methods and cases seed by seed, and who found the clusters."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from .style import COLOURS, GREY, Picture, figure, kin_styles, legend, mark_style
from .tables import name_rows, panels

Cells: TypeAlias = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]


def seeds(runs: pd.DataFrame, rows: Mapping[str, str], columns: Mapping[str, str]) -> Picture:
    """A dot for each seed and a line at their mean; a panel for each column, a line of it for each row.

    Args:
        runs: one line a seed: row, column, and accuracy in per cent.
        rows: what each row is called, in the order from the top; one without runs stays empty.
        columns: what each column is called; three stand side by side.
    """
    made, axes = panels(list(columns.values()), 2.6, 0.26 * len(rows) + 0.5, across=3)
    for number, (axis, column) in enumerate(zip(axes, columns, strict=True)):
        for place, row in enumerate(rows):
            scores = runs[(runs["column"] == column) & (runs["row"] == row)]["accuracy"]
            axis.plot(scores, [place] * len(scores), "o", color=COLOURS[0], alpha=0.8, markersize=4)
            axis.plot(scores.mean(), place, "|", color=COLOURS[1], markersize=11, markeredgewidth=2)
        name_rows(axis, list(rows.values()), shown=number % 3 == 0)
        axis.set_xlabel("accuracy (%)")
    return made


def found(runs: pd.DataFrame, rows: Mapping[str, str], level: float) -> Picture:
    """The accuracy of each run over the Rand index of its clusters; a mark for each method.

    Args:
        runs: one line a seed: row, rand, and accuracy in per cent.
        rows: what each row is called, ten at most.
        level: an accuracy to compare with, in per cent, drawn dashed.
    """
    made, ((axis,),) = figure(1, 1, 6.6, 3.8)
    for number, (row, label) in enumerate(rows.items()):
        part = runs[runs["row"] == row]
        look = {**mark_style(number), "linestyle": "none", "alpha": 0.8}
        axis.plot(part["rand"], part["accuracy"], label=label, **look)
    axis.axhline(level, color=GREY, linestyle="--", linewidth=1)
    axis.set(xlabel="adjusted Rand index of the clients' clusters (1: all right)", ylabel="accuracy (%)")
    legend(made, ncols=3, fontsize=9)
    return made


def cases(cells: Cells, label: str = "test accuracy (%)", log: bool = False) -> Picture:
    """Numbers of single seeds, and their mean as a bar across; a panel for each task.

    Args:
        cells: by task, case and kind: the number of each seed, an accuracy in per cent say. A case is a line
            of the panel, the same in all tasks; a kind has a look of `style.kin_styles`.
        label: of the horizontal axis.
        log: whether that axis is logarithmic; then all numbers are > 0.
    """
    made, axes = _task_panels(cells, label)
    for axis in axes if log else ():
        axis.set_xscale("log")
    for axis, seeds, at, look, kind in _marks(axes, cells):
        axis.plot(seeds, [at] * len(seeds), markersize=4, alpha=0.8, label=kind, **look)
        bar = {**look, "marker": "|", "markersize": 13, "markeredgewidth": 2}
        axis.plot([np.mean(seeds)], [at], **bar)
    legend(made, ncols=3)
    return made


def ahead(differences: Cells, label: str) -> Picture:
    """How far one choice is ahead of another, and a line at 0; a panel for each task.

    A large mark is the mean over the seeds, and a bar two of its standard errors to each side; a small and
    pale mark is a seed.

    Args:
        differences: by task, case and kind: each seed's difference, in points say; one seed alone has no bar.
            A case is a line of the panel, the same in all tasks; a kind has a look of `style.kin_styles`.
        label: of the horizontal axis.
    """
    made, axes = _task_panels(differences, label)
    for axis in axes:
        axis.axvline(0, color=GREY, linestyle="--", linewidth=1)
    for axis, seeds, at, look, kind in _marks(axes, differences):
        if len(seeds) > 1:
            axis.plot(seeds, [at] * len(seeds), markersize=3, alpha=0.6, **look)
        error = 2 * np.std(seeds, ddof=1) / np.sqrt(len(seeds)) if len(seeds) > 1 else None
        axis.errorbar([np.mean(seeds)], [at], xerr=error, markersize=6, elinewidth=2, label=kind, **look)
    legend(made, ncols=4)
    return made


def _task_panels(cells: Cells, label: str) -> tuple[Picture, list[Axes]]:
    """A panel for each task, with a line for each case."""
    made, axes = panels(list(cells), 3.7, 0.36 * max(map(len, cells.values())) + 0.5)
    for number, (axis, task) in enumerate(zip(axes, cells.values(), strict=True)):
        name_rows(axis, list(task), shown=number % 2 == 0)
        axis.set_xlabel(label)
    return made, axes


def _marks(
    axes: Sequence[Axes], cells: Cells
) -> Iterator[tuple[Axes, Sequence[float], float, dict[str, Any], str | None]]:
    """Of each task, kind and case: the panel, its seeds, their height, the look, and the kind's name once."""
    kinds = list(dict.fromkeys(kind for task in cells.values() for case in task.values() for kind in case))
    shifts = np.linspace(-0.2, 0.2, len(kinds)) if len(kinds) > 1 else [0]
    for axis, task in zip(axes, cells.values(), strict=True):
        for shift, (kind, look) in zip(shifts, kin_styles(kinds).items(), strict=True):
            label: str | None = kind
            for place, case in enumerate(task.values()):
                if kind in case:
                    yield axis, case[kind], place + shift, {**look, "linestyle": "none"}, label
                    label = None  # once in the legend
