"""Methods: who shares what. One file a method, the same loop for all."""

import inspect

from torch import nn

from ..errors import require, unknown
from .base import ROUTER, Method, Part
from .ensemble import Ensemble
from .fedavg import FedAvg
from .floral import FLoRAL
from .local_adaptor import LocalAdaptor

__all__ = ["METHODS", "ROUTER", "Ensemble", "FLoRAL", "FedAvg", "LocalAdaptor", "Method", "Part", "make"]

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (FedAvg, LocalAdaptor, Ensemble, FLoRAL)
}


def make(name: str, model: nn.Module, **options: object) -> Method:
    """The method of that name on a model.

    Args:
        name: "fedavg", "local-adaptor", "ensemble" or "floral".
        model: the base model.
        options: the method's own arguments, such as num_clusters=4.

    Raises:
        InputError: there is no such method, or it has no such option, or the option is out of range.
    """
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    known = list(inspect.signature(METHODS[name]).parameters)[1:]
    for option in options:
        require(
            option in known,
            f"{name} has no option {option} (given as {options[option]}); "
            f"it has {', '.join(known) or 'none'}: leave it out, or choose another method",
        )
    return METHODS[name](model, **options)  # type: ignore[call-arg]
