"""floral_lite: collaborative and efficient personalization with mixtures of adaptors."""

from . import methods, tasks
from ._version import __version__
from .errors import DivergenceError, InputError
from .export import export_peft
from .federation import Federation, History, Run, Settings, Shard, Task, train, train_runs
from .floral import Floral
from .precondition import precondition, preconditioner
from .router import Router
from .saving import load, save

__all__ = [
    "DivergenceError",
    "Federation",
    "Floral",
    "History",
    "InputError",
    "Router",
    "Run",
    "Settings",
    "Shard",
    "Task",
    "__version__",
    "export_peft",
    "load",
    "methods",
    "precondition",
    "preconditioner",
    "save",
    "tasks",
    "train",
    "train_runs",
]
