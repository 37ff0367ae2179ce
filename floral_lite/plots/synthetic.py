"""Figures of the chapter on synthetic federations: matrices side by side, and what of them is found."""

from collections.abc import Mapping, Sequence

import numpy.typing as npt
import pandas as pd

from .style import GREY, Picture, colour_bar, figure, legend, mark_style, signed_image


def matrices(rows: Sequence[Mapping[str, npt.ArrayLike]], limit: float) -> Picture:
    """Rows of matrices as colours, each with its title: purple is negative, orange positive.

    Args:
        rows: as many in each, all of one shape (m, n).
        limit: the value of the darkest colours, > 0, the same for all.
    """
    made, axes = figure(len(rows), len(rows[0]), 2.1 * len(rows[0]) + 0.6, 0.95 * len(rows) + 0.3)
    for line, row in zip(axes, rows, strict=True):
        for axis, (title, matrix) in zip(line, row.items(), strict=True):
            shown = signed_image(axis, matrix, limit)
            axis.set_title(title, fontsize=9)
    colour_bar(made, shown, axes.ravel().tolist(), "entry")
    return made


def base_by_models(seeds: pd.DataFrame) -> Picture:
    """How far off the base is over how far off the models are, a point a seed; on the line both are alike.

    Args:
        seeds: a line for each run: clusters (how many there are), models and base, relative errors > 0.
    """
    made, ((axis,),) = figure(1, 1, 5.6, 3.6)
    for number, (clusters, part) in enumerate(seeds.groupby("clusters")):
        look = {**mark_style(number), "linestyle": "none", "markersize": 7, "alpha": 0.85}
        axis.plot(part["models"], part["base"], label=f"{clusters} clusters", **look)
    ends = [seeds["models"].min() / 2, seeds["models"].max() * 2]
    axis.plot(ends, ends, color=GREY, linestyle="--", linewidth=1, label="equal")
    axis.set(
        xlabel="relative error of the clients' models",
        ylabel="relative error of the base",
        xscale="log",
        yscale="log",
    )
    legend(made, ncols=4)
    return made
