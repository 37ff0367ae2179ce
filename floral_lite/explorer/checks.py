"""What can be wrong with the frame or the columns that an explorer was given."""

from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError, require
from ..plots import COLOURS
from .values import Value, is_scale, numbers, text, values

if TYPE_CHECKING:
    from .explorer import Explorer


def check(explorer: "Explorer") -> None:
    """Raise InputError unless an explorer can be made of what it was given."""
    check_columns(explorer)
    check_numbers(explorer)
    check_start(explorer)
    check_grid(explorer)
    check_one_row_a_point(explorer)


def measured(explorer: "Explorer") -> list[str]:
    """The columns that give a point its height."""
    return [explorer.y, *(explorer.band or ())]


def grouping(explorer: "Explorer") -> list[str]:
    """The columns that say which line of which figure a point is on."""
    return [*explorer.sliders, *([] if explorer.colour is None else [explorer.colour])]


def check_columns(explorer: "Explorer") -> None:
    """Every column is there, and has one part to play."""
    frame, sliders = explorer.frame, explorer.sliders
    require(
        not isinstance(sliders, str) and len(sliders) > 0,
        f"sliders is {sliders!r}; it must be a list of columns, such as ['rank']",
    )
    band: object = explorer.band
    require(
        band is None or (isinstance(band, tuple | list) and len(band) == 2),
        f"band is {band!r}; it must be two columns, the lower edge and the upper one",
    )
    require(len(frame) > 0, "the frame has no rows; give it one for each point")
    columns = [explorer.x, *measured(explorer), *grouping(explorer)]
    for column in columns:
        hint = "; it is in the index: give frame.reset_index()" if column in frame.index.names else ""
        require(
            list(frame.columns).count(column) < 2,
            f"the frame has several columns called {column!r}; give each a name of its own",
        )
        require(
            column in frame.columns,
            f"the frame has no column {column!r}{hint}; its columns are {list(frame.columns)}",
        )
        require(
            columns.count(column) == 1, f"column {column!r} is named twice; give each part its own column"
        )
    require(explorer.log in ("", "x", "y", "xy"), f"log is {explorer.log!r}; it must be '', 'x', 'y' or 'xy'")


def check_numbers(explorer: "Explorer") -> None:
    """The axes have numbers to draw, the sliders and lines have a value in every row, each its own name."""
    frame = explorer.frame
    for column in (explorer.x, *measured(explorer)):
        require(
            is_scale(frame[column]),
            f"column {column!r} holds {frame[column].dtype}, not numbers; convert it with pandas.to_numeric",
        )
        found = numbers(frame[column])
        require(
            bool(np.isfinite(found).any()), f"column {column!r} has no finite number; nothing can be drawn"
        )
        axis = "x" if column == explorer.x else "y"
        require(
            axis not in explorer.log or not (found <= 0).any(),
            f"column {column!r} has values of 0 or less, which a logarithmic axis cannot show; "
            f"leave {axis!r} out of log or drop those rows",
        )
    require(
        bool(np.isfinite(numbers(frame[explorer.x])).all()),
        f"column {explorer.x!r} has rows that are not finite; drop them",
    )
    for column in grouping(explorer):
        require(
            not frame[column].isna().any(), f"column {column!r} has empty rows; drop them or fill them in"
        )
        read: dict[str, Value] = {}
        for value in values(frame[column]):
            other = read.setdefault(text(value), value)
            require(
                other == value,
                f"column {column!r} has the values {other!r} and {value!r}, which a reader sees as "
                f"{text(value)} both; round them, or give them names",
            )
    require(
        len(explorer.lines) <= len(COLOURS),
        f"colour: column {explorer.colour!r} has {len(explorer.lines)} values; at most {len(COLOURS)} lines "
        "can be told apart: make it a slider",
    )


def check_start(explorer: "Explorer") -> None:
    """The sliders start from values that they have."""
    for slider, value in explorer.start.items():
        require(
            slider in explorer.sliders, f"start names {slider!r}; the sliders are {list(explorer.sliders)}"
        )
        stops = explorer.stops[slider]
        require(value in stops, f"start is {value!r} for {slider!r}; it must be one of {stops}")


def check_grid(explorer: "Explorer") -> None:
    """Every combination of the sliders has rows."""
    there = set(zip(*(explorer.frame[slider] for slider in explorer.sliders), strict=True))
    missing = prod(map(len, explorer.stops.values())) - len(there)
    if missing:
        # not all of them: three columns of a thousand numbers each have a billion combinations
        lacking = next(values for values in product(*explorer.stops.values()) if values not in there)
        first = ", ".join(f"{s} = {value}" for s, value in zip(explorer.sliders, lacking, strict=True))
        raise InputError(
            f"{missing} combinations of the sliders have no rows, the first is {first}; "
            "compute them, or drop the values that lack them"
        )


def check_one_row_a_point(explorer: "Explorer") -> None:
    """No forgotten column, such as a seed, tells apart rows that a line would join."""
    frame = explorer.frame
    point = [explorer.x, *grouping(explorer)]
    repeated = frame[frame.duplicated(point, keep=False)]
    # as text: a column may hold lists, such as each client's loss, which have no hash
    others = repeated.drop(columns=[*point, *measured(explorer)]).astype(str)
    # within a point: a column that goes with the colour differs between points only
    points = others.groupby([repeated[column] for column in point], observed=True, dropna=False)
    differ = points.nunique(dropna=False).max() > 1
    counts = others[differ.index[differ]].nunique(dropna=False).sort_values(kind="stable")
    if len(counts):
        column, count = counts.index[0], counts.iloc[0]  # the fewest values: likely the forgotten one
        raise InputError(
            f"rows with the same {', '.join(point)} differ in column {column!r}, which has {count} values; "
            "make it a slider, average over it, or drop it if the line shall pass through all of them"
        )
