"""Turn the chapters into assignments for nbgrader: what `make coursework` runs.

python book/_ext/coursework.py FOLDER [CHAPTER ...]

FOLDER/student       a folder a chapter: the notebook without solutions
FOLDER/instructor    a course of nbgrader: source/ has the solutions, submitted/ takes the submissions

An exercise of a chapter has two cells, a check and a stub. Here it has three, which nbgrader knows by their
metadata:

    def check_...(...)       locked
    def my_...(...)          the answer: a stub, and in source/ the chapter's solution behind it
    check_...(my_...)        locked, and worth a point
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from traitlets.config.loader import PyFileConfigLoader

import chapters
import plain

POINTS = 1
CONFIG = """\
import os

from nbconvert.preprocessors import TagRemovePreprocessor
from nbgrader.converters import GenerateAssignment

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as make has it: threads that wait for each other cost minutes
c = get_config()
c.CourseDirectory.course_id = "floral-lite"
c.CourseDirectory.release_directory = "../student"
c.ClearSolutions.code_stub = {"python": ""}  # the stub is in the cell already
c.Execute.timeout = 600  # seconds for a cell, when a submission is graded
# The chapter's words about a solution are cells with a tag, and no student's.
c.TagRemovePreprocessor.enabled = True
c.TagRemovePreprocessor.remove_cell_tags = {"solution"}
c.GenerateAssignment.preprocessors = [TagRemovePreprocessor, *GenerateAssignment.preprocessors.default()]
"""
DIRECTIVE = re.compile(r"^(`{3,})\{(exercise|solution-start|solution-end)\}(.*?)^\1[ \t]*$", re.M | re.S)
# The stub, and the call that a reader of the chapter takes the # from.
STUB = re.compile(r"(def (my_\w+).*?)^# (check_\w+)\(\2\)\s*", re.M | re.S)
COLAB_LINK = re.compile(r"^\[[^\]]*\]\(" + chapters.COLAB.pattern + r"\)\n*", re.M)
HOW_TO_CHECK = re.compile(r"remove the `#` before\s+the check, run both\s+cells")


def assignments() -> list[Path]:
    """The notebooks that have exercises."""
    return [path for path in chapters.notebooks() if "{exercise}" in path.read_text(encoding="utf-8")]


def pieces(notebook: NotebookNode) -> Iterator[tuple[str, str, str]]:
    """The notebook as (kind, source, argument): code, markdown, or a directive of an exercise."""
    for cell in notebook.cells:
        end = 0
        for found in DIRECTIVE.finditer(cell.source if cell.cell_type == "markdown" else ""):
            yield "markdown", cell.source[end : found.start()].strip(), ""
            argument, _, body = found[3].strip().partition("\n")
            yield found[2], body, argument
            end = found.end()
        yield cell.cell_type, cell.source[end:].strip(), ""


def graded(kind: str, label: str, source: str) -> NotebookNode:
    """A code cell that nbgrader knows: a "check", an "answer" or a "test"."""
    name = f"{label}-{kind}"
    about = {"grade": kind == "test", "solution": kind == "answer", "locked": kind != "answer", "task": False}
    metadata = {"nbgrader": {**about, "schema_version": 3, "grade_id": name, "points": POINTS}}
    cell: NotebookNode = nbformat.v4.new_code_cell(source.strip(), id=name, metadata=metadata)
    return cell


def exercise(label: str, checks: str, stub: re.Match[str], solution: str) -> list[NotebookNode]:
    """The three cells of an exercise, the solution in its place."""
    empty, mine, check = stub.groups()
    if f"def {check}(" not in checks:
        raise ValueError(f"exercise {label}: the cell before its stub does not define {check}(...)")
    checked = re.search(rf"^{check}\((\w+)\)", solution, re.M)
    if checked is None:
        raise ValueError(f"exercise {label}: its solution never calls {check}(...)")
    answer = f"{empty.rstrip()}\n### BEGIN SOLUTION\n\n\n{solution}\n{mine} = {checked[1]}\n### END SOLUTION"
    # A submission is graded with the original check, should a student have replaced it above.
    test = f"### BEGIN HIDDEN TESTS\n{checks.strip()}\n\n\n### END HIDDEN TESTS\n{check}({mine})"
    return [graded("check", label, checks), graded("answer", label, answer), graded("test", label, test)]


def convert(notebook: NotebookNode) -> NotebookNode:
    """What nbgrader starts from: the solutions inside the answers, points on the tests."""
    cells: list[NotebookNode] = []
    label = ""
    stub: re.Match[str] | None = None
    solution: list[str] | None = None  # the code of the solution that is open
    words: list[NotebookNode] = []  # and what the chapter says about it
    for kind, source, argument in pieces(notebook):
        if kind == "exercise":
            options, _, text = source.partition("\n\n")
            label = options.removeprefix(":label:").strip()
            source = f"### {plain.targets()[label].words}: {argument}\n\n{text.strip()}"
            cells.append(nbformat.v4.new_markdown_cell(source, id=label))
        elif kind == "solution-start":
            solution, words = [], []
        elif kind == "solution-end":
            if stub is None:
                raise ValueError(f"exercise {label}: no cell is a stub and '# check_...(my_...)'")
            checks = cells.pop().source
            cells += [*exercise(label, checks, stub, "\n\n".join(solution or [])), *words]
            stub = solution = None
        elif kind == "code" and solution is not None:
            solution.append(f"{source.removeprefix(chapters.FOLDED).strip()}\n")
        elif kind == "code" and (found := STUB.fullmatch(source)):
            stub = found
        elif kind == "code":
            cells.append(nbformat.v4.new_code_cell(source, id=f"cell-{len(cells)}"))
        elif source and solution is not None:
            words.append(nbformat.v4.new_markdown_cell(source, id=f"{label}-{len(words)}"))
            words[-1].metadata.tags = ["solution"]
        elif source:
            source = HOW_TO_CHECK.sub("run the cell and the check below it", COLAB_LINK.sub("", source))
            cells.append(nbformat.v4.new_markdown_cell(source, id=f"cell-{len(cells)}"))
    for cell in cells:
        if cell.cell_type == "markdown":
            cell.source = plain.inline(cell.source)
    made: NotebookNode = nbformat.v4.new_notebook(cells=cells, metadata=notebook.metadata)
    return made


def write(paths: list[Path], folder: Path) -> None:
    """Make the two folders. Existing sources and settings stay, which may have been edited; so do grades."""
    from nbgrader.apps import NbGraderAPI  # here, since it takes seconds and warns

    course = folder.resolve() / "instructor"
    (course / "submitted").mkdir(parents=True, exist_ok=True)
    if not (course / "nbgrader_config.py").exists():
        (course / "nbgrader_config.py").write_text(CONFIG, encoding="utf-8")
    config = PyFileConfigLoader("nbgrader_config.py", path=str(course)).load_config()
    config.CourseDirectory.root = str(course)
    # nbgrader calls alembic by name: it is beside this Python, whose environment may not be activated.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    grader = NbGraderAPI(config=config)
    for path in paths:
        source = course / "source" / path.stem / path.name
        source.parent.mkdir(parents=True, exist_ok=True)
        if not source.exists():
            nbformat.write(convert(nbformat.read(path, as_version=4)), source)
        made = grader.generate_assignment(path.stem, force=True)
        if not made["success"]:
            sys.exit(f"{path.stem}: {made['error'] or made['log']}")


if __name__ == "__main__":
    folder, *wanted = sys.argv[1:]
    chosen = [path for path in assignments() if not wanted or path.stem.startswith(tuple(wanted))]
    for start in wanted:
        if not any(path.stem.startswith(start) for path in chosen):
            sys.exit(f"no chapter starts with {start}: {', '.join(path.stem for path in assignments())}")
    write(chosen, Path(folder))
    print(f"{len(chosen)} chapters: {folder}/student to hand out, {folder}/instructor to grade in")
