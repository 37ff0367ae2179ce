"""Figures of the chapter on convergence: a model among its clients, and errors beside what bounds them."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from .style import COLOURS, GREY, Picture, bound_style, figure, legend, mark_style


def plane(best: npt.ArrayLike, own: npt.ArrayLike, optimum: npt.ArrayLike, path: npt.ArrayLike) -> Picture:
    """Where each client would like the model to be, and the way that the model of one cluster takes.

    Args:
        best: the clients' best models, shape (K, 2).
        own: which clients are in the cluster, shape (K,).
        optimum: the cluster's best model, shape (2,).
        path: its model, step by step, shape (n, 2).
    """
    best, own, path = np.asarray(best), np.asarray(own, dtype=bool), np.asarray(path)
    made, ((axis,),) = figure(1, 1, 6.0, 3.8)
    axis.scatter(*best[own].T, color=COLOURS[0], s=28, label="clients of the cluster")
    axis.scatter(*best[~own].T, color=COLOURS[1], s=28, marker="s", label="other clients")
    axis.plot(*path.T, color=COLOURS[2], linewidth=1.8, label="the cluster's model")
    axis.scatter(*path[-1], color=COLOURS[2], s=45, zorder=3)
    axis.scatter(*np.asarray(optimum), color=GREY, marker="X", s=80, zorder=3, label="best for the cluster")
    axis.set(xlabel="first parameter", ylabel="second parameter", aspect="equal")
    legend(made, ncols=2, fontsize=9)
    return made


def rates(
    steps: npt.ArrayLike,
    measured: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]],
    bounds: Mapping[str, npt.ArrayLike],
) -> Picture:
    """Errors over the steps, both logarithmic: measured ones with markers, bounds dashed.

    Args:
        steps: T > 0, shape (n,).
        measured: by name, mean and standard error, > 0 and >= 0, shape (n,) each.
        bounds: by name, > 0, shape (n,). One whose name ends with that of an error has its colour.
    """
    made, ((axis,),) = figure(1, 1, 6.4, 4.2)
    for number, (name, (mean, error)) in enumerate(measured.items()):
        mean, error, look = np.asarray(mean), np.asarray(error), mark_style(number)
        axis.plot(steps, mean, **look, markersize=5, label=name)
        low = np.maximum(mean - 2 * error, mean / 10)  # positive, for the logarithm
        axis.fill_between(np.asarray(steps), low, mean + 2 * error, color=look["color"], alpha=0.2)
    for number, (name, values) in enumerate(bounds.items()):
        axis.plot(steps, values, **bound_style(name, list(measured), number), label=name)
    axis.set(
        xlabel="steps T",
        ylabel=r"error $f_c(\hat{w}_T) - f_c(w_c^*)$",
        xscale="log",
        yscale="log",
    )
    legend(made, ncols=2, fontsize=9)
    return made
