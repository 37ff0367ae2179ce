"""The pages on the package: every public name is there once, and its link leads to its lines."""

import ast
import inspect
import pkgutil
import re
from functools import cache, reduce
from importlib import import_module
from types import ModuleType
from typing import Protocol

import chapters
import docstrings
import nbformat
import pytest
from sphinx.addnodes import pending_xref
from sphinx.util.inventory import InventoryFile

import floral_lite
from floral_lite import plots
from floral_lite.roles import Roles

from .conftest import without

INVENTORY = chapters.ROOT / "_build" / "html" / "objects.inv"
# An extra that the book is built without: its names are read, not imported.
FLOWER = "floral_lite.flower"
PACKAGES = [
    module.name
    for module in pkgutil.walk_packages(floral_lite.__path__, "floral_lite.")
    if not module.name.startswith(FLOWER)
]


def exported() -> set[tuple[str, str]]:
    """Module and name of what stands in an __all__."""
    modules = map(import_module, ["floral_lite", *PACKAGES])
    return {(module.__name__, name) for module in modules for name in getattr(module, "__all__", ())}


def imported() -> set[tuple[str, str]]:
    """Module and name of what the chapters import from the package."""
    names: set[tuple[str, str]] = set()
    for path in chapters.notebooks():
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code" and "%pip" not in cell.source:
                for node in ast.walk(ast.parse(cell.source)):
                    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("floral_lite"):
                        names.update((str(node.module), alias.name) for alias in node.names)
    return names


def drawn() -> set[tuple[str, str]]:
    """Module and name of the chapters' figures."""
    modules = [
        import_module(f"{plots.__name__}.{module.name}") for module in pkgutil.iter_modules(plots.__path__)
    ]
    return {
        (module.__name__, name)
        for module in modules
        for name, thing in vars(module).items()
        if inspect.isfunction(thing) and thing.__module__ == module.__name__ and not name.startswith("_")
    }


@cache
def entries() -> list[tuple[str, str]]:
    """Module and name of what the pages describe."""
    if not INVENTORY.exists():
        without("no built book: make book")
    with INVENTORY.open("rb") as file:
        kinds = InventoryFile.load(file, "", lambda *parts: "/".join(parts))
    found = []
    for kind in ("py:function", "py:class", "py:exception", "py:data"):
        for full, (_, _, address, _) in kinds.get(kind, {}).items():
            module, _, name = full.rpartition(".")
            if address.endswith(f"#{full}"):  # others are further names of the same entry
                found.append((module, name))
    return found


@cache
def documented() -> dict[str, list[object]]:
    """The objects that the pages describe, by the last part of their names."""
    found: dict[str, list[object]] = {}
    for module, name in entries():
        if module != FLOWER:
            found.setdefault(name, []).append(getattr(import_module(module), name))
    return found


def test_every_public_name_is_on_a_page_once() -> None:
    counts = {}
    for module, name in sorted(exported() | imported() | drawn()):
        thing = getattr(import_module(module), name)
        if not isinstance(thing, ModuleType):  # its own names are
            counts[module, name] = sum(thing is other for other in documented().get(name, []))
    wrong = {f"{module}.{name}": count for (module, name), count in counts.items() if count != 1}
    assert not wrong, "each of these belongs on one page under book/api"


def test_so_is_every_name_of_the_part_over_flower() -> None:
    source = (chapters.ROOT / "floral_lite" / "flower" / "__init__.py").read_text(encoding="utf-8")
    (public,) = [
        ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert sorted(public) == sorted(name for module, name in entries() if module == FLOWER)


def test_the_names_are_those_that_a_reader_meets() -> None:
    names = exported() | imported() | drawn()
    assert {
        ("floral_lite", "train"),
        ("floral_lite.centering", "center"),
        ("floral_lite.plots.routers", "triangle"),
    } <= names


@pytest.mark.parametrize(
    "name", ["Floral.merge", "Floral.num_adaptor_parameters", "federation.mismatch", "train"]
)
def test_a_name_links_to_its_lines(name: str) -> None:
    *path, last = name.split(".")
    url = docstrings.source_url("py", {"module": "floral_lite", "fullname": name})
    assert url is not None
    file, first, end = re.fullmatch(r".*/blob/[^/]+/(.*)#L(\d+)-L(\d+)", url).groups()  # type: ignore[union-attr]
    lines = (chapters.ROOT / file).read_text(encoding="utf-8").splitlines()[int(first) - 1 : int(end)]
    assert any(line.strip().startswith(f"def {last}(") for line in lines[:2])
    owner: object = reduce(getattr, path, floral_lite)
    assert inspect.getdoc(getattr(owner, last)).splitlines()[0] in "\n".join(lines)  # type: ignore[union-attr]


def test_what_has_no_lines_has_no_link() -> None:
    assert docstrings.source_url("py", {"module": "floral_lite.methods", "fullname": "ROUTER"}) is None
    assert docstrings.source_url("py", {"module": "floral_lite", "fullname": "Floral.training"}) is None


def test_shapes_and_norms_are_no_markup_and_examples_are_code() -> None:
    lines = [
        "Of shape (C, *S), ||w||.",
        "    clients: K.",
        "    columns: n. No more.",
        "    >>> 2 * 3 | 0",
        "    6  # *",
        "",
        "2 * 3",
    ]
    docstrings.keep_plain(*[None] * 5, lines)  # type: ignore[call-arg,arg-type]
    assert lines == [
        r"Of shape (C, \*S), \|\|w\|\|.",
        r"    clients: \K.",
        r"    columns: \n. No more.",
        *("    >>> 2 * 3 | 0", "    6  # *", ""),
        r"2 \* 3",
    ]


@pytest.mark.parametrize(
    ("what", "lines"),
    [
        ("property", ["The mean at the end: accuracy in per cent.", "", "None where it diverged."]),
        ("function", ["The runs.", "", "Returns:", "    One row a round: task, row, seed."]),
    ],
)
def test_a_sentence_with_a_colon_is_no_type(what: str, lines: list[str]) -> None:
    given = list(lines)
    docstrings.hide_colons(None, what, "", None, None, lines)  # type: ignore[arg-type]
    assert [line for line in lines if ":" in line] == [line for line in given if line == "Returns:"]
    docstrings.show_colons(None, what, "", None, None, lines)  # type: ignore[arg-type]
    assert lines == given


@pytest.mark.parametrize("default", ["<factory>", "<function cross_entropy>"])
def test_signatures_are_python_and_short(default: str) -> None:
    given = f"(x: {docstrings.ARRAY_LIKE} = {default})"
    short, _ = docstrings.shorten(*[None] * 5, given, None)  # type: ignore[call-arg,arg-type]
    assert short == "(x: ~numpy.typing.ArrayLike = ...)"


def test_a_class_shows_its_own_arguments_and_a_protocol_none() -> None:
    class Spoken(Protocol):
        """Nobody calls it."""

    class Mocked:  # over a mock, which takes anything
        __sphinx_mock__ = True

        def __init__(self, folder: str, *, patience: float = 60.0) -> None:
            """Take one argument by place and one by name."""

    def shown(thing: object) -> str | None:
        given = (None, "class", "", thing, None, "(*args, **kwargs)", None)
        return docstrings.shorten(*given)[0]  # type: ignore[arg-type]

    assert shown(Spoken) is None
    assert shown(Mocked) == "(folder: str, *, patience: float = 60.0)"
    assert shown(Roles) == "(*args, **kwargs)"


@pytest.mark.parametrize(("name", "left_out"), [("shared", True), ("of_client", None)])
def test_a_field_of_a_named_tuple_has_no_entry_of_its_own(name: str, left_out: bool | None) -> None:
    field = getattr(Roles, name)
    assert docstrings.leave_fields_out(*[None] * 3, field, False, None) is left_out  # type: ignore[call-arg,arg-type]


@pytest.mark.parametrize(
    ("page", "link"),
    [
        ("methods", "federation.html#floral_lite.Settings"),  # `Settings` in another module
        ("federation", "methods.html#floral_lite.roles.Roles.of_client"),
        ("figures", "federation.html#floral_lite.History.frame"),  # `History.frame()`
    ],
)
def test_a_name_of_another_module_is_a_link(page: str, link: str) -> None:
    entries()  # or there is no built book
    built = (INVENTORY.parent / "api" / f"{page}.html").read_text(encoding="utf-8")
    assert re.search(f'href="{re.escape(link)}"[^>]*><code', built)


def test_a_plain_word_is_none() -> None:
    word = pending_xref("", refdomain="py", reftype="obj", reftarget="train")
    assert docstrings.find_name(None, None, word, None) is None  # type: ignore[arg-type]
