"""Data: where samples come from, who gets them, and what makes clusters differ."""

from .clusters import rotate, shift_labels
from .images import Images, digits, import_torchvision, mnist
from .partition import diagonal_clusters, num_kept, split_evenly
from .synthetic import cluster_maps

__all__ = [
    "Images",
    "cluster_maps",
    "diagonal_clusters",
    "digits",
    "import_torchvision",
    "mnist",
    "num_kept",
    "rotate",
    "shift_labels",
    "split_evenly",
]
