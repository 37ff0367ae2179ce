"""Arguments of the command line that are given by name, such as `--set batch_size=16`."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from .errors import require


def named(single: Mapping[str, object], flag: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Arguments by name, from options of their own and from NAME=VALUE pairs, whose VALUE may be JSON.

    Args:
        single: values of options of their own; None where one was not given.
        flag: what the pairs were given with.
        pairs: such as "batch_size=4" or "clip_norm=null".

    Raises:
        InputError: a pair is not NAME=VALUE, or a name was given twice.
    """
    found: dict[str, Any] = {name: value for name, value in single.items() if value is not None}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        require(bool(name and equals), f"{flag} is {pair!r}; it must be NAME=VALUE, such as rounds=20")
        require(name not in found, f"{name} is given twice, as {found.get(name)!r} and with {flag} {pair}")
        found[name] = value_of(text)
    return found


def value_of(text: str) -> Any:
    """What JSON reads, or else a number as Python reads it (.5), or else the text as it is."""
    for read in (json.loads, float):
        with suppress(ValueError):
            return read({"True": "true", "False": "false", "None": "null"}.get(text, text))
    return text
