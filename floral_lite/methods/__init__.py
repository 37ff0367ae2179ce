"""Methods: who shares what. One file a method, the same loop for all."""

from torch import nn

from ..errors import unknown
from .base import ROUTER, Method
from .fedavg import FedAvg
from .floral import FLoRAL

__all__ = ["METHODS", "ROUTER", "FLoRAL", "FedAvg", "Method", "make"]

METHODS: dict[str, type[Method]] = {method.name: method for method in (FedAvg, FLoRAL)}


def make(name: str, model: nn.Module, **options: object) -> Method:
    """The method of that name on a model.

    Args:
        name: "fedavg" or "floral".
        model: the base model.
        options: the method's own arguments, such as num_clusters=4.

    Raises:
        InputError: there is no such method.
    """
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name](model, **options)  # type: ignore[call-arg]
