"""Methods: who shares what. One file a method, the same loop for all."""

import inspect

from torch import nn

from ..errors import check_names, require
from .base import ROUTER, Method, Part
from .ditto import Ditto
from .ensemble import Ensemble
from .fedavg import FedAvg
from .fedbn import FedBN
from .fedem import FedEM
from .federated_clustering import FederatedClustering
from .fedper import FedPer
from .fedprox import FedProx
from .fine_tuned import FineTuned
from .floral import FLoRAL
from .ifca import IFCA
from .local import Local
from .local_adaptor import LocalAdaptor
from .mfl import MFL, MFLWS
from .per_fedavg import PerFedAvg

__all__ = [
    "IFCA",
    "METHODS",
    "MFL",
    "MFLWS",
    "ROUTER",
    "Ditto",
    "Ensemble",
    "FLoRAL",
    "FedAvg",
    "FedBN",
    "FedEM",
    "FedPer",
    "FedProx",
    "FederatedClustering",
    "FineTuned",
    "Local",
    "LocalAdaptor",
    "Method",
    "Part",
    "PerFedAvg",
    "make",
    "option_names",
]

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        FedAvg, LocalAdaptor, Ensemble, FLoRAL, MFL, MFLWS, Local, FineTuned,
        FedProx, Ditto, FedPer, FedBN, PerFedAvg, IFCA, FedEM, FederatedClustering,
    )
}  # fmt: skip


def option_names(name: str) -> list[str]:
    """What a method takes beside its model.

    Args:
        name: one of METHODS.

    Raises:
        InputError: there is no such method.

    Example:
        >>> option_names("ditto"), option_names("fedavg")
        (['proximal'], [])
    """
    check_names("method", [name], METHODS)
    names: list[str] = []
    for kind in METHODS[name].__mro__:
        parameters = inspect.signature(kind).parameters.values()
        names += [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
        if not any(each.kind is each.VAR_KEYWORD for each in parameters):  # **options are its parent's
            break
    return [name for name in dict.fromkeys(names) if name != "model"]


def make(name: str, model: nn.Module, /, **options: object) -> Method:
    """The method of that name on a model.

    Args:
        name: one of METHODS, such as "floral".
        model: the base model.
        options: the method's own arguments, such as num_clusters=4.

    Raises:
        InputError: there is no such method, or it has no such option, or the option is out of range or of
            another kind.
    """
    known = option_names(name)
    for option in options:
        require(
            option in known,
            f"{name} has no option {option} (given as {options[option]}); "
            f"it has {', '.join(known) or 'none'}: leave it out, or choose another method",
        )
    return METHODS[name](model, **options)  # type: ignore[call-arg]
