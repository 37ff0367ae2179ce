"""Convolutions of stacks of clients as products of patches."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from floral_lite import models
from floral_lite.federation import patches

LAYERS = {
    "plain": nn.Conv2d(3, 5, 3),
    "strided": nn.Conv2d(3, 5, (2, 3), stride=(2, 1)),
    "bordered": nn.Conv2d(3, 5, 3, padding=(1, 2)),
    "no bias": nn.Conv2d(3, 5, 5, bias=False),
}


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("side", [9, 30], ids=["small images", "large images"])
def test_patches_give_each_client_its_own_convolution_and_its_gradients(layer: nn.Conv2d, side: int) -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    inputs, weight = drawn(2, 4, 3, side, side), drawn(2, *layer.weight.shape)
    bias = None if layer.bias is None else drawn(2, 5)
    assert patches.fits(layer)
    ours = patches.convolution(layer, inputs, weight, bias)
    theirs = torch.stack(
        [
            functional.conv2d(
                inputs[k], weight[k], None if bias is None else bias[k], layer.stride, layer.padding
            )
            for k in range(2)
        ]
    )
    leaves = [leaf for leaf in (inputs, weight, bias) if leaf is not None]
    cotangent = torch.randn(theirs.shape, generator=generator, dtype=torch.float64)
    for own, other in zip(
        torch.autograd.grad(ours, leaves, cotangent),
        torch.autograd.grad(theirs, leaves, cotangent),
        strict=True,
    ):
        torch.testing.assert_close(own, other)


@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3, dilation=2), nn.Conv2d(4, 4, 3, padding="same")],
)
def test_groups_holes_and_paddings_by_name_are_left_to_torch(layer: nn.Conv2d) -> None:
    assert not patches.fits(layer)


def test_all_convolutions_of_the_papers_networks_fit() -> None:
    for model in (models.cnn(), models.vgg8()):
        layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
        assert layers
        assert all(map(patches.fits, layers))
