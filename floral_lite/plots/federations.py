"""Figures of federations: their images, histories, mixtures and parameters."""

from collections.abc import Collection, Mapping, Sequence
from math import ceil

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from ..errors import check_names, require
from ..federation.history import History
from .style import (
    COLOURS,
    GREY,
    Picture,
    bare,
    colour_bar,
    figure,
    grouped_bars,
    in_rows,
    legend,
    line_style,
    lone_marker,
    signed_image,
    strongest,
)

MIXTURE_WEIGHT = r"mixture weight $\pi_c^k$"
VALUES = {
    "test_accuracy": "test accuracy (%), mean over samples",
    "test_loss": "test loss, mean over samples",
    "train_loss": "training loss, mean over samples",
    "mismatch": "mismatch of the mixtures (0 to 2)",
}


def image_grid(
    images: npt.ArrayLike, row_labels: Sequence[str], column_labels: Sequence[str] = ()
) -> Picture:
    """Images in a grid.

    Args:
        images: shape (rows, columns, H, W), values in [0, 1], drawn dark on light; or
            (rows, columns, H, W, 3), red, green and blue.
        row_labels: one a row.
        column_labels: one a column, or none.
    """
    images = np.asarray(images)
    rows, columns = images.shape[:2]
    side = min(0.8, 6.4 / columns)  # of an image; a wider figure has smaller words on a page
    made, axes = figure(rows, columns, side * columns + 1.2, 1.06 * side * rows)
    for (row, column), axis in np.ndenumerate(axes):
        axis.imshow(images[row, column], cmap="gray_r", vmin=0, vmax=1)
        bare(axis)
        if column == 0:
            axis.set_ylabel(row_labels[row], rotation=0, ha="right", va="center")
        if row == 0 and column_labels:
            axis.set_title(column_labels[column], fontsize=9)
    return made


def _check_labelled(histories: object) -> None:
    """Raise InputError unless they are histories of runs by their labels."""
    require(
        isinstance(histories, Mapping)
        and len(histories) > 0
        and all(isinstance(each, History) for each in histories.values()),
        f"histories is {histories!r}; give runs by their labels, such as {{'FLoRAL': federation.history}}",
    )


def curves(histories: Mapping[str, History], value: str = "test_accuracy") -> Picture:
    """A number of each run over the rounds; a run that has it nowhere, as a regression no accuracy, no line.

    Accuracy and losses are means over samples: a client with more of them counts more. In
    `accuracy_per_cluster` all clients count alike.

    Args:
        histories: the runs by their label, one at least.
        value: "test_accuracy" (drawn in per cent), "test_loss", "train_loss" or "mismatch".

    Raises:
        InputError: there is no such value, or no run.
    """
    _check_labelled(histories)
    check_names("value", [value], VALUES)
    made, ((axis,),) = figure(1, 1, 6.4, 3.4)
    factor = 100 if value == "test_accuracy" else 1
    for number, (label, history) in enumerate(histories.items()):
        series = factor * history.frame()[value].dropna()
        axis.plot(series.index, series, label=label, marker=lone_marker(series), **line_style(number))
    axis.set(xlabel="communication round", ylabel=VALUES[value])
    axis.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    legend(axis)
    return made


def accuracy_per_cluster(histories: Mapping[str, History]) -> Picture:
    """The last accuracy in per cent, the plain mean of each cluster's clients, a bar for each run.

    Args:
        histories: the runs by their label, of one task with labels; each was evaluated.

    Raises:
        InputError: there is no run, one was not evaluated, has no accuracy or other clusters than the first.
    """
    _check_labelled(histories)
    first = next(iter(histories.values()))
    for label, history in histories.items():
        require(
            history.last_evaluated.client_accuracy is not None,
            f"run {label!r} has no accuracy of each client: a regression has none, nor has a run over Flower "
            "whose last test a client has missed; see `curves` for what it has",
        )
        require(
            set(history.clusters) == set(first.clusters),
            f"run {label!r} has the clusters {sorted(set(history.clusters))}, and the first has "
            f"{sorted(set(first.clusters))}; give runs of one task",
        )
    made, ((axis,),) = figure(1, 1, 6.4, 3.2)
    means = {
        label: 100 * history.clients().groupby("cluster")["accuracy"].mean()
        for label, history in histories.items()
    }
    grouped_bars(axis, means)
    clusters = next(iter(means.values())).index
    axis.set(xlabel="cluster", ylabel="test accuracy (%)", ylim=(0, 112))
    axis.set_xticks(range(len(clusters)), clusters)
    legend(made)
    return made


def mixtures(history: History, rounds: Sequence[int] | None = None, title: str | None = None) -> Picture:
    """The mixture matrices at some rounds: one row a client, one column an adaptor, dark is 1.

    Clients are sorted by their true cluster; lines part the clusters.

    Args:
        history: a run that was evaluated at least once.
        rounds: evaluated rounds to draw; the last one if None.
        title: of each matrix, with {round} and {accuracy} in per cent (NaN of a regression) to fill in; both,
            or the round alone of a regression, if None.

    Raises:
        InputError: rounds is no list, or one of them was not evaluated or has no mixtures.
    """
    if rounds is None:
        chosen = [history.last_evaluated]
    else:
        known = {entry.round: entry for entry in history.evaluated}
        given: object = rounds
        require(
            isinstance(given, Collection) and len(rounds) > 0,
            f"rounds is {rounds!r}; give a list of those that were evaluated, of {sorted(known)}",
        )
        for number in rounds:
            require(number in known, f"round {number} was not evaluated; there are {sorted(known)}")
        chosen = [known[number] for number in rounds]
    across = min(len(chosen), 4)  # more would have no room for their titles
    made, axes = in_rows(len(chosen), across, min(2.3 * across + 1.2, 7.6), 3.4 - 0.15 * across)
    for axis, entry in zip(axes, chosen, strict=True):
        shown = draw_mixture(axis, entry.mixture, history.clusters)
        accuracy = float("nan") if entry.test_accuracy is None else 100 * entry.test_accuracy
        words = "round {round}" if entry.test_accuracy is None else "round {round}: {accuracy:.1f}%"
        axis.set_title((title or words).format(round=entry.round, accuracy=accuracy), fontsize=10)
    for axis in axes[::across]:
        axis.set_ylabel("clients, by true cluster")
    colour_bar(made, shown, axes.tolist(), MIXTURE_WEIGHT)
    return made


def run_figure(history: History) -> Picture:
    """One run at a glance: accuracy (or loss) over the rounds, and the mixtures at its end.

    Raises:
        InputError: no round was evaluated, or the last has no mixtures.
    """
    last = history.last_evaluated
    accuracy = last.test_accuracy is not None
    series = history.frame()["test_accuracy" if accuracy else "test_loss"].dropna()
    made, axes = figure(1, 2, 8.0, 3.4)
    curve, matrix = axes[0]
    series = 100 * series if accuracy else series
    curve.plot(series.index, series, color=COLOURS[0], marker=lone_marker(series))
    curve.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    curve.set(xlabel="communication round", ylabel="test accuracy (%)" if accuracy else "test loss")
    if accuracy:
        curve.set_ylim(0, 100)
    shown = draw_mixture(matrix, last.mixture, history.clusters)
    matrix.set_ylabel("clients, by true cluster")
    colour_bar(made, shown, [matrix], MIXTURE_WEIGHT)
    return made


def base_plus_adaptors(base: npt.ArrayLike, adaptors: npt.ArrayLike, mixture: npt.ArrayLike) -> Picture:
    """One layer of one client: the shared matrix plus each adaptor times its weight is the personal matrix.

    Purple is negative, orange positive.

    Args:
        base: W, shape (m, n).
        adaptors: U_c V_c^T for each c, shape (C, m, n).
        mixture: pi, shape (C,).
    """
    base, adaptors, mixture = np.asarray(base), np.asarray(adaptors), np.asarray(mixture)
    parts = [base, *adaptors, base + np.tensordot(mixture, adaptors, axes=1)]
    names = [
        "shared $W$",
        *(rf"$+\ {weight:.2f} \times U_{c} V_{c}^\top$" for c, weight in enumerate(mixture)),
        "$=$ personal",
    ]
    limit = float(np.nanquantile(np.abs(base), 0.99)) or strongest(parts)
    across = min(len(parts), 6)
    made, axes = in_rows(len(parts), across, min(1.7 * across, 7.6), 1.6)
    for axis, part, name in zip(axes, parts, names, strict=True):
        signed_image(axis, part, limit, aspect="auto")
        axis.set_title(name, fontsize=9)
    return made


def draw_mixture(axis: Axes, mixture: npt.ArrayLike | None, clusters: Sequence[int]) -> AxesImage:
    """One mixture matrix, rows sorted by cluster: its number beside them, a line where a cluster ends.

    Args:
        axis: to draw on.
        mixture: pi, shape (K, C), dark where it is 1.
        clusters: of each client.

    Raises:
        InputError: there is none.
    """
    require(mixture is not None, "the round has no mixtures: over Flower they stay with the clients")
    mixture = np.asarray(mixture)[np.argsort(clusters, kind="stable")]
    shown = axis.imshow(mixture, aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    names, sizes = np.unique(clusters, return_counts=True)
    first = np.cumsum(sizes) - sizes
    for border in first[1:] - 0.5:
        axis.axhline(border, color=GREY, linewidth=1)
    every = ceil(len(names) / 10)  # of many not every one has room for its number
    axis.set_yticks((first + (sizes - 1) / 2)[::every], names[::every], fontsize=8)
    axis.tick_params(axis="y", length=0)
    num_adaptors = mixture.shape[1]
    axis.set(xlabel="adaptor c", xticks=range(0, num_adaptors, ceil(num_adaptors / 10)))
    return shown
