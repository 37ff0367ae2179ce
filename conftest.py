"""Where Flower, an extra of its own, is missing, its part of the package is not searched for examples."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("flwr") else ["floral_lite/flower"]
