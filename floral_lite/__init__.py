"""floral_lite: collaborative and efficient personalization with mixtures of adaptors."""

from . import methods, tasks
from ._version import __version__
from .errors import DivergenceError, InputError
from .federation import Federation, History, Settings, Shard, Task, train
from .floral import Floral

__all__ = [
    "DivergenceError",
    "Federation",
    "Floral",
    "History",
    "InputError",
    "Settings",
    "Shard",
    "Task",
    "__version__",
    "methods",
    "tasks",
    "train",
]
