"""Data: where samples come from, who gets them, and what makes clusters differ."""

from .augment import FlipAndCrop
from .clusters import rotate, shift_labels
from .images import Images, as_float, cifar10, cifar100, digits, import_torchvision, mnist
from .partition import check_data_fraction, diagonal_clusters, num_kept, split_by_label, split_evenly
from .synthetic import Truth, draw_truth

__all__ = [
    "FlipAndCrop",
    "Images",
    "Truth",
    "as_float",
    "check_data_fraction",
    "cifar10",
    "cifar100",
    "diagonal_clusters",
    "digits",
    "draw_truth",
    "import_torchvision",
    "mnist",
    "num_kept",
    "rotate",
    "shift_labels",
    "split_by_label",
    "split_evenly",
]
