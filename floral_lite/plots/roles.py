"""Figures of the chapter on roles: one number's fate in each role, and many methods side by side."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.markers import CARETLEFTBASE

from .style import COLOURS, GREY, Picture, figure, legend, line_style

ROLES = ("shared", "clustered", "private")
HATCHES = ("", "///", "...")


def fates(
    paths: Mapping[str, npt.ArrayLike], clusters: Sequence[int], local_steps: int, best: npt.ArrayLike
) -> Picture:
    """The path of one number at every client, a panel for each role; colour and dashes tell the cluster.

    Args:
        paths: by role, shape (rounds, local_steps + 1, K): in each round the value before the first local
            step, and after each.
        clusters: the cluster of each client, shape (K,).
        local_steps: H; the server averages after so many.
        best: the values that clients walk to, shape (K,), marked at the right edge.
    """
    made, axes = figure(1, len(paths), 2.7 * len(paths), 3.1)
    best = np.asarray(best)
    margin = 0.05 * float(np.ptp(best)) or 0.05
    for axis, (role, path) in zip(axes[0], paths.items(), strict=True):
        values = np.asarray(path)
        rounds = len(values)
        for client, cluster in enumerate(clusters):
            for number in range(rounds):
                steps = local_steps * number + np.arange(local_steps + 1)
                axis.plot(steps, values[number, :, client], linewidth=1, **line_style(cluster))
            goal = {"marker": CARETLEFTBASE, "color": line_style(cluster)["color"], "clip_on": False}
            axis.plot(local_steps * rounds, best[client], **goal, markersize=4)
        for number in range(1, rounds):
            axis.axvline(local_steps * number, color=GREY, linewidth=0.6, alpha=0.6)
        axis.set(xlabel="local step", xlim=(0, local_steps * rounds))
        axis.set_ylim(best.min() - margin, best.max() + margin)
        axis.set_title(role, fontsize=10)
    for axis in axes[0, 1:]:
        axis.set_yticklabels([])
    axes[0, 0].set_ylabel("value at each client")
    lines = [Line2D([], [], label=f"cluster {c}", **line_style(c)) for c in sorted(set(clusters))]
    legend(made, handles=lines, ncols=len(lines), fontsize=9)
    return made


def side_by_side(frame: pd.DataFrame) -> Picture:
    """A row for each method: the numbers a client works with by role, what it sends, how often it is right.

    Args:
        frame: indexed by the method's name, first row on top; columns shared, clustered and private (numbers
            that a client works with), bytes (sent up in a round) and accuracy (in [0, 1]).
    """
    made, axes = figure(1, 3, 8.0, 0.32 * len(frame) + 1.3)
    held, sent, right = axes[0]
    places = np.arange(len(frame))
    before = np.zeros(len(frame))
    for role, hatch, colour in zip(ROLES, HATCHES, COLOURS, strict=False):
        width = frame[role].to_numpy(float) / 1000
        held.barh(places, width, left=before, color=colour, hatch=hatch, edgecolor="white", label=role)
        before += width
    sent.barh(places, frame["bytes"].to_numpy(float) / 1000, color=COLOURS[7])
    accuracy = 100 * frame["accuracy"].to_numpy(float)
    right.hlines(places, 0, accuracy, color=GREY, linewidth=0.8, alpha=0.5)
    right.plot(accuracy, places, "o", color=COLOURS[3])
    for place, value in zip(places, accuracy, strict=True):
        right.annotate(
            f"{value:.0f}",
            (value, place),
            (6, 0),
            textcoords="offset points",
            va="center",
            color=GREY,
            fontsize=8,
        )
    for axis in axes[0]:
        axis.set(yticks=places, ylim=(len(frame) - 0.4, -0.6))
        axis.set_yticklabels([])
        axis.tick_params(axis="y", length=0)
    held.set_yticklabels(frame.index)
    held.set_xlabel("numbers held (thousands)")
    sent.set_xlabel("sent a round (kB)")
    right.set(xlabel="test accuracy (%)", xlim=(0, 108))
    legend(made, loc="outside upper left", ncols=3, fontsize=9)
    return made
