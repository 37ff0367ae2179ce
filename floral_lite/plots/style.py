"""The house's style: colours, an empty figure, and what many figures have in them.

Colours are told apart by colour-blind readers; text and lines are of a grey that is readable
on white and on dark pages, and the background is transparent.
"""

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence, Sized
from math import ceil
from threading import Lock
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import seaborn as sns
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

GREY = "#7a7a7a"
COLOURS = sns.color_palette("colorblind")
# of its ten, five are too pale for lines on a white page; red is darker too, to stay apart from orange
DARKER = {1: "#cd8400", 3: "#c44e00", 5: "#bd8848", 6: "#7b4bff", 8: "#a0522d", 9: "#3c96f4"}
for place, darker in DARKER.items():
    COLOURS[place] = to_rgb(darker)
# so that groups and lines are told apart without their colours
MARKERS = "os^DvPX*<h"
# the last two are dash-dot-dot and a long dash: fewer would give colours that are alike one dash, too
DASHES: tuple[Literal["-", "--", ":", "-."] | tuple[float, tuple[float, ...]], ...] = (
    *("-", "--", ":", "-."),
    *((0, (6.4, 1.6, 1, 1.6, 1, 1.6)), (0, (10, 2))),
)
# purple to orange; its last purple would be black on a dark page
SIGNED = ListedColormap(colormaps["PuOr_r"](np.linspace(0.13, 0.87, 256)), "signed")
# matplotlib has one style for all threads: two that borrow it at once would give back each other's
STYLE_LOCK = Lock()


class Picture(Figure):
    """A figure that a notebook shows when a cell returns it, whatever matplotlib's backend is."""

    def _repr_png_(self) -> bytes:
        return png(self)


def png(made: Figure) -> bytes:
    """A figure as the bytes of a PNG image."""
    file = io.BytesIO()
    made.savefig(file, format="png", dpi=110)
    return file.getvalue()


def as_html(made: Figure, words: str) -> str:
    """A figure as an image of HTML, with words for a reader who does not see it."""
    data = base64.b64encode(png(made)).decode()
    return f'<img src="data:image/png;base64,{data}" alt="{html.escape(words)}" style="max-width:100%">'


def figure(rows: int, columns: int, width: float, height: float) -> tuple[Picture, npt.NDArray[np.object_]]:
    """An empty figure of the house's style and its axes, an array (rows, columns); sizes in inches."""
    text = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style = {**dict.fromkeys(text, GREY), "axes.facecolor": "none"}
    hidden = {"axes.spines.top": False, "axes.spines.right": False}
    with STYLE_LOCK, sns.axes_style("ticks", {**style, **hidden}):
        made = Picture(figsize=(width, height), layout="constrained", facecolor="none")
        return made, made.subplots(rows, columns, squeeze=False)


def in_rows(
    panels: int, across: int, width: float, height: float, around: float = 0.0
) -> tuple[Picture, npt.NDArray[np.object_]]:
    """An empty figure with so many panels, some of them side by side, and its axes, an array (panels,).

    Args:
        panels: how many, >= 1.
        across: how many of them stand side by side.
        width: of the figure, in inches.
        height: of a row, in inches.
        around: height above and below all rows, in inches.
    """
    down = ceil(panels / across)
    made, axes = figure(down, across, width, height * down + around)
    if down > 1:  # else the title of a panel is as near to the axis above it as to its own
        made.set_layout_engine("constrained", hspace=0.07)
    for axis in axes.flat[panels:]:
        axis.remove()
    return made, axes.flat[:panels]


def lone_marker(series: Sized) -> str | None:
    """The marker of a line over a series: one point alone would not be seen without."""
    return "o" if len(series) == 1 else None


def line_style(number: int) -> dict[str, Any]:
    """The colour and the dashes of a line, by its number."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}


def bound_style(name: str, measured: Sequence[str], number: int) -> dict[str, Any]:
    """A bound's dashes, and its colour: that of the measured line whose name its own ends with, or a new one.

    Args:
        name: of the bound.
        measured: names of lines, which have the first colours.
        number: of the bound, among the bounds.
    """
    of = [place for place, line in enumerate(measured) if name.endswith(line)]
    colour = COLOURS[(*of, len(measured) + number)[0] % len(COLOURS)]
    return {"color": colour, "linestyle": DASHES[1 + number % 3]}


def mark_style(number: int) -> dict[str, Any]:
    """The colour and the marker of a group of points, by its number."""
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


def kin_styles(kinds: Iterable[str], first: int = 0) -> dict[str, dict[str, Any]]:
    """The looks of points and their lines, by kind: kin are those that are the same up to a comma.

    Kin have one colour and marker; only the first of them is filled, and has no dashes.

    Args:
        kinds: by which points differ, in the order of the legend.
        first: the number of the first colour and marker, >= 0; the others follow.
    """
    kin: dict[str, list[str]] = {}
    for kind in dict.fromkeys(kinds):
        kin.setdefault(kind.split(",")[0], []).append(kind)
    looks: dict[str, dict[str, Any]] = {}
    for number, same in enumerate(kin.values(), start=first):
        for place, kind in enumerate(same):
            hollow = {"markerfacecolor": "none"} if place else {}  # a point alone has no dashes
            looks[kind] = mark_style(number) | {"linestyle": DASHES[place % len(DASHES)]} | hollow
    return looks


def legend(of: Picture | Axes, **look: Any) -> None:
    """The names of what a panel shows, inside it; of a picture those of all panels, above them.

    Args:
        of: the picture or the panel.
        look: matplotlib's arguments, such as `loc` for another place, and `ncols`: of a picture, at most
            so many names side by side, and fewer where they have no room.
    """
    style = {"labelcolor": GREY, "frameon": False}
    if isinstance(of, Picture):
        named: list[tuple[str, Any]] = []
        for axis in of.axes:
            handles, names = axis.get_legend_handles_labels()
            known = {name for name, _ in named}  # from the panels before
            named += [each for each in zip(names, handles, strict=True) if each[0] not in known]
        handles = look.setdefault("handles", [handle for _, handle in named])
        width = of.get_figwidth() * 10 / look.get("fontsize", 10)
        room = columns([handle.get_label() for handle in handles], width)
        look["ncols"] = min(look.get("ncols", room), room)
        style |= {"loc": "outside upper center"}
    of.legend(**style | look)


def columns(names: Sequence[str], width: float) -> int:
    """How many names of a legend stand side by side in a figure of that width, in inches."""
    lengths = [len(name) + 9 for name in names]  # with its line and a gap
    for across in range(len(names), 1, -1):
        # as matplotlib deals the names out: column by column
        if sum(part.max() for part in np.array_split(lengths, across)) <= 13 * width:
            return across
    return 1


def grouped_bars(axis: Axes, named: Mapping[str, npt.ArrayLike]) -> None:
    """Groups of bars at 0, 1, ...: each has a bar of every name, with its height, rounded, above it.

    Args:
        axis: to draw on.
        named: the heights, one a group, by name.
    """
    width = 0.8 / len(named)
    for number, (name, heights) in enumerate(named.items()):
        places = np.arange(np.size(heights)) + (number - (len(named) - 1) / 2) * width
        drawn = axis.bar(places, heights, width, color=COLOURS[number % len(COLOURS)], label=name)
        axis.bar_label(drawn, fmt="%.0f", color=GREY, fontsize=8)


def strongest(matrices: Iterable[npt.ArrayLike]) -> float:
    """The `limit` of signed images: the largest absolute entry that is finite, or 1 if all are 0."""
    entries = np.concatenate([np.abs(np.ravel(matrix)) for matrix in matrices])
    return float(entries[np.isfinite(entries)].max(initial=0)) or 1.0


def signed_image(axis: Axes, image: npt.ArrayLike, limit: float, **look: Any) -> AxesImage:
    """A matrix as colours: purple is negative, orange positive, `limit` strongest; NaN is left out."""
    bare(axis)
    return axis.imshow(image, cmap=SIGNED, vmin=-limit, vmax=limit, interpolation="nearest", **look)


def bare(axis: Axes) -> None:
    """An image needs no ticks and no frame."""
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)


def colour_bar(made: Picture, shown: AxesImage, axes: list[Axes], label: str) -> None:
    """What the colours of matrices mean.

    Args:
        made: the picture.
        shown: one of the matrices.
        axes: those that the bar stands beside.
        label: what an entry is.
    """
    bar = made.colorbar(shown, ax=axes)
    bar.set_label(label, color=GREY)
    bar.ax.tick_params(colors=GREY)
    bar.outline.set_edgecolor(GREY)
