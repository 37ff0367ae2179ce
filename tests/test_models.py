"""The base models."""

import torch
from torch import nn

from floral_lite.models import mlp, seeded


def test_the_mlp_is_the_papers_two_layer_relu_net() -> None:
    model = mlp(784, 200, 10)
    # 784 * 200 + 200 + 200 * 10 + 10
    assert sum(parameter.numel() for parameter in model.parameters()) == 159010
    tensors = dict(model.named_parameters())
    images = torch.rand(3, 1, 28, 28)
    hidden = (images.flatten(1) @ tensors["1.weight"].T + tensors["1.bias"]).clamp(min=0)
    torch.testing.assert_close(model(images), hidden @ tensors["3.weight"].T + tensors["3.bias"])


def test_a_seed_gives_the_same_model_and_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (seeded(lambda: nn.Linear(3, 2), seed).weight for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)
