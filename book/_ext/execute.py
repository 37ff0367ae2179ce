"""Run the chapters as a reader does, side by side, and keep their outputs for the book's pages.

python book/_ext/execute.py [--cache FOLDER] [CHAPTER ...]   "07" is enough of a chapter's name
"""

import argparse
import os
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.output_widget import OutputWidget
from traitlets.config import Config

import chapters

# Runs in the kernel after the last cell: an exercise's check that accepts anything checks nothing.
CHECKS_REFUSE_NONSENSE = """
for name, check in [(name, value) for name, value in globals().items() if name.startswith("check_")]:
    try:
        check(lambda *args, **kwargs: float("nan"))
    except (AssertionError, TypeError):
        continue
    raise RuntimeError(f"{name} accepts nonsense")
"""


class Shown(OutputWidget):
    """What a live widget shows, known to the client alone."""

    def sync_state(self) -> None:
        """Do not tell the kernel: a message out, while the cell's reply is awaited, can hide its arrival."""


def below_sliders(notebook: nbformat.NotebookNode) -> list[list[dict[str, Any]]]:
    """What each live widget shows under its sliders."""
    widgets = notebook.metadata.get("widgets", {}).get("application/vnd.jupyter.widget-state+json", {})
    states = widgets.get("state", {}).values()
    return [widget["state"]["outputs"] for widget in states if widget["model_name"] == "OutputModel"]


def execute(path: Path) -> tuple[nbformat.NotebookNode, float]:
    """Run a notebook in an empty folder.

    Returns:
        The notebook with its outputs, and the seconds that it took.

    Raises:
        CellExecutionError: a cell fails, or the check of an exercise accepts nonsense.
        RuntimeError: a cell warns, or a live widget shows no picture.
    """
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(CHECKS_REFUSE_NONSENSE))
    began = time.perf_counter()
    with TemporaryDirectory() as folder, TemporaryDirectory() as sockets:
        # Sockets that are files: a free port can be taken before the kernel for which it was chosen opens it.
        config = Config(KernelManager={"transport": "ipc", "ip": f"{sockets}/kernel"})
        client = NotebookClient(
            notebook, config=config, timeout=600, resources={"metadata": {"path": folder}}
        )
        client.record_timing = False  # the cache compares the metadata of cells as well
        client.widget_registry = {"@jupyter-widgets/output": {"OutputModel": Shown}}
        client.execute()
    seconds = time.perf_counter() - began
    notebook.cells.pop()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    said = "".join(output.text for output in outputs if output.get("name") == "stderr")
    if said:
        raise RuntimeError(f"{path.stem} warns:\n{said}")
    for shown in below_sliders(notebook):
        data = [output.get("data", {output["output_type"]: ""}) for output in shown]
        if not any("<img " in kinds.get("text/html", "") for kinds in data):
            told = [kind for kinds in data for kind in kinds]
            raise RuntimeError(f"{path.stem}: a slider shows no picture but {told}")
    notebook.metadata.pop("widgets", None)  # the pages have their own form of each widget
    return notebook, seconds


def execute_all(paths: Iterable[Path], cache: Path | None) -> None:
    """Run notebooks on all cores; with a cache, put them where Jupyter Book looks for them."""
    paths = list(paths)
    workers = min(len(paths), os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for path, (notebook, seconds) in zip(paths, pool.map(execute, paths), strict=True):
            print(f"{path.stem:40}{seconds:6.0f} s", flush=True)
            if cache:
                from jupyter_cache import get_cache  # here: Colab runs the chapters without it
                from jupyter_cache.base import CacheBundleIn

                bundle = CacheBundleIn(notebook, path, data={"execution_seconds": seconds})
                store = get_cache(cache)
                store.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
                store.db.dispose()  # Python 3.13 warns of a database that is left open


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chapters", nargs="*", help="beginnings of names; all, if none is given")
    parser.add_argument("--cache", type=Path, help="a folder of jupyter-cache")
    asked = parser.parse_args()
    beginnings = tuple(asked.chapters) or ("",)
    chosen = [path for path in chapters.notebooks() if path.stem.startswith(beginnings)]
    if not chosen:
        parser.error(f"no chapter begins with {' or '.join(beginnings)}")
    execute_all(chosen, asked.cache)
