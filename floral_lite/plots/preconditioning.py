"""Figures of preconditioning: paths of two factors, and how fast their product moves."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from .style import GREY, Picture, figure, legend, line_style, mark_style
from .tables import plain_ticks


def valley(
    paths: Mapping[str, npt.ArrayLike], target: float, reach: tuple[float, float], title: str = ""
) -> Picture:
    """Left the paths of two numbers u and v over the contours of (u v - target)^2 / 2, right their products.

    Dots are steps. A path may leave the picture and come back; it ends where it is not finite any more.

    Args:
        paths: by the name of the rule: (u, v) at each step, shape (steps + 1, 2).
        target: the number that the product u v shall become, > 0; the grey dots lie where it is.
        reach: the largest u and the largest v that are shown; the least are a fifth of that below 0.
        title: of the left picture.
    """
    made, axes = figure(1, 2, 8.2, 3.6)
    plane, product = axes[0]
    u, v = (np.linspace(-0.2 * end, end, 241) for end in reach)
    loss = 0.5 * (u * v[:, None] - target) ** 2
    plane.contour(u, v, loss, levels=0.5 * target**2 * 4.0 ** np.arange(-4, 9), colors=GREY, linewidths=0.5)
    bottom = u[u > target / reach[1]]
    plane.plot(bottom, target / bottom, ":", color=GREY, linewidth=2, label="$uv$ = target")
    for number, (name, path) in enumerate(paths.items()):
        points = np.asarray(path, dtype=float)
        steps = np.arange(len(points))
        look = {**line_style(number), "marker": "o", "markersize": 3, "linewidth": 1.2}
        plane.plot(*points.T, **look, label=name)
        product.plot(steps, points.prod(axis=1), **look, label=name)
    plane.set(xlabel="factor $u$", ylabel="factor $v$", xlim=u[[0, -1]], ylim=v[[0, -1]])
    plane.set_title(title, fontsize=10)
    product.axhline(target, color=GREY, linestyle=":", linewidth=2)
    product.set(xlabel="step", ylabel="product $uv$", ylim=(-0.5 * target, 2 * target))
    legend(made, loc="outside lower center", ncols=3)
    return made


def rates(splits: npt.ArrayLike, speeds: Mapping[str, npt.ArrayLike]) -> Picture:
    """How fast the product u v moves, over how it is split; both axes are logarithmic.

    Args:
        splits: s of (s u, v / s), > 0, shape (n,).
        speeds: of each rule at each split, relative to a step of the weight itself, each (n,).
    """
    made, ((axis,),) = figure(1, 1, 6.4, 3.4)
    for number, (name, speed) in enumerate(speeds.items()):
        axis.loglog(splits, speed, label=name, **line_style(number))
    axis.axhline(1, color=GREY, linewidth=0.8)
    axis.set(xlabel="split $s$ of $(s\\,u,\\ v/s)$", ylabel="speed of $uv$ (1: that of a plain weight)")
    legend(axis)
    return made


def directions(singular_values: npt.ArrayLike, speeds: Mapping[str, npt.ArrayLike]) -> Picture:
    """How fast U V^T moves along each left singular direction of U; both axes are logarithmic.

    A dot for each direction: bars would start at a floor that means nothing. A line joins the dots of a rule.

    Args:
        singular_values: of U, > 0, shape (r,).
        speeds: by the name of the rule, one > 0 for each direction, shape (r,).
    """
    made, ((axis,),) = figure(1, 1, 6.2, 3.2)
    values = np.asarray(singular_values)
    axis.axhline(1, color=GREY, linewidth=0.8)
    for number, (name, speed) in enumerate(speeds.items()):
        axis.loglog(values, speed, **line_style(number) | mark_style(number), markersize=8, label=name)
    axis.set(
        xlabel="direction of $\\mathbf{U}$, by its singular value",
        ylabel="speed (1: that of a plain weight)",
    )
    axis.set_xticks(values, [f"$\\sigma_{i + 1}$ = {value:g}" for i, value in enumerate(values)])
    axis.set_xticks([], minor=True)
    plain_ticks(axis.yaxis, (1,))
    axis.margins(x=0.1)
    legend(made, ncols=len(speeds))
    return made
