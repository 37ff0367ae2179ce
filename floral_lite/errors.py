"""The two ways in which a run can fail: what was asked for is wrong, or training blew up."""

import difflib
import operator
from collections.abc import Iterable
from contextlib import suppress
from numbers import Real
from typing import get_args

from torch import nn


class InputError(ValueError):
    """An argument is wrong: the message names it, its value, what is allowed and what to do."""


class DivergenceError(ArithmeticError):
    """The training loss stopped being a finite number."""


def require(condition: bool, message: str) -> None:
    """Raise InputError with `message` unless `condition` holds."""
    if not condition:
        raise InputError(message)


def whole_number(name: str, value: object) -> int:
    """The value as an int, NumPy's integers too, or InputError if it is none; True and False are none.

    Args:
        name: of the argument.
        value: what the user gave for it.
    """
    with suppress(TypeError):
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    raise InputError(f"{name} is {value!r}; it must be a whole number")


def real_number(name: str, value: object) -> float:
    """The value as a float, NumPy's numbers too, or InputError if it is none; True and False are none.

    Args:
        name: of the argument.
        value: what the user gave for it.
    """
    try:
        if not isinstance(value, bool) and isinstance(value, Real):
            return float(value)
    except OverflowError:
        raise InputError(f"{name} is a larger number than a float can be: give a smaller one") from None
    raise InputError(f"{name} is {value!r}; it must be a number")


def check_choice(name: str, value: object, choices: object) -> None:
    """Raise InputError unless the value is one of a Literal's.

    Args:
        name: of the argument.
        value: what the user gave for it.
        choices: the Literal.
    """
    *others, last = get_args(choices)
    allowed = f"{', '.join(map(repr, others))} or {last!r}"
    require(value in (*others, last), f"{name} is {value!r}; it must be {allowed}")


def check_module(model: object) -> None:
    """Raise InputError for what is no network: a task, a class, a name."""
    require(
        isinstance(model, nn.Module),
        f"model is {model!r}; give an nn.Module, such as nn.Linear(64, 10) or a task's .model",
    )


def check_names(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise InputError for a name that does not exist, with the nearest one that does where one is near.

    Args:
        kind: what the names stand for, such as "task".
        names: what the user typed.
        known: the names that exist.

    Example:
        >>> check_names("task", ["digits-rotat"], ["digits-rotate", "mnist-rotate"])
        Traceback (most recent call last):
        floral_lite.errors.InputError: no task is called 'digits-rotat'; did you mean 'digits-rotate'? ...
    """
    known = sorted(known)
    for name in names:
        if name not in known:
            in_lower_case = {one.lower(): one for one in known}
            near = difflib.get_close_matches(str(name).lower(), in_lower_case, n=1, cutoff=0.5)
            hint = f"; did you mean {in_lower_case[near[0]]!r}?" if near else "."
            raise InputError(f"no {kind} is called {str(name)!r}{hint} There are: {', '.join(known)}")
