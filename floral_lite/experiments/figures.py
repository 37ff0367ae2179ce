"""Figures of results: a frame in, a figure out."""

from io import BytesIO
from math import ceil
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.ticker import LogFormatter

from ..files import write_whole
from ..plots import COLOURS, GREY, Picture
from ..plots.style import in_rows, legend, mark_style

# Shorter than those of `plots.curves`, since panels are low.
NAMES = {
    "test_accuracy": "test accuracy (%)",
    "test_loss": "test loss",
    "train_loss": "training loss",
    "mismatch": "mismatch (0 to 2)",
}
DASHED = ("-learned", "-averaged")
# The methods of the paper's first table.
FIRST = ["fedavg", "local-adaptor", "ensemble", "floral-1", "floral-10"]


class PlainNumbers(LogFormatter):
    """0.1 and not 1e-01, at the ticks that LogFormatter would name."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """A tick's words, or none."""
        return f"{x:g}" if super().__call__(x, pos) else ""


def family(row: str) -> str:
    """What a row is apart from its routing and its statistics."""
    for end in (*DASHED, "-optimal"):
        row = row.removesuffix(end)
    return row


def draw(frame: pd.DataFrame, value: str = "test_loss") -> Picture:
    """Lines over the rounds, a panel for each column; a band from the smallest to the largest seed.

    Rows that differ in routing, or in whose statistics they use, share a colour and a marker; learned and
    averaged are dashed. Losses are drawn on a logarithmic scale.

    Args:
        frame: made by `curves`.
        value: what it holds, for the axis.
    """
    columns = frame["column"].unique()
    wide = len(columns) if len(columns) <= 3 else 2
    made, axes = in_rows(len(columns), wide, max(3.4 * wide + 0.6, 6.4), 2.6, around=0.9)  # for the legend
    families = list(dict.fromkeys(map(family, frame["row"])))
    if set(families) <= set(FIRST):  # which have the same looks in all figures
        families = FIRST
    factor = 100 if value == "test_accuracy" else 1
    for axis, column in zip(axes, columns, strict=True):
        panel = frame[frame["column"] == column]
        for row, part in panel.groupby("row", sort=False):
            name = str(row)
            number = families.index(family(name))
            look = mark_style(number)
            # beyond ten families the same colours and markers come again, hollow
            hollow = {"markerfacecolor": "none"} if number >= len(COLOURS) else {}
            dash = "--" if name.endswith(DASHED) else "-"
            few = {"markevery": ceil(len(part) / 6), "markersize": 4, **hollow}
            label = part["row_label"].iloc[0]
            axis.plot(part["round"], factor * part["mean"], dash, label=label, **look, **few)
            low, high = factor * part["low"], factor * part["high"]
            axis.fill_between(part["round"], low, high, color=look["color"], alpha=0.2, linewidth=0)
        axis.set_title(panel["column_label"].iloc[0], fontsize=10)
        axis.set_xlabel("communication round")
        if value.endswith("loss"):
            axis.set_yscale("log")
            axis.tick_params(which="minor", colors=GREY, labelsize=8)
            if axis.get_ylim()[0] > 1e-4:  # else powers of ten, for all to look alike
                axis.yaxis.set_major_formatter(PlainNumbers())
                axis.yaxis.set_minor_formatter(PlainNumbers(minor_thresholds=(1, 0.5)))
    for axis in axes[::wide]:
        axis.set_ylabel(NAMES[value])
    legend(made, loc="outside lower center", ncols=1 + wide, fontsize=9)
    return made


def save(made: Picture, path: Path) -> None:
    """Write a figure, whole or not at all; the same numbers, drawn anew, give the same file."""
    kind, content = path.suffix[1:], BytesIO()
    with mpl.rc_context({"svg.hashsalt": "floral_lite"}):
        undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
        made.savefig(content, format=kind, dpi=150, metadata=undated)
    write_whole(path, content.getvalue())
