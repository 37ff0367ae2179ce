"""The files around the package and the book agree with each other."""

import base64
import doctest
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import chapters
import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = [
    Requirement(line)
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
EXTRAS = PROJECT["optional-dependencies"]
LOCKED = [Requirement(text) for text in [*PROJECT["dependencies"], *EXTRAS["book"], *EXTRAS["dev"]]]
# What Colab's image has of our runtime dependencies; installing floral-lite there must not move it.
COLAB = {"torch": "2.11.0", "ipywidgets": "7.7.1", "numpy": "2.1.0", "matplotlib": "3.10.0"}


def environment(python: str, platform: str) -> dict[str, str]:
    return {"python_version": python, "python_full_version": f"{python}.9", "sys_platform": platform}


def name(requirement: Requirement) -> str:
    return requirement.name.lower().replace("_", "-")


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_lock_satisfies_pyproject(python: str, platform: str) -> None:
    where = environment(python, platform)
    locked = {
        name(row): str(row.specifier).removeprefix("==")
        for row in LOCK
        if row.marker is None or row.marker.evaluate(where)
    }
    wanted = [r for r in LOCKED if r.marker is None or r.marker.evaluate(where)]
    drifted = [str(r) for r in wanted if name(r) not in locked or locked[name(r)] not in r.specifier]
    assert not drifted, f"not satisfied by requirements.lock, run `make lock`: {drifted}"


def test_lock_has_exact_versions_only() -> None:
    assert len(LOCK) > 100
    loose = [str(r) for r in LOCK if r.url or not str(r.specifier).startswith("==") or len(r.specifier) != 1]
    assert not loose


def hashed(path: str) -> dict[str, list[str]]:
    """The rows of a file for pip, each with its hashes."""
    text = (ROOT / path).read_text(encoding="utf-8").replace("\\\n    ", "")
    rows = [line.split(" --hash=sha256:") for line in text.splitlines() if not line.startswith("#")]
    return {row: hashes for row, *hashes in rows}


def test_all_that_is_locked_has_hashes_but_torch() -> None:
    wanted = [requirement for requirement in LOCK if name(requirement) not in ("torch", "torchvision")]
    assert list(map(Requirement, hashed("hashes.lock"))) == wanted, "run `make lock`"


@pytest.mark.parametrize("path", ["hashes.lock", "book/_ext/coursework.lock", "examples/flower/flower.lock"])
def test_hashes_are_those_of_files(path: str) -> None:
    rows = hashed(path)
    assert len(rows) > 30
    for row, hashes in rows.items():
        assert hashes, row
        assert all(re.fullmatch("[0-9a-f]{64}", one) for one in hashes), row


def test_runtime_dependencies_have_one_lower_bound() -> None:
    for text in PROJECT["dependencies"]:
        operators = [clause.operator for clause in Requirement(text).specifier]
        assert operators == [">="] or not operators, f"Colab must be free to have another version: {text}"


@pytest.mark.parametrize("package", COLAB)
def test_installing_into_colab_moves_nothing(package: str) -> None:
    (wanted,) = [r for r in map(Requirement, PROJECT["dependencies"]) if r.name == package]
    assert COLAB[package] in wanted.specifier


def test_conda_environment_is_the_lock() -> None:
    rows = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    (python,) = [row.removeprefix("python=") for row in rows if str(row).startswith("python=")]
    assert f"{python}.0" in Requirement(f"python{PROJECT['requires-python']}").specifier
    (pip,) = [row["pip"] for row in rows if isinstance(row, dict)]
    assert {"--requirement requirements.lock", "--editable ."} <= set(pip)


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.stem
)
def test_workflows_run_actions_of_one_commit_and_may_do_little(path: Path) -> None:
    """A tag of an action may be moved to other code; a commit may not."""
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    used = [step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) for action in used), used
    assert workflow["permissions"]["contents"] == "read"


def test_mathjax_is_the_file_that_its_hash_names() -> None:
    wanted = json.loads((ROOT / "book/package.json").read_text(encoding="utf-8"))["dependencies"]["mathjax"]
    packages = json.loads((ROOT / "book/package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert packages["node_modules/mathjax"]["version"] == str(Version(wanted))
    script = ROOT / "book/_vendor/tex-svg-full.js"
    if not script.exists():
        pytest.skip("no npm here: the pages load MathJax from the CDN")
    found = base64.b64encode(hashlib.sha384(script.read_bytes()).digest()).decode()
    assert f'"sha384-{found}"' in (ROOT / "book/_ext/static_page.py").read_text(encoding="utf-8")


def test_every_page_is_in_the_table_of_contents() -> None:
    files = [file for glob in ("*.ipynb", "*.md", "api/*.md") for file in (ROOT / "book").glob(glob)]
    found = {file.relative_to(ROOT / "book").with_suffix("").as_posix() for file in files}
    assert found == set(chapters.pages())
    numbered = {page for page in chapters.pages() if page[0].isdigit()}
    appendices = {"reading-notes", "relatives", "routing-rules", "numbers"}
    notebooks = {path.stem for path in chapters.notebooks()} - appendices
    assert numbered == notebooks, "a chapter is a numbered notebook"


def test_every_exercise_is_on_the_page_of_exercises_once() -> None:
    wanted = []
    for path in chapters.notebooks():
        for cell in nbformat.read(path, as_version=4).cells:
            wanted += re.findall(r"\{exercise\} .*\n:label: (\S+)", cell.source)
    page = (ROOT / "book" / "exercises.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\{ref\}`[^`]* <([\w-]+)>`", page)) == sorted(wanted)


@pytest.mark.parametrize("page", ["README.md", "book/index.md"])
def test_the_code_that_newcomers_copy_runs(page: str) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    assert len(names["history"].frame()) == names["task"].settings.rounds


def test_the_session_in_the_readme_prints_what_it_says() -> None:
    (session,) = re.findall(
        r"```pycon\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    test = doctest.DocTestParser().get_doctest(session, {}, "README", "README.md", 0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    assert runner.run(test).failed == 0
    assert runner.tries > 3


def test_only_the_config_and_what_follows_it_name_the_repository() -> None:
    address = chapters.repository()["url"].removeprefix("https://")
    pages = [*ROOT.glob("*.*"), *(ROOT / "book").rglob("*.md"), *(ROOT / "floral_lite").rglob("*.py")]
    naming = {path.name for path in pages if path.is_file() and address in path.read_text(encoding="utf-8")}
    assert naming == {"_config.yml"}


@pytest.mark.parametrize("path", chapters.notebooks(), ids=lambda path: path.stem)
class TestNotebook:
    def test_is_clean(self, path: Path) -> None:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert notebook.metadata == chapters.METADATA, "make clean-notebooks"
        for cell in notebook.cells:
            if cell.cell_type == "code":
                assert not cell.outputs, "make clean-notebooks"
                assert cell.execution_count is None, "make clean-notebooks"

    def test_no_command_has_lost_its_backslash(self, path: Path) -> None:
        """An escape turns \\tfrac into a tab and 'frac', which MathJax sets without a complaint."""
        for cell in nbformat.read(path, as_version=4).cells:
            assert cell.source.replace("\n", "").isprintable(), repr(cell.source)

    def test_first_code_cell_installs_from_the_repository(self, path: Path) -> None:
        notebook = nbformat.read(path, as_version=4)
        first = next(cell for cell in notebook.cells if cell.cell_type == "code")
        assert first.source == chapters.install_source(), "make clean-notebooks"
        assert "remove-cell" in first.metadata.tags

    def test_colab_links_open_this_notebook(self, path: Path) -> None:
        links = chapters.COLAB.findall(path.read_text(encoding="utf-8"))
        assert set(links) <= {chapters.colab_url(path.stem)}, "make clean-notebooks"

    def test_built_page_has_the_colab_button(self, path: Path) -> None:
        page = ROOT / "_build/html" / f"{path.stem}.html"
        if not page.exists():
            pytest.skip("no built book: make book")
        assert f'href="{chapters.colab_url(path.stem)}"' in page.read_text(encoding="utf-8")
