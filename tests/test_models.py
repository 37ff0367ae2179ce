"""The base models."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune

from floral_lite import InputError, methods
from floral_lite.federation.layers import chain
from floral_lite.models import HeConv2d, Normalise, cnn, mlp, reinitialised, relu_net, seeded, vgg8

IMAGES = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def normalised(images: Tensor) -> Tensor:
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2023, 0.1994, 0.2010])
    return (images - mean[:, None, None]) / std[:, None, None]


def test_the_mlp_is_the_papers_two_layer_relu_net() -> None:
    model = mlp(784, 200, 10)
    # 784 * 200 + 200 + 200 * 10 + 10
    assert sum(parameter.numel() for parameter in model.parameters()) == 159010
    tensors = dict(model.named_parameters())
    images = torch.rand(3, 1, 28, 28)
    hidden = (images.flatten(1) @ tensors["1.weight"].T + tensors["1.bias"]).clamp(min=0)
    torch.testing.assert_close(model(images), hidden @ tensors["3.weight"].T + tensors["3.bias"])


def test_the_synthetic_net_normalises_what_comes_out_of_the_relu() -> None:
    model, plain = relu_net(10, 20, 1, batch_norm=True), relu_net(10, 20, 1)
    inputs = torch.randn(7, 10)
    tensors = dict(model.named_parameters())
    hidden = (inputs @ tensors["0.weight"].T + tensors["0.bias"]).clamp(min=0)
    hidden = (hidden - hidden.mean(dim=0)) / (hidden.var(dim=0, unbiased=False) + 1e-5).sqrt()
    expected = hidden @ tensors["3.weight"].T + tensors["3.bias"]
    torch.testing.assert_close(model(inputs), expected, rtol=1e-4, atol=1e-5)
    assert [type(layer) for layer in plain] == [nn.Linear, nn.ReLU, nn.Linear]


def test_the_cnn_is_the_papers_two_convolutions_and_two_linear_layers() -> None:
    model = cnn()
    w1, b1, w2, b2, w3, b3, w4, b4 = model.parameters()
    assert [tuple(w.shape) for w in (w1, w2, w3, w4)] == [
        (32, 3, 5, 5), (64, 32, 3, 3), (64, 1024), (10, 64),
    ]  # fmt: skip
    # 32 * 75 + 32 + 64 * 288 + 64 + 1024 * 64 + 64 + 64 * 10 + 10
    assert sum(parameter.numel() for parameter in model.parameters()) == 87178
    hidden = functional.max_pool2d(functional.conv2d(normalised(IMAGES), w1, b1).relu(), 2)
    hidden = functional.max_pool2d(functional.conv2d(hidden, w2, b2).relu(), 3)
    expected = (hidden.flatten(1) @ w3.T + b3).relu() @ w4.T + b4
    torch.testing.assert_close(model(IMAGES), expected)


def test_the_vgg8_has_five_convolutions_three_linear_layers_and_dropout_between() -> None:
    model = vgg8().eval()
    parameters = list(model.parameters())
    weights, biases = parameters[::2], parameters[1::2]
    assert [tuple(w.shape) for w in weights[:5]] == [
        (num_out, num_in, 3, 3) for num_in, num_out in pairwise([3, 16, 32, 64, 128, 512])
    ]
    assert [tuple(w.shape) for w in weights[5:]] == [(512, 512), (512, 512), (100, 512)]

    hidden = normalised(IMAGES)
    for weight, bias in zip(weights[:5], biases[:5], strict=True):
        hidden = functional.max_pool2d(functional.conv2d(hidden, weight, bias, padding=1).relu(), 2)
    assert hidden.shape == (4, 512, 1, 1)
    hidden = hidden.flatten(1)
    for weight, bias in zip(weights[5:7], biases[5:7], strict=True):
        hidden = (hidden @ weight.T + bias).relu()
    torch.testing.assert_close(model(IMAGES), hidden @ weights[7].T + biases[7])

    dropouts = [layer for layer in model.modules() if isinstance(layer, nn.Dropout)]
    assert [layer.p for layer in dropouts] == [0.5, 0.5]
    kinds = [type(layer) for layer in model]
    assert kinds[-7:] == [nn.Dropout, nn.Linear, nn.ReLU, nn.Dropout, nn.Linear, nn.ReLU, nn.Linear]
    assert not torch.equal(model.train()(IMAGES), model(IMAGES))


def test_the_convolutions_of_the_vgg8_begin_as_the_authors_have_them() -> None:
    for layer in seeded(vgg8, 0).modules():
        if isinstance(layer, nn.Conv2d):
            # N(0, sqrt(2 / (k k c_out)))
            assert float(layer.weight.detach().std()) == pytest.approx(
                (2 / (9 * layer.out_channels)) ** 0.5, rel=0.1
            )
            assert not layer.get_parameter("bias").any()


def test_such_a_convolution_may_have_no_bias() -> None:
    assert HeConv2d(3, 16, 3, bias=False).bias is None


def test_the_convolutions_of_the_vgg8_draw_what_torchs_draw_and_then_their_own() -> None:
    def plain() -> nn.Conv2d:
        layer = nn.Conv2d(3, 16, 3, padding=1)
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        return layer

    # so that the layers after it begin as with torch's own
    layer = seeded(vgg8, 5)[1]
    assert torch.equal(layer.weight, seeded(plain, 5).weight)


def test_every_model_of_an_ensemble_of_vgg8_begins_as_the_authors_have_it() -> None:
    state = methods.Ensemble(seeded(vgg8, 0), num_clusters=4).initialise(torch.arange(4), seed=0)
    for name, models in state.clustered.items():
        if models.dim() == 5:
            spreads = models.flatten(1).std(dim=1)
            torch.testing.assert_close(spreads, spreads[:1].expand(4), rtol=0.15, atol=0)
            assert not state.clustered[name.replace("weight", "bias")].any()
            assert not torch.equal(models[1], models[2])


def test_the_vgg8_is_a_chain_of_layers_and_stays_one_in_a_copy() -> None:
    assert chain(vgg8()) is not None
    assert chain(reinitialised(vgg8(), 0, 1)) is not None


def test_normalising_has_no_state_and_goes_along_with_any_leading_axes_and_type() -> None:
    layer = Normalise((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    assert not list(layer.parameters())
    assert not list(layer.buffers())
    assert not layer.state_dict()
    torch.testing.assert_close(layer(IMAGES), normalised(IMAGES))
    assert torch.equal(layer(IMAGES.reshape(2, 2, 3, 32, 32)), layer(IMAGES).reshape(2, 2, 3, 32, 32))
    assert torch.equal(torch.vmap(layer)(IMAGES), layer(IMAGES))
    assert layer(IMAGES.double()).dtype == torch.float64
    # red alone is 0.4914: nothing is left of it
    assert float(layer(torch.tensor([0.4914, 0.0, 0.0])[:, None, None])[0]) == pytest.approx(0, abs=1e-7)


def test_models_are_drawn_without_the_generators_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def seed_all(seed: int) -> None:
        raise AssertionError(f"CUDA's generators are set to {seed}")

    monkeypatch.setattr(torch.cuda, "manual_seed_all", seed_all)
    layer = seeded(lambda: nn.Linear(3, 2), 1)
    assert not torch.equal(reinitialised(layer, 1).weight, layer.weight)


def test_a_seed_gives_the_same_model_and_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (seeded(lambda: nn.Linear(3, 2), seed).weight for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.orthogonal])
def test_a_parametrised_layer_is_not_drawn_anew(wrap: Callable[[nn.Module], nn.Module]) -> None:
    """What it draws would be lost, and the models of an ensemble would start alike."""
    model = nn.Sequential(nn.Linear(3, 2), wrap(nn.Linear(2, 2)))
    with pytest.raises(InputError, match=r"a ParametrizedLinear has a parametrisation.* would start alike"):
        reinitialised(model, 0, 1)


@pytest.mark.parametrize(
    "wrap", [nn.utils.weight_norm, lambda layer: prune.l1_unstructured(layer, "weight", 1)]
)
@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
def test_nor_is_one_with_torchs_older_hooks(wrap: Callable[[nn.Module], nn.Module]) -> None:
    with pytest.raises(InputError, match=r"a Linear has a parametrisation.* would start alike"):
        reinitialised(nn.Sequential(nn.Linear(3, 2), wrap(nn.Linear(2, 2))), 0, 1)


def test_a_key_draws_a_model_anew_and_leaves_the_first_and_the_global_generator_alone() -> None:
    model = nn.Linear(3, 2)
    own, before = model.weight.detach().clone(), torch.get_rng_state()
    first, again, *others = (reinitialised(model, *key).weight for key in ((0, 1), (0, 1), (1, 1), (0, 2)))
    assert torch.equal(first, again)
    assert not any(torch.equal(first, other) for other in [own, *others])
    assert torch.equal(model.weight, own)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_draws_over_its_parts_is_drawn_after_them() -> None:
    first = seeded(lambda: nn.Transformer(32, 4, 1, 1, 64, batch_first=True), seed=0)
    fresh = dict(reinitialised(first, 0, 1).named_parameters())
    for name, parameter in first.named_parameters():
        # uniform up to the bound of Xavier, or zero; the linear layers of its parts draw with half that bound
        torch.testing.assert_close(fresh[name].abs().max(), parameter.abs().max(), rtol=0.1, atol=0)
    assert not fresh["encoder.layers.0.self_attn.out_proj.bias"].any()
