"""Where a run computes."""

import ctypes
import platform
import sys
from pathlib import Path

import torch

from .errors import require

# What mallopt of the GNU C library calls its options, and the largest number that it takes.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 2**31 - 1


def devices() -> list[str]:
    """The names of this machine's devices, the fastest first and "cpu" last."""
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return [*(f"cuda:{index}" for index in range(torch.cuda.device_count())), *mps, "cpu"]


def find_device(name: str | torch.device) -> torch.device:
    """The device of that name.

    Args:
        name: "cpu", "cuda", "cuda:1", "mps", or "auto" for the first of cuda, mps and cpu that is there; or
            a torch.device.

    Raises:
        InputError: the device is not there.
    """
    there = devices()
    if name == "auto":
        return torch.device(there[0])
    wanted = {"cuda": "cuda:0", "mps:0": "mps", "cpu:0": "cpu"}.get(str(name), str(name))
    require(
        wanted in there,
        f"device is {str(name)!r}; this machine has {', '.join(there)}: name one of them, or 'auto'",
    )
    return torch.device(wanted)


def device_name(device: torch.device) -> str:
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


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on a device, itself if it is there already; nothing waits for what a GPU still computes."""
    if device.type == "cuda" and tensor.is_cpu:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def keep_memory() -> None:
    """Keep the memory of freed tensors for the next ones, instead of giving it back to the system.

    A round on a CPU makes and frees large tensors all the time, and the system clears each page before it
    gives it out again: up to a fourth of the time of a convolution net. The process's memory then never
    shrinks, so a program has to ask for this, as the command line does. Only on Linux with the GNU C library
    does it do anything.
    """
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, LARGEST)
        library.mallopt(M_TRIM_THRESHOLD, LARGEST)
