"""Figures of a communication round: where the clients' copies go, and what the server makes of them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .style import COLOURS, GREY, Picture, figure

MARKERS = "osD^vP*Xh<"


def moves(ends: Sequence[npt.ArrayLike], weights: npt.ArrayLike, groups: Sequence[int]) -> Picture:
    """How a round moves some parameters: an arrow for each client's copy, and a star for their average.

    Every panel is the plane of its parameters in which the copies move most; the server's state before
    the round is its origin. A mark's area is the client's weight in the average. The first panel is the
    base, the others are the adaptors.

    Args:
        ends: for each panel what the clients have added to the server's parameters, shape (k, d), with
            k >= 2 and d >= 2.
        weights: of the clients in each panel's average, shape (panels, k); rows sum to 1, or to 0 where
            nobody has weight.
        groups: each client's true cluster, which gives it its colour and mark.
    """
    weights = np.asarray(weights, dtype=float)
    made, axes = figure(1, len(ends), 1.9 * len(ends) + 0.6, 2.9)
    for panel, (axis, moved) in enumerate(zip(axes[0], ends, strict=True)):
        places = in_plane(moved)
        for client, (place, group) in enumerate(zip(places, groups, strict=True)):
            colour = COLOURS[group % len(COLOURS)]
            axis.plot([0, place[0]], [0, place[1]], color=colour, linewidth=0.8)
            axis.scatter(
                *place,
                s=20 + 500 * weights[panel, client],
                color=colour,
                marker=MARKERS[group % len(MARKERS)],
                alpha=0.6,
                linewidth=0,
            )
        axis.plot(*(weights[panel] @ places), "*", color=GREY, markersize=15, markeredgecolor="white")
        axis.set_title("base" if panel == 0 else f"adaptor {panel - 1}", color=GREY, fontsize=10)
        reach = 1.25 * np.abs(places).max() or 1.0
        axis.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xlabel="1st direction")
        axis.tick_params(labelsize=8)
    axes[0, 0].set_ylabel("2nd direction")
    for group in sorted(set(groups)):
        axes[0, 0].scatter(
            [],
            [],
            color=COLOURS[group % len(COLOURS)],
            marker=MARKERS[group % len(MARKERS)],
            label=f"client of cluster {group}",
        )
    axes[0, 0].plot([], [], "*", color=GREY, linestyle="none", label="the server's average")
    handles = axes[0, 0].get_legend_handles_labels()
    made.legend(*handles, loc="outside lower center", ncols=4, labelcolor=GREY, frameon=False)
    return made


def in_plane(points: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Points (k, d), both >= 2, seen in the plane through the origin in which they are longest, (k, 2)."""
    points = np.asarray(points, dtype=float)
    _, _, directions = np.linalg.svd(points, full_matrices=False)
    plane = directions[:2]
    # a direction's sign means nothing: the largest entry is made positive
    signs = np.sign(plane[np.arange(len(plane)), np.abs(plane).argmax(axis=1)])
    seen: npt.NDArray[np.float64] = points @ (signs[:, None] * plane).T
    return seen
