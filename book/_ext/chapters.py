"""Which pages the book has, and what every chapter's notebook takes from _config.yml.

python book/_ext/chapters.py   writes these parts into the notebooks.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import yaml

ROOT = Path(__file__).resolve().parents[2]
BOOK = ROOT / "book"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
SOLUTION = re.compile(r"\{solution-(start|end)\}")  # the directives around a solution
FOLDED = "# @title Solution"  # what Colab shows of a folded solution
COLAB = re.compile(r"https://colab\.research\.google\.com/github/[^\s)\"]+")


def pages() -> list[str]:
    """The table of contents: every page's file name without a suffix, the first page first."""
    toc: dict[str, Any] = yaml.safe_load((BOOK / "_toc.yml").read_text(encoding="utf-8"))
    top = [chapter for part in toc["parts"] for chapter in part["chapters"]]
    below = [page for chapter in top for page in (chapter, *chapter.get("sections", ()))]
    return [toc["root"], *(page["file"] for page in below)]


def notebooks() -> list[Path]:
    """The pages that are notebooks."""
    return [path for page in pages() if (path := BOOK / f"{page}.ipynb").exists()]


@cache
def repository() -> dict[str, str]:
    """The repository's url, branch and path_to_book."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    return dict(config["repository"])


def install_source() -> str:
    """The first code cell of every notebook."""
    return (
        "import importlib.util\n"
        "\n"
        'if importlib.util.find_spec("floral_lite") is None:  # on Colab, say\n'
        f'    %pip install --quiet "floral-lite @ git+{repository()["url"]}"'
    )


def folder_url() -> str:
    """Where the repository shows the book's files."""
    place = repository()
    return f"{place['url']}/blob/{place['branch']}/{place['path_to_book']}"


def notebooks_url() -> str:
    """Where the repository shows the chapters as plain notebooks: a branch that plain.py fills."""
    return f"{repository()['url']}/blob/notebooks"


def colab_url(page: str) -> str:
    """Where Colab opens a page's notebook."""
    folder = notebooks_url().replace("https://github.com", "https://colab.research.google.com/github")
    return f"{folder}/{page}.ipynb"


def solutions(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The code cells between the directives solution-start and solution-end."""
    inside, found = False, []
    for cell in notebook.cells:
        marks = SOLUTION.findall(cell.source) if cell.cell_type == "markdown" else []
        if marks:  # a cell may end one solution and start another
            inside = marks[-1] == "start"
        elif inside and cell.cell_type == "code":
            found.append(cell)
    return found


def fold(cell: nbformat.NotebookNode, title: str) -> None:
    """Fold a cell's code in JupyterLab and Colab, which shows the title in its place."""
    cell.metadata.jupyter = {"source_hidden": True}
    cell.metadata.cellView = "form"
    if not cell.source.startswith(title):
        cell.source = f"{title}\n{cell.source}"


def mend(page: str, notebook: nbformat.NotebookNode) -> None:
    """Put the install cell before the code and the address into links to Colab; allow any Python kernel.

    The page folds solutions by itself. Here they are folded for JupyterLab and Colab, too.
    """
    notebook.metadata = nbformat.from_dict(METADATA)
    cells = notebook.cells
    first = next((i for i, cell in enumerate(cells) if cell.cell_type == "code"), len(cells))
    if first == len(cells) or "floral-lite @ git+" not in cells[first].source:
        cells.insert(first, nbformat.v4.new_code_cell())
    cells[first].source = install_source()
    cells[first].metadata.tags = ["remove-cell"]  # nobody runs this cell on the page
    for cell in cells:
        if cell.cell_type == "markdown":
            cell.source = COLAB.sub(colab_url(page), cell.source)
    for cell in solutions(notebook):
        fold(cell, FOLDED)


if __name__ == "__main__":
    for path in notebooks():
        notebook = nbformat.read(path, as_version=4)
        mend(path.stem, notebook)
        nbformat.write(notebook, path)
