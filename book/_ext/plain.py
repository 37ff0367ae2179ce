"""Write the chapters for Colab and Jupyter without MyST: `make notebooks`, and the pages' download buttons.

python book/_ext/plain.py FOLDER

Directives and roles become Markdown and mathematics that every notebook shows, numbered as on the built
pages. What the pages fold is folded here, too. Code stays as it is.
"""

import re
import sys
from functools import cache
from itertools import count
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbformat import NotebookNode
from pybtex.backends.plaintext import Backend
from pybtex.database import parse_file
from pybtex.style.formatting.plain import Style

import chapters

EQUATION = re.compile(r"\n\$\$ \(([\w-]+)\)$", re.M)
SECTION = re.compile(r"^\(([\w-]+)\)=\n(#+ (.*))$", re.M)
EXERCISE = re.compile(r"^(`{3,})\{exercise\} (.*)\n:label: ([\w-]+)\n\n(.*?)\n\1$", re.M | re.S)
SOLUTION = re.compile(r"^(?:`{3,})\{solution-(start|end)\}[^`]*`{3,}$", re.M)
ADMONITION = re.compile(r"^:::\{(?:admonition\} (.*)\n:class: dropdown|note\})\n+(.*?)\n:::$", re.M | re.S)
IMAGE = re.compile(r"^```\{image\} (\S+)\n:alt: (.*)\n```$", re.M)
ROLE = re.compile(r"\{(eq|ref|doc|cite|cite:t)\}`(?:([^`<]*?) <)?([^`<>]+)>?`")
PAGE_LINK = re.compile(r"\]\(((?!https?:|#)[^)\s]+\.(?:ipynb|md))\)")  # to another page of the book


class Target(NamedTuple):
    """The target of a reference: its page, and the text of a reference that has no words of its own."""

    file: str
    words: str


@cache
def targets() -> dict[str, Target]:
    """All labels of the notebooks. Equations and exercises are numbered through the book."""
    found: dict[str, Target] = {}
    equations, exercises = count(1), count(1)
    for path in chapters.notebooks():
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "markdown":
                for label in EQUATION.findall(cell.source):
                    found[label] = Target(path.name, f"({next(equations)})")
                for _, _, label, _ in EXERCISE.findall(cell.source):
                    found[label] = Target(path.name, f"Exercise {next(exercises)}")
                for label, _, title in SECTION.findall(cell.source):
                    found[label] = Target(path.name, title)
    return found


@cache
def references() -> dict[str, tuple[str, str, str]]:
    """Authors, year and the whole text of each of the book's references, by key."""
    bibliography = parse_file(str(chapters.BOOK / "references.bib"))
    found = {}
    for formatted in Style().format_bibliography(bibliography):
        entry = bibliography.entries[formatted.key]
        names = [" ".join(map(str, person.rich_last_names)) for person in entry.persons["author"]]
        authors = " and ".join(names) if len(names) < 3 else f"{names[0]} *et al.*"
        whole = " ".join(formatted.text.render(Backend()).split())
        found[formatted.key] = authors, entry.fields["year"], whole
    return found


def citation(key: str, in_text: bool) -> str:
    """Authors and year, with a link whose title is the whole reference."""
    authors, year, whole = references()[key]
    link = f'{chapters.folder_url()}/references.bib "{whole}"'
    return f"{authors} [({year})]({link})" if in_text else f"([{authors}, {year}]({link}))"


def role(found: re.Match[str]) -> str:
    """A MyST role as words, with a link if it leads to another page."""
    kind, words, key = found.groups()
    if kind.startswith("cite"):
        return citation(key, in_text=kind == "cite:t")
    if kind == "doc":
        return f"[{words}]({key}.md)"
    target = targets()[key]
    return f"[{words or target.words}]({target.file})"


def folded(title: str, text: str) -> str:
    """Text that unfolds with a click."""
    return f"<details>\n<summary>{title}</summary>\n\n{text.strip()}\n\n</details>"


def page_link(found: re.Match[str]) -> str:
    """Where a link to another page leads from outside the book: chapters to their plain notebooks."""
    file = found[1]
    folder = chapters.notebooks_url() if file.endswith(".ipynb") else chapters.folder_url()
    return f"]({folder}/{file})"


def inline(text: str) -> str:
    """Markdown without roles, labels and directives but for a solution's."""

    def heading(found: re.Match[str]) -> str:
        _, title, label, body = found.groups()
        return f"### {targets()[label].words}: {title}\n\n{body}"

    def admonition(found: re.Match[str]) -> str:
        title, body = found.groups()
        return folded(title, body) if title else "> " + body.replace("\n", "\n> ")

    text = EXERCISE.sub(heading, text)
    text = ADMONITION.sub(admonition, text)
    text = SECTION.sub(r"\2", text)
    text = EQUATION.sub(lambda found: f"\n\\tag{{{targets()[found[1]].words[1:-1]}}}\n$$", text)
    text = IMAGE.sub(rf"![\2]({chapters.folder_url().replace('/blob/', '/raw/')}/\1)", text)
    text = ROLE.sub(role, text)
    return PAGE_LINK.sub(page_link, text)


def fold_solutions(notebook: NotebookNode) -> None:
    """Fold the words of solutions, which may begin in one cell and end in a later one."""
    inside = False
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            first, *rest = SOLUTION.split(cell.source)
            texts, insides = [first, *rest[1::2]], [inside, *(kind == "start" for kind in rest[::2])]
            inside = insides[-1]
            cell.source = "\n\n".join(
                folded("Solution", text) if is_solution else text.strip()
                for text, is_solution in zip(texts, insides, strict=True)
                if text.strip()
            )


def convert(page: str, notebook: NotebookNode) -> NotebookNode:
    """A chapter without MyST; references to its own page are not links."""
    fold_solutions(notebook)
    own = re.compile(rf"\[([^\[\]]*)\]\({re.escape(chapters.notebooks_url())}/{page}\.ipynb\)")
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = own.sub(r"\1", inline(cell.source))
        elif "hide-input" in cell.metadata.get("tags", ()):
            prompt = cell.metadata.get("mystnb", {}).get("code_prompt_show", "Show the code")
            chapters.fold(cell, f"# @title {prompt}")
    notebook.cells = [cell for cell in notebook.cells if cell.source]
    return notebook


def write(folder: Path) -> None:
    """All chapters, as plain notebooks into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in chapters.notebooks():
        nbformat.write(convert(path.stem, nbformat.read(path, as_version=4)), folder / path.name)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
    print(f"{len(chapters.notebooks())} notebooks in {sys.argv[1]}")
