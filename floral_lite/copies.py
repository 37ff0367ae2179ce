"""Copies of models."""

import copy

from torch import Tensor, nn


def copied(model: nn.Module) -> nn.Module:
    """A copy of a model, also where a layer keeps a tensor of its last forward pass, such as its features.

    Torch copies no tensor that still has its graph, so those are copied without it.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> layer.features = layer.weight * 2
        >>> copied(layer).features.requires_grad
        False
    """
    kept = (value for layer in model.modules() for value in vars(layer).values() if isinstance(value, Tensor))
    return copy.deepcopy(model, {id(each): each.detach().clone() for each in kept if not each.is_leaf})
