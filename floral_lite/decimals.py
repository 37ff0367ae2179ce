"""Fractions as they are written."""

from fractions import Fraction


def as_written(number: float) -> Fraction:
    """A number without the error of its float: products with it can be rounded down.

    Example:
        >>> int(0.57 * 100), int(as_written(0.57) * 100)
        (56, 57)
        >>> as_written(1 / 3)
        Fraction(1, 3)
    """
    written = Fraction(str(number))
    simple = written.limit_denominator(10**6)  # 1/3 is more than 0.3333333333333333
    return simple if float(simple) == number else written
