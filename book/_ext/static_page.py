"""Let the book's pages stand alone: local scripts, each once; no kernel; chapter numbers; links to Colab."""

import json
import os
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config

import chapters
import plain

SCRIPT = "tex-svg-full.js"
# sha384 of that file in the npm package; `openssl dgst -sha384 -binary FILE | base64`
INTEGRITY = "sha384-4kE/rQ11E8xT9QgrCBTyvenkuPfQo8rXYQvJZuMgxyPOoUfpatjQPlgdv6V5yhUK"


def choose_mathjax(app: Sphinx, config: Config) -> None:
    """Take MathJax from the book's own folder or, if npm has not put it there, from a CDN."""
    vendored = chapters.BOOK / "_vendor"
    if (vendored / SCRIPT).exists():
        config.html_static_path.append(str(vendored))
        config.mathjax_path = SCRIPT
    else:
        package = json.loads((chapters.BOOK / "package.json").read_text(encoding="utf-8"))
        version = package["dependencies"]["mathjax"]
        config.mathjax_path = f"https://cdn.jsdelivr.net/npm/mathjax@{version}/es5/{SCRIPT}"
        config.mathjax_options = {"integrity": INTEGRITY, "crossorigin": "anonymous"}


def keep_scripts_once(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    """Sphinx 7.4 adds late inline scripts twice, which throws; sphinx-thebe's scripts have no use here."""
    kept: dict[tuple[str, str], Any] = {}
    for script in context.get("script_files", []):
        attributes = getattr(script, "attributes", {})
        name = str(getattr(script, "filename", script))
        if "sphinx-thebe" not in name and "THEBE_JS_URL" not in str(attributes.get("body")):
            kept[name, repr(sorted(attributes.items(), key=str))] = script
    context["script_files"] = list(kept.values())


def open_plain_notebooks(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    """The theme's button would open a chapter's MyST source in Colab: let it open the plain notebook."""
    for group in context.get("header_buttons", []):
        for button in group.get("buttons", []):
            if button["text"] == "Colab":
                button["url"] = chapters.colab_url(page)


def bring_plain_notebooks(app: Sphinx, exception: Exception | None) -> None:
    """Let the download button bring the plain notebook, too: it takes what Sphinx has put into _sources."""
    if exception is None and app.builder.name == "html":
        plain.write(Path(app.outdir) / "_sources")


def number_chapters(app: Sphinx, doctree: nodes.document) -> None:
    """Give a title its file's number, on the page and in the contents, since the text says "chapter 9"."""
    if number := re.match(r"\d\d(?=-)", app.env.docname):
        next(doctree.findall(nodes.title)).insert(0, nodes.Text(f"{int(number[0])}. "))


def keep_signs_with_formulas(app: Sphinx, doctree: nodes.document) -> None:
    """Let no line begin with the comma or the bracket after a formula, where browsers may break it."""
    for formula in list(doctree.findall(nodes.math)):
        after = formula.next_node(descend=False, siblings=True)
        if isinstance(after, nodes.Text) and (signs := re.match(r"[,.;:?!)\u2019\u201d]+", after)):
            parent, place = formula.parent, formula.parent.index(formula)
            whole = nodes.inline("", "", formula, nodes.Text(signs[0]), classes=["whole"])
            parent[place : place + 2] = [whole, nodes.Text(after[signs.end() :])]


def drop_forms(app: Sphinx, doctree: nodes.document) -> None:
    """Leave out the comment that gives a folded cell its title on Colab."""
    for code in doctree.findall(nodes.literal_block):
        if code.rawsource.startswith("# @title "):
            code.rawsource = code.rawsource.partition("\n")[2]
            code[:] = [nodes.Text(code.rawsource)]


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    # The chapters' processes inherit this variable; their sliders and explorers then need no kernel.
    os.environ["FLORAL_LITE_STATIC_PAGE"] = "1"
    app.connect("config-inited", choose_mathjax)
    app.connect("doctree-read", number_chapters, priority=400)  # before Sphinx collects the titles
    app.connect("doctree-read", keep_signs_with_formulas)
    app.connect("doctree-read", drop_forms)
    app.connect("html-page-context", open_plain_notebooks, priority=900)
    app.connect("html-page-context", keep_scripts_once, priority=900)
    app.connect("build-finished", bring_plain_notebooks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
