"""Convolutions of many clients as products of patches: on a GPU faster than cuDNN's grouped ones.

A convolution takes every patch of an image, as large as the kernel, times the kernel's weights. With
the patches written side by side as columns it is one matrix product for each client, and of a batched
product a GPU also gives the same result every time.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

# Positions in an image from which on each image has a product of its own: to bring the patches of all
# images of a client side by side would then cost more than the larger product saves.
LARGE_IMAGE = 512


def fits(layer: nn.Conv2d) -> bool:
    """Whether a layer's patches are plain windows: no groups, no holes, a padding in numbers."""
    return layer.groups == 1 and layer.dilation == (1, 1) and not isinstance(layer.padding, str)


def convolution(layer: nn.Conv2d, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The outputs of a layer for k clients with kernels of their own.

    Args:
        layer: one that `fits`.
        inputs: shape (k, B, n, H, W).
        weight: shape (k, m, n, k_1, k_2).
        bias: shape (k, m), or None.

    Returns:
        Shape (k, B, m, H', W').

    Example:
        >>> layer, images = nn.Conv2d(3, 5, 3), torch.rand(2, 4, 3, 8, 8)
        >>> weight = torch.rand(2, 5, 3, 3, 3)
        >>> outputs = convolution(layer, images, weight, None)
        >>> torch.allclose(outputs[1], functional.conv2d(images[1], weight[1]), atol=1e-5)
        True
    """
    num_clients, batch = inputs.shape[:2]
    (rows, columns), (down, right) = layer.kernel_size, layer.stride
    assert not isinstance(layer.padding, str)
    above, left = layer.padding
    bordered = functional.pad(inputs, (left, left, above, above)) if above or left else inputs
    # (k, B, n, H', W', k_1, k_2)
    windows = bordered.unfold(-2, rows, down).unfold(-2, columns, right)
    height, width = windows.shape[3:5]
    kernels = weight.flatten(2)
    if height * width >= LARGE_IMAGE:
        patches = windows.permute(0, 1, 2, 5, 6, 3, 4).reshape(num_clients, batch, -1, height * width)
        outputs = torch.matmul(kernels[:, None], patches)
        outputs = outputs if bias is None else outputs + bias[:, None, :, None]
        return outputs.reshape(num_clients, batch, -1, height, width)
    patches = windows.permute(0, 2, 5, 6, 1, 3, 4).reshape(num_clients, kernels.shape[2], -1)
    outputs = torch.bmm(kernels, patches)
    outputs = outputs if bias is None else outputs + bias[:, :, None]
    return outputs.reshape(num_clients, -1, batch, height, width).transpose(1, 2)
