"""Random changes of training images, many at once on whatever device they are."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import require, whole_number


@dataclass(frozen=True)
class FlipAndCrop:
    """Mirror images left to right with probability 1/2, and move each by a few pixels; black fills the gap.

    To move them is to crop images of the same size, at random, out of images with a black border.

    Args:
        padding: the width of the border, >= 0 pixels: the furthest that an image is moved.

    Raises:
        InputError: padding is no whole number of at least 0; or, when it is called, inputs are no images.

    Source: the authors' configuration of CIFAR-10 and CIFAR-100; the paper does not mention it.

    Example:
        >>> images = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
        >>> FlipAndCrop(padding=1)(images, torch.tensor([[1, 0, 1]]))  # mirrored, one pixel down
        tensor([[[[0., 0.],
                  [2., 1.]]]])
    """

    padding: int = 4

    def __post_init__(self) -> None:
        """Refuse a border of less than nothing."""
        require(
            whole_number("padding", self.padding) >= 0,
            f"padding is {self.padding}; it must be at least 0 pixels",
        )

    def draws(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """For each of n images whether it is mirrored, and where in the bordered image the crop begins.

        Returns:
            Shape (n, 3), int64: 0 or 1, then rows and columns from the top left, in [0, 2 padding].
        """
        flips = torch.randint(2, (num_samples, 1), generator=generator)
        corners = torch.randint(2 * self.padding + 1, (num_samples, 2), generator=generator)
        return torch.cat([flips, corners], dim=1)

    def __call__(self, inputs: Tensor, draws: Tensor) -> Tensor:
        """The images (n, channels, H, W) as changed by their draws (n, 3), of the same shape and type."""
        require(
            inputs.dim() == 4,
            f"inputs have the shape {tuple(inputs.shape)}; FlipAndCrop takes images (n, channels, H, W): "
            "give such images, or a task without it: augment=None",
        )
        height, width = inputs.shape[2:]
        flips, tops, lefts = draws.to(inputs.device)[:, :, None].unbind(1)
        rows = tops + torch.arange(height, device=inputs.device)
        columns = lefts + torch.arange(width, device=inputs.device)
        # a mirrored image's column x is the original's W - 1 - x, counted without the border
        columns = torch.where(flips == 1, width - 1 + 2 * self.padding - columns, columns)
        bordered = functional.pad(inputs, (self.padding,) * 4)
        # each pixel's place in its flattened image, the same in all channels
        places = rows[:, :, None] * bordered.shape[3] + columns[:, None, :]
        pixels = bordered.flatten(2).gather(2, places.flatten(1)[:, None].expand(-1, inputs.shape[1], -1))
        return pixels.view_as(inputs)
