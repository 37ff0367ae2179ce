"""Do not search the package's part for Flower for examples where Flower, an optional extra, is missing."""

from importlib.util import find_spec

# imported first: otherwise pytest loads a file with examples a second time, and its classes exist twice
import floral_lite  # noqa: F401

collect_ignore = [] if find_spec("flwr") else ["floral_lite/flower"]
