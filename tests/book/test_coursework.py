"""Assignments out of the chapters, graded by nbgrader; and solutions folded where the page cannot do it."""

import ast
import copy
import csv
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import chapters
import coursework
import nbformat
import plain
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell as code
from nbformat.v4 import new_markdown_cell as text

from floral_lite.experiments import cells


def chapter() -> NotebookNode:
    """Two exercises: directives alone in their cells, and sharing cells with what is around them."""
    cells = [
        text(f"# A chapter\n\n[In Colab]({chapters.colab_url('old')})\n\nTwo numbers."),
        code("two = 2"),
        text("## Exercises\n\nWrite your function, remove the `#` before\nthe check, run both\ncells."),
        text("```{exercise} Twice\n:label: twice\n\nReturn $2 n$, by {eq}`product`.\n```"),
        code("def check_twice(twice):\n    assert twice(3) == two * 3, 'which factor?'"),
        code("def my_twice(n):\n    return None  # your code here\n\n\n# check_twice(my_twice)"),
        text("````{solution-start} twice\n:class: dropdown\n````"),
        text("It is the sum."),
        code("def twice(n):\n    return n + n\n\n\ncheck_twice(twice)"),
        text(
            "It needs no product.\n\n````{solution-end}\n````\n\n"
            "```{exercise} Any number\n:label: any\n\nReturn `0`.\n```"
        ),
        code("start = 0\n\n\ndef check_zero(zero):\n    assert zero() == start"),
        code("def my_zero():\n    return None\n\n\n# check_zero(my_zero)"),
        text("````{solution-start} any\n:class: dropdown\n````\n\nNothing is simpler."),
        code("# @title Solution\ndef nothing():\n    return 0\n\n\ncheck_zero(nothing)\nprint('done')"),
        text("````{solution-end}\n````\n\n## Summary\n\nThat was all."),
        code("print(two)"),
    ]
    notebook: NotebookNode = nbformat.v4.new_notebook(cells=cells, metadata=chapters.METADATA)
    return notebook


# Where its exercises are in the book, and what else it refers to.
PLACES = {"twice": ("x.ipynb", "Exercise 7"), "any": ("x.ipynb", "Exercise 8"), "product": ("y.ipynb", "(3)")}


@pytest.fixture
def numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = {label: plain.Target(*place) for label, place in PLACES.items()}
    monkeypatch.setattr(plain, "targets", lambda: targets)


def source(notebook: NotebookNode) -> str:
    return "\n\n".join(cell.source for cell in notebook.cells)


def for_students(notebook: NotebookNode) -> str:
    """What nbgrader leaves of a converted notebook."""
    cells = [cell.source for cell in notebook.cells if "solution" not in cell.metadata.get("tags", [])]
    hidden = r"^### BEGIN (SOLUTION|HIDDEN TESTS)$.*?^### END \1$"
    return re.sub(hidden, "", "\n\n".join(cells), flags=re.MULTILINE | re.DOTALL)


def in_exercises(notebook: NotebookNode, kind: str) -> list[NotebookNode]:
    graded = [cell for cell in notebook.cells if "nbgrader" in cell.metadata]
    return [cell for cell in graded if cell.metadata.nbgrader.grade_id.endswith(f"-{kind}")]


@pytest.mark.usefixtures("numbered")
def test_exercises_become_a_check_an_answer_and_a_test() -> None:
    made = coursework.convert(chapter())
    nbformat.validate(made)
    checks, answers, tests = (in_exercises(made, kind) for kind in ("check", "answer", "test"))
    assert [cell.metadata.nbgrader.grade_id for cell in answers] == ["twice-answer", "any-answer"]
    assert all(cell.metadata.nbgrader.locked for cell in [*checks, *tests])
    assert not any(cell.metadata.nbgrader.locked for cell in answers)
    assert [cell.metadata.nbgrader.points for cell in tests] == [1, 1]
    assert checks[1].source == "start = 0\n\n\ndef check_zero(zero):\n    assert zero() == start"
    assert answers[1].source == (
        "def my_zero():\n    return None\n### BEGIN SOLUTION\n\n\n"
        "def nothing():\n    return 0\n\n\ncheck_zero(nothing)\nprint('done')\n\n"
        "my_zero = nothing\n### END SOLUTION"
    )
    seen = for_students(made)
    assert "### Exercise 8: Any number\n\nReturn `0`." in seen
    assert f"Return $2 n$, by [(3)]({chapters.notebooks_url()}/y.ipynb)." in seen
    assert "run the cell and the check below it" in seen
    assert seen.index("Two numbers.") < seen.index("my_twice") < seen.index("That was all.")
    for hidden in ("n + n", "the sum", "no product", "simpler", "return 0", "colab", "{"):
        assert hidden not in seen


@pytest.mark.usefixtures("numbered")
def test_an_exercise_without_its_parts_is_named() -> None:
    without_check, without_call, without_stub = chapter(), chapter(), chapter()
    without_check.cells[4].source = "start = 0"
    with pytest.raises(ValueError, match="twice: the cell before its stub does not define check_twice"):
        coursework.convert(without_check)
    without_call.cells[8].source = "print(2)"
    with pytest.raises(ValueError, match="twice: its solution never calls check_twice"):
        coursework.convert(without_call)
    without_stub.cells[11].source = "start = 0"
    with pytest.raises(ValueError, match="any: no cell is a stub"):
        coursework.convert(without_stub)


@pytest.mark.parametrize("path", coursework.assignments(), ids=lambda path: path.stem)
def test_every_chapter_is_an_assignment(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    made = coursework.convert(notebook)
    nbformat.validate(made)
    seen = for_students(made)
    assert len(in_exercises(made, "test")) == source(notebook).count("{exercise}") >= 3
    assert not re.search(r"\{(exercise|solution-\w+)\}|remove the `#`|colab\.research", seen)
    assert f"]({chapters.notebooks_url()}/" in seen
    assert not re.search(r"\]\((?!https?:|#)[^)\s]+\.(ipynb|md)\)", seen)
    assert not re.search(r"\{(eq|ref|doc|cite|cite:t)\}`", seen)
    for solved in chapters.solutions(notebook):
        answer = solved.source.removeprefix(chapters.FOLDED).strip()
        assert answer in source(made)
        assert answer not in seen


def names(cells: list[NotebookNode]) -> tuple[set[str], set[str]]:
    """What code reads, and what it makes."""
    read: set[str] = set()
    made: set[str] = set()
    for node in (node for cell in cells for node in ast.walk(ast.parse(cell.source))):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                made.add(name)
            case ast.alias(name=name, asname=short):
                made.add(short or name)
    return read, made


@pytest.mark.parametrize("path", coursework.assignments(), ids=lambda path: path.stem)
def test_no_other_cell_needs_what_a_solution_makes(path: Path) -> None:
    """Who hands in answers of their own has none of it: a chapter's last cell ran into a NameError."""
    notebook = nbformat.read(path, as_version=4)
    solved = chapters.solutions(notebook)
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code" and "%pip" not in cell.source]
    read, made = names([cell for cell in code_cells if cell not in solved])
    assert not read & (names(solved)[1] - made)


WRITE = f"""
import coursework, pathlib, plain
plain.targets = lambda: {{label: plain.Target(*place) for label, place in {PLACES}.items()}}
coursework.write(list(pathlib.Path().glob("*.ipynb")), pathlib.Path())
"""


def run(folder: Path, *arguments: str) -> None:
    """In an environment that is activated."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    place = str(chapters.BOOK / "_ext")
    command = [sys.executable, *arguments]
    subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path, "PYTHONPATH": place}, check=True)


@pytest.mark.skipif(find_spec("nbgrader") is None, reason="`make coursework` installs nbgrader")
@pytest.mark.usefixtures("numbered")
def test_right_answers_get_all_points_and_wrong_ones_none(tmp_path: Path) -> None:
    edited = coursework.convert(chapter())
    in_exercises(edited, "check")[0].source += "\n\n# a lecturer was here"
    course = tmp_path / "instructor"
    (course / "source" / "edited").mkdir(parents=True)
    nbformat.write(edited, course / "source/edited/edited.ipynb")
    for name in ("twice", "edited"):
        nbformat.write(chapter(), tmp_path / f"{name}.ipynb")
    run(tmp_path, "-c", WRITE)
    assert "# a lecturer was here" in source(nbformat.read(tmp_path / "student/edited/edited.ipynb", 4))
    settings = course / "nbgrader_config.py"
    settings.write_text(settings.read_text(encoding="utf-8") + "# and here\n", encoding="utf-8")
    run(tmp_path, "-c", WRITE)
    assert settings.read_text(encoding="utf-8").endswith("# and here\n")
    solved = nbformat.read(course / "source/twice/twice.ipynb", as_version=4)
    empty = nbformat.read(tmp_path / "student/twice/twice.ipynb", as_version=4)
    assert source(empty).split() == for_students(coursework.convert(chapter())).split()

    wrong = copy.deepcopy(empty)
    # The check replaced above the test, and the test itself replaced: nbgrader puts both back.
    in_exercises(wrong, "answer")[0].source = "def check_twice(_): pass\n\n\ndef my_twice(n):\n    return n"
    in_exercises(wrong, "test")[1].source = "pass"
    for student, notebook in {"right": solved, "empty": empty, "wrong": wrong}.items():
        folder = course / "submitted" / student / "twice"
        folder.mkdir(parents=True)
        nbformat.write(notebook, folder / "twice.ipynb")
    run(course, "-m", "nbgrader", "autograde", "twice")
    run(course, "-m", "nbgrader", "export", "--to=grades.csv")
    with (course / "grades.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["assignment"] == "twice"]
    points = {row["student_id"]: (float(row["score"]), float(row["max_score"])) for row in rows}
    assert points == {"right": (2, 2), "empty": (0, 2), "wrong": (0, 2)}


def minutes_of_reading(notebook: NotebookNode) -> int:
    """By the rule of the page for lecturers: 100 words or 20 lines of shown code a minute."""
    words = lines = 0
    inside = False
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            inside = "\n## Summary" not in cell.source and (inside or "## Exercises" in cell.source)
        if not inside and cell.cell_type == "markdown":
            # a formula is read like a word
            words += len(re.sub(r"\$+[^$]*\$+", " x ", cell.source).split())
        elif not inside and not {"hide-input", "remove-cell"} & set(cell.metadata.get("tags", [])):
            lines += len(cell.source.splitlines())
    return 5 * round((words / 100 + lines / 20) / 5)


def test_the_page_for_lecturers_says_what_is_there() -> None:
    page = (chapters.BOOK / "lecturers.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| \[(.+)\]\(([\w-]+)\.ipynb\) \| (\d+) \|$", page, re.M)
    told = {name: int(number) for _, name, number in lines}
    read = {path.stem: nbformat.read(path, as_version=4) for path in coursework.assignments()}
    assert told == {name: minutes_of_reading(notebook) for name, notebook in read.items()}
    titles = {name: notebook.cells[0].source.splitlines()[0] for name, notebook in read.items()}
    assert {name: f"# {title}" for title, name, _ in lines} == titles
    for name, notebook in read.items():
        (said,) = re.findall(r"Reading\s+takes\s+about\s+(\d+)\s+minutes", notebook.cells[0].source)
        assert int(said) == told[name], name
    for name in re.findall(r"floral_lite/\S+\.py", page):
        assert (chapters.ROOT / name).exists(), name
    targets = re.findall(r"^([a-z-]+):", (chapters.ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert set(re.findall(r"\bmake ([a-z]+)(?= FOLDER|`)", page)) == {"coursework", "clean"} <= set(targets)
    assert {"nbgrader autograde 03-who-shares-what", "nbgrader export --to=grades.csv"} <= set(
        page.splitlines()
    )
    tables = re.findall(r"floral-lite table methods --columns (\S+) --rows (\S+)", page)
    assert [len(cells("methods", columns.split(","), rows.split(","))) for columns, rows in tables] == [8, 4]
    (own_task,) = re.findall(r"```python\n(.*?)```", page, re.S)
    exec(own_task, {"print": lambda accuracy: None})


def test_nbgrader_is_asked_of_pip_where_uv_cannot_install(tmp_path: Path) -> None:
    for name, does in {"uv": "exit 2", "python": 'echo "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "installed").touch()
    made = ["make", "--silent", "coursework", f"BIN={tmp_path}", f"INSTALLED={tmp_path / 'installed'}"]
    said = subprocess.run(made, cwd=chapters.ROOT, check=True, capture_output=True, text=True).stdout
    asked, then = said.splitlines()
    assert asked.startswith("-m pip install")
    assert asked.endswith("book/_ext/coursework.lock")
    assert then.startswith("book/_ext/coursework.py")


def test_solutions_are_folded_in_notebooks() -> None:
    notebook = chapter()
    chapters.mend("twice", notebook)
    folded = [cell for cell in notebook.cells if cell.metadata.get("cellView") == "form"]
    assert folded == chapters.solutions(notebook)
    assert ["n + n" in cell.source or "return 0" in cell.source for cell in folded] == [True, True]
    for cell in folded:
        assert cell.metadata.jupyter == {"source_hidden": True}
        assert cell.source.startswith("# @title Solution\ndef ")  # once
    again = copy.deepcopy(notebook)
    chapters.mend("twice", again)
    assert again == notebook


@pytest.mark.parametrize("page", chapters.pages())
def test_links_between_pages_name_files(page: str) -> None:
    # not pages: JupyterLab and GitHub find files only
    path = next(path for path in chapters.BOOK.glob(f"{page}.*") if path.suffix in (".ipynb", ".md"))
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = nbformat.reads(text, as_version=4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    links = re.findall(r"\[[^\]]*\]\((?!https?:|#)([^)\s]+)\)", text)
    assert [link for link in links if not (path.parent / link).is_file()] == []


@pytest.mark.parametrize("path", chapters.notebooks(), ids=lambda path: path.stem)
def test_chapters_are_as_mend_leaves_them(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    mended = copy.deepcopy(notebook)
    chapters.mend(path.stem, mended)
    assert mended == notebook, "make clean-notebooks"
