"""Whether the functions of a user's own class can be called as the package calls them."""

import inspect
from typing import Any

from .errors import InputError


def check_signatures(own: object, base: type) -> None:
    """Raise InputError where a function of an object's class takes other arguments than its base's.

    Args:
        own: of a user's class.
        base: the class that says which functions there are, and what they take.
    """
    for name, function in vars(base).items():
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        parameters = inspect.signature(function).parameters.values()
        wanted = [each.replace(annotation=each.empty) for each in parameters]
        mine: Any = getattr(own, name, None)
        try:
            for given in (wanted, [each for each in wanted if each.default is each.empty]):
                inspect.signature(mine).bind(*given[1:])  # without self
        except TypeError:
            called = f"{name}({', '.join(map(str, wanted))})"
            found = f"takes {inspect.signature(mine)}" if callable(mine) else "is missing"
            raise InputError(f"{type(own).__name__}.{name} {found}; write it as {called}") from None
