"""The house's style: colours, an empty figure.

Colours are told apart by colour-blind readers; text and lines are of a grey that is readable
on white and on dark pages, and the background is transparent.
"""

import io
from threading import Lock

import numpy as np
import numpy.typing as npt
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

GREY = "#7a7a7a"
COLOURS = sns.color_palette("colorblind")
# matplotlib has one style for all threads: two that borrow it at once would give back each other's
STYLE = Lock()


class Picture(Figure):
    """A figure that a notebook shows when a cell returns it, whatever matplotlib's backend is."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=110)
        return file.getvalue()


def figure(rows: int, columns: int, width: float, height: float) -> tuple[Picture, npt.NDArray[np.object_]]:
    """An empty figure of the house's style and its axes, an array (rows, columns); sizes in inches."""
    text = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style = {**dict.fromkeys(text, GREY), "axes.facecolor": "none"}
    hidden = {"axes.spines.top": False, "axes.spines.right": False}
    with STYLE, sns.axes_style("ticks", {**style, **hidden}):
        made = Picture(figsize=(width, height), layout="constrained", facecolor="none")
        return made, made.subplots(rows, columns, squeeze=False)


def bare(axis: Axes) -> None:
    """An image needs no ticks and no frame."""
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)
