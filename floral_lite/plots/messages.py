"""Figures of what travels in a round, and of a run that loses machines."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from .style import COLOURS, GREY, Picture, bare, figure


def travels(server: str, down: str, up: Sequence[str], kept: Sequence[str]) -> Picture:
    """A server above its clients; an arrow for what goes down to all, and for what comes up from each.

    Args:
        server: what the server holds.
        down: what it sends to every client.
        up: what each client sends, from the left. An empty one has no arrows: there clients are left out.
        kept: what each client keeps, from the left, or the words in place of clients who are left out.
    """
    made, ((axis,),) = figure(1, 1, 7.2, 2.8)
    bare(axis)
    axis.set(xlim=(0, len(up)), ylim=(0, 3))
    _box(axis, len(up) / 2, 2.7, len(up) - 0.1, server)
    for number, (sent, private) in enumerate(zip(up, kept, strict=True)):
        middle = number + 0.5
        if not sent:
            axis.text(middle, 0.3, private, color=GREY, ha="center", va="center", fontsize=9)
            continue
        _box(axis, middle, 0.3, 0.9, private)
        for x, (tail, head), colour, text in (
            (middle - 0.28, (2.36, 0.64), COLOURS[0], down),
            (middle - 0.02, (0.64, 2.36), COLOURS[1], sent),
        ):
            arrow = {"arrowstyle": "->", "color": colour, "linewidth": 1.8}
            axis.annotate("", (x, head), (x, tail), arrowprops=arrow)
            # one below the other, so that long words do not meet
            place = 1.75 if tail > head else 1.25
            axis.text(x + 0.04, place, text, color=GREY, va="center", fontsize=9)
    return made


def _box(axis: Axes, x: float, y: float, width: float, text: str) -> None:
    """A rounded frame with words, centred at (x, y)."""
    shape = FancyBboxPatch(
        (x - width / 2, y - 0.27),
        width,
        0.54,
        boxstyle="round,pad=0.02,rounding_size=0.08",
        edgecolor=GREY,
        facecolor="none",
    )
    axis.add_patch(shape)
    axis.text(x, y, text, color=GREY, ha="center", va="center", fontsize=9)


def timeline(seconds: Mapping[str, float], kills: Mapping[str, str]) -> Picture:
    """What was waited for, one below the other on one axis of time, and what was killed at the end of which.

    Args:
        seconds: how long each took, in the order in which they came.
        kills: by what was waited for, what was killed at its end.
    """
    made, ((axis,),) = figure(1, 1, 7.2, 0.36 * len(seconds) + 0.9)
    before = 0.0
    for place, (part, length) in enumerate(seconds.items()):
        axis.barh(place, length, left=before, height=0.7, color=COLOURS[0], alpha=0.75)
        before += length
        if part in kills:
            axis.plot(before, place, "X", color=COLOURS[3], markersize=9)
            axis.text(before, place, f"   {kills[part]} killed", color=GREY, va="center", fontsize=9)
    axis.set(
        xlabel="seconds waited so far",
        ylabel="until",
        yticks=range(len(seconds)),
        ylim=(len(seconds) - 0.4, -0.6),
    )
    axis.set_yticklabels(seconds)
    axis.tick_params(axis="y", length=0)
    return made
