"""Figures of the chapter on clients who come later: their mixtures, what rules come to, adaptors counted."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .convolutions import mosaic
from .style import COLOURS, DASHES, GREY, Picture, figure, kin_styles, legend


class Curve(NamedTuple):
    """A rule over the number of samples.

    Attributes:
        x: numbers of samples.
        mean: at each.
        sd: of the seeds' means, at each.
    """

    x: Sequence[float]
    mean: Sequence[float]
    sd: Sequence[float]


def mosaics(panels: Mapping[str, npt.ArrayLike]) -> Picture:
    """Each cluster's prototypes as images side by side: a panel a task, a row a cluster, a column a label.

    Args:
        panels: by title, shape (C, L, H, W), values in [0, 1].
    """
    made, axes = figure(len(panels), 1, 6.4, 2.9 * len(panels))
    for axis, (title, images) in zip(axes.flat, panels.items(), strict=True):
        axis.imshow(mosaic(images), cmap="gray_r", vmin=0, vmax=1)
        axis.set_title(title, fontsize=10)
        num_clusters, num_labels, height, width = np.shape(images)
        axis.set_xticks((width + 1) * np.arange(num_labels) + (width - 1) / 2, range(num_labels))
        axis.set_yticks((height + 1) * np.arange(num_clusters) + (height - 1) / 2, range(num_clusters))
        axis.set(xlabel="label", ylabel="cluster")
        axis.tick_params(length=0)
    return made


def matrices(rows: Mapping[str, Mapping[str, npt.ArrayLike]], clusters: Sequence[int]) -> Picture:
    """Newcomers' mixtures, a matrix a rule: a row a newcomer, sorted by its true cluster, dark blue is 1.

    Args:
        rows: by task, the mixtures of each rule, shape (K, C); the rules are the same in all tasks.
        clusters: of each newcomer, shape (K,).
    """
    across = len(next(iter(rows.values())))
    made, axes = figure(len(rows), across, 2.0 * across + 0.4, 2.9 * len(rows))
    order = np.argsort(clusters, kind="stable")
    for line, (task, panels) in zip(axes, rows.items(), strict=True):
        for axis, (rule, mixtures) in zip(line, panels.items(), strict=True):
            mixtures = np.asarray(mixtures)
            axis.imshow(mixtures[order], cmap="Blues", vmin=0, vmax=1, aspect="auto")
            axis.set_title(f"{task}: {rule}", fontsize=10)
            axis.set(xlabel="adaptor", xticks=range(mixtures.shape[1]))
            axis.set_yticks(range(len(order)), [str(clusters[row]) for row in order])
            axis.set_ylabel("newcomers, by true cluster" if axis is line[0] else "cluster")
    return made


def by_samples(
    panels: Mapping[str, Mapping[str, Curve]], limits: Mapping[str, Mapping[str, float]]
) -> Picture:
    """Accuracy over the number of samples, a panel a task, a line a rule, bars of one deviation.

    Args:
        panels: by title, the curve of each rule, with a look of `style.kin_styles`.
        limits: by title, heights of grey lines that need no samples, by name.
    """
    made, axes = figure(1, len(panels), 3.7 * len(panels), 4.3)
    for axis, (title, curves) in zip(axes.flat, panels.items(), strict=True):
        looks = kin_styles(curves)
        for number, (rule, curve) in enumerate(curves.items()):
            x = np.array(curve.x) * 1.04 ** (number - len(curves) / 2)  # beside each other, so that bars show
            look = {**looks[rule], "linewidth": 1.3, "markersize": 5, "capsize": 2}
            axis.errorbar(x, curve.mean, curve.sd, label=rule, **look)
        for number, (name, height) in enumerate(limits[title].items()):
            axis.axhline(height, color=GREY, linestyle=DASHES[1 + number % 3], linewidth=1, label=name)
        axis.set_title(title, fontsize=10)
        axis.set(xscale="log", xlabel="samples of the newcomer", ylabel="test accuracy (%)")
        first = next(iter(curves.values()))
        axis.set_xticks(list(first.x), [f"{x:g}" for x in first.x])
        axis.minorticks_off()
    legend(made, ncols=3, fontsize=9)
    return made


def counted(panels: Mapping[str, Mapping[str, Sequence[float]]], truth: Mapping[str, float]) -> Picture:
    """Effective numbers of adaptors, a dot a federation, with the true number as a line across its column.

    Args:
        panels: by title, for each kind of federation the numbers that were found.
        truth: the true number of clusters of each kind.
    """
    made, axes = figure(1, len(panels), 3.7 * len(panels), 3.6)
    for axis, (title, kinds) in zip(axes.flat, panels.items(), strict=True):
        for place, (kind, numbers) in enumerate(kinds.items()):
            beside = place + np.linspace(-0.2, 0.2, len(numbers))
            axis.scatter(
                beside, numbers, s=24, color=COLOURS[0], label="found" if not place else None, zorder=2
            )
            axis.hlines(
                truth[kind], place - 0.35, place + 0.35, color=COLOURS[1], label=None if place else "true"
            )
        axis.set_title(title, fontsize=10)
        axis.set_xticks(range(len(kinds)), list(kinds), fontsize=8)
        axis.set(xlabel="clusters, data", ylabel="effective number of adaptors", ylim=(0.5, None))
    legend(made, ncols=2, fontsize=9)
    return made
