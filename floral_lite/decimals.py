"""Decimal fractions as they are written."""

from fractions import Fraction


def as_written(number: float) -> Fraction:
    """A number without the error of its float: products with it can be rounded down.

    Example:
        >>> int(0.57 * 100), int(as_written(0.57) * 100)
        (56, 57)
    """
    return Fraction(str(number))
