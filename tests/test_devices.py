"""Where a run computes."""

import mmap
import platform
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from floral_lite import InputError
from floral_lite.devices import device_name, find_device


def test_the_cpu_is_always_there() -> None:
    assert find_device("cpu") == torch.device("cpu")
    assert find_device("cpu:0") == torch.device("cpu")
    assert device_name(torch.device("cpu")).endswith(", 1 thread")  # of each test


def test_a_device_of_torch_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_device(torch.device("cpu")) == torch.device("cpu")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert find_device(torch.device("mps", 0)) == torch.device("mps")  # that of a tensor there


def test_of_several_gpus_the_first_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    for name in ("cuda", "auto"):
        assert find_device(name) == torch.device("cuda:0")
    assert find_device("cuda:1") == torch.device("cuda:1")


def test_auto_is_the_first_that_is_there() -> None:
    assert find_device("auto").type == (
        "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    )


@pytest.mark.parametrize("name", ["cuda:99", "tpu", "gpu", "", torch.device("meta")])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(name: str | torch.device) -> None:
    with pytest.raises(InputError, match=f"device is '{name}'; this machine has .*cpu.*'auto'"):
        find_device(name)


def test_where_the_system_tells_no_processor_python_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for told in ("processor : 0\n", OSError()):  # Linux on ARM, and macOS
        monkeypatch.setattr(Path, "read_text", Mock(side_effect=[told]))
        assert device_name(torch.device("cpu")) == f"{platform.processor() or platform.machine()}, 1 thread"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_cuda_is_refused_where_it_is_not_there() -> None:
    with pytest.raises(InputError, match="device is 'cuda'"):
        find_device("cuda")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only the GNU C library is asked")
@pytest.mark.parametrize("call", ["", "keep_memory()"])
def test_memory_is_kept_where_it_is_asked_for(call: str) -> None:
    code = f"""
import torch
from pathlib import Path
from floral_lite.devices import keep_memory

def pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

{call}
before = pages()
made = [torch.ones(2**22) for _ in range(4)]  # 64 MiB
del made
print(pages() - before)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert (int(told) * mmap.PAGESIZE > 2**25) == (call != "")
