"""Figures of low-rank adaptors: matrices, their singular values, and the sizes of factors."""

from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
import numpy.typing as npt
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from .style import (
    COLOURS,
    DASHES,
    GREY,
    Picture,
    bare,
    colour_bar,
    figure,
    legend,
    line_style,
    mark_style,
    signed_image,
    strongest,
)


def matrices(named: Mapping[str, npt.ArrayLike], signs: str = "", limit: float | None = None) -> Picture:
    """Matrices in a row, on one colour scale: purple is negative, orange positive.

    Args:
        named: the matrices (m, n) by their titles.
        signs: what stands between them, one character a gap, such as "+=".
        limit: the value that has the strongest colour; the largest absolute entry if None.
    """
    parts = [np.asarray(matrix) for matrix in named.values()]
    if limit is None:
        limit = strongest(parts)
    made, axes = figure(1, len(parts), 1.9 * len(parts) + 0.8, 2.1)
    for place, (axis, name, part) in enumerate(zip(axes[0], named, parts, strict=True)):
        shown = signed_image(axis, part, limit, aspect="auto")
        axis.set_title(name, fontsize=9)
        if 0 < place <= len(signs):
            axis.set_ylabel(f"${signs[place - 1]}$", rotation=0, ha="right", va="center", fontsize=14)
    colour_bar(made, shown, axes[0].tolist(), "entry")
    return made


def singular_values(spectra: Mapping[str, npt.ArrayLike]) -> Picture:
    """Left the singular values, each over the largest; right how much of the squares the first r hold.

    Args:
        spectra: singular values of each matrix, falling, by its name.
    """
    made, axes = figure(1, 2, 8.0, 3.2)
    values, shares = axes[0]
    for number, (name, spectrum) in enumerate(spectra.items()):
        found = np.asarray(spectrum)
        ranks = np.arange(1, len(found) + 1)
        look = {**line_style(number), "marker": "o", "markersize": 3}
        values.plot(ranks, found / found[0], label=name, **look)
        shares.plot(ranks, 100 * np.cumsum(found**2) / np.sum(found**2), label=name, **look)
    values.set(xlabel="place $i$", ylabel=r"singular value $\sigma_i / \sigma_1$", ylim=(0, 1.05))
    shares.set(xlabel="rank $r$", ylabel="share of the squares (%)", ylim=(0, 105))
    for axis in axes[0]:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(shares, loc="lower right")
    return made


def best_of_rank(matrix: npt.ArrayLike, rank: int) -> Picture:
    """A matrix, the closest matrix of a rank, and what is left; the title says how much is kept.

    Args:
        matrix: D, shape (m, n).
        rank: r, 0 to min(m, n).
    """
    whole = np.asarray(matrix)
    u, sigma, vt = np.linalg.svd(whole, full_matrices=False)
    closest = (u[:, :rank] * sigma[:rank]) @ vt[:rank]
    kept = 100 * float(np.sum(sigma[:rank] ** 2) / np.sum(sigma**2))
    return matrices(
        {
            "difference $D$": whole,
            f"rank {rank}: {kept:.0f}% of the squares": closest,
            "what is left": whole - closest,
        },
        signs="=+",
    )


def accuracy_over_rank(
    runs: Mapping[str, tuple[Sequence[float], Sequence[float]]], levels: Mapping[str, float]
) -> Picture:
    """Accuracy in per cent over the rank, and horizontal lines to compare with.

    Args:
        runs: ranks and accuracies in per cent, by name.
        levels: accuracies in per cent that do not depend on the rank, by name.
    """
    made, ((axis,),) = figure(1, 1, 6.4, 3.6)
    for number, (name, (ranks, accuracies)) in enumerate(runs.items()):
        axis.plot(ranks, accuracies, **mark_style(number), markersize=5, label=name)
    for (name, level), dash in zip(levels.items(), cycle(DASHES[1:3]), strict=False):
        axis.axhline(level, color=GREY, linestyle=dash, linewidth=1.2, label=name)
    axis.set(xlabel="rank $r$", ylabel="test accuracy (%)", ylim=(0, 104))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(axis, loc="lower right")
    return made


def factor_shapes(outputs: int, inputs: int, rank: int) -> Picture:
    """A weight beside its two factors, all drawn to one scale: an area is a number of parameters.

    Args:
        outputs: m, rows of W and of U.
        inputs: n, columns of W and of V^T.
        rank: r.
    """
    gap = 0.12 * max(outputs, inputs) + 1
    # left edge, top edge, width, height: W, then U, and V^T to its right
    blocks = {
        f"$W$: {outputs} x {inputs}": (0.0, 0.0, inputs, outputs),
        f"$U$: {outputs} x {rank}": (inputs + 2 * gap, 0.0, rank, outputs),
        rf"$V^\top$: {rank} x {inputs}": (inputs + 3 * gap + rank, 0.0, inputs, rank),
    }
    made, ((axis,),) = figure(1, 1, 8.0, 2.0)
    for (name, (left, top, width, height)), colour in zip(blocks.items(), COLOURS, strict=False):
        # its outline is seen where the block is thinner than a pixel
        block = Rectangle((left, top), width, height, color=colour, alpha=0.75, linewidth=1, label=name)
        axis.add_patch(block)
    room = max(rank, min(outputs, inputs))  # W stands still under a slider of ranks
    axis.set(
        xlim=(-gap / 2, 2 * inputs + 3.5 * gap + room), ylim=(1.02 * max(outputs, rank), -0.02 * outputs)
    )
    axis.set_aspect("equal")
    bare(axis)
    used = 100 * (outputs + inputs) * rank / (outputs * inputs)
    axis.set_title(
        f"rank {rank}: {(outputs + inputs) * rank:,} parameters beside {outputs * inputs:,}, {used:.1f}%",
        fontsize=10,
    )
    legend(made, loc="outside lower center", ncols=3)
    return made
