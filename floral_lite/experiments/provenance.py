"""What made a result: command, machine, versions, commit."""

import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from .._version import __version__

PACKAGE = Path(__file__).resolve().parents[1]


def provenance(device: torch.device, command: str) -> dict[str, Any]:
    """What is written into every result.

    Args:
        device: where it is computed.
        command: that asked for it.
    """
    versions = {"python": platform.python_version(), "torch": torch.__version__, "floral_lite": __version__}
    return {"command": command, "device": full_name(device), "versions": versions, "commit": commit()}


def full_name(device: torch.device) -> str:
    """The device as its maker calls it, such as "NVIDIA H100" or "Intel(R) Xeon(R) CPU, 1 thread"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return f"{device.type} ({platform.machine()})"
    threads = torch.get_num_threads()
    return f"{processor()}, {threads} thread{'s' if threads > 1 else ''}"


def processor() -> str:
    """The processor's name; Python itself does not know it on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


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
