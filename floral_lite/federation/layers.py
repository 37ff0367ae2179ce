"""Networks that are a chain of known layers, run for many clients at once.

Every parameter is one tensor with an axis of clients in front, and so are the inputs.
"""

import copy
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..adaptors import LowRankAdaptor
from ..dropout import keep, next_key
from ..factored import AdaptedParameter, Blend
from ..methods.base import Part, added_up
from ..models import HeConv2d, Normalise
from ..roles import joined
from . import patches
from .beside import SteppingBeside, beside, in_memory_side_by_side, side_by_side
from .products import BlendedProduct, Descent, Product
from .settings import Settings

Layers = list[tuple[str, nn.Module]]

# Layers without parameters that treat every sample by itself.
PER_SAMPLE = (
    nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Tanh, nn.Sigmoid, nn.Identity, Normalise,
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
)  # fmt: skip


def chain(model: nn.Module) -> Layers | None:
    """The layers of a network in their order, with their names; None if one of them is not known here."""
    layers = []
    if len(list(model.parameters())) < len(list(model.named_parameters(remove_duplicate=False))):
        return None  # a parameter under two names
    for name, layer in model.named_modules(remove_duplicate=False):
        hooks = (
            layer._forward_hooks
            or layer._forward_pre_hooks
            or layer._backward_hooks
            or layer._backward_pre_hooks
            or "forward" in vars(layer)  # a forward of its own, that its class does not know
        )
        if type(layer) is nn.Sequential and not hooks:
            continue
        known = type(layer) in (nn.Linear, nn.Conv2d, HeConv2d, nn.Flatten, nn.Dropout, *PER_SAMPLE)
        plain = getattr(layer, "padding_mode", "zeros") == "zeros" and getattr(layer, "start_dim", 1) >= 1
        if not known or not plain or hooks:
            return None
        if getattr(layer, "inplace", False):
            # a second network, or a second gradient, needs the inputs as they were
            layer = copy.copy(layer)
            layer.inplace = False
        layers.append((name, layer))
    for place, ((_, layer), (_, following)) in enumerate(pairwise(tuple(layers))):
        # max_i relu(x_i) = relu(max_i x_i): outputs and gradients are the same, and after the pooling ReLU
        # has fewer numbers to see
        if type(layer) is nn.ReLU and type(following) is nn.MaxPool2d:
            layers[place : place + 2] = layers[place + 1], layers[place]
    return layers


class Fused(NamedTuple):
    """What a backward pass needs to take weights' steps, and which ones it has been given.

    Attributes:
        settings: of the clients' optimizer.
        preconditioned: whether factors take preconditioned steps.
        allowed: the weights that may step in the backward pass, by identity, each with its velocity.
        stepping: those of them that do.
    """

    settings: Settings
    preconditioned: bool
    allowed: dict[int, Tensor | None]
    stepping: set[int]

    def descents(self, *weights: Tensor) -> list[Descent]:
        """How weights step in the backward pass, noted as stepping from now on; empty if one may not."""
        if not all(id(weight) in self.allowed for weight in weights):
            return []
        self.stepping.update(map(id, weights))
        return [Descent(weight, self.allowed[id(weight)], self.settings) for weight in weights]


NOT_FUSED = Fused(Settings(), False, {}, set())  # no weight may


def linear(inputs: Tensor, weight: Part, bias: Tensor | None, fused: Fused) -> Tensor:
    """A linear layer of every client; weights that `fused` allows take their steps in the backward pass."""
    if inputs.dim() > 3:  # a sample's rows, such as its words, are so many inputs more
        outputs = linear(inputs.flatten(1, -2), weight, bias, fused)
        return outputs.reshape(*inputs.shape[:-1], outputs.shape[-1])
    if isinstance(weight, Blend):
        if not (descents := fused.descents(weight.models)):
            return _product(inputs, weight.merged(), bias)
        if weight.models.shape[1] == 1:  # softmax gives a weight of 1, whatever the logit
            return _product(inputs, weight.models[:, 0], bias, descents[0].of(lambda models: models[:, 0]))
        blended: Tensor = BlendedProduct.apply(  # type: ignore[no-untyped-call]
            inputs, weight.models, weight.mixture, bias, descents[0]
        )
        return blended
    if isinstance(weight, AdaptedParameter):
        out_features, in_features = weight.adaptor.shape
        cheaper = inputs.shape[1] * (out_features + in_features) < out_features * in_features
        if not (cheaper and isinstance(weight.adaptor, LowRankAdaptor)):
            return _product(inputs, weight.merged(), bias)
        # y = x W^T + b + (x V) (pi U)^T, with all C adaptors side by side
        u, v = weight.factors["U"], weight.factors["V"]
        outputs = linear(inputs, weight.base, bias, fused)
        descents = fused.descents(u, v) if all(map(in_memory_side_by_side, (u, v))) else []
        if not descents:
            return beside(outputs, torch.bmm(inputs, side_by_side(v)), u, weight.mixture)
        stepping: Tensor = SteppingBeside.apply(  # type: ignore[no-untyped-call]
            outputs, inputs, u, v, weight.mixture, descents, fused.preconditioned
        )
        return stepping
    return _product(inputs, weight, bias, *fused.descents(weight))


def _product(inputs: Tensor, weight: Tensor, bias: Tensor | None, descent: Descent | None = None) -> Tensor:
    outputs: Tensor = Product.apply(inputs, weight, bias, descent)  # type: ignore[no-untyped-call]
    return outputs


def convolution(layer: nn.Conv2d, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution of every client: plain if they are one or have the same kernel, else one for each."""
    num_clients, batch = inputs.shape[:2]

    def run(inputs: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        return torch.conv2d(inputs, weight, bias, layer.stride, layer.padding, layer.dilation, groups)

    if inputs.is_cuda and weight.stride(0) and patches.fits(layer):
        return patches.convolution(layer, inputs, weight, bias)
    if num_clients == 1:
        # pooling, and mostly the convolution too, is faster on a CPU with the channels last in memory
        images = inputs.squeeze(0).contiguous(memory_format=torch.channels_last)
        return run(images, weight.squeeze(0), None if bias is None else bias.squeeze(0), layer.groups)[None]
    if weight.stride(0) == 0:
        outputs = run(inputs.flatten(0, 1), weight[0], None, layer.groups)
        outputs = outputs.reshape(num_clients, batch, *outputs.shape[1:])
    else:
        as_channels = inputs.transpose(0, 1).flatten(1, 2)
        outputs = run(as_channels, weight.flatten(0, 1), None, num_clients * layer.groups)
        outputs = outputs.reshape(batch, num_clients, -1, *outputs.shape[2:]).transpose(0, 1)
    return outputs if bias is None else outputs + bias[:, None, :, None, None]


def stacked_forward(
    layers: Layers,
    parts: Mapping[str, Part],
    inputs: Tensor,
    keys: Tensor | None = None,
    fused: Fused = NOT_FUSED,
) -> Tensor:
    """Run a chain of layers for a stack of clients.

    Args:
        layers: what `chain` found.
        parts: the clients' parameters, each with an axis of clients in front.
        inputs: shape (k, B, ...).
        keys: that dropout's masks follow from, shape (k,); None in evaluation.
        fused: in training, which weights may take their steps in the backward pass.

    Returns:
        Outputs, shape (k, B, ...).
    """
    num_clients = len(inputs)

    def part(name: str, layer: nn.Module, which: str) -> Part | None:
        """What the method made of a parameter; the model's own where it is frozen."""
        made = parts.get(joined(name, which))
        own = getattr(layer, which)
        return own.expand(num_clients, *own.shape) if made is None and own is not None else made

    for name, layer in layers:
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            weight, bias = part(name, layer, "weight"), part(name, layer, "bias")
            assert weight is not None
            summed = None if bias is None else added_up(bias)
            if isinstance(layer, nn.Linear):
                inputs = linear(inputs, weight, summed, fused)
            else:
                inputs = convolution(layer, inputs, added_up(weight), summed)
        elif isinstance(layer, nn.Dropout):
            if keys is not None and layer.p:
                keys = next_key(keys)
                inputs = inputs * keep(keys, inputs.shape[1:], layer.p).to(inputs.dtype) / (1 - layer.p or 1)
        elif isinstance(layer, nn.Flatten):
            inputs = inputs.flatten(layer.start_dim + 1, layer.end_dim + (layer.end_dim >= 0))
        else:
            samples = inputs.flatten(0, 1)
            if isinstance(layer, nn.MaxPool2d) and samples.dim() == 4 and not samples.is_cuda:
                samples = samples.contiguous(memory_format=torch.channels_last)  # so it is vectorised
            inputs = layer(samples).unflatten(0, inputs.shape[:2])
    return inputs
