"""Copies of models, and of numbers into them."""

import copy

import torch
from torch import Tensor, nn


def copied(model: nn.Module) -> nn.Module:
    """A copy of a model, also where a layer keeps a tensor of its last forward pass, such as its features.

    Torch copies no tensor that still has its graph, so those are copied without it, also in lists, tuples
    and dictionaries.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> layer.features = layer.weight * 2
        >>> copied(layer).features.requires_grad
        False
    """
    memo: dict[int, Tensor] = {}
    seen: set[int] = set()  # a list may hold itself

    def look(value: object) -> None:
        if isinstance(value, Tensor):
            if not value.is_leaf:
                memo[id(value)] = value.detach().clone()
        elif isinstance(value, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            for inner in value.values() if isinstance(value, dict) else value:
                look(inner)

    for layer in model.modules():
        look(vars(layer))
    return copy.deepcopy(model, memo)


@torch.no_grad()
def overwrite(tensor: Tensor, numbers: Tensor) -> None:
    """Write numbers into a tensor, also into an expanded one, which is then given a memory of its own."""
    if 0 in tensor.stride():  # torch writes into no tensor whose numbers share memory
        tensor.data = tensor.contiguous()
    tensor.copy_(numbers)
