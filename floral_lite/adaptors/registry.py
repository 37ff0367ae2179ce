"""The registry of adaptors: which parameters of a model get one, and how they mix.

An adaptor is a small frozen description with three verbs, and no tensors of its own:
`shapes` names the tensors of one adaptor, `initialise` makes C of them, and
`delta(tensors, mixture)` is what their mixture adds to the base's parameter.
"""

from collections.abc import Mapping
from math import prod
from typing import Protocol

import torch
from torch import Tensor, nn

from ..errors import InputError, require
from .bias import BiasAdaptor
from .budget import check_budget
from .linear import Initialisation, LinearAdaptor


class Adaptor(Protocol):
    """What every kind of adaptor can do."""

    @classmethod
    def fit(cls, layer: nn.Module, rank: int | None, budget: float, init: Initialisation) -> "Adaptor":
        """The adaptor for a layer, of this rank, or of the budget's where rank is None."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors of one adaptor by name, with their shapes."""

    def initialise(self, num_clusters: int, generator: torch.Generator) -> dict[str, Tensor]:
        """C adaptors that add nothing yet, each tensor with a leading axis C."""

    def delta(self, factors: Mapping[str, Tensor], mixture: Tensor) -> Tensor:
        """What the mixture of the C adaptors adds to the parameter, in the parameter's shape."""


# The registry: for each type of layer, which of its parameters are adapted, and how.
KINDS: dict[type[nn.Module], dict[str, type[Adaptor]]] = {
    nn.Linear: {"weight": LinearAdaptor, "bias": BiasAdaptor},
    nn.Conv1d: {"bias": BiasAdaptor},
    nn.Conv2d: {"bias": BiasAdaptor},
    nn.Conv3d: {"bias": BiasAdaptor},
}


def plan(
    model: nn.Module,
    rank: int | None = None,
    budget: float | None = None,
    init: Initialisation = "paper",
) -> dict[str, Adaptor]:
    """Which parameters of a model get an adaptor, and of what shape.

    Args:
        model: the base model.
        rank: r of every low-rank adaptor; give this or the budget.
        budget: rho in (0, 1], from which each layer's rank follows.
        init: how the adaptors start, see LinearAdaptor.

    Returns:
        The adaptors, keyed by the name of the base's parameter ("0.weight").

    Raises:
        InputError: rank or budget is missing or out of range, or nothing in the model can be adapted.
    """
    require(
        (rank is None) != (budget is None),
        f"rank is {rank} and budget is {budget}; give exactly one of them: rank=8 or budget=0.01",
    )
    if budget is not None:
        check_budget(budget)
    require(init in ("paper", "authors"), f"init is {init!r}; it is 'paper' or 'authors'")

    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    adaptors: dict[str, Adaptor] = {}
    for layer_name, layer in model.named_modules():
        for parameter_name, kind in _kinds_of(layer).items():
            name = f"{layer_name}.{parameter_name}".lstrip(".")
            if name in trainable:
                adaptors[name] = kind.fit(layer, rank, 1.0 if budget is None else budget, init)
    if not adaptors:
        known = ", ".join(layer_type.__name__ for layer_type in KINDS)
        raise InputError(
            f"the model {type(model).__name__} has nothing to adapt; adaptors exist for {known} "
            "with parameters that require gradients"
        )
    return adaptors


def _kinds_of(layer: nn.Module) -> dict[str, type[Adaptor]]:
    """The registry's entry for a layer's type or the nearest of its base classes."""
    return next((KINDS[cls] for cls in type(layer).__mro__ if cls in KINDS), {})


def num_parameters(adaptors: Mapping[str, Adaptor]) -> int:
    """Parameters of ONE adaptor over all layers (C of them are trained)."""
    return sum(prod(shape) for adaptor in adaptors.values() for shape in adaptor.shapes.values())


def check_num_clusters(num_clusters: int) -> None:
    """Raise InputError unless there is at least one adaptor."""
    require(num_clusters >= 1, f"num_clusters is {num_clusters}; there must be at least 1 adaptor: try 4")


def initialise(
    adaptors: Mapping[str, Adaptor], num_clusters: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """C fresh adaptors for every planned parameter, by name ("0.weight.U"), each (C, ...).

    Raises:
        InputError: num_clusters is smaller than 1.
    """
    check_num_clusters(num_clusters)
    return {
        f"{name}.{factor}": tensor
        for name, adaptor in adaptors.items()
        for factor, tensor in adaptor.initialise(num_clusters, generator).items()
    }


def personalise(
    adaptors: Mapping[str, Adaptor],
    base: Mapping[str, Tensor],
    clustered: Mapping[str, Tensor],
    mixture: Tensor,
) -> dict[str, Tensor]:
    """One client's parameters of the base model.

    Args:
        adaptors: the plan.
        base: u, the base's parameters by name.
        clustered: a, the adaptors' tensors by name ("0.weight.U"), each (C, ...).
        mixture: pi, shape (C,), on the simplex.

    Source: section 'Practical Implementation', objective (FML) with w_c = (u, a_c).
    """
    personal = dict(base)
    for name, adaptor in adaptors.items():
        factors = {factor: clustered[f"{name}.{factor}"] for factor in adaptor.shapes}
        # w_hat = u + sum_c pi_c a_c
        personal[name] = base[name] + adaptor.delta(factors, mixture)
    return personal
