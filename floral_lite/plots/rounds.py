"""The figure of a communication round: whom the server counts in which of its averages."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .style import COLOURS, GREY, Picture, figure


def who_counts(weights: npt.ArrayLike, groups: Sequence[int]) -> Picture:
    """Averages as rows, clients as columns, sorted by group; a mark's area is the client's weight.

    Args:
        weights: of the clients in the average of the base, then of each adaptor, shape (1 + C, k); rows sum
            to 1, or to 0 where nobody has weight.
        groups: each client's true cluster, which gives its mark a colour.
    """
    order = np.argsort(groups, kind="stable")
    weights, own = np.asarray(weights, dtype=float)[:, order], np.asarray(groups)[order]
    rows, columns = weights.shape
    made, ((axis,),) = figure(1, 1, 7.6, 0.6 * rows + 1.0)
    for group in sorted(set(groups)):
        places = np.flatnonzero(own == group)
        for row in range(rows):
            # all of one shape: two marks of one size and other shapes differ in their areas
            sizes, colour = 1200 * weights[row, places], COLOURS[group % len(COLOURS)]
            axis.scatter(places, np.full(len(places), row), s=sizes, color=colour, linewidth=0)
        if places[0]:
            axis.axvline(places[0] - 0.5, color=GREY, linewidth=0.6)
        place = (places.mean(), 1.02)
        axis.annotate(f"cluster {group}", place, xycoords=("data", "axes fraction"), ha="center", color=GREY)
    axis.set(
        xlabel="client",
        xlim=(-0.5, columns - 0.5),
        xticks=range(columns),
        xticklabels=order,
        ylim=(rows - 0.5, -0.5),
        yticks=range(rows),
        yticklabels=["base", *(f"adaptor {c}" for c in range(rows - 1))],
    )
    return made
