"""What the chapters' run refuses. The chapters themselves run before the tests: the pages are made of it."""

import gc
import re
from pathlib import Path

import chapters
import execute
import nbformat
import pytest
from jupyter_cache import get_cache
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook

WIDGETS = """
import pandas as pd
from floral_lite import explore, plots, widgets

frame = pd.DataFrame({"rank": [1, 1, 2, 2], "x": [0, 1, 0, 1], "y": [0, 1, 1, 2]})
draw = lambda count: plots.image_grid([[[[0.0] * 2] * 2] * count], ["row"])
"""
EXPLORE = 'explore(frame, x="x", y="y", sliders=["rank"], title="Lines", about="by hand")'
SLIDER = 'widgets.slider(draw, [1, 2], label="squares", start=2, alt="some squares")'


def notebook(folder: Path, *cells: str) -> Path:
    path = folder / "small.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(cell) for cell in cells]), path)
    return path


def test_widgets_are_live_and_have_a_form_for_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLORAL_LITE_STATIC_PAGE", "1")
    ran, seconds = execute.execute(notebook(tmp_path, WIDGETS, EXPLORE, SLIDER))
    assert seconds > 0
    assert len(ran.cells) == 3
    for cell in ran.cells[1:]:
        (output,) = cell.outputs
        assert {"text/html", "application/vnd.jupyter.widget-view+json"} <= set(output.data)
    assert "widgets" not in ran.metadata


def test_a_reader_gets_the_live_widget_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLORAL_LITE_STATIC_PAGE", raising=False)
    ran, _ = execute.execute(notebook(tmp_path, WIDGETS, SLIDER))
    (output,) = ran.cells[1].outputs
    assert "application/vnd.jupyter.widget-view+json" in output.data
    assert "text/html" not in output.data


@pytest.mark.parametrize(
    ("cells", "error", "words"),
    [
        ([WIDGETS, SLIDER.replace("(draw,", "(lambda count: count,")], RuntimeError, "no picture"),
        (["import warnings", "warnings.warn('odd')"], RuntimeError, "small warns"),
        (["1 / 0"], CellExecutionError, "ZeroDivisionError"),
        (["def check_all(answer):\n    answer(1)"], CellExecutionError, "check_all accepts nonsense"),
    ],
    ids=["a slider without a picture", "a warning", "an error", "a check of nothing"],
)
def test_a_chapter_is_refused(
    tmp_path: Path, cells: list[str], error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLORAL_LITE_STATIC_PAGE", raising=False)
    with pytest.raises(error, match=words):
        execute.execute(notebook(tmp_path, *cells))


def test_a_chapter_takes_no_port_that_another_program_could_take_first(tmp_path: Path) -> None:
    ran, _ = execute.execute(notebook(tmp_path, "get_ipython().kernel.parent.transport"))
    (output,) = ran.cells[0].outputs
    assert output.data["text/plain"] == "'ipc'"


def test_the_build_finds_what_was_run_in_the_cache(tmp_path: Path) -> None:
    path = notebook(tmp_path, "1 + 1")
    for _ in range(2):  # what was run before is replaced
        execute.execute_all([path], tmp_path / "cache")
    gc.collect()  # Python 3.13 warns of a database that is left open
    cache = get_cache(tmp_path / "cache")
    record = cache.match_cache_notebook(nbformat.read(path, as_version=4))
    cache.db.dispose()
    assert record.data["execution_seconds"] > 0


@pytest.mark.parametrize("path", sorted(chapters.BOOK.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_fold_with_a_name_has_one_of_three(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        prompt = cell.metadata.get("mystnb", {}).get("code_prompt_show")
        if cell.cell_type == "code" and cell.source.startswith("# What the text says"):
            assert prompt == "Show the checks of the text"
        elif cell.cell_type == "code" and re.search("^def check_", cell.source, re.MULTILINE):
            assert prompt == "Show the check"
        else:
            assert prompt in (None, "Show how the stored runs are read")
        if prompt:
            assert cell.metadata.tags == ["hide-input"]
