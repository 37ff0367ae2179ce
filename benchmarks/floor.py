"""The floor under a round: its matrix products and convolutions alone, as a few large library calls.

Every step of training multiplies each linear or convolutional layer's inputs by its weight. On the way
back it multiplies twice more, for the gradients of weight and inputs (the first layer's inputs need
none). Here all samples of a round go through these products at once, with one weight for all clients.
Nothing else is counted, not even activations. So no engine gets below this on these libraries.
"""

from collections.abc import Callable
from math import prod
from typing import NamedTuple

import torch
from measure import seconds
from torch import Tensor, nn

# Samples in one convolution: the outputs of many do not fit into a cache, and few do not keep all cores busy.
CHUNKS = (32, 128, 500)


class Product(NamedTuple):
    """One of a layer's products over all samples.

    Attributes:
        name: the layer's name, and which of its three products this is.
        flops: 2 for each multiply-add.
        run: computes the product.
    """

    name: str
    flops: int
    run: Callable[[], object]


def products(
    model: nn.Module, input_shape: tuple[int, ...], num_samples: int, chunk: int = CHUNKS[0]
) -> list[Product]:
    """The products of all Linear and Conv2d layers, forward and backward, on data of the right shapes.

    Args:
        model: its layers' inputs are found by running it once.
        input_shape: of one sample.
        num_samples: of all clients in a round.
        chunk: samples in one convolution.

    Example:
        >>> made = products(nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10)), (784,), 6000)
        >>> [product.name for product in made]  # doctest: +NORMALIZE_WHITESPACE
        ['0 forward', '0 weight gradient', '2 forward', '2 weight gradient', '2 input gradient']
        >>> sum(product.flops for product in made) == 2 * 6000 * (2 * 784 * 200 + 3 * 200 * 10)
        True
    """
    calls: list[tuple[str, torch.Size]] = []

    def recorder(name: str) -> Callable[[nn.Module, tuple[Tensor], Tensor], None]:
        return lambda layer, inputs, outputs: calls.append((name, inputs[0].shape))

    layers = {n: layer for n, layer in model.named_modules() if isinstance(layer, (nn.Linear, nn.Conv2d))}
    handles = [layer.register_forward_hook(recorder(name)) for name, layer in layers.items()]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):  # dropout may draw
        model(torch.zeros(1, *input_shape))
    for handle in handles:
        handle.remove()

    made: list[Product] = []
    for name, shape in calls:
        layer = layers[name]
        if isinstance(layer, nn.Conv2d):
            of_layer = _convolution(layer, shape[1:], num_samples, chunk)
        else:
            of_layer = _linear(layer, prod(shape[:-1]) * num_samples)
        made += [p._replace(name=f"{name} {p.name}") for p in of_layer if made or p.name != "input gradient"]
    return made


def fastest(model: nn.Module, input_shape: tuple[int, ...], num_samples: int) -> list[Product]:
    """The products, each in chunks of the size that is fastest on this CPU."""
    choices = [products(model, input_shape, num_samples, chunk=chunk) for chunk in CHUNKS]
    return [
        min(same, key=lambda product: min(seconds(product.run) for _ in range(2)))
        for same in zip(*choices, strict=True)
    ]


def _linear(layer: nn.Linear, num_rows: int) -> list[Product]:
    """Y = X W^T, grad W = (grad Y)^T X, grad X = (grad Y) W."""
    weight = torch.randn(layer.out_features, layer.in_features)
    inputs = torch.randn(num_rows, layer.in_features)
    upstream = torch.randn(num_rows, layer.out_features)
    flops = 2 * num_rows * weight.numel()
    return [
        Product("forward", flops, lambda: inputs @ weight.T),
        Product("weight gradient", flops, lambda: upstream.T @ inputs),
        Product("input gradient", flops, lambda: upstream @ weight),
    ]


def _convolution(layer: nn.Conv2d, shape: tuple[int, ...], num_samples: int, chunk: int) -> list[Product]:
    """Forward, weight gradient and input gradient of a convolution, a chunk of samples at a time."""
    options = (layer.stride, layer.padding, layer.dilation)
    weight = torch.randn(layer.weight.shape)
    inputs = torch.randn(min(chunk, num_samples), *shape)

    def convolve(some: torch.Tensor) -> torch.Tensor:
        return torch.conv2d(some, weight, None, *options, layer.groups)  # type: ignore[arg-type]

    upstream = torch.randn_like(convolve(inputs))
    sizes = [min(chunk, num_samples - begin) for begin in range(0, num_samples, chunk)]
    flops = 2 * num_samples * upstream[0, 0].numel() * weight.numel()

    def forward() -> None:
        for size in sizes:
            convolve(inputs[:size])

    def backward(of_inputs: bool, of_weight: bool) -> None:
        for size in sizes:
            torch.ops.aten.convolution_backward(
                *(upstream[:size], inputs[:size], weight, None, *options),
                *(False, (0, 0), layer.groups, (of_inputs, of_weight, False)),
            )

    return [
        Product("forward", flops, forward),
        Product("weight gradient", flops, lambda: backward(False, True)),
        Product("input gradient", flops, lambda: backward(True, False)),
    ]


@torch.no_grad()
def run(made: list[Product]) -> None:
    """All products, one after another."""
    for product in made:
        product.run()
