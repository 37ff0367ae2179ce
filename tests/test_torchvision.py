"""Models that people have: torchvision's, with random weights, wrapped as they come."""

from collections import Counter

import pytest
import torch
from torch import nn

from floral_lite import Floral
from floral_lite.data import import_torchvision

# kinds of adaptors in each, and the parameters that no kind is made for
CONV_NET = {"balanced": 20, "norm": 40, "linear": 1, "bias": 1}
VGG = {"balanced": 8, "norm": 16, "linear": 3, "bias": 8 + 3}
# squeeze-and-excitation has convolutions with biases
MOBILE = {"balanced": 52, "norm": 68, "linear": 2, "bias": 18 + 2}
CONVNEXT = {"balanced": 22, "norm": 46, "linear": 37, "bias": 22 + 37}
# in each of 12 blocks: attention's two projections and two linear layers
VIT = {"balanced": 1, "norm": 50, "linear": 12 * 4 + 1, "bias": 1 + 12 * 4 + 1}
LAYER_SCALES = {
    f"features.{stage}.{block}.layer_scale"
    for stage, blocks in ((1, 3), (3, 3), (5, 9), (7, 3))
    for block in range(blocks)
}


@pytest.mark.parametrize(
    ("name", "side", "budget", "kinds", "alone"),
    [
        ("resnet18", 64, 0.01, CONV_NET, set()),
        ("resnet18", 64, 0.1, CONV_NET, set()),
        ("vgg11_bn", 32, 0.01, VGG, set()),
        ("mobilenet_v3_small", 64, 0.01, MOBILE, set()),
        ("mobilenet_v3_small", 64, 0.1, MOBILE, set()),
        ("convnext_tiny", 32, 0.01, CONVNEXT, LAYER_SCALES),
        ("vit_b_16", 32, 0.01, VIT, {"class_token", "encoder.pos_embedding"}),
    ],
)
def test_a_model_of_torchvision(
    name: str, side: int, budget: float, kinds: dict[str, int], alone: set[str]
) -> None:
    models = import_torchvision("torchvision.models")
    settings = {"image_size": side} if name == "vit_b_16" else {}
    base: nn.Module = getattr(models, name)(weights=None, num_classes=10, **settings)
    images = torch.randn(2, 3, side, side)
    model = Floral(base, budget=budget, num_clusters=4)

    assert Counter(adaptor.kind for adaptor in model.plan.values()) == kinds
    assert {name for name, _ in base.named_parameters()} - model.plan.keys() == alone
    with torch.no_grad():
        before = base.eval()(images)
        assert torch.allclose(model.eval()(images), before)
        for parameter in [*model.adaptors.parameters(), model.router_logits]:
            parameter.add_(torch.randn_like(parameter), alpha=0.05)

    model.train()
    clustered = model.clustered()
    loss = model(images).logsumexp(dim=1).sum()
    gradients = torch.autograd.grad(loss, [model.router_logits, *clustered.values()])
    for parameter_name, gradient in zip(["router", *clustered], gradients, strict=True):
        assert gradient.isfinite().all(), parameter_name
        # whole residual blocks are dropped at random in training
        assert name == "convnext_tiny" or gradient.any(), parameter_name

    model.eval()
    with torch.no_grad():
        outputs = model(images)
        merged = model.merge()
        assert type(merged) is type(base)
        scale = float(outputs.abs().max())
        torch.testing.assert_close(merged(images), outputs, rtol=0, atol=1e-4 * scale)
        assert float((outputs - before).abs().max()) > 0.01 * scale

    table = model.describe()
    size = sum(parameter.numel() for parameter in base.parameters())
    assert table.loc["one adaptor", "parameters"] == model.num_adaptor_parameters
    assert table.loc["all C = 4 adaptors", "parameters"] == 4 * model.num_adaptor_parameters
    assert table.loc["one adaptor", "base"] == size
    assert table.loc["the budget, C rho d", "parameters"] == round(4 * budget * size)
    above_one = table[table["rank"] > 1]
    assert (above_one["share"] <= budget).all()
