"""The registry of adaptors: which parameters of a model get one, and how they mix.

An adaptor is a small frozen description with three verbs, and no tensors of its own:
`shapes` names the tensors of one adaptor, `initialise` makes C of them, and
`delta(tensors, mixture)` is what their mixture adds to the base's parameter.
"""

from collections import Counter
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.parameter import is_lazy

from ..errors import InputError, check_module, require, whole_number
from ..roles import joined
from .adaptor import Adaptor, check_own
from .conv import fit_conv
from .embedding import fit_embedding
from .linear import fit_linear
from .low_rank import LowRankAdaptor
from .norm import fit_norm
from .options import Options
from .vector import fit_bias

# fit(layer, parameter name, options): the adaptor, or None where the options leave it out.
Fit = Callable[[nn.Module, str, Options], Adaptor | None]

_CONV: dict[str, Fit] = {"weight": fit_conv, "bias": fit_bias}
_NORM: dict[str, Fit] = {"weight": fit_norm, "bias": fit_norm}

# The registry: for each type of layer, which of its parameters are adapted, and how.
KINDS: dict[type[nn.Module], dict[str, Fit]] = {
    nn.Linear: {"weight": fit_linear, "bias": fit_bias},
    nn.MultiheadAttention: {
        "in_proj_weight": fit_linear,  # or, where sizes differ, the next three
        "q_proj_weight": fit_linear,
        "k_proj_weight": fit_linear,
        "v_proj_weight": fit_linear,
        "in_proj_bias": fit_bias,
        "bias_k": fit_bias,
        "bias_v": fit_bias,
    },
    nn.Embedding: {"weight": fit_embedding},
    **dict.fromkeys([nn.Conv1d, nn.Conv2d, nn.Conv3d], _CONV),
    **dict.fromkeys([nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d], _CONV),
    **dict.fromkeys([nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d], _NORM),
    **dict.fromkeys([nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d], _NORM),
    **dict.fromkeys([nn.LayerNorm, nn.GroupNorm], _NORM),
    nn.RMSNorm: {"weight": fit_norm},
}


def plan(model: nn.Module, options: Options) -> dict[str, Adaptor]:
    """Which parameters of a model get an adaptor, and of what shape.

    Parameters of layers that KINDS does not list get none, and neither do frozen ones. Where all are frozen,
    as in a pretrained model of which only adaptors are trained, all get one but those that layers share.

    Args:
        model: the base model.
        options: how large, which kinds, which layers.

    Returns:
        The adaptors, keyed by the name of the base's parameter ("0.weight").

    Raises:
        InputError: the model is something else, a layer cannot be adapted, or nothing in the model can.
    """
    check_module(model)
    owners = _owners(model)
    all_frozen = not any(parameter.requires_grad for parameter in model.parameters())
    adaptors: dict[str, Adaptor] = {}
    for layer_name, layer in model.named_modules():
        for parameter_name, fit in _kinds_of(layer).items():
            name = joined(layer_name, parameter_name)
            if not _is_adaptable(layer, parameter_name, name, owners, all_frozen):
                continue
            try:
                adaptor = fit(layer, parameter_name, options)
            except InputError as error:
                raise InputError(f"{name} cannot be adapted: {error}") from None
            if adaptor is None:
                continue
            parameter = layer.get_parameter(parameter_name)
            names, own = owners[id(parameter)], tuple(parameter.shape)
            require(
                len(names) == 1,
                f"{' and '.join(names)} are one parameter, and each would need an adaptor of its own: "
                "give each layer its own parameter, or freeze the shared one with requires_grad_(False)",
            )
            shape = getattr(adaptor, "shape", None)
            require(
                shape in (own, list(own)),
                f"the adaptor of {name} is one for the shape {shape}, and {name} has {own}: mend the "
                f"function that KINDS has for {type(layer).__name__}",
            )
            check_own(name, adaptor)
            _check_axes(name, layer, adaptor)
            adaptors[name] = adaptor
    require(
        len(adaptors) > 0,
        f"the model {type(model).__name__} has nothing to adapt; adaptors exist for "
        f"{', '.join(kind.__name__ for kind in KINDS)} with parameters that require gradients",
    )
    return adaptors


def _check_axes(name: str, layer: nn.Module, adaptor: Adaptor) -> None:
    """Raise InputError unless U has the output axis of a weight of PyTorch's layers, and V the input axis."""
    if not isinstance(adaptor, LowRankAdaptor) or not isinstance(layer, (nn.Linear, nn.Embedding, _ConvNd)):
        return
    turned = isinstance(layer, (nn.Embedding, _ConvTransposeNd))
    wanted, found = (1, 0) if turned else (0, 1), (adaptor.rows[0], adaptor.columns[0])
    require(
        found == wanted,
        f"the adaptor of {name} has rows and columns that begin with the axes {found}; those of "
        f"{type(layer).__name__} begin with {wanted}, its outputs and its inputs",
    )


def _kinds_of(layer: nn.Module) -> dict[str, Fit]:
    """The registry's entry for a layer's type or the nearest of its base classes."""
    require(
        ".quantized" not in type(layer).__module__,
        f"the layer {type(layer).__name__} is quantised, and adaptors are added to floating-point weights: "
        "wrap the model before it is quantised",
    )
    return next((KINDS[cls] for cls in type(layer).__mro__ if cls in KINDS), {})


def _owners(model: nn.Module) -> dict[int, list[str]]:
    """For each parameter, by identity, the names that different modules have for it."""
    owners: dict[int, list[str]] = {}
    for layer_name, layer in model.named_modules():
        for name, parameter in layer.named_parameters(recurse=False, remove_duplicate=False):
            owners.setdefault(id(parameter), []).append(joined(layer_name, name))
    return owners


def _is_adaptable(
    layer: nn.Module, parameter_name: str, name: str, owners: Mapping[int, list[str]], frozen_too: bool
) -> bool:
    """Whether there is a parameter to adapt; raises InputError where it could not be done right."""
    require(
        hasattr(layer, parameter_name) or type(layer) not in KINDS,  # a subclass may lack what its base has
        f"KINDS has a function for {parameter_name!r} of {type(layer).__name__}, whose parameters are "
        f"{', '.join(layer._parameters)}: mend the name",
    )
    parameter = layer._parameters.get(parameter_name)
    if parameter is None:
        require(
            getattr(layer, parameter_name, None) is None,
            f"{name} is a buffer, or computed from other parameters (weight_norm, spectral_norm or another "
            "parametrisation), and an adaptor would be lost: give a parameter, or remove the parametrisation",
        )
        return False
    require(
        not is_lazy(parameter),
        f"{name} has no shape yet, its layer is lazy: run the model on one batch first",
    )
    require(
        parameter.is_floating_point(),
        f"{name} has type {parameter.dtype}, and adaptors are added to floating-point weights: "
        "wrap the model before it is quantised, and make a complex weight of two real ones",
    )
    # a user freezes a shared parameter to leave it alone; it is left alone where all are frozen, too
    alone = len(owners[id(parameter)]) == 1
    # an empty weight has nothing to adapt
    return parameter.numel() > 0 and (parameter.requires_grad or (alone and frozen_too))


def check_num_clusters(num_clusters: int) -> int:
    """The number of clusters, or InputError unless it is a whole number of at least 1."""
    num_clusters = whole_number("num_clusters", num_clusters)
    require(num_clusters >= 1, f"num_clusters is {num_clusters}; it must be at least 1: try 4")
    return num_clusters


def num_parameters(adaptors: Mapping[str, Adaptor]) -> int:
    """Parameters of ONE adaptor over all layers (C of them are trained)."""
    return sum(adaptor.num_parameters for adaptor in adaptors.values())


def batch_nora_layers(adaptors: Mapping[str, Adaptor]) -> list[str]:
    """The names of the batch norms whose gamma and beta both have a Batch-NorA adaptor."""
    kinds = [(name.rpartition(".")[0], adaptor.kind) for name, adaptor in adaptors.items()]
    layers = Counter(layer for layer, kind in kinds if kind == "batch_nora")
    return [layer for layer, count in layers.items() if count == 2]


def initialise(
    adaptors: Mapping[str, Adaptor], num_clusters: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """C fresh adaptors for every planned parameter, by name ("0.weight.U"), each (C, ...).

    Raises:
        InputError: num_clusters is smaller than 1.
    """
    num_clusters = check_num_clusters(num_clusters)
    return {
        f"{name}.{factor}": tensor
        for name, adaptor in adaptors.items()
        for factor, tensor in adaptor.initialise(num_clusters, generator).items()
    }


def factors_of(name: str, adaptor: Adaptor, clustered: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of one parameter's adaptors, under their short names: "0.weight.U" -> "U"."""
    return {factor: clustered[f"{name}.{factor}"] for factor in adaptor.shapes}


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
        # w_hat = u + sum_c pi_c a_c
        personal[name] = base[name] + adaptor.delta(factors_of(name, adaptor, clustered), mixture)
    return personal
