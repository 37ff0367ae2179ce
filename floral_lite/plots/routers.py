"""Figures of the chapter on routers: a mixture's path, orders of an error, a run followed, small matrices."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.lines import Line2D

from .style import COLOURS, GREY, Picture, figure, legend, line_style

# columns of a followed run, what their axis says, and its scale
FOLLOWED = {
    "gradient": ("router's gradient (norm)", "log"),
    "distance": ("distance from their mean", "log"),
    "entropy": ("entropy of mixtures (nats)", "linear"),
    "mismatch": ("mismatch (0 to 2)", "linear"),
}


def followed(runs: Mapping[str, pd.DataFrame]) -> Picture:
    """Four numbers of each run over its rounds, a panel for each.

    Args:
        runs: by label; indexed by the round, with the columns of FOLLOWED. What is NaN is left out.
    """
    made, axes = figure(2, 2, 7.6, 5.2)
    for axis, (column, (label, scale)) in zip(axes.flat, FOLLOWED.items(), strict=True):
        for number, (name, frame) in enumerate(runs.items()):
            series = frame[column].dropna()
            axis.plot(series.index, series, label=name, **line_style(number))
        axis.set(ylabel=label, yscale=scale)
    for axis in axes[1]:
        axis.set_xlabel("communication round")
    legend(made, ncols=2)
    return made


def triangle(models: npt.ArrayLike, optimum: npt.ArrayLike, path: npt.ArrayLike) -> Picture:
    """Three models in the plane, a client's best model, and the path of the client's mixture.

    Args:
        models: w_c, shape (C, 2).
        optimum: where the client's loss 1/2 ||w - optimum||^2 is least, shape (2,).
        path: the mixed model after each step, shape (n, 2); every fifth has a dot.
    """
    limit = 2.2  # of both axes, so that they stand still under a slider
    models, optimum, path = np.asarray(models), np.asarray(optimum), np.asarray(path)
    made, ((axis,),) = figure(1, 1, 4.6, 4.2)
    angles = np.linspace(0, 2 * np.pi, 200)
    for radius in np.arange(0.5, 3 * limit, 0.5):
        axis.plot(
            optimum[0] + radius * np.cos(angles),
            optimum[1] + radius * np.sin(angles),
            color=GREY,
            linewidth=0.6,
            alpha=0.5,
        )
    axis.fill(*models.T, facecolor=COLOURS[0], alpha=0.12)
    # with a dot for every step the dots would be a bar
    dots = {"marker": "o", "markersize": 3, "markevery": 5}
    axis.plot(*path.T, color=COLOURS[1], linewidth=0.8, **dots, label="mixed model, every fifth step")
    axis.scatter(*models.T, marker="*", s=90, color=COLOURS[0], zorder=3, label="models")
    axis.scatter(*optimum, marker="X", s=70, color=COLOURS[2], zorder=3, label="best for the client")
    for number, model in enumerate(models):
        away = model - models.mean(axis=0)  # outside, where the path does not come
        name, offset = rf"$w_{number + 1}$", 14 * away / max(np.linalg.norm(away), 1e-9)
        look = {"textcoords": "offset points", "ha": "center", "va": "center", "color": GREY}
        axis.annotate(name, model, offset, annotation_clip=True, **look)
    axis.set(
        xlabel="first parameter",
        ylabel="second parameter",
        xlim=(-limit, limit),
        ylim=(-limit, limit),
        aspect="equal",
    )
    legend(made, ncols=2, fontsize=9)
    return made


def orders(sizes: npt.ArrayLike, errors: Mapping[str, npt.ArrayLike], xlabel: str, ylabel: str) -> Picture:
    """Errors over a size, both logarithmic; the label of each line tells its slope, from a straight fit.

    Args:
        sizes: > 0, shape (n,).
        errors: > 0, shape (n,), by name.
        xlabel: what the sizes are.
        ylabel: what the errors are.
    """
    made, ((axis,),) = figure(1, 1, 6.0, 3.4)
    for number, (name, values) in enumerate(errors.items()):
        slope = np.polyfit(np.log(np.asarray(sizes)), np.log(np.asarray(values)), 1)[0]
        look = {**line_style(number), "marker": "o", "markersize": 4}
        axis.plot(sizes, values, label=f"{name}, slope {slope:.1f}", **look)
    axis.set(xlabel=xlabel, ylabel=ylabel, xscale="log", yscale="log")
    legend(axis)
    return made


def crowding(
    rounds: Sequence[int], gaps: Mapping[int, Sequence[float]], weights: Mapping[int, Sequence[float]]
) -> Picture:
    """How clusters come to one adaptor: how much better it is for each of them, and the weight that it has.

    Args:
        rounds: where the numbers were taken, shape (n,).
        gaps: by cluster, the loss with the best other adaptor minus that with the crowded one, shape (n,).
        weights: by cluster, of the crowded adaptor in its mixtures, 0 to 1, shape (n,).
    """
    made, axes = figure(1, 2, 7.6, 3.2)
    for axis, values in zip(axes[0], (gaps, weights), strict=True):
        for cluster, series in values.items():
            look = {**line_style(cluster), "marker": "o", "markersize": 3}
            axis.plot(rounds, series, label=f"cluster {cluster}", **look)
        axis.set_xlabel("communication round")
    axes[0, 0].axhline(0, color=GREY, linewidth=0.8)
    axes[0, 0].set_ylabel("advantage in training loss")
    axes[0, 1].set(ylabel="weight of the crowded adaptor", ylim=(-0.03, 1.03))
    legend(made, ncols=4)
    return made


def matrix(values: npt.ArrayLike, xlabel: str, ylabel: str, title: str) -> Picture:
    """A small matrix with its numbers in the cells; the least of each row is framed.

    Args:
        values: >= 0, shape (m, n).
        xlabel: what a column is.
        ylabel: what a row is.
        title: of the figure.
    """
    values = np.asarray(values)
    made, ((axis,),) = figure(1, 1, 0.8 * values.shape[1] + 1.6, 0.5 * len(values) + 1.2)
    axis.imshow(values, cmap="Blues", aspect="auto", vmin=0)
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if value > 0.6 * values.max() else "black"
        axis.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour)
    for row, column in enumerate(values.argmin(axis=1)):
        corner = (column - 0.46, row - 0.44)
        outline = [(0, 0), (0.92, 0), (0.92, 0.88), (0, 0.88), (0, 0)]
        x, y = np.transpose(outline) + np.array(corner)[:, None]
        axis.add_line(Line2D(x, y, color=COLOURS[1], linewidth=2.5))
    axis.set(xlabel=xlabel, ylabel=ylabel, xticks=range(values.shape[1]), yticks=range(len(values)))
    axis.set_title(title, fontsize=10)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return made
