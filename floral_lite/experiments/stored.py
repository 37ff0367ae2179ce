"""The book's own results: in a checkout they are there, elsewhere git fetches them."""

import json
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from ..errors import require
from .provenance import PACKAGE

RESULTS = Path("book") / "results"


def stored_results(clone: Path | str = "floral-lite") -> Path:
    """The folder of the results that the book draws: book/results of the repository.

    A checkout has it. Where pip installed the package from its repository, as on Colab, that repository is
    cloned (some MB), once.

    Args:
        clone: the folder of that clone; a checkout that is there already is taken as it is.

    Returns:
        A folder as `load_results` and `collect` read it.

    Raises:
        InputError: there is no checkout, and none can be fetched.
    """
    if (PACKAGE.parent / RESULTS).is_dir():
        return PACKAGE.parent / RESULTS
    clone = Path(clone)
    if not clone.exists():
        fetch(installed_from(), clone)
    found = (clone / RESULTS).is_dir()
    require(found, f"{clone} has no folder {RESULTS}: move it away, or name a checkout of the repository")
    return clone / RESULTS


def installed_from() -> str | None:
    """The repository that pip took the package from, None if it was none: what pip noted itself (PEP 610)."""
    try:
        note = distribution("floral-lite").read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    source = json.loads(note or "{}")
    return str(source["url"]) if "vcs_info" in source else None


def fetch(url: str | None, clone: Path) -> None:
    """Clone a repository's last state, or say what else would do."""
    else_do = f"clone the package's repository yourself, and name its folder: stored_results({str(clone)!r})"
    require(url is not None, f"there are no results here, nor does pip name a repository: {else_do}")
    command = ["git", "clone", "--quiet", "--depth", "1", str(url), str(clone)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        error = done.stderr.strip() if done.returncode else ""
    except OSError as missing:  # no git
        error = str(missing)
    require(not error, f"the results could not be fetched ({error}): {else_do}")
