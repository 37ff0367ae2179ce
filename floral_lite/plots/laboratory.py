"""The figures of the laboratory: runs on their way, runs before them, and what their routers have come to."""

from collections.abc import Mapping
from math import ceil

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ..federation.history import History
from .federations import MIXTURE_WEIGHT, draw_mixture
from .style import GREY, Picture, colour_bar, columns, figure, legend, line_style, lone_marker

QUANTITIES = {"test_accuracy": "test accuracy (%)", "test_loss": "test loss"}


def progress(
    histories: Mapping[str, History],
    before: Mapping[str, pd.DataFrame] | None = None,
    rounds: int = 100,
    again: Picture | None = None,
) -> Picture:
    """Accuracy and loss of runs on their way: thick the mean over all test samples, thin each cluster's.

    A cluster's is the plain mean over its clients.

    Runs from before are thin and grey, with their name at the end of the line.

    Args:
        histories: by method, each with a round or more. Without accuracies, as in regression, there is the
            loss alone.
        before: `History.frame()` of earlier runs of the same task, by a short name.
        rounds: how many there will be.
        again: an earlier picture, to draw into: new axes and their ticks take most of the time.
    """
    measured = [entry.test_accuracy for history in histories.values() for entry in history.evaluated[:1]]
    regression = bool(measured) and None in measured
    shown = [quantity for quantity in QUANTITIES if not regression or quantity == "test_loss"]
    width = 4.2 * len(shown)
    across = columns(list(histories), width)
    top = 0.12 + 0.23 * ceil(len(histories) / across)  # the rows of the legend
    made = _empty(len(shown), again)
    made.set_size_inches(width, 2.95 + top)
    _fix(made, right=0.15, top=top)
    room = 20  # of the axis of rounds; it doubles when it is full
    while room < max((len(history.rounds) for history in histories.values()), default=0):
        room *= 2
    for quantity, axis in zip(shown, made.axes, strict=True):
        _draw_runs(axis, quantity, histories, before or {})
        axis.set_xlim(0, max(min(room, rounds), axis.get_xlim()[1]))
    legend(made, loc="upper left", ncols=across)
    return made


def routers(histories: Mapping[str, History]) -> Picture | None:
    """The mixture matrices of runs on their way, as `plots.mixtures` draws them; None where nobody mixes.

    Args:
        histories: by method.
    """
    last = {name: history.evaluated[-1] for name, history in histories.items() if history.evaluated}
    mixing = {name: entry for name, entry in last.items() if entry.mixture and len(entry.mixture[0]) > 1}
    if not mixing:
        return None
    width = 1.9 * len(mixing) + 1.6
    made, axes = figure(1, len(mixing), width, 3.1)
    _fix(made, right=0.35, top=0.55)
    for (name, entry), axis in zip(mixing.items(), axes[0], strict=True):
        drawn = draw_mixture(axis, np.asarray(entry.mixture), histories[name].clusters)
        axis.set_title(f"{name}\nround {entry.round}", fontsize=10)
        axis.set_ylabel("clients")
    axes[0, 0].set_ylabel("clients, by true cluster")
    colour_bar(made, drawn, axes[0].tolist(), MIXTURE_WEIGHT)
    return made


def per_cluster(history: History, quantity: str) -> pd.DataFrame:
    """The plain mean over each cluster's clients: a row an evaluated round, a column a cluster.

    Args:
        history: a run.
        quantity: "test_accuracy" (in [0, 1]) or "test_loss".
    """
    of_clients = quantity.replace("test", "client")
    entries = history.evaluated
    values = np.array([getattr(entry, of_clients) for entry in entries]).reshape(-1, len(history.clusters))
    clients = pd.DataFrame(values, index=[entry.round for entry in entries], columns=history.clusters)
    means: pd.DataFrame = clients.T.groupby(level=0).mean().T
    return means


def _empty(panels: int, again: Picture | None) -> Picture:
    """A figure with so many panels and nothing in them: the earlier one, where it has as many."""
    if again is None or len(again.axes) != panels:
        return figure(1, panels, 4.2 * panels, 3.3)[0]
    for artist in [*again.legends, *(one for axis in again.axes for one in [*axis.lines, *axis.texts])]:
        artist.remove()
    for axis in again.axes:  # forget the limits that the old lines had
        axis.relim()
        axis.autoscale()
    return again


def _draw_runs(
    axis: Axes, quantity: str, histories: Mapping[str, History], before: Mapping[str, pd.DataFrame]
) -> None:
    """A panel: runs from before, and of each run on its way the mean over all samples and each cluster's."""
    factor = 100 if quantity == "test_accuracy" else 1
    for name, frame in before.items():
        series = factor * frame[quantity].dropna()
        axis.plot(series.index, series, color=GREY, linewidth=0.8)
        if len(series):
            end = (series.index[-1], series.iloc[-1])
            axis.annotate(name, end, (3, 0), textcoords="offset points", va="center", color=GREY, fontsize=8)
    for number, (name, history) in enumerate(histories.items()):
        look = line_style(number)
        means = factor * history.frame()[quantity].dropna()
        axis.plot(means.index, means, marker=lone_marker(means), linewidth=2.2, label=name, **look)
        clusters = factor * per_cluster(history, quantity)
        axis.plot(clusters.index, clusters, color=look["color"], linewidth=0.7, alpha=0.6)
    axis.set(xlabel="communication round", ylabel=QUANTITIES[quantity])
    axis.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axis.set_ylim(0, 100 if quantity == "test_accuracy" else None)


def _fix(made: Picture, right: float, top: float) -> None:
    """Fix the margins: working them out takes as long as drawing, and they would move while curves grow."""
    width, height = made.get_size_inches()
    made.set_layout_engine(None)
    made.subplots_adjust(0.65 / width, 0.5 / height, 1 - right / width, 1 - top / height, wspace=0.25)
