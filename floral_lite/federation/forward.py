"""A client's outputs: the model run with the client's own parameters and statistics."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from ..dropout import Dropout
from ..errors import InputError
from ..factored import AdaptedParameter
from ..methods import Method, Part
from ..methods.base import added_up
from ..mixing import Mixing, Route
from ..roles import Roles, is_statistic

# How torch's messages begin where vmap or grad cannot follow a model; the last two of a layer norm in
# bfloat16 on a CPU, and of sequences packed one client after the other.
VMAP = (
    "vmap: ",
    "Batching rule not implemented",
    "During a grad (vjp, jvp, grad, etc) transform",
    "expected scalar type BFloat16",
    "stack expects each tensor to be equal size",
)


@contextmanager
def under_vmap(what: object) -> Iterator[None]:
    """Turn what torch.vmap cannot follow in a model or a loss into an InputError that says what to do."""
    name = getattr(what, "__name__", type(what).__name__)
    shortcuts = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it uses nested tensors, which torch.vmap does not know
    try:
        with warnings.catch_warnings():
            # attention on a CPU, which torch then runs client by client: nothing that a user could mend
            warnings.filterwarnings("ignore", "There is a performance drop.*_scaled_dot_product")
            yield
    except RuntimeError as error:
        told = str(error)
        if not told.startswith(VMAP):
            raise
        # torch's words for an `if` on a tensor, and for .item()
        if told.startswith("vmap: It looks like you're"):
            raise InputError(
                f"{name}, or a method of your own, looks at the numbers in its inputs, with an `if` or with "
                ".item(), and cannot run for many clients at once: use torch.where in its place, or "
                "engine='loop'"
            ) from error
        # only in evaluation: clients in training may draw
        if told.startswith("vmap: called random operation"):
            raise InputError(
                f"{name} draws random numbers in evaluation, so that its answers change from "
                "call to call: write functional.dropout(x, p, training=self.training), say, or use "
                "engine='loop' if it should"
            ) from error
        raise InputError(
            f"{name} cannot run for many clients at once, use engine='loop': torch.vmap says "
            f"{told.splitlines()[0]!r}"
        ) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(shortcuts)


def running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """The running means and variances of a model's batch norms, by name."""
    norms = {name for name, layer in model.named_modules() if isinstance(layer, _NormBase)}
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if is_statistic(name) and name.rpartition(".")[0] in norms
    }


def run(
    model: nn.Module,
    method: Method,
    client: Roles,
    networks: Sequence[Mapping[str, Part]],
    inputs: Tensor,
    key: Tensor | None = None,
    route: Route = "merged",
) -> tuple[list[Tensor], Roles]:
    """Run several networks of one client, all on the same inputs.

    Args:
        model: in training or evaluation mode.
        method: keeps the statistics of adapted batch norms.
        client: its parameters and statistics; a statistic may have an axis of networks in front.
        networks: the parameters of each, as the method's `parts` describes them.
        inputs: shape (B, ...).
        key: that dropout's masks follow from; None in evaluation.
        route: whether mixtures are merged first or run as factors, see `mixing.py`.

    Returns:
        The outputs of each, and the client's statistics as a training batch moves them.
    """
    # batch norms write into their statistics, so they get copies
    statistics = Roles(
        *({name: own.detach().clone() for name, own in role.items() if is_statistic(name)} for role in client)
    )
    outputs, moved = [], []
    for number, parts in enumerate(networks):
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        for role in statistics:
            for name in buffers.keys() & role.keys():
                alone = role[name].dim() == buffers[name].dim()
                buffers[name] = role[name] if alone else role[name][number].clone()
        mixtures = {name: part for name, part in parts.items() if isinstance(part, AdaptedParameter)}
        parameters = {
            name: added_up(part) for name, part in parts.items() if not isinstance(part, AdaptedParameter)
        }
        mixing = Mixing(mixtures, method.local_statistics(statistics), route)
        with nullcontext() if key is None else Dropout(key), mixing:
            # a copy of the inputs, since a network may work in place
            tensors = parameters | mixing.placeholders | buffers
            outputs.append(functional_call(model, tensors, (inputs.clone(),)))
        moved.append(buffers)
    for role in statistics:
        for name in moved[0].keys() & role.keys():
            if role[name].dim() > moved[0][name].dim():
                role[name] = torch.stack([buffers[name] for buffers in moved])
    return outputs, statistics
