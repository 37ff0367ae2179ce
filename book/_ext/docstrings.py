"""Make the package's docstrings, plain text as help() shows them, safe for reST, and link names to code."""

import inspect
import re
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy.typing as npt
from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.domains.python import PythonDomain
from sphinx.environment import BuildEnvironment
from sphinx.util.inspect import signature as signature_of
from sphinx.util.inspect import stringify_signature
from sphinx.util.nodes import make_refnode
from sphinx.util.typing import stringify_annotation

import chapters

PACKAGE = Path(import_module("floral_lite").__path__[0])
PLACE = chapters.repository()
# An asterisk or a bar is just itself, as in the shape (C, *S) and the norm ||w||: nothing has *emphasis*.
# A single letter, such as "num_clients: K.", does not begin a list with the items A., B., ... or a., b., ...
MARKUP = re.compile(r"[*|]|(^|(?<=: )|(?<=  ))[A-Za-z](?=\.( |$))")
# In the first line of a property or under "Returns:", napoleon takes words before a colon for a type. But the
# package's types are in its annotations, so such a colon is hidden from napoleon and put back afterwards.
HIDDEN_COLON = "\N{RATIO}"
# What signatures call numpy's type of anything that becomes an array: a line for each of its cases.
ARRAY_LIKE = stringify_annotation(npt.ArrayLike, "smart")


def keep_plain(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Escape what reST would take for markup. Examples stay as they are: code up to the next empty line."""
    in_example = False
    for number, line in enumerate(lines):
        in_example = bool(line.strip()) and (in_example or line.lstrip().startswith(">>>"))
        if not in_example:
            lines[number] = MARKUP.sub(r"\\\g<0>", line)


def hide_colons(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Hide colons where napoleon would look for a type, so that a sentence with a colon stays one."""
    for number, (before, line) in enumerate(zip(["", *lines], tuple(lines), strict=False)):
        if before == "Returns:" or (what == "property" and number == 0):
            lines[number] = line.replace(":", HIDDEN_COLON)


def show_colons(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Put the hidden colons back."""
    lines[:] = [line.replace(HIDDEN_COLON, ":") for line in lines]


def shorten(
    app: Sphinx,
    what: str,
    name: str,
    thing: object,
    options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """Sphinx cannot read a signature with a default that is no Python: <factory>, <function f>."""
    if what == "class" and getattr(thing, "_is_protocol", False):
        return None, None  # nobody calls it
    if what == "class" and getattr(thing, "__sphinx_mock__", False):
        # what stands in for a base class takes anything; the class itself does not
        made = signature_of(thing.__init__, bound_method=True)  # type: ignore[misc]
        signature = stringify_signature(made, show_return_annotation=False, unqualified_typehints=True)
    if signature is not None:
        signature = re.sub(r"<\w[\w .]*>", "...", signature).replace(ARRAY_LIKE, "~numpy.typing.ArrayLike")
    return signature, returns


def leave_fields_out(
    app: Sphinx, what: str, name: str, thing: object, skip: bool, options: object
) -> bool | None:
    """A NamedTuple's fields are in its signature and under "Attributes:"; of themselves they say nothing."""
    return True if (getattr(thing, "__doc__", None) or "").startswith("Alias for field number") else None


def find_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: nodes.TextElement
) -> nodes.reference | None:
    """Let `History.frame()` and `fit_rank` lead from anywhere to the only name on the pages that ends so."""
    target = node["reftarget"]
    # a plain word, such as an argument `train`, may mean something else
    if node.get("refdomain") != "py" or node["reftype"] != "obj" or not re.search("[._A-Z]", target):
        return None
    domain = env.domains["py"]
    assert isinstance(domain, PythonDomain)
    found = [
        (name, entry)
        for name, entry in domain.find_obj(env, "", "", target, None, searchmode=1)
        if not entry.aliased  # further names of the same entry
    ]
    if len(found) != 1:
        return None
    name, entry = found[0]
    return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, shown, name)


def source_url(domain: str, info: dict[str, str]) -> str | None:
    """Where the repository shows the lines of a class or function; None for what has no lines of its own."""
    try:
        thing = reduce(getattr, info["fullname"].split("."), import_module(info["module"]))
        thing = inspect.unwrap(getattr(thing, "fget", thing))  # type: ignore[arg-type]
        file = Path(inspect.getfile(thing))
        lines, first = inspect.getsourcelines(thing)
    except (AttributeError, TypeError):
        return None
    if not file.is_relative_to(PACKAGE):
        return None
    path = file.relative_to(PACKAGE.parent).as_posix()
    return f"{PLACE['url']}/blob/{PLACE['branch']}/{path}#L{first}-L{first + len(lines) - 1}"


def lists_of_parameters(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    """Make spans of a signature's <dl>, which screen readers take for terms and definitions."""

    def as_spans(signature: re.Match[str]) -> str:
        names = {"<dl>": '<span class="parameters">', "<dd>": "<span>"}
        return re.sub("</?d[ld]>", lambda tag: names.get(tag[0], "</span>"), signature[0])

    context["body"] = re.sub('<dt class="sig.*?</dt>', as_spans, context.get("body", ""), flags=re.DOTALL)


def name_source(app: Sphinx, config: Config) -> None:
    """Set the function that finds sources, which _config.yml cannot hold."""
    config.linkcode_resolve = source_url


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("config-inited", name_source)
    app.connect("html-page-context", lists_of_parameters)
    app.connect("missing-reference", find_name)
    app.connect("autodoc-skip-member", leave_fields_out)
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-process-docstring", keep_plain, priority=400)  # before napoleon's
    app.connect("autodoc-process-docstring", hide_colons, priority=400)
    app.connect("autodoc-process-docstring", show_colons, priority=600)  # after it
    return {"parallel_read_safe": True, "parallel_write_safe": True}
