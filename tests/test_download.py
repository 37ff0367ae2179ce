"""Downloads: checked, one process at a time, taken up where they were interrupted, never half counted."""

import gzip
import hashlib
import http.server
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from filelock import FileLock, Timeout

from floral_lite import InputError
from floral_lite.data import Images, cifar10, mnist
from floral_lite.data import images as images_module

torchvision_mnist = images_module.import_torchvision("torchvision.datasets").MNIST

UNPACKED = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
]


def idx(array: np.ndarray) -> bytes:
    """An array of uint8 in MNIST's format: 0, 0, the type, the number of axes, each size, the numbers."""
    sizes = np.array(array.shape, ">i4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A server on this machine with a small MNIST; the names of what it was asked for."""
    served = tmp_path / "served"
    served.mkdir()
    sums = {}
    for name in UNPACKED:
        number = 6 if "train" in name else 4
        array = np.arange(number * 784) % 251 if "images" in name else np.arange(number)
        shape = (number, 28, 28) if "images" in name else (number,)
        content = gzip.compress(idx(array.astype(np.uint8).reshape(shape)), mtime=0)
        (served / f"{name}.gz").write_bytes(content)
        sums[f"{name}.gz"] = hashlib.md5(content).hexdigest()
    names: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            names.append(self.path[1:])
            super().do_GET()

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(served)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(torchvision_mnist, "mirrors", [f"http://127.0.0.1:{server.server_port}/"])
    monkeypatch.setattr(torchvision_mnist, "resources", list(sums.items()))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield names
    server.shutdown()
    server.server_close()


def assert_whole(images: Images) -> None:
    assert images.train_images.shape == (6, 1, 28, 28)
    assert images.train_images.flatten()[:252].tolist() == [*range(251), 0]
    assert torch.equal(images.test_labels, torch.arange(4))


def test_a_set_is_fetched_once_and_each_file_of_it_again_where_it_was_cut_off(
    asked: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    assert_whole(mnist(folder))
    assert set(asked) == {f"{name}.gz" for name in UNPACKED}
    asked.clear()
    assert_whole(mnist(folder))
    assert not asked
    # the connection broke in the third archive, so that nothing of it is unpacked, nor of the fourth
    raw = folder / "MNIST/raw"
    third, fourth = (raw / f"{name}.gz" for name in UNPACKED[2:])
    third.write_bytes(third.read_bytes()[:20])
    for path in (fourth, *(archive.with_suffix("") for archive in (third, fourth))):
        path.unlink()
    assert_whole(mnist(folder))
    assert set(asked) == {third.name, fourth.name}


@pytest.mark.parametrize("size", [0, 3, 11, 500])
@pytest.mark.parametrize("name", UNPACKED[2:])
def test_what_is_half_unpacked_never_counts(name: str, size: int, asked: list[str], tmp_path: Path) -> None:
    mnist(tmp_path)
    path = tmp_path / "MNIST/raw" / name
    path.write_bytes(path.read_bytes()[: min(size, path.stat().st_size - 1)])
    asked.clear()
    with pytest.raises(InputError, match=r"has no whole train-images.*run it once with a network"):
        mnist(tmp_path, download=False)
    assert_whole(mnist(tmp_path))
    assert not asked  # its archive was whole


def test_what_comes_with_another_sum_never_counts(asked: list[str], tmp_path: Path) -> None:
    archive = tmp_path / "served/train-labels-idx1-ubyte.gz"
    content = archive.read_bytes()
    archive.write_bytes(gzip.compress(idx(np.zeros(6, np.uint8))))
    for _ in range(2):
        with pytest.raises(InputError, match="File not found or corrupted") as caught:
            mnist(tmp_path)
        assert "\n" not in str(caught.value)
    archive.write_bytes(content)
    assert_whole(mnist(tmp_path))


def test_without_a_network_a_sentence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # nobody listens there
    monkeypatch.setattr(torchvision_mnist, "mirrors", ["http://127.0.0.1:9/"])
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(InputError, match=r"could not be downloaded \(.*run it once") as caught:
        mnist(tmp_path)
    assert "\n" not in str(caught.value)


# In a process of its own: a CIFAR-10 that takes a while to fetch. What it does is in the file `log`.
SLOW = """
    import sys, time
    from pathlib import Path
    from types import SimpleNamespace
    import numpy as np
    from floral_lite.data import cifar10, images

    class Slow:
        def __init__(self, folder, train, download):
            whole = Path(folder) / "whole"
            if download and not whole.exists():
                whole.parent.mkdir(exist_ok=True)
                with open("log", "a") as log:
                    log.write("fetched\\n")
                time.sleep(float(sys.argv[1]))
                whole.touch()
            if not whole.exists():
                raise RuntimeError("Dataset not found")
            self.data, self.targets = np.zeros((2, 32, 32, 3), np.uint8), [0, 1]

    def savez(file, save=np.savez, **arrays):
        with open("log", "a") as log:
            log.write("prepared\\n")
        save(file, **arrays)

    np.savez = savez
    images.import_torchvision = lambda name: SimpleNamespace(CIFAR10=Slow)
    print(len(cifar10("data").train_images))
"""


def begin(folder: Path, seconds: float) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", textwrap.dedent(SLOW), str(seconds)]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)


def test_processes_wait_for_the_one_that_fetches_and_one_takes_over_if_it_is_killed(tmp_path: Path) -> None:
    killed = begin(tmp_path, 600)
    while not (tmp_path / "log").exists():
        assert killed.poll() is None
        time.sleep(0.02)
    others = [begin(tmp_path, 0.5) for _ in range(2)]
    assert not (tmp_path / "data/whole").exists()
    killed.kill()
    killed.communicate(timeout=300)
    assert [process.communicate(timeout=300)[0] for process in others] == ["2\n", "2\n"]
    assert (tmp_path / "log").read_text() == "fetched\nfetched\nprepared\n"


def test_what_another_process_has_fetched_is_read_while_nobody_else_may_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fetched_meanwhile(folder: Path, train: bool, download: bool) -> SimpleNamespace:
        calls.append(download)
        if len(calls) == 1:
            raise RuntimeError("Dataset not found")
        with pytest.raises(Timeout):
            FileLock(folder / "MNIST.lock").acquire(timeout=0)
        return SimpleNamespace(data=torch.zeros(2, 28, 28), targets=torch.zeros(2))

    datasets = SimpleNamespace(MNIST=fetched_meanwhile)
    monkeypatch.setattr(images_module, "import_torchvision", lambda name: datasets)
    assert len(mnist(tmp_path).train_images) == 2
    assert calls == [False] * 3


def test_a_changed_byte_of_prepared_images_is_noticed(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(256, size=(2, 3, 32, 32), dtype=np.uint8)
    path = tmp_path / "cifar10.npz"
    np.savez(path, **dict(zip(Images._fields, [images, np.arange(2)] * 2, strict=True)))
    whole = path.read_bytes()
    place = whole.index(images.tobytes())
    for offset in range(0, images.nbytes, 211):
        content = bytearray(whole)
        content[place + offset] ^= 1
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"damaged \(Bad CRC-32"):
            cifar10(tmp_path, download=False)
