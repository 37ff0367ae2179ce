"""Figures of centering: adaptors as arrows, and the singular values of their differences."""

import numpy as np
import numpy.typing as npt

from .style import COLOURS, GREY, Picture, figure, legend, mark_style


def shifted(base: npt.ArrayLike, adaptors: npt.ArrayLike, share: float) -> Picture:
    """Left the base, and the adaptors as arrows from it to the clusters' models; right how long they are.

    A share of the adaptors' mean has been moved into the base: 0 is none of it, 1 all.

    Args:
        base: u, shape (2,).
        adaptors: a_c before anything was moved, shape (C, 2).
        share: the part of the mean that is moved, 0 to 2.
    """
    old, arrows = np.asarray(base, dtype=float), np.asarray(adaptors, dtype=float)
    mean = arrows.mean(axis=0)
    # u + tau E_c[a_c], a_c - tau E_c[a_c]
    new, arrows = old + share * mean, arrows - share * mean
    tips = new + arrows
    made, axes = figure(1, 2, 8.2, 3.6)
    plane, length = axes[0]
    for cluster, tip in enumerate(tips):
        arrow = {"arrowstyle": "->", "color": COLOURS[cluster % len(COLOURS)], "shrinkB": 4}
        plane.annotate("", tip, new, arrowprops=arrow)
        plane.plot(*tip, linestyle="none", label=f"$u + a_{{{cluster + 1}}}$", **mark_style(cluster))
    plane.plot(*new, "o", color=GREY, markersize=8, label="base $u$")
    everything = np.vstack([old, old + 2 * mean, tips])
    low, high = everything.min(axis=0) - 0.4, everything.max(axis=0) + 0.4
    plane.set(
        xlabel="first parameter",
        ylabel="second parameter",
        xlim=(low[0], high[0]),
        ylim=(low[1], high[1]),
        aspect="equal",
    )
    shares = np.linspace(0, 2, 101)
    spread = ((np.asarray(adaptors) - shares[:, None, None] * mean) ** 2).sum(axis=2).mean(axis=1)
    length.plot(shares, spread, color=GREY)
    length.plot(share, (arrows**2).sum(axis=1).mean(), "o", color=COLOURS[3], markersize=8)
    length.set(
        xlabel="share of the mean moved into the base",
        ylabel="mean squared length of the adaptors",
        ylim=(0, 1.1 * spread.max()),
    )
    legend(made, loc="outside lower center")
    return made


def spectra(singular_values: npt.ArrayLike, rank: int) -> Picture:
    """The singular values of each adaptor's difference from the mean, and where the truncation cuts.

    Kept values are filled marks, lost ones hollow.

    Args:
        singular_values: falling, shape (C, n).
        rank: how many of each are kept.
    """
    made, ((axis,),) = figure(1, 1, 6.4, 3.4)
    for cluster, values in enumerate(np.asarray(singular_values)):
        places = np.arange(1, len(values) + 1)
        axis.plot(places, values, color=COLOURS[cluster % len(COLOURS)], linewidth=0.8)
        look = {"linestyle": "none", **mark_style(cluster)}
        axis.plot(places[:rank], values[:rank], label=f"adaptor {cluster}", **look)
        axis.plot(places[rank:], values[rank:], markerfacecolor="none", **look)
    axis.axvline(rank + 0.5, color=GREY, linestyle="--", linewidth=1)
    axis.annotate(" lost", (rank + 0.5, 0.97), xycoords=("data", "axes fraction"), va="top", color=GREY)
    axis.annotate("kept ", (rank + 0.5, 0.97), xycoords=("data", "axes fraction"), va="top", ha="right",
                  color=GREY)  # fmt: skip
    axis.set(xlabel="place of the singular value", ylabel="singular value", xticks=places)
    axis.set_ylim(0)
    legend(axis)
    return made
