"""The laboratory: a federation that trains while its sliders are moved."""

from .choices import Choices
from .code import as_code
from .panel import Laboratory
from .training import Progress, Training, in_turns

__all__ = ["Choices", "Laboratory", "Progress", "Training", "as_code", "in_turns"]
