"""Figures of the chapter on objectives: clients and models as points of a plane, and Jensen's inequality."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from .style import COLOURS, GREY, Picture, figure, in_rows, legend, mark_style

EAST, NORTH = "east (100 m)", "north (100 m)"
COLUMNS = 3  # panels a row
MIXTURE = (0.7, 0.3)  # of Jensen's client 1; that of client 2 is the same the other way round
REACH = 4.0  # their largest distance: the axes are made for it, so that they stand still


class Answer(NamedTuple):
    """What an objective has found in the plane.

    Attributes:
        models: w_c, shape (C, 2).
        personal: the model of each client, shape (K, 2).
    """

    models: npt.ArrayLike
    personal: npt.ArrayLike


def readings(points: npt.ArrayLike, clusters: npt.ArrayLike) -> Picture:
    """Every client's readings in the plane, a panel for each cluster, a colour for each client.

    Args:
        points: shape (K, n, 2), in 100 m.
        clusters: of each client, shape (K,).
    """
    points, clusters = np.asarray(points), np.asarray(clusters)
    names = np.unique(clusters)
    made, axes = figure(1, len(names), 2.1 * len(names) + 0.4, 3.8)
    for axis, cluster in zip(axes[0], names, strict=True):
        for number, client in enumerate(np.flatnonzero(clusters == cluster)):
            east, north = points[client].T
            axis.scatter(east, north, s=18, label=f"client {client}", **mark_style(number))
        _street(axis, points.reshape(-1, 2))
        legend(axis, fontsize=8, handletextpad=0.1, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    axes[0, 0].set_ylabel(NORTH)
    return made


def answers(clients: npt.ArrayLike, clusters: npt.ArrayLike, found: Mapping[str, Answer]) -> Picture:
    """A panel an objective: clients, the models (stars), and a line from each client to its own model.

    Args:
        clients: where each client's own loss is least, shape (K, 2), in 100 m.
        clusters: of each client, shape (K,): its colour and its marker.
        found: answers by title.
    """
    clients, clusters = np.asarray(clients), np.asarray(clusters)
    made, axes = in_rows(len(found), COLUMNS, 1.5 * COLUMNS + 0.4, 3.2)
    for axis, (title, answer) in zip(axes, found.items(), strict=True):
        models, personal = np.asarray(answer.models), np.asarray(answer.personal)
        for client, own in zip(clients, personal, strict=True):
            line = {"color": GREY, "linewidth": 0.8, "marker": ".", "markersize": 4, "markevery": [1]}
            axis.plot(*zip(client, own, strict=True), **line, zorder=1)
        for cluster in np.unique(clusters):
            axis.scatter(*clients[clusters == cluster].T, s=20, zorder=2, **mark_style(cluster))
        # hollow: in (PFL) each client stands in a star of its own
        axis.scatter(*models.T, marker="*", s=130, facecolor="none", edgecolor=GREY, zorder=3)
        axis.set_title(title, fontsize=10)
        _street(axis, clients)
    for axis in axes[::COLUMNS]:
        axis.set_ylabel(NORTH)
    return made


def jensen(distance: float) -> Picture:
    """Two clients with the losses 1/2 ||w - m||^2, a model at each, and what mixing them does to client 1.

    Left the plane, with lines of equal loss around each client. Right the loss of client 1 on the way
    from model 1 to model 2: of the mixed model (FML), and the mixture of the two losses (MFL).

    Args:
        distance: between the clients, in 100 m, at most 4.
    """
    clients = np.array([[-distance / 2, 0.0], [distance / 2, 0.0]])
    personal = np.array([MIXTURE, MIXTURE[::-1]]) @ clients
    made, axes = figure(1, 2, 6.8, 3.2)
    plane, section = axes[0]
    angles = np.linspace(0, 2 * np.pi, 100)
    circle = np.stack([np.cos(angles), np.sin(angles)])
    plane.plot(*clients.T, color=GREY, linewidth=1)
    for number, (client, own) in enumerate(zip(clients, personal, strict=True)):
        for radius in (0.5, 1.0, 1.5):
            plane.plot(*(client[:, None] + radius * circle), color=COLOURS[number], linewidth=0.8, alpha=0.7)
        plane.scatter(*client, marker="*", s=110, color=COLOURS[number], zorder=3)
        label = f"client {number + 1}'s mixture"
        plane.scatter(
            *own, s=45, facecolor="none", edgecolor=COLOURS[number], linewidth=2, zorder=4, label=label
        )
        # below the circles, and beside each other where the clients are in one place
        below, side = (client[0], -1.5), ("right", "left")[number]
        plane.annotate(rf"$w_{number + 1}$", below, (0, -12), textcoords="offset points", ha=side, color=GREY)
    half = REACH / 2 + 1.6
    plane.set(xlabel=EAST, ylabel=NORTH, xlim=(-half, half), ylim=(-2.4, 2.4), aspect="equal")
    legend(plane, fontsize=8, loc="upper center", ncols=2)

    share = np.linspace(0, 1, 101)
    far = 0.5 * distance**2  # the loss of client 1 at model 2; at its own it is 0
    section.plot(share, far * share, "--", color=COLOURS[3], label=r"$\sum_c \pi_c f(w_c)$, in (MFL)")
    section.plot(share, far * share**2, color=COLOURS[2], label=r"$f(\sum_c \pi_c w_c)$, in (FML)")
    lower, upper = far * MIXTURE[1] ** 2, far * MIXTURE[1]
    section.plot([MIXTURE[1]] * 2, [lower, upper], color=GREY, marker="o", markersize=4)
    gap = f"gap {upper - lower:.2f}"
    section.annotate(gap, (MIXTURE[1], upper), (0, 6), textcoords="offset points", ha="right", color=GREY)
    section.set(
        xlabel=r"$\pi_2$, the weight of model 2",
        ylabel="loss of client 1",
        xlim=(-0.03, 1.03),
        ylim=(-0.02 * REACH**2, 0.53 * REACH**2),
    )
    legend(section, loc="upper left")
    return made


def segment(shares: npt.ArrayLike, curves: Mapping[str, npt.ArrayLike], label: str) -> Picture:
    """What happens on the straight way between two models.

    Args:
        shares: of the second model, in [0, 1], shape (n,).
        curves: a number at each share, shape (n,), by name.
        label: what the numbers are, with their unit.
    """
    made, ((axis,),) = figure(1, 1, 6.0, 3.2)
    for number, (name, values) in enumerate(curves.items()):
        axis.plot(
            shares, values, "-:"[number % 2], marker="o", markersize=3, color=COLOURS[number], label=name
        )
    axis.set(xlabel="weight of the second model", ylabel=label)
    legend(made, ncols=2)
    return made


def _street(axis: Axes, points: npt.NDArray[np.float64]) -> None:
    """Equal scales, and limits that show all points."""
    low, high = points.min(axis=0) - 1, points.max(axis=0) + 1
    axis.set(xlabel=EAST, xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
