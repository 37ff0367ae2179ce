"""Figures of the chapter on weight sharing: what many draws lead to, and noise over the number of clients."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from matplotlib.ticker import NullFormatter

from .style import GREY, Picture, bound_style, figure, legend, mark_style


def estimates(best: npt.ArrayLike, found: Mapping[str, npt.ArrayLike]) -> Picture:
    """The clusters' models after training, a dot for each repeat; a panel for each way to train.

    Args:
        best: the clusters' best models, base and adaptor, shape (C, 2): crosses.
        found: by the panel's title, shape (R, C, 2).
    """
    centres = np.asarray(best, dtype=float)
    made, axes = figure(1, len(found), 3.6 * len(found), 3.4)
    for axis, (title, models) in zip(axes[0], found.items(), strict=True):
        for cluster, dots in enumerate(np.asarray(models).swapaxes(0, 1)):
            axis.plot(*dots.T, linestyle="none", markersize=4, alpha=0.5, **mark_style(cluster))
        axis.plot(*centres.T, "X", color=GREY, markersize=9)
        reach = np.abs(centres).max() + 1
        axis.set(xlabel="base $u$", ylabel="adaptor $a_c$", xlim=(-reach, reach), ylim=(-reach, reach))
        axis.set_title(title, fontsize=10)
    return made


def over_clients(
    clients: npt.ArrayLike, measured: Mapping[str, npt.ArrayLike], bounds: Mapping[str, npt.ArrayLike]
) -> Picture:
    """Squared errors of an averaged gradient on logarithmic axes: measured with markers, bounds dashed.

    Args:
        clients: K >= 1, shape (n,).
        measured: by name, > 0, shape (n,).
        bounds: by name, > 0, shape (n,). One whose name ends with that of an error has its colour.
    """
    made, ((axis,),) = figure(1, 1, 6.2, 3.8)
    for number, (name, values) in enumerate(measured.items()):
        axis.plot(clients, values, **mark_style(number), markersize=6, label=name)
    for number, (name, values) in enumerate(bounds.items()):
        axis.plot(clients, values, **bound_style(name, list(measured), number), label=name)
    axis.set(xlabel="clients K", ylabel="squared error of the base's gradient", xscale="log", yscale="log")
    axis.set_xticks(np.asarray(clients), [f"{each:g}" for each in np.asarray(clients)])
    axis.xaxis.set_minor_formatter(NullFormatter())
    legend(made, ncols=2, fontsize=9)
    return made
