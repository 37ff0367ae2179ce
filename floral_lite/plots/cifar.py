"""Figures of the chapter on photographs: where a network's parameters are."""

import numpy as np
import pandas as pd

from .style import COLOURS, GREY, Picture, legend
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
    made, axes = panels(networks, 3.6, 0.36 * most + 0.5)
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
