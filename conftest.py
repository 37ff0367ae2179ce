"""Where Flower, an extra of its own, is missing, its part of the package is not searched for examples."""

from importlib.util import find_spec

# first, or pytest loads a file whose examples it runs once more: its classes would then be two
import floral_lite  # noqa: F401

collect_ignore = [] if find_spec("flwr") else ["floral_lite/flower"]
