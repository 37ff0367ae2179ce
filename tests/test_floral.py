"""Floral on ordinary modules: plug and play, training, saving, merging."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from floral_lite import Floral, InputError


class Net(nn.Module):
    """Nested modules of all sorts: a convolution, a normalisation, a list, a layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.ReLU(), nn.Flatten())
        self.hidden = nn.ModuleList([nn.Linear(48, 8), nn.Linear(8, 8)])
        self.head = nn.Linear(8, 4)

    def forward(self, images: Tensor, scale: float = 1.0) -> Tensor:
        outputs = torch.relu(self.hidden[0](self.features(images)))
        for _ in range(2):
            outputs = torch.relu(self.hidden[1](outputs))
        scaled: Tensor = scale * self.head(outputs)
        return scaled


class Attention(nn.Module):
    """Self-attention, whose output layer's weights are read without calling that layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return outputs


def perturb(model: Floral, seed: int = 0) -> Floral:
    """Move adaptors and router away from where they start, as training would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in [*model.adaptors.parameters(), model.router_logits]:
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


IMAGES = torch.randn(5, 1, 6, 6, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
MODELS = pytest.mark.parametrize(
    ("build", "inputs"),
    [
        pytest.param(Net, IMAGES, id="nested"),
        pytest.param(Attention, TOKENS, id="attention"),
        pytest.param(lambda: nn.Linear(8, 3), TOKENS, id="linear"),
        pytest.param(lambda: nn.Linear(8, 3, bias=False), TOKENS, id="no-bias"),
    ],
)
Build = Callable[[], nn.Module]


@MODELS
@pytest.mark.parametrize("init", ["paper", "authors"])
def test_wrapping_changes_nothing_at_first(build: Build, inputs: Tensor, init: Any) -> None:
    base = build()
    assert torch.equal(Floral(base, rank=2, num_clusters=3, init=init)(inputs), base(inputs))


@MODELS
@pytest.mark.parametrize("training", [True, False])
def test_merged_computes_what_the_wrapped_model_computes(
    build: Build, inputs: Tensor, training: bool
) -> None:
    base = build()
    model = perturb(Floral(base, rank=2, num_clusters=3)).train(training)
    before = base(inputs)
    with torch.no_grad():  # in eval mode attention then takes its fast path
        outputs = model(inputs)
        merged = model.merge()
        assert type(merged) is type(base)
        assert not any(isinstance(module, Floral) for module in merged.modules())
        torch.testing.assert_close(merged(inputs), outputs)
        assert not torch.allclose(outputs, before)
    assert torch.equal(base(inputs), before)  # merging leaves the base alone


def test_merge_takes_any_mixture() -> None:
    model = perturb(Floral(nn.Linear(8, 3), rank=2, num_clusters=3))
    mixture = torch.tensor([0.0, 1.0, 0.0])
    with torch.no_grad():
        model.router_logits.copy_(torch.tensor([-torch.inf, 0.0, -torch.inf]))
    merged, by_router = model.merge(mixture), model.merge()
    torch.testing.assert_close(merged(TOKENS), model(TOKENS))
    torch.testing.assert_close(by_router(TOKENS), model(TOKENS))


def test_the_layer_computes_the_papers_formula() -> None:
    model = perturb(Floral(nn.Linear(8, 3), rank=2, num_clusters=3).double())
    tensors = model.state_dict()
    pi = tensors["router_logits"].exp() / tensors["router_logits"].exp().sum()
    x = TOKENS[0, 0].double()
    # y = (W + sum_c pi_c U_c V_c^T) x + b + sum_c pi_c b_c
    y = tensors["base.weight"] @ x + tensors["base.bias"]
    for c in range(3):
        u, v = tensors["adaptors.weight.U"][c], tensors["adaptors.weight.V"][c]
        y = y + pi[c] * (u @ (v.T @ x)) + pi[c] * tensors["adaptors.bias.L"][c]
    torch.testing.assert_close(model(x), y)


def test_personal_parameters_follow_the_mixture() -> None:
    model = perturb(Floral(nn.Linear(8, 3), rank=2, num_clusters=3))
    tensors = model.state_dict()
    personal = model.personal_parameters(torch.tensor([0.0, 0.0, 1.0]))
    # w_hat = u + a_2
    low_rank = tensors["adaptors.weight.U"][2] @ tensors["adaptors.weight.V"][2].T
    torch.testing.assert_close(personal["weight"], tensors["base.weight"] + low_rank)
    torch.testing.assert_close(personal["bias"], tensors["base.bias"] + tensors["adaptors.bias.L"][2])
    own, by_router = model.personal_parameters(), model.personal_parameters(model.mixture())
    assert all(torch.equal(own[name], by_router[name]) for name in personal)


def test_convolutions_have_adaptive_biases() -> None:
    model = Floral(Net(), rank=2, num_clusters=3)
    names = {name for name, _ in model.adaptors.named_parameters()}
    assert "features.0.bias.L" in names
    assert not any(name.startswith(("features.0.weight", "features.1")) for name in names)
    with torch.no_grad():
        model.get_parameter("adaptors.features.0.bias.L").copy_(
            torch.tensor([[3.0] * 3, [6.0] * 3, [9.0] * 3])
        )
    # 1/3 (3 + 6 + 9)
    personal = model.personal_parameters()["features.0.bias"]
    torch.testing.assert_close(personal, model.get_parameter("base.features.0.bias") + 6.0)


def test_parameters_are_counted() -> None:
    # conv bias 3; linear 48 -> 8, 8 -> 8 and 8 -> 4 at rank 2 with their biases
    one = 3 + (2 * (48 + 8) + 8) + (2 * (8 + 8) + 8) + (2 * (8 + 4) + 4)
    base = Net()
    model = Floral(base, rank=2, num_clusters=3)
    assert model.num_adaptor_parameters == one
    num_base = sum(parameter.numel() for parameter in base.parameters())
    # u, C adaptors, theta
    assert sum(parameter.numel() for parameter in model.parameters()) == num_base + 3 * one + 3


def test_calls_pass_through_with_keywords() -> None:
    base = Net()
    torch.testing.assert_close(Floral(base, rank=1)(IMAGES, scale=3.0), base(IMAGES, scale=3.0))


def test_the_first_arguments_are_the_papers() -> None:
    model = Floral(nn.Linear(64, 64), rank=8, num_clusters=4)
    assert torch.equal(model.mixture(), torch.full((4,), 0.25))
    assert model.get_parameter("adaptors.weight.U").shape == (4, 64, 8)
    assert model.get_parameter("adaptors.weight.V").shape == (4, 64, 8)


def test_the_budget_sets_the_rank() -> None:
    # floor(0.1 * 64 * 64 / 128) = 3
    model = Floral(nn.Linear(64, 64), budget=0.1, num_clusters=2)
    assert model.get_parameter("adaptors.weight.U").shape == (2, 64, 3)


def test_sgd_moves_base_adaptors_and_router() -> None:
    model = Floral(Net(), rank=2, num_clusters=3)
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    targets = torch.tensor([0, 1, 2, 3, 0])
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(IMAGES), targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    still = [name for name, tensor in model.state_dict().items() if torch.equal(tensor, before[name])]
    assert still == []
    assert losses[-1] < 0.5 * losses[0]


def test_a_state_dict_carries_everything() -> None:
    model = perturb(Floral(Net(), rank=2, num_clusters=3))
    other = Floral(Net(), rank=2, num_clusters=3)
    assert not torch.allclose(other(IMAGES), model(IMAGES))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(IMAGES), model(IMAGES))


def test_a_deep_copy_is_its_own_model() -> None:
    model = perturb(Floral(Net(), rank=2, num_clusters=3))
    twin = copy.deepcopy(model)
    before = model(IMAGES)
    assert torch.equal(twin(IMAGES), before)
    perturb(twin, seed=1)
    assert torch.equal(model(IMAGES), before)
    assert not torch.allclose(twin(IMAGES), before)


@pytest.mark.parametrize("wrapped_first", [True, False])
def test_double_precision(wrapped_first: bool) -> None:
    model = Floral(Net(), rank=1).double() if wrapped_first else Floral(Net().double(), rank=1)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert model(IMAGES.double()).dtype == torch.float64


def test_the_generator_decides_the_random_factor() -> None:
    def factor(seed: int | None) -> Tensor:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return Floral(nn.Linear(8, 3), rank=2, generator=generator).get_parameter("adaptors.weight.U")

    assert torch.equal(factor(1), factor(1))
    assert torch.equal(factor(None), factor(None))
    assert not torch.equal(factor(1), factor(2))


def test_wrapping_draws_nothing_from_the_global_generator() -> None:
    base = Net()
    before = torch.get_rng_state()
    Floral(base, rank=2)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "rank is None and budget is None"),
        ({"rank": 8, "budget": 0.1}, "rank is 8 and budget is 0.1"),
        ({"rank": 0}, "rank is 0"),
        ({"budget": 2.0}, r"budget is 2\.0"),
        ({"rank": 1, "num_clusters": 0}, "num_clusters is 0"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: Mapping[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Floral(nn.Linear(3, 2), **arguments)


def test_a_model_with_nothing_to_adapt_is_refused() -> None:
    with pytest.raises(InputError, match="LayerNorm has nothing to adapt"):
        Floral(nn.LayerNorm(3), rank=1)
