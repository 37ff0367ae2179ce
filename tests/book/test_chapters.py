"""Every chapter runs from top to bottom as a reader runs it, with live widgets.

The book's own build runs them too, but there the widgets draw static explorers.
"""

from pathlib import Path
from typing import Any

import chapters
import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.output_widget import OutputWidget

# Runs in the kernel behind the last cell: a check of an exercise that takes anything checks nothing.
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


@pytest.mark.parametrize("path", chapters.notebooks(), ids=lambda path: path.stem)
def test_chapter(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLORAL_LITE_STATIC_PAGE", raising=False)
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(CHECKS_REFUSE_NONSENSE))
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.widget_registry = {"@jupyter-widgets/output": {"OutputModel": Shown}}
    client.execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    said = "".join(output.text for output in outputs if output.get("name") == "stderr")
    assert not said, f"a warning in the chapter:\n{said}"
    for outputs in below_sliders(notebook):
        kinds = [kind for output in outputs for kind in output.get("data", {output["output_type"]: ""})]
        assert "image/png" in kinds, f"a slider shows no picture but {kinds}"
