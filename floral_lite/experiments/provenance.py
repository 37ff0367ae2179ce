"""What made a result: command, machine, versions, commit."""

import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from .._version import __version__
from ..devices import device_name

PACKAGE = Path(__file__).resolve().parents[1]


def provenance(device: torch.device, command: str) -> dict[str, Any]:
    """What is written into every result.

    Args:
        device: where it is computed.
        command: that asked for it.
    """
    versions = {"python": platform.python_version(), "torch": torch.__version__, "floral_lite": __version__}
    return {"command": command, "device": device_name(device), "versions": versions, "commit": commit()}


def commit() -> str | None:
    """The commit of the source, with -dirty where the package has changed since; None outside of one."""

    def git(*arguments: str) -> str | None:
        done = subprocess.run(
            ["git", "-C", str(PACKAGE), *arguments], capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else None

    try:
        # a repository that holds an installed copy says nothing about it
        if git("ls-files", "--error-unmatch", "__init__.py") is None:
            return None
        head, changed = git("rev-parse", "HEAD"), git("status", "--porcelain", "--", ".")
    except OSError:  # no git
        return None
    return f"{head}-dirty" if changed else head
