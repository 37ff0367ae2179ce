"""The page of notation: every name in the code is there, every row is whole and leads to a chapter."""

import importlib
import inspect
import re
from typing import Any

import chapters
import pytest
from torch import nn

import floral_lite
from floral_lite import Floral

PAGE = chapters.BOOK / "notation.md"
TEXT = PAGE.read_text(encoding="utf-8")
# What stands below each heading: a symbol, its meaning and shape or range, names in the code, a chapter.
TABLES = re.findall(r"^\| symbol \|.*\n\|[-|]+\n((?:\|.*\n)+)", TEXT, flags=re.MULTILINE)
ROWS = [line.strip("| ").split(" | ") for table in TABLES for line in table.splitlines()]
NAMES = sorted({name for row in ROWS for name in re.findall(r"`([^`]+)`", row[2])})
NOTHING = "\N{EN DASH}"
# What only an object has, not its class.
OBJECTS: dict[type, object] = {Floral: Floral(nn.Linear(2, 2), rank=1)}


def step(owner: Any, part: str) -> Any:
    """What the part of a dotted name is; a field without a default is worth its class."""
    if hasattr(owner, part):
        return getattr(owner, part)
    if inspect.ismodule(owner):
        return importlib.import_module(f"{owner.__name__}.{part}")
    if part in getattr(owner, "__annotations__", {}):
        return owner.__annotations__[part]
    return getattr(OBJECTS[owner], part)


def find(name: str) -> None:
    """Raise unless floral_lite has the name: "a.b.C.attribute", or "a.b.function(argument)"."""
    path, _, argument = name.rstrip(")").partition("(")
    found: Any = floral_lite
    for part in path.split("."):
        found = step(found, part)
    if argument:
        assert argument in inspect.signature(found).parameters, f"{path} has no argument {argument}"


@pytest.mark.parametrize("name", NAMES)
def test_the_name_is_in_the_code(name: str) -> None:
    find(name)


@pytest.mark.parametrize(
    "name", ["router.Rooter", "Router.height", "objectives.fl(models)", "nowhere.at.all"]
)
def test_a_wrong_name_is_noticed(name: str) -> None:
    with pytest.raises((AttributeError, AssertionError, KeyError, ModuleNotFoundError)):
        find(name)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_is_whole(row: list[str]) -> None:
    assert len(row) == 4
    symbol, meaning, code, chapter = row
    assert symbol
    assert meaning
    assert code == NOTHING or "`" in code
    assert chapter == NOTHING or re.fullmatch(r"\[(\d+)\]\(0?\1-[a-z0-9-]+\.ipynb\)", chapter)


def test_every_table_is_read() -> None:
    assert len(TABLES) == TEXT.count("| symbol |") > 5
    assert len(NAMES) > 60
