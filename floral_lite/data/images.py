"""Real images: scikit-learn's bundled digits; MNIST, CIFAR-10 and CIFAR-100 through torchvision."""

import importlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from textwrap import shorten
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from ..errors import InputError, require
from ..files import write_whole

DATA_VARIABLE = "FLORAL_LITE_DATA"


class Images(NamedTuple):
    """A labelled image set: images (N, channels, H, W), labels (N,) integers.

    Pixels are floats in [0, 1], or uint8, read as x / 255: a quarter of the memory.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def as_float(images: Tensor) -> Tensor:
    """Pixels of 0..255 (uint8) as floats x / 255 in [0, 1]; other tensors as they are.

    Example:
        >>> as_float(torch.tensor([0, 51, 255], dtype=torch.uint8))
        tensor([0.0000, 0.2000, 1.0000])
    """
    return images.float().div_(255) if images.dtype == torch.uint8 else images


def digits() -> Images:
    """The 1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn.

    The set has no official split: every fifth image is a test image.
    """
    from sklearn.datasets import load_digits

    bundle = load_digits()
    images = torch.from_numpy(bundle.images).float()[:, None] / 16
    labels = torch.from_numpy(bundle.target).long()
    test = torch.arange(len(labels)) % 5 == 4
    return Images(images[~test], labels[~test], images[test], labels[test])


def mnist(folder: Path | str | None = None, download: bool = True) -> Images:
    """MNIST, 60,000 + 10,000 handwritten digits of 28 x 28 pixels, uint8.

    Args:
        folder: holds `MNIST/raw/`; if None, the folder that FLORAL_LITE_DATA names, else `data`.
        download: fetch missing files into the folder, with torchvision's progress bar.

    Raises:
        InputError: the files are not there and cannot be fetched.
    """
    folder = data_folder(folder)
    train, test = _torchvision_sets(
        "MNIST",
        folder,
        download,
        f"{folder / 'MNIST' / 'raw'} has no whole train-images-idx3-ubyte, train-labels-idx1-ubyte, "
        "t10k-images-idx3-ubyte or t10k-labels-idx1-ubyte",
        "MNIST/raw",
    )
    return Images(train.data[:, None], train.targets, test.data[:, None], test.targets)


def cifar10(folder: Path | str | None = None, download: bool = True) -> Images:
    """CIFAR-10, 50,000 + 10,000 colour photographs of 32 x 32 pixels in 10 classes, uint8.

    Args:
        folder: holds `cifar10.npz`, or `cifar-10-batches-py/`, of which the former is then made;
            if None, the folder that FLORAL_LITE_DATA names, else `data`.
        download: fetch missing files into the folder, with torchvision's progress bar.

    Raises:
        InputError: the files are not there and cannot be fetched, or the .npz is damaged.
    """
    return _cifar("CIFAR10", "cifar-10-batches-py", folder, download)


def cifar100(folder: Path | str | None = None, download: bool = True) -> Images:
    """CIFAR-100, 50,000 + 10,000 colour photographs of 32 x 32 pixels in 100 classes, uint8.

    Args:
        folder: holds `cifar100.npz`, or `cifar-100-python/`, of which the former is then made;
            if None, the folder that FLORAL_LITE_DATA names, else `data`.
        download: fetch missing files into the folder, with torchvision's progress bar.

    Raises:
        InputError: the files are not there and cannot be fetched, or the .npz is damaged.
    """
    return _cifar("CIFAR100", "cifar-100-python", folder, download)


def data_folder(folder: Path | str | None) -> Path:
    """Where image sets are: the folder given, else the one that FLORAL_LITE_DATA names, else `data`."""
    return Path(folder or os.environ.get(DATA_VARIABLE) or "data")


def _cifar(name: str, subfolder: str, folder: Path | str | None, download: bool) -> Images:
    """A CIFAR set out of one .npz file, which is made of torchvision's files the first time."""
    folder = data_folder(folder)
    archive = folder / f"{name.lower()}.npz"
    if not archive.exists():
        with _alone(archive) if download or folder.is_dir() else nullcontext():
            if not archive.exists():  # nor has another process made it meanwhile
                return _prepare(archive, name, subfolder, download)
    try:
        with archive.open("rb") as stream, np.load(stream) as file:
            train_images, train_labels, test_images, test_labels = (
                torch.from_numpy(file[field]) for field in Images._fields
            )
    except Exception as error:  # whatever the parsers of zip and numpy raise on damaged bytes
        raise InputError(
            f"{archive} is damaged ({error}); remove it, and it is made again from torchvision's files"
        ) from error
    for split, images, labels in (("train", train_images, train_labels), ("test", test_images, test_labels)):
        require(
            images.shape[1:] == (3, 32, 32)
            and images.dtype == torch.uint8
            and labels.shape == images.shape[:1],
            f"{archive} has {split}_images of shape {tuple(images.shape)} and {images.dtype}, and "
            f"{split}_labels of shape {tuple(labels.shape)}; they must be (N, 3, 32, 32) and torch.uint8, "
            "and (N,): remove it, and it is made again from torchvision's files",
        )
    return Images(train_images, train_labels.long(), test_images, test_labels.long())


def _prepare(archive: Path, name: str, subfolder: str, download: bool) -> Images:
    """A CIFAR set out of torchvision's files; and write the .npz file, if that is possible."""
    lacks = f"{archive.parent} has neither {archive.name} nor a whole {subfolder}"
    sets = _torchvision_sets(name, archive.parent, download, lacks, subfolder)
    # torchvision's (N, H, W, channels) with a list of labels, for train and test
    arrays: list[Any] = [
        array
        for part in sets
        for array in (np.ascontiguousarray(part.data.transpose(0, 3, 1, 2)), np.array(part.targets))
    ]
    with suppress(OSError):  # the file only saves time
        file = io.BytesIO()
        np.savez(file, **dict(zip(Images._fields, arrays, strict=True)))
        write_whole(archive, file.getvalue())
    return Images(*map(torch.from_numpy, arrays))


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes from making this file meanwhile; a process that is killed frees the lock."""
    lock = FileLock(path.with_name(f"{path.name}.lock"))
    with suppress(OSError):  # in a read-only folder nobody makes anything
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _torchvision_sets(name: str, folder: Path, download: bool, lacks: str, what: str) -> tuple[Any, Any]:
    """The train and the test set of one of torchvision's image classes.

    Raises:
        InputError: the files are not there and cannot be fetched; the message begins with what the
            folder lacks, and ends with what it should hold.
    """
    kind = getattr(import_torchvision("torchvision.datasets"), name)

    def read() -> tuple[Any, Any]:
        return kind(folder, train=True, download=False), kind(folder, train=False, download=False)

    try:
        if not download:
            return read()
        with suppress(Exception):  # a file is missing or damaged
            return read()
        with _alone(folder / name):
            with suppress(Exception):  # another process may have fetched them meanwhile
                return read()
            # torchvision checks the sums of archives; of unpacked files only that they exist
            for archive in (folder / name / "raw").glob("*.gz"):
                archive.with_suffix("").unlink(missing_ok=True)
            kind(folder, train=True, download=True)
            return read()
    except Exception as error:  # from torchvision, the network, or parsers of damaged files
        raise InputError(
            f"{lacks}, and they {'could not be' if download else 'are not'} downloaded "
            f"({shorten(str(error) or repr(error), 300)}); run it once with a network"
            f"{'' if download else ' and download=True'}, put them there yourself, or name the folder that "
            f"holds {what} with --data or {DATA_VARIABLE}"
        ) from error


def import_torchvision(name: str) -> ModuleType:
    """A module of torchvision, also where its compiled operators do not fit the installed torch.

    A CPU build of torch beside PyPI's torchvision is such a pair. The import then fails only
    because two operators of object detection are not declared; data sets and classifiers never
    call them, so declaring them is enough.
    """
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for operator in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )
    return importlib.import_module(name)
