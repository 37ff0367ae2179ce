"""Figures of the pages on relatives and routing rules: every seed of every method, who found the clusters."""

from collections.abc import Mapping

import pandas as pd

from .style import COLOURS, GREY, Picture, figure, legend, mark_style
from .tables import name_rows, panels


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
            axis.plot(scores, [place] * len(scores), "o", color=COLOURS[0], alpha=0.6, markersize=4)
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
