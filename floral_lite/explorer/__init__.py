"""Numbers computed beforehand, under sliders: live in a notebook, drawn by a small script on a page."""

from .explorer import Explorer, explore
from .figure import explore_figure

__all__ = ["Explorer", "explore", "explore_figure"]
