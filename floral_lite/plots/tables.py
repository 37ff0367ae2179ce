"""Figures of chapters on the paper's tables: beside its numbers, overfitting, mixtures, prices."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from .federations import MIXTURE_WEIGHT, draw_mixture
from .style import (
    COLOURS,
    GREY,
    Picture,
    colour_bar,
    figure,
    in_rows,
    kin_styles,
    legend,
    line_style,
    mark_style,
)

SMALL: dict[str, Any] = {"markersize": 5, "capsize": 2}  # marks with bars


def panels(titles: Sequence[str], width: float, height: float, across: int = 2) -> tuple[Picture, list[Axes]]:
    """A figure with a titled panel for each name, so many in a row; sizes of a panel in inches."""
    across = min(across, len(titles))
    made, axes = in_rows(len(titles), across, width * across + 0.6, height, around=0.6)
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=10)
        axis.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10]))  # no 2.5 between whole numbers
    return made, axes.tolist()


def name_rows(axis: Axes, names: Sequence[str], shown: bool) -> None:
    """A line of the panel for each name, the first one at the top."""
    axis.set(yticks=range(len(names)), ylim=(len(names) - 0.5, -0.5))
    axis.set_yticklabels(list(names) if shown else [])
    axis.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.6)


def plain_ticks(ruler: Axis, steps: Sequence[float]) -> None:
    """On a logarithmic axis, numbers as one writes them, at these steps of each power of ten."""
    ruler.set_major_locator(LogLocator(subs=steps))
    ruler.set_major_formatter("{x:g}")
    ruler.set_minor_formatter(NullFormatter())


def beside(frame: pd.DataFrame, rows: Mapping[str, str], columns: Mapping[str, str]) -> Picture:
    """Ours and the paper's accuracies, with their standard deviations; a panel for each column.

    Args:
        frame: of `experiments.frame`: row, column, mean, sd, paper_mean, paper_sd in per cent. What is NaN
            is not drawn. A row far below all others is written at the left edge, so that these have room.
        rows: what each row is called, in the order from the top.
        columns: what each column is called.
    """
    made, axes = panels(list(columns.values()), 3.7, 0.3 * len(rows) + 0.5)
    for number, (axis, column) in enumerate(zip(axes, columns, strict=True)):
        part = frame[frame["column"] == column].set_index("row").reindex(list(rows))
        places = np.arange(len(rows))
        far = far_below(part[["mean", "paper_mean"]])
        if far is not None:
            words = "\u2190 {mean:.1f}, paper {paper_mean:.1f}".format(**part.loc[far])
            place = (0.02, list(rows).index(far))
            axis.text(*place, words, transform=axis.get_yaxis_transform(), color=GREY, fontsize=8)
            part = part.drop(far).reindex(list(rows))
        for name, prefix, shift, look in (
            ("ours", "", -0.14, {"marker": "o", "color": COLOURS[0]}),
            ("paper", "paper_", 0.14, {"marker": "s", "color": COLOURS[1], "markerfacecolor": "none"}),
        ):
            shape: dict[str, Any] = {**look, "linestyle": "none", **SMALL}
            spread = part[f"{prefix}sd"].fillna(0)
            axis.errorbar(part[f"{prefix}mean"], places + shift, xerr=spread, label=name, **shape)
        name_rows(axis, list(rows.values()), shown=number % 2 == 0)
        axis.set_xlabel("test accuracy (%)")
    legend(made, ncols=2)
    return made


def far_below(values: pd.DataFrame) -> str | None:
    """The row that lies further below all others than they lie apart, or None.

    Args:
        values: a line for each row; those with a NaN are not asked.
    """
    right = values.dropna().max(axis=1)
    if right.empty:
        return None
    others = values.drop(right.idxmin())
    low, high = others.min(axis=None), others.max(axis=None)
    return str(right.idxmin()) if low - right.min() > high - low else None


def against_training(runs: Mapping[str, pd.DataFrame]) -> Picture:
    """The test loss over the training loss: a run goes from left to right, whatever its pace.

    Args:
        runs: by label; columns train_loss and test_loss, > 0, in the order of the rounds. The point of the
            least test loss is marked.
    """
    made, ((axis,),) = figure(1, 1, 6.6, 3.8)
    for number, (label, run) in enumerate(runs.items()):
        look = line_style(number)
        axis.plot(run["train_loss"], run["test_loss"], label=label, **look)
        best = run.nsmallest(1, "test_loss")
        axis.plot(best["train_loss"], best["test_loss"], "o", color=look["color"], markersize=6)
    axis.set(xlabel="training loss (a run goes to the right)", ylabel="test loss", xscale="log", yscale="log")
    axis.invert_xaxis()
    for ruler in (axis.xaxis, axis.yaxis):
        plain_ticks(ruler, (1, 2, 5))
    legend(made, ncols=2, fontsize=9)
    return made


def final_mixtures(mixtures: Mapping[str, npt.ArrayLike], clusters: Sequence[int]) -> Picture:
    """Mixture matrices side by side: a row a client, sorted by true cluster, a column an adaptor, dark is 1.

    Args:
        mixtures: by title, each (K, C) with rows of sum 1.
        clusters: the true cluster of each client, K integers.
    """
    made, axes = panels(list(mixtures), 1.6, 3.0, across=len(mixtures))
    for axis, mixture in zip(axes, mixtures.values(), strict=True):
        shown = draw_mixture(axis, mixture, clusters)
    axes[0].set_ylabel("clients, by true cluster")
    colour_bar(made, shown, axes, MIXTURE_WEIGHT)
    return made


def by_mismatch(
    seeds: pd.DataFrame,
    rows: Mapping[str, str],
    columns: Mapping[str, str],
    floor: Mapping[str, float],
    first: int = 0,
) -> Picture:
    """The accuracy of each seed over its mismatch at the end; a panel for each column.

    Args:
        seeds: a line for each run: row, column, mismatch (0 to 2), accuracy in per cent.
        rows: what each row is called.
        columns: what each column is called.
        floor: FedAvg's accuracy, by column: a line across, or a note at the lower edge where it lies far
            below. Columns that are not named have none.
        first: the number of the first row's colour and marker, >= 0; the others follow.
    """
    made, axes = panels(list(columns.values()), 3.5, 2.3)
    # uniform mixtures have 1.5 of four clusters, and 1.8 of ten
    right = max(1.6, seeds["mismatch"].max() + 0.05)
    for axis, column in zip(axes, columns, strict=True):
        part = seeds[seeds["column"] == column]
        for number, (row, label) in enumerate(rows.items(), start=first):
            mine = part[part["row"] == row]
            look = {**mark_style(number), "linestyle": "none", "alpha": 0.8}
            axis.plot(mine["mismatch"], mine["accuracy"], label=label, **look)
        if column in floor:
            _draw_floor(axis, floor[column])
        axis.set(xlabel="mismatch at the end (0 to 2)", ylabel="test accuracy (%)", xlim=(-0.05, right))
    legend(made, ncols=4)
    return made


def prices(
    frame: pd.DataFrame, columns: Mapping[str, str], floor: Mapping[str, float], first: int = 0
) -> Picture:
    """Accuracy over what all adaptors add to the base, a line for each kind; a panel for each column.

    Args:
        frame: a line for each point: column, kind (its label), added (> 0, in per cent of the base's
            parameters), mean, and sd or NaN. Their looks are of `style.kin_styles`.
        columns: what each column is called.
        floor: FedAvg's accuracy, by column: a line across, or a note at the lower edge where it lies far
            below. Columns that are not named have none.
        first: the number of the first colour and marker, >= 0; the others follow.
    """
    made, axes = panels(list(columns.values()), 3.7, 2.4)
    for axis, column in zip(axes, columns, strict=True):
        for kind, look in kin_styles(frame["kind"], first).items():
            part = frame[(frame["column"] == column) & (frame["kind"] == kind)].sort_values("added")
            axis.errorbar(part["added"], part["mean"], yerr=part["sd"].fillna(0), label=kind, **look, **SMALL)
        if column in floor:
            _draw_floor(axis, floor[column], on_the_right=True)
        axis.set(xlabel="parameters added (% of the base)", ylabel="test accuracy (%)", xscale="log")
        plain_ticks(axis.xaxis, (1, 3))
    legend(made, ncols=3)
    return made


def _draw_floor(axis: Axes, floor: float, on_the_right: bool = False) -> None:
    """FedAvg's accuracy: a line across; far below all that is drawn, a note in the lower corner."""
    low, high = axis.get_ylim()
    if low - floor < (high - low) / 4:
        axis.axhline(floor, color=GREY, linestyle="--", linewidth=1, label="FedAvg")
        return
    # a line would leave the others no room
    place, side = (0.98, "right") if on_the_right else (0.02, "left")
    words = f"\u2193 FedAvg {floor:.1f}"
    axis.text(place, 0.03, words, transform=axis.transAxes, ha=side, color=GREY, fontsize=8)
