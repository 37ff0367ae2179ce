"""Real handwriting: scikit-learn's bundled digits, and MNIST through torchvision."""

import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import InputError

DATA_VARIABLE = "FLORAL_LITE_DATA"


class Images(NamedTuple):
    """A labelled image set: images (N, channels, H, W) in [0, 1], labels (N,) integers."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


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


def mnist(folder: Path | None = None, download: bool = True) -> Images:
    """MNIST, 60,000 + 10,000 handwritten digits of 28 x 28 pixels.

    Args:
        folder: holds `MNIST/raw/`; if None, the folder that FLORAL_LITE_DATA names, else `data`.
        download: fetch missing files into the folder, with torchvision's progress bar.

    Raises:
        InputError: the files are not there and cannot be fetched.
    """
    folder = folder or Path(os.environ.get(DATA_VARIABLE, "data"))
    datasets = import_torchvision("torchvision.datasets")
    try:
        train, test = (datasets.MNIST(folder, train=part, download=download) for part in (True, False))
    except (RuntimeError, OSError) as error:
        raise InputError(
            f"{folder / 'MNIST' / 'raw'} lacks train-images-idx3-ubyte, train-labels-idx1-ubyte, "
            "t10k-images-idx3-ubyte or t10k-labels-idx1-ubyte, and they could not be downloaded "
            f"({str(error).strip().splitlines()[0]}); put them there, or name the folder that holds "
            f"MNIST/raw with --data or {DATA_VARIABLE}"
        ) from error
    return Images(
        train.data[:, None].float() / 255, train.targets, test.data[:, None].float() / 255, test.targets
    )


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
