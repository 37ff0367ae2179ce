"""The paper's tasks with their settings, and small versions of them that need no download."""

from .arrays import from_arrays
from .catalogue import TASKS
from .clients import from_clients
from .loading import load, load_seeds
from .recipe import Recipe
from .synthetic import truth

__all__ = ["TASKS", "Recipe", "from_arrays", "from_clients", "load", "load_seeds", "truth"]
