"""Figures: numbers in, a figure out. Nothing is read from anywhere else, nothing is shown."""

from .federations import (
    accuracy_per_cluster,
    base_plus_adaptors,
    curves,
    image_grid,
    mixtures,
    run_figure,
)
from .style import COLOURS, GREY, Picture, bare, figure

__all__ = [
    "COLOURS",
    "GREY",
    "Picture",
    "accuracy_per_cluster",
    "bare",
    "base_plus_adaptors",
    "curves",
    "figure",
    "image_grid",
    "mixtures",
    "run_figure",
]
