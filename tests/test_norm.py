"""Batch-NorA: its formula, its gradients, and statistics that stay with the client."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from floral_lite import Floral
from floral_lite.adaptors import Statistics, batch_nora

CHANNELS, EPS = 3, 0.1  # an eps that would be seen if it were left out
SHAPES = pytest.mark.parametrize("shape", [(6, 3), (6, 3, 4), (2, 3, 4, 5), (2, 3, 2, 3, 2)], ids=len)


def vectors(count: int) -> list[Tensor]:
    return [torch.randn(CHANNELS, dtype=torch.float64) for _ in range(count)]


def statistics() -> Statistics:
    mean, spread = vectors(2)
    return Statistics(mean, 0.5 + spread.square())


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def along_channels(vector: Tensor, inputs: Tensor) -> Tensor:
    return vector.view(1, -1, *[1] * (inputs.dim() - 2))


@SHAPES
@pytest.mark.parametrize("seed", range(3))
def test_the_sum_is_normalisation_by_the_main_statistics(shape: tuple[int, ...], seed: int) -> None:
    torch.manual_seed(seed)
    inputs, main, local = torch.randn(shape, dtype=torch.float64), statistics(), statistics()
    gamma, beta, gamma_i, beta_i = vectors(4)
    outputs = batch_nora(inputs, main, local, gamma, beta, gamma_i, beta_i, EPS)
    # (x - mu) / sqrt(sigma^2 + eps) (gamma + gamma_i) + beta + beta_i, whatever mu_i and sigma_i are
    close(outputs, functional.batch_norm(inputs, *main, gamma + gamma_i, beta + beta_i, eps=EPS))


def test_a_channel_that_has_never_varied_has_torchs_eps_and_is_finite() -> None:
    inputs, none = 1e-3 * torch.randn(6, CHANNELS, dtype=torch.float64), torch.zeros(CHANNELS).double()
    flat = Statistics(none, none)
    gamma, beta, gamma_i, beta_i = vectors(4)
    outputs = batch_nora(inputs, flat, flat, gamma, beta, gamma_i, beta_i)
    close(outputs, functional.batch_norm(inputs, *flat, gamma + gamma_i, beta + beta_i))


@SHAPES
def test_the_sum_is_of_two_batch_norms(shape: tuple[int, ...]) -> None:
    inputs, main, local = torch.randn(shape, dtype=torch.float64), statistics(), statistics()
    gamma, beta, gamma_i, beta_i = vectors(4)
    # gamma_i -> sigma_i / sigma gamma_i and beta_i -> beta_i + (mu_i - mu) / sigma gamma_i
    sigma, sigma_i = (main.variance + EPS).sqrt(), (local.variance + EPS).sqrt()
    reparametrised = sigma_i / sigma * gamma_i, beta_i + (local.mean - main.mean) / sigma * gamma_i
    shared = functional.batch_norm(inputs, *main, gamma, beta, eps=EPS)
    own = functional.batch_norm(inputs, *local, *reparametrised, eps=EPS)
    close(batch_nora(inputs, main, local, gamma, beta, gamma_i, beta_i, EPS), shared + own)


@SHAPES
def test_the_gradients_are_those_of_the_reparametrisation_with_its_stop(shape: tuple[int, ...]) -> None:
    inputs, main, local = torch.randn(shape, dtype=torch.float64), statistics(), statistics()
    parameters = [vector.requires_grad_() for vector in vectors(4)]
    outputs = batch_nora(inputs, main, local, *parameters, EPS)
    g = torch.randn_like(outputs)
    gradients = torch.autograd.grad(outputs, parameters, g)
    axes = [axis for axis in range(inputs.dim()) if axis != 1]

    def normalised_from(mean: Tensor) -> Tensor:
        return (inputs - along_channels(mean, inputs)) / along_channels((main.variance + EPS).sqrt(), inputs)

    # <g, (x - mu) / sigma> and <g, (x - mu_i) / sigma>: without the stop they would be the same
    for index, mean in ((0, main.mean), (2, local.mean)):
        close(gradients[index], (g * normalised_from(mean)).sum(axes))
    for index in (1, 3):  # <g, 1>
        close(gradients[index], g.sum(axes))


LAYERS = pytest.mark.parametrize(
    ("build", "shape"),
    [
        pytest.param(lambda: nn.BatchNorm1d(CHANNELS, EPS), (6, 3), id="1d"),
        pytest.param(lambda: nn.BatchNorm2d(CHANNELS, EPS, momentum=0.3), (4, 3, 2, 2), id="2d"),
        pytest.param(
            lambda: nn.BatchNorm3d(CHANNELS, EPS, momentum=None), (2, 3, 2, 2, 2), id="3d-cumulative"
        ),
    ],
)


def trained(build: Callable[[], nn.Module]) -> Floral:
    """A wrapped batch norm whose adaptors, parameters and statistics are away from where they start."""
    model = Floral(nn.Sequential(build().double()), rank=1, num_clusters=2, norms="batch_nora")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
        for buffer in model.buffers():
            buffer.add_(2 if "int" in str(buffer.dtype) else torch.rand_like(buffer))
    return model


def plain(model: Floral) -> nn.Module:
    """The merged layer: torch's own batch norm with gamma + gamma_i and beta + beta_i."""
    return model.merge().train(model.training)


@LAYERS
@pytest.mark.parametrize("training", [True, False])
def test_a_wrapped_layer_computes_what_torchs_batch_norm_does(
    build: Callable[[], nn.Module], shape: tuple[int, ...], training: bool
) -> None:
    model = trained(build).train(training)
    twin = plain(model)
    inputs = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    outputs, expected = model(inputs), twin(inputs)
    close(outputs, expected)
    g = torch.randn_like(outputs)
    (actual,), (wanted,) = (torch.autograd.grad(run, inputs, g) for run in (outputs, expected))
    close(actual, wanted)


@LAYERS
def test_training_updates_both_running_statistics_as_torch_does(
    build: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    model = trained(build).train()
    main, local = plain(model), plain(model)
    own = dict(model.statistics.named_buffers())
    local.get_buffer("0.running_mean").copy_(own["0.mean"])
    local.get_buffer("0.running_var").copy_(own["0.variance"])
    for _ in range(3):
        inputs = torch.randn(shape, dtype=torch.float64)
        for network in (model, main, local):
            network(inputs)
    for name, buffer in main.named_buffers():
        assert torch.equal(model.base.get_buffer(name), buffer)
    close(own["0.mean"], local.get_buffer("0.running_mean"))
    close(own["0.variance"], local.get_buffer("0.running_var"))
    assert not torch.allclose(own["0.mean"], model.base.get_buffer("0.running_mean"))


@LAYERS
def test_evaluation_updates_nothing(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    model = trained(build).eval()
    before = copy.deepcopy(model.state_dict())
    model(torch.randn(shape, dtype=torch.float64))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_wrapped_layer_stops_the_gradient() -> None:
    model = trained(lambda: nn.BatchNorm1d(CHANNELS, EPS)).train()
    inputs = torch.randn(6, CHANNELS, dtype=torch.float64)
    mean_i = model.statistics.get_buffer("0.mean").clone()
    outputs = model(inputs)
    g = torch.randn_like(outputs)
    outputs.backward(g)
    # in training sigma is the batch's, mu_i the client's running mean; adaptor c has pi_c of the gradient
    sigma = (inputs.var(0, correction=0) + EPS).sqrt()
    mixture = model.mixture().detach()[:, None]
    for name, expected in (("weight", (g * (inputs - mean_i) / sigma).sum(0)), ("bias", g.sum(0))):
        gradient = model.get_parameter(f"adaptors.0.{name}.L").grad
        assert gradient is not None
        close(gradient, mixture * expected)


def test_the_statistics_are_buffers_that_clients_do_not_train() -> None:
    model = trained(lambda: nn.BatchNorm1d(CHANNELS))
    names = {"statistics.0.mean", "statistics.0.variance"}
    assert names <= dict(model.named_buffers()).keys()
    assert names <= model.state_dict().keys()
    assert not names & dict(model.named_parameters()).keys()
    assert model.clustered().keys() == {"0.weight.L", "0.bias.L"}


def test_two_clients_keep_different_statistics() -> None:
    model = Floral(nn.Sequential(nn.BatchNorm1d(CHANNELS)), rank=1, norms="batch_nora")
    clients = [copy.deepcopy(model) for _ in range(2)]
    for shift, client in enumerate(clients):
        client(torch.randn(8, CHANNELS) + 5 * shift)
    first, second = (client.statistics.get_buffer("0.mean") for client in clients)
    assert not torch.allclose(first, second)
    assert not model.statistics.get_buffer("0.mean").any()


def test_the_clients_statistics_begin_as_the_layers_own() -> None:
    layer = nn.BatchNorm1d(CHANNELS)
    layer(torch.randn(8, CHANNELS) + 5)
    model = Floral(nn.Sequential(layer), rank=1, norms="batch_nora")
    assert torch.equal(model.statistics.get_buffer("0.mean"), layer.get_buffer("running_mean"))
    assert torch.equal(model.statistics.get_buffer("0.variance"), layer.get_buffer("running_var"))


@pytest.mark.parametrize("norms", ["affine", "none"])
def test_without_batch_nora_there_are_no_statistics(norms: str) -> None:
    model = Floral(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), rank=1, norms=norms)  # type: ignore[arg-type]
    assert not list(model.statistics.buffers())


def test_a_batch_norm_of_which_only_half_is_trained_is_adapted_as_any_norm() -> None:
    layer = nn.BatchNorm1d(CHANNELS).double()
    layer.bias.requires_grad_(False)
    model = Floral(nn.Sequential(layer), rank=1, norms="batch_nora")
    assert model.clustered().keys() == {"0.weight.L"}
    assert not list(model.statistics.buffers())
    with torch.no_grad():
        model.get_parameter("adaptors.0.weight.L").normal_()
    inputs = torch.randn(6, CHANNELS, dtype=torch.float64)
    twin = plain(model)
    close(model(inputs), twin(inputs))


def test_a_batch_of_one_is_refused_as_torch_does() -> None:
    model = trained(lambda: nn.BatchNorm1d(CHANNELS)).train()
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        model(torch.randn(1, CHANNELS, dtype=torch.float64))


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_statistics_are_as_precise_as_in_single_precision(precision: torch.dtype) -> None:
    # a variance of 4e6 does not fit into half precision, where the largest number is 65504
    inputs = (2000 * torch.randn(64, 4)).to(precision)
    base = nn.BatchNorm1d(4)
    outputs = Floral(copy.deepcopy(base).to(precision), rank=1, norms="batch_nora")(inputs)
    assert outputs.dtype == precision
    torch.testing.assert_close(outputs.float(), base(inputs.float()), rtol=0, atol=0.02)
