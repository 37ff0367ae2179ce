"""Errors that say what to do."""

import re

import numpy as np
import pytest
import torch

from floral_lite.errors import DivergenceError, InputError, check_names, real_number, require, whole_number

NAMES = ["digits-rotate", "digits-label-shift", "mnist-rotate"]


def unknown(kind: str, typed: str, known: list[str]) -> str:
    """What is said of a name that does not exist."""
    with pytest.raises(InputError) as caught:
        check_names(kind, [typed], known)
    return str(caught.value)


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
    message = unknown("task", typed, NAMES)
    assert message.startswith(f"no task is called {typed!r}; did you mean {nearest!r}?")
    assert all(name in message for name in NAMES)


def test_the_nearest_name_is_told_as_it_is_written() -> None:
    assert "did you mean 'FedAvg'?" in unknown("row", "fedavgg", ["FedAvg", "FLoRAL"])


@pytest.mark.parametrize("typed", ["", "xyz", "日本", "lr"])
def test_a_name_like_no_other_gets_an_answer_but_no_hint(typed: str) -> None:
    known = "There are: digits-label-shift, digits-rotate, mnist-rotate"
    assert unknown("task", typed, NAMES) == f"no task is called {typed!r}. {known}"


def test_whole_numbers_are_ints_whoever_made_them() -> None:
    for given in (5, np.int64(5), torch.tensor(5)):
        assert type(whole_number("rounds", given)) is int
        assert whole_number("rounds", given) == 5
    for wrong in (5.0, "5", None, True, np.float64(5), torch.tensor(5.0)):
        with pytest.raises(InputError, match=re.escape(f"rounds is {wrong!r}; it must be a whole number")):
            whole_number("rounds", wrong)


def test_numbers_are_floats_whoever_made_them() -> None:
    for given in (5, 5.0, np.int64(5), np.float32(5)):
        assert type(real_number("budget", given)) is float
        assert real_number("budget", given) == 5
    for wrong in ("5", None, True, 5j, [5.0]):
        with pytest.raises(InputError, match=re.escape(f"budget is {wrong!r}; it must be a number")):
            real_number("budget", wrong)
    for large in (10**400, 10**5000):
        with pytest.raises(InputError, match="budget is a larger number than a float can be"):
            real_number("budget", large)


def test_require_raises_only_where_the_condition_fails() -> None:
    require(True, "not raised")
    with pytest.raises(InputError, match="rank is 0"):
        require(False, "rank is 0")


def test_the_errors_are_also_pythons_own() -> None:
    assert issubclass(InputError, ValueError)
    assert issubclass(DivergenceError, ArithmeticError)
