"""Figures of the chapters on photographs and ablations: where parameters are, and seeds of many cases."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from .style import COLOURS, GREY, Picture, legend, mark_style
from .tables import name_rows, panels


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


def cases(cells: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]) -> Picture:
    """Accuracies of single seeds, and their mean as a bar across; a panel for each task.

    Args:
        cells: by task, case and kind: the accuracy of each seed in per cent. A case is a line of the panel,
            the same in all tasks; a kind is a colour.
    """
    made, axes = panels(list(cells), 3.7, 0.36 * max(map(len, cells.values())) + 0.5)
    kinds = list(dict.fromkeys(kind for task in cells.values() for case in task.values() for kind in case))
    for number, (axis, task) in enumerate(zip(axes, cells.values(), strict=True)):
        for shift, (index, kind) in zip(np.linspace(-0.2, 0.2, len(kinds)), enumerate(kinds), strict=True):
            look = {**mark_style(index), "linestyle": "none"}
            label: str | None = kind
            for place, case in enumerate(task.values()):
                if kind in case:
                    seeds, at = case[kind], place + shift
                    axis.plot(seeds, [at] * len(seeds), markersize=4, alpha=0.6, label=label, **look)
                    bar = {**look, "marker": "|", "markersize": 13, "markeredgewidth": 2}
                    axis.plot([np.mean(seeds)], [at], **bar)
                    label = None  # once in the legend
        name_rows(axis, list(task), shown=number % 2 == 0)
        axis.set_xlabel("test accuracy (%)")
    legend(made, ncols=3)
    return made
