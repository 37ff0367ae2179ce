"""The folder of the book's results: of a checkout, of a clone, or a sentence that says what to do."""

import json
import subprocess
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from floral_lite import InputError
from floral_lite.experiments import stored, stored_results


class Installed:
    """A distribution with what pip noted about where it came from."""

    def __init__(self, note: dict[str, object] | None) -> None:
        self.note = note

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self.note is None else json.dumps(self.note)


def alone(folder: Path, monkeypatch: pytest.MonkeyPatch, note: dict[str, object] | None) -> None:
    """The package as pip installs it: nothing of the repository beside it."""
    monkeypatch.setattr(stored, "PACKAGE", folder / "site-packages" / "floral_lite")
    monkeypatch.setattr(stored, "distribution", lambda name: Installed(note))


def repository(folder: Path) -> Path:
    """A small one with a results file and two commits."""
    (folder / "book" / "results").mkdir(parents=True)
    (folder / "book" / "results" / "README.md").write_text("results", encoding="utf-8")
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    commit = [*author, "commit", "--quiet", "--allow-empty", "-m"]
    for command in (["init", "--quiet"], ["add", "."], [*commit, "one"], [*commit, "two"]):
        subprocess.run(["git", "-C", str(folder), *command], check=True)
    return folder


def test_a_checkout_has_them() -> None:
    folder = stored_results()
    assert folder == Path(__file__).resolve().parents[1] / "book" / "results"
    assert (folder / "README.md").exists()


def test_else_the_repository_of_pip_is_cloned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = repository(tmp_path / "source")
    alone(tmp_path, monkeypatch, {"url": source.as_uri(), "vcs_info": {"vcs": "git", "commit_id": "1"}})
    folder = stored_results(tmp_path / "clone")
    assert folder == tmp_path / "clone" / "book" / "results"
    assert (folder / "README.md").read_text(encoding="utf-8") == "results"
    assert (tmp_path / "clone/.git/shallow").exists()  # of its commits only the last
    (folder / "README.md").write_text("kept", encoding="utf-8")
    assert stored_results(tmp_path / "clone") == folder
    assert (folder / "README.md").read_text(encoding="utf-8") == "kept"
    (tmp_path / "clone").rename(tmp_path / "floral-lite")
    monkeypatch.chdir(tmp_path)
    assert stored_results() == Path("floral-lite/book/results")


@pytest.mark.parametrize("note", [None, {"url": "file:///w.whl", "archive_info": {}}], ids=["index", "wheel"])
def test_it_says_what_to_do_without_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, note: dict[str, object] | None
) -> None:
    alone(tmp_path, monkeypatch, note)
    with pytest.raises(InputError, match="nor does pip name a repository: clone the package's repository y"):
        stored_results(tmp_path / "clone")
    made = repository(tmp_path / "clone")
    assert stored_results(tmp_path / "clone") == made / "book" / "results"


def test_it_says_what_to_do_where_pip_did_not_install_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Installed:
        raise PackageNotFoundError(name)

    alone(tmp_path, monkeypatch, None)
    monkeypatch.setattr(stored, "distribution", missing)
    with pytest.raises(InputError, match="nor does pip name a repository"):
        stored_results(tmp_path / "clone")


def test_it_says_why_git_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = {"url": (tmp_path / "nowhere").as_uri(), "vcs_info": {"vcs": "git"}}
    alone(tmp_path, monkeypatch, nowhere)
    with pytest.raises(InputError, match=r"could not be fetched \(fatal.*nowhere"):
        stored_results(tmp_path / "clone")
    (tmp_path / "clone").mkdir()
    with pytest.raises(InputError, match="has no folder"):
        stored_results(tmp_path / "clone")


def test_it_says_so_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone(tmp_path, monkeypatch, {"url": "https://example.org/r", "vcs_info": {"vcs": "git"}})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"could not be fetched .*git"):
        stored_results(tmp_path / "clone")
