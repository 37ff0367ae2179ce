"""What makes the clusters differ: rotated images, shifted labels."""

import torch
from torch import Tensor
from torch.nn import functional

from ..devices import send
from ..errors import require
from ..given import precise
from .images import as_float


def rotate(images: Tensor, cluster: int, num_clusters: int) -> Tensor:
    """Images turned counter-clockwise by 360 c / C degrees; exact for quarter turns, bilinear between.

    Args:
        images: shape (N, channels, H, W), square; uint8 is read as x / 255.
        cluster: c in [0, C).
        num_clusters: C.

    Returns:
        The images' shape and type; but uint8 becomes float where angles lie between quarter turns.

    Raises:
        InputError: the images are integers, and the angle is no quarter turn.

    Source: section 'Experiments', 'MNIST and CIFAR-10'.

    Example:
        >>> rotate(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), cluster=1, num_clusters=4)
        tensor([[[[2., 4.],
                  [1., 3.]]]])
    """
    if (4 * cluster) % num_clusters == 0:
        return torch.rot90(images, 4 * cluster // num_clusters, dims=(2, 3))
    images = as_float(images)
    require(
        images.is_floating_point(),
        f"images are of {images.dtype}, such as numbers of words, which a turn by cluster {cluster} of "
        f"{num_clusters} would mix: use 1, 2 or 4 clusters, or give floats or uint8",
    )
    own = images.dtype
    images = precise(images)  # half precision cannot count pixels
    # an output pixel at x takes its value from the input at R x
    angle = torch.tensor(2 * torch.pi * cluster / num_clusters)
    cos, sin = torch.cos(angle), torch.sin(angle)
    matrix = torch.stack([torch.stack([cos, -sin, 0 * cos]), torch.stack([sin, cos, 0 * cos])])
    # the same grid for all images: made once, so that it depends on no batch's size, and where it is exact
    grid = functional.affine_grid(matrix[None].to(images.dtype), [1, *images.shape[1:]], align_corners=False)
    grid = send(grid, images.device)
    return functional.grid_sample(images, grid.expand(len(images), -1, -1, -1), align_corners=False).to(own)


def shift_labels(labels: Tensor, cluster: int, num_labels: int) -> Tensor:
    """Labels moved on by the cluster's number: y -> (y + c) mod num_labels.

    Args:
        labels: integers in [0, num_labels), any shape.
        cluster: c, any whole number.
        num_labels: how many labels there are.

    Returns:
        int64, the labels' shape.

    Source: section 'Experiments', 'MNIST and CIFAR-10'.

    Example:
        >>> shift_labels(torch.tensor([0, 8, 9]), cluster=1, num_labels=10)
        tensor([1, 9, 0])
    """
    # in uint8 the sum would overflow
    return (labels.long() + cluster) % num_labels
