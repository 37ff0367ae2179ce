"""What an explorer reads out of a column."""

import math

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

Value = int | float | str | bool


def is_scale(column: "pd.Series[Value]") -> bool:
    """Whether a column's values are numbers, which have an order."""
    return is_numeric_dtype(column) and not is_bool_dtype(column)


def values(column: "pd.Series[Value]") -> list[Value]:
    """The different values of a column: numbers rising, others as they come."""
    found: list[Value] = column.unique().tolist()
    return sorted(found) if is_scale(column) else found


def numbers(column: "pd.Series[Value]") -> npt.NDArray[np.float64]:
    """A column as floats; what is missing is not a number."""
    return column.to_numpy(dtype=float, na_value=np.nan)


def are_whole(column: "pd.Series[Value]") -> bool:
    """Whether there are no fractions among a column's finite numbers."""
    found = numbers(column)
    return all(number.is_integer() for number in found[np.isfinite(found)].tolist())


def codes(column: "pd.Series[Value]", known: list[Value]) -> list[int]:
    """For every row the place of its value among the known ones."""
    places = {value: place for place, value in enumerate(known)}
    return [places[value] for value in column]


def text(value: Value) -> str:
    """A slider's value as the reader sees it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def digits(low: float, high: float) -> int:
    """Significant digits that tell numbers apart on an axis: five, and those that its two ends share.

    Example:
        >>> digits(-1, 1), digits(1230, 1233)
        (5, 7)
    """
    return 5 + max(0, math.floor(math.log10(max(-low, high) / (high - low))))


def short(number: float, digits: int) -> int | float | None:
    """So many significant digits, or all of a whole number; None if it is not finite."""
    if not np.isfinite(number):
        return None
    return int(number) if float(number).is_integer() else float(f"{number:.{digits}g}")
