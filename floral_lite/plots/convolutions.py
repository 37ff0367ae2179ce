"""Figures of convolution kernels and of their factors."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.patches import Rectangle
from torch import Tensor

from ..adaptors import LowRankAdaptor
from ..factored import AdaptedParameter, as_kernels
from .style import COLOURS, GREY, Picture, colour_bar, figure, signed_image, strongest

INDICES = ("i", "j", "a", "b")  # output channel, input channel, row and column of the filter


class Parts(NamedTuple):
    """A kernel and its two factors, each as a kernel of its own.

    Attributes:
        u: U, shape (c_out, r, k_1, k_2), but with size 1 along the sides that U lacks.
        v: V, shape (r, c_in, k_1, k_2), likewise.
        product: the kernel that the two make, shape (c_out, c_in, k_1, k_2).
    """

    u: npt.ArrayLike
    v: npt.ArrayLike
    product: npt.ArrayLike


def parts(adaptor: LowRankAdaptor, factors: Mapping[str, Tensor]) -> Parts:
    """One adaptor of a convolution as three kernels; a factor has size 1 along the sides it lacks.

    Args:
        adaptor: of a kernel in two dimensions.
        factors: of a single adaptor, U (1, *rows, R) and V (1, *columns, R).
    """
    only = AdaptedParameter(torch.zeros(adaptor.shape), adaptor, factors, torch.ones(1))
    u, v = as_kernels(only)  # (r, i, sides of U) and (r, j, sides of V)
    return Parts(u.transpose(0, 1), v, only.delta())


def mosaic(kernel: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """A kernel as one image: a row of filters for each output channel, a column for each input channel.

    Args:
        kernel: shape (c_out, c_in, k_1, k_2), or images in rows and columns, (rows, columns, H, W).

    Returns:
        Shape (c_out (k_1 + 1) - 1, c_in (k_2 + 1) - 1); a line of NaN parts neighbours.
    """
    kernel = np.asarray(kernel, dtype=float)
    c_out, c_in, k_1, k_2 = kernel.shape
    spaced = np.full((c_out, c_in, k_1 + 1, k_2 + 1), np.nan)
    spaced[:, :, :k_1, :k_2] = kernel
    # (c_out, k_1 + 1, c_in, k_2 + 1): an image, less the last line on both sides
    image: npt.NDArray[np.float64] = spaced.transpose(0, 2, 1, 3).reshape(c_out * (k_1 + 1), c_in * (k_2 + 1))
    return image[:-1, :-1]


def kernels(named: Mapping[str, npt.ArrayLike]) -> Picture:
    """Kernels side by side on one colour scale: purple is negative, orange positive.

    Args:
        named: kernels (c_out, c_in, k_1, k_2) by their titles.
    """
    images = {name: mosaic(kernel) for name, kernel in named.items()}
    limit = strongest(images.values())
    ratios = [image.shape[1] / image.shape[0] for image in images.values()]
    height = max(2.3, max(len(image) for image in images.values()) / 14)  # of an image
    made, axes = figure(1, len(images), height * sum(ratios) + 0.7 * len(images) + 0.6, height + 0.7)
    for axis, (name, image) in zip(axes[0], images.items(), strict=True):
        shown = signed_image(axis, image, limit)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel("input channel", fontsize=9)
    axes[0, 0].set_ylabel("output channel", fontsize=9)
    colour_bar(made, shown, axes[0].tolist(), "entry")
    return made


def unfoldings(kernel: npt.ArrayLike, dealt: Mapping[str, tuple[Sequence[int], Sequence[int]]]) -> Picture:
    """One kernel read as a matrix in several ways; a frame holds the filter of the first two channels.

    Args:
        kernel: shape (c_out, c_in, k_1, k_2).
        dealt: by name, the axes that become rows, the output channels' (0) first, and those that become
            columns, the input channels' (1) first.
    """
    kernel = np.asarray(kernel)
    limit = strongest([kernel])
    made, axes = figure(1, len(dealt), 2.3 * len(dealt) + 0.6, 3.4)
    made.set_layout_engine("constrained", wspace=0.1)  # else a label is as near to the matrix before
    for axis, (name, (rows, columns)) in zip(axes[0], dealt.items(), strict=True):
        height, width = (prod(kernel.shape[side] for side in part[1:]) for part in (rows, columns))
        matrix = kernel.transpose(*rows, *columns).reshape(kernel.shape[0] * height, -1)
        signed_image(axis, matrix, limit)
        for channel in range(1, kernel.shape[0]):
            axis.axhline(channel * height - 0.5, color=GREY, linewidth=0.6)
        for channel in range(1, kernel.shape[1]):
            axis.axvline(channel * width - 0.5, color=GREY, linewidth=0.6)
        frame = Rectangle((-0.5, -0.5), width, height, fill=False, edgecolor=COLOURS[0], linewidth=2.5)
        frame.set_clip_on(False)
        axis.add_patch(frame)
        axis.set_title(f"{name}: {matrix.shape[0]} x {matrix.shape[1]}", fontsize=9)
        for label, part in ((axis.set_ylabel, rows), (axis.set_xlabel, columns)):
            label(", ".join(f"${INDICES[side]}$" for side in part), fontsize=9)
    return made


def factored_kernels(named: Mapping[str, Parts]) -> Picture:
    """One row a kind of adaptor: the kernels of U and V, and the kernel that they make together.

    Each picture has its own colour scale, since a factor has no natural size.

    Args:
        named: the parts by the name of the kind.
    """
    titles = ("kernel of $U$", "kernel of $V$", "$L = U * V$")
    made, axes = figure(len(named), 3, 7.4, 2.2 * len(named))
    for row, (name, parts) in zip(axes, named.items(), strict=True):
        for axis, title, kernel in zip(row, titles, parts, strict=True):
            image = mosaic(kernel)
            signed_image(axis, image, strongest([image]))
            sizes = " x ".join(map(str, np.shape(kernel)))
            axis.set_title(f"{title}: {sizes}", fontsize=9)
        row[0].set_ylabel(name, fontsize=10)
    return made


def feature_maps(named: Mapping[str, npt.ArrayLike], rows: Sequence[str]) -> Picture:
    """Images with several channels, a column each, on one colour scale.

    Args:
        named: images (channels, H, W) by their titles; all have as many channels as there are rows.
        rows: what each channel is called.
    """
    images = {name: np.asarray(image, dtype=float) for name, image in named.items()}
    limit = strongest(images.values())
    made, axes = figure(len(rows), len(images), 1.9 * len(images) + 0.8, 1.7 * len(rows) + 0.3)
    for column, (name, image) in enumerate(images.items()):
        for row, channel in enumerate(image):
            axis = axes[row, column]
            signed_image(axis, channel, limit)
            if row == 0:
                axis.set_title(name, fontsize=9)
            if column == 0:
                axis.set_ylabel(rows[row], fontsize=9)
    return made
