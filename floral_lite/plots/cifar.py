"""Figures of the chapters on photographs and ablations: where parameters are, and seeds of many cases."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from .style import COLOURS, GREY, Picture, legend, mark_style
from .tables import name_rows, panels

Cells: TypeAlias = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]


def parameters(layers: pd.DataFrame, budget: float) -> Picture:
    """What each layer of some networks has, and what one adaptor has there; a panel for each network.

    Both are dots on a logarithmic axis, and a line joins them.

    Args:
        layers: a line for each weight: network, layer (its name), weight and adaptor (parameters, >= 1), and
            rank. Drawn in this order, from the top.
        budget: the budget rho of the adaptors, in (0, 1]; what it would buy to the letter is marked.
    """
    networks = list(dict.fromkeys(layers["network"]))
    most = int(layers["network"].value_counts().max())
    made, axes = panels(networks, 4.2, 0.36 * most + 0.5)
    for axis, network in zip(axes, networks, strict=True):
        part = layers[layers["network"] == network]
        places = np.arange(len(part))
        # dots: on a logarithmic axis bars would start at a floor that means nothing
        axis.hlines(places, part["adaptor"], part["weight"], color=GREY, linewidth=0.8)
        axis.plot(part["adaptor"], places, "o", color=COLOURS[0], markersize=7, label="one adaptor")
        axis.plot(part["weight"], places, "s", color=GREY, markersize=7, label="the weight")
        allowed = budget * part["weight"]
        axis.plot(
            allowed, places, "|", color=COLOURS[1], markersize=16, markeredgewidth=2, label="the budget"
        )
        name_rows(axis, part["layer"].tolist(), shown=True)
        for place, rank, size in zip(places, part["rank"], part["weight"], strict=True):
            axis.annotate(
                f"rank {rank}", (size, place), ha="left", va="center", xytext=(8, 0),
                textcoords="offset points", color=GREY, fontsize=8,
            )  # fmt: skip
        axis.set(xscale="log", xlabel="parameters", xlim=(1, 10 * part["weight"].max()))
        axis.grid(visible=False)  # it would run through the ranks
    legend(made, ncols=3)
    return made


def cases(cells: Cells, label: str = "test accuracy (%)", log: bool = False) -> Picture:
    """Numbers of single seeds, and their mean as a bar across; a panel for each task.

    Args:
        cells: by task, case and kind: the number of each seed, an accuracy in per cent say. A case is a line
            of the panel, the same in all tasks; a kind is a colour.
        label: of the horizontal axis.
        log: whether that axis is logarithmic; then all numbers are > 0.
    """
    made, axes = _task_panels(cells, label)
    for axis in axes if log else ():
        axis.set_xscale("log")
    for axis, seeds, at, look, kind in _marks(axes, cells):
        axis.plot(seeds, [at] * len(seeds), markersize=4, alpha=0.6, label=kind, **look)
        bar = {**look, "marker": "|", "markersize": 13, "markeredgewidth": 2}
        axis.plot([np.mean(seeds)], [at], **bar)
    legend(made, ncols=3)
    return made


def ahead(differences: Cells, label: str) -> Picture:
    """How far one choice is ahead of another, and a line at 0; a panel for each task.

    A large mark is the mean over the seeds, and a bar two of its standard errors to each side; a small and
    pale mark is a seed.

    Args:
        differences: by task, case and kind: the difference of each seed in points; one seed alone has no bar.
            A case is a line of the panel, the same in all tasks; a kind is a colour.
        label: of the horizontal axis.
    """
    made, axes = _task_panels(differences, label)
    for axis in axes:
        axis.axvline(0, color=GREY, linestyle="--", linewidth=1)
    for axis, seeds, at, look, kind in _marks(axes, differences):
        if len(seeds) > 1:
            axis.plot(seeds, [at] * len(seeds), markersize=3, alpha=0.35, **look)
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
        for shift, (index, kind) in zip(shifts, enumerate(kinds), strict=True):
            label: str | None = kind
            for place, case in enumerate(task.values()):
                if kind in case:
                    yield axis, case[kind], place + shift, {**mark_style(index), "linestyle": "none"}, label
                    label = None  # once in the legend
