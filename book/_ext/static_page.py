"""What the book's pages need to stand alone: local scripts, each of them once, no kernel, numbers, Colab."""

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

BOOK = Path(__file__).resolve().parents[1]
SCRIPT = "tex-svg-full.js"
# sha384 of that file in the npm package; `openssl dgst -sha384 -binary FILE | base64`
INTEGRITY = "sha384-4kE/rQ11E8xT9QgrCBTyvenkuPfQo8rXYQvJZuMgxyPOoUfpatjQPlgdv6V5yhUK"


def choose_mathjax(app: Sphinx, config: Config) -> None:
    """MathJax from the book's own folder, or, where npm did not put it there, from a CDN."""
    vendored = BOOK / "_vendor"
    if (vendored / SCRIPT).exists():
        config.html_static_path.append(str(vendored))
        config.mathjax_path = SCRIPT
    else:
        version = json.loads((BOOK / "package.json").read_text(encoding="utf-8"))["dependencies"]["mathjax"]
        config.mathjax_path = f"https://cdn.jsdelivr.net/npm/mathjax@{version}/es5/{SCRIPT}"
        config.mathjax_options = {"integrity": INTEGRITY, "crossorigin": "anonymous"}


def keep_scripts_once(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    """Sphinx 7.4 adds late inline scripts twice, which throws; those of sphinx-thebe have no use here."""
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
    """The theme's button would open a chapter's source in Colab, which knows no MyST."""
    for group in context.get("header_buttons", []):
        for button in group.get("buttons", []):
            if button["text"] == "Colab":
                button["url"] = chapters.colab_url(page)


def bring_plain_notebooks(app: Sphinx, exception: Exception | None) -> None:
    """So does the button that downloads a page; it brings what Sphinx has put into _sources."""
    if exception is None and app.builder.name == "html":
        plain.write(Path(app.outdir) / "_sources")


def number_chapters(app: Sphinx, doctree: nodes.document) -> None:
    """The text says "chapter 9": the title has its file's 9, on the page and in the contents."""
    if number := re.match(r"\d\d(?=-)", app.env.docname):
        next(doctree.findall(nodes.title)).insert(0, nodes.Text(f"{int(number[0])}. "))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    # Chapters run as children of this process; sliders and explorers then need no kernel.
    os.environ["FLORAL_LITE_STATIC_PAGE"] = "1"
    app.connect("config-inited", choose_mathjax)
    app.connect("doctree-read", number_chapters, priority=400)  # before Sphinx collects the titles
    app.connect("html-page-context", open_plain_notebooks, priority=900)
    app.connect("html-page-context", keep_scripts_once, priority=900)
    app.connect("build-finished", bring_plain_notebooks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
