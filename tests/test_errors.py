"""Errors that say what to do."""

import pytest

from floral_lite.errors import DivergenceError, InputError, require, unknown

NAMES = ["digits-rotate", "digits-label-shift", "mnist-rotate"]


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [
        ("digits-rotat", "digits-rotate"),
        ("mnist", "mnist-rotate"),
        ("label-shift", "digits-label-shift"),
        ("DIGITS-ROTATE", "digits-rotate"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(typed: str, nearest: str) -> None:
    message = str(unknown("task", typed, NAMES))
    assert message.startswith(f"no task is called {typed!r}; did you mean {nearest!r}?")
    assert all(name in message for name in NAMES)


@pytest.mark.parametrize("typed", ["", "xyz", "日本"])
def test_even_a_name_like_no_other_gets_an_answer(typed: str) -> None:
    assert "There are: digits-label-shift, digits-rotate, mnist-rotate" in str(unknown("task", typed, NAMES))


def test_require_raises_only_where_the_condition_fails() -> None:
    require(True, "not raised")
    with pytest.raises(InputError, match="rank is 0"):
        require(False, "rank is 0")


def test_the_errors_are_also_pythons_own() -> None:
    assert issubclass(InputError, ValueError)
    assert issubclass(DivergenceError, ArithmeticError)
