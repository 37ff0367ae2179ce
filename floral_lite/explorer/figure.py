"""The figure of an explorer, as its sliders stand."""

from collections.abc import Mapping
from textwrap import fill
from typing import TYPE_CHECKING

from matplotlib.ticker import MaxNLocator

from ..plots import Picture, figure
from ..plots.style import legend, line_style
from ..plots.tables import plain_ticks
from .values import Value, are_whole, numbers, text

if TYPE_CHECKING:
    from .explorer import Explorer

MARKERS_UP_TO = 20  # with more points than that a line has no markers


def explore_figure(explorer: "Explorer", chosen: Mapping[str, Value]) -> Picture:
    """The figure of an explorer whose sliders stand at `chosen`, such as {"rank": 4}."""
    made, ((axis,),) = figure(1, 1, 6.4, 3.6)
    rows = explorer.rows(chosen)
    for number, line in enumerate(explorer.lines):
        mine = rows if explorer.colour is None else rows[rows[explorer.colour] == line]
        look = line_style(number)
        marker = "o" if len(mine) <= MARKERS_UP_TO else None
        where = numbers(mine[explorer.x])
        axis.plot(where, numbers(mine[explorer.y]), marker=marker, markersize=4, label=text(line), **look)
        if explorer.band is not None:
            low, high = (numbers(mine[column]) for column in explorer.band)
            axis.fill_between(where, low, high, color=look["color"], alpha=0.2, linewidth=0)
    axis.set(
        xlabel=explorer.label(explorer.x),
        ylabel=fill(explorer.label(explorer.y), 36),  # it has no more room beside the axis
        xscale="log" if "x" in explorer.log else "linear",
        yscale="log" if "y" in explorer.log else "linear",
        xlim=explorer.limits("x"),
        ylim=explorer.limits("y"),
    )
    for name, column, ruler in (("x", explorer.x, axis.xaxis), ("y", explorer.y, axis.yaxis)):
        low, high = ruler.get_view_interval()
        if name not in explorer.log:
            whole = are_whole(explorer.frame[column])
            ruler.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=whole))
        elif low > 1e-4 and high < 1e6:  # else powers of ten: the numbers would be too long
            plain_ticks(ruler, (1, 2, 5) if high < 100 * low else (1,))
    if explorer.colour is not None:
        legend(made, loc="outside upper left")
    return made
