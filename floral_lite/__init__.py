"""floral_lite: collaborative and efficient personalization with mixtures of adaptors."""

from typing import TYPE_CHECKING

from . import methods, tasks
from ._version import __version__
from .errors import DivergenceError, InputError
from .export import export_peft
from .federation import (
    Federation,
    History,
    Pool,
    Population,
    Run,
    Settings,
    Shard,
    Task,
    train,
    train_runs,
)
from .floral import Floral
from .personal import personal_floral, personal_model
from .precondition import precondition, preconditioner
from .router import Router
from .saving import load, save

if TYPE_CHECKING:
    from .explorer import Explorer

    explore = Explorer
    """Curves from a table of results, and sliders that pick the rows they show."""

__all__ = [
    "DivergenceError",
    "Federation",
    "Floral",
    "History",
    "InputError",
    "Pool",
    "Population",
    "Router",
    "Run",
    "Settings",
    "Shard",
    "Task",
    "__version__",
    "explore",
    "export_peft",
    "load",
    "methods",
    "personal_floral",
    "personal_model",
    "precondition",
    "preconditioner",
    "save",
    "tasks",
    "train",
    "train_runs",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """`explore` needs pandas, matplotlib and ipywidgets, which take long to load: only when asked for."""
        if name != "explore":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .explorer import explore

        return explore
