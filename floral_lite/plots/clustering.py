"""Figures of the page on routing rules: where clients lie, and how far their clusters stand out."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from .style import GREY, Picture, figure, legend, mark_style


def places(panels: Mapping[str, npt.ArrayLike], clusters: Sequence[int]) -> Picture:
    """Clients as marks in a plane, coloured by their true cluster.

    Args:
        panels: by title, a place for each client, shape (K, 2).
        clusters: of each client, shape (K,).
    """
    made, axes = figure(1, len(panels), 3.3 * len(panels), 3.4)
    for axis, (title, points) in zip(axes.flat, panels.items(), strict=True):
        points = np.asarray(points)
        for cluster in sorted(set(clusters)):
            mine = np.equal(clusters, cluster)
            axis.scatter(*points[mine].T, s=22, label=f"cluster {cluster}", **mark_style(cluster))
        axis.set_title(title, fontsize=10)
        axis.set(xlabel="first direction", ylabel="second direction", xticks=[], yticks=[])
    legend(made, ncols=2 * len(panels), fontsize=9)
    return made


def effects(found: Mapping[str, Mapping[int, float]], limit: float) -> Picture:
    """How far the clusters of k-means stand out, over the number of directions that it looks at.

    Args:
        found: by name of the federation, the effect for each number of directions.
        limit: above which clusters are taken for some.
    """
    made, ((axis,),) = figure(1, 1, 6.0, 3.4)
    for number, (name, line) in enumerate(found.items()):
        axis.plot(list(line), list(line.values()), label=name, **mark_style(number))
    axis.axhline(limit, color=GREY, linestyle="--", linewidth=1)
    axis.set(xlabel="directions d", ylabel="effect (deviations / root of K)")
    legend(made, ncols=2, fontsize=9)
    return made
