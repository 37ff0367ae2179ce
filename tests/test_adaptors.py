"""Adaptors: one contract for every kind and every geometry."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from floral_lite import Floral, load, save
from floral_lite.adaptors import (
    KINDS,
    Convolution,
    Initialisation,
    Options,
    plan,
)

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
C = 3
INITS = get_args(Initialisation)
ROUTES = ("merged", "factored", "auto")

# ---------------------------------------------------------------------------------------------
# The table: every layer type of the registry in every geometry, with the shapes of its inputs.

Layers = dict[str, tuple[Callable[[], nn.Module], list[tuple[int, ...]]]]

CONVOLUTIONS: Layers = {
    "1d": (lambda: nn.Conv1d(4, 6, 3), [(2, 4, 7)]),
    "1d-geometry": (
        lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2, bias=False),
        [(2, 4, 9)],
    ),
    "1d-same-even": (lambda: nn.Conv1d(4, 2, 2, padding="same"), [(2, 4, 7)]),
    "1d-circular": (lambda: nn.Conv1d(4, 2, 3, padding=2, padding_mode="circular"), [(2, 4, 7)]),
    "2d": (lambda: nn.Conv2d(4, 6, 3), [(2, 4, 5, 5)]),
    "2d-geometry": (
        lambda: nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2),
        [(2, 4, 6, 5)],
    ),
    "2d-first-side-longer": (lambda: nn.Conv2d(2, 6, (1, 3), padding=(0, 1)), [(2, 2, 4, 5)]),
    "2d-depthwise": (lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False), [(2, 4, 5, 5)]),
    "2d-depthwise-more": (lambda: nn.Conv2d(2, 4, 3, stride=2, groups=2), [(2, 2, 5, 6)]),
    "2d-1x1": (lambda: nn.Conv2d(4, 6, 1, stride=2, bias=False), [(2, 4, 5, 5)]),
    "2d-same": (lambda: nn.Conv2d(4, 2, (3, 2), padding="same", dilation=2), [(2, 4, 5, 5)]),
    "2d-valid": (lambda: nn.Conv2d(4, 2, (2, 3), padding="valid"), [(2, 4, 5, 5)]),
    "2d-circular": (
        lambda: nn.Conv2d(4, 2, 3, stride=2, padding=(1, 2), padding_mode="circular"),
        [(2, 4, 5, 5)],
    ),
    "2d-reflect": (lambda: nn.Conv2d(4, 2, 3, padding="same", padding_mode="reflect"), [(2, 4, 5, 5)]),
    "2d-replicate": (lambda: nn.Conv2d(4, 2, 3, padding=2, padding_mode="replicate"), [(2, 4, 5, 5)]),
    "2d-no-batch": (lambda: nn.Conv2d(4, 2, 3, padding=1), [(4, 5, 5)]),
    "3d": (lambda: nn.Conv3d(2, 3, (2, 1, 3)), [(2, 2, 3, 3, 4)]),
    "3d-geometry": (
        lambda: nn.Conv3d(2, 4, 2, stride=(1, 2, 1), padding=(1, 0, 1), dilation=(2, 1, 1), groups=2),
        [(2, 2, 3, 3, 3)],
    ),
    "1d-transposed": (
        lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        [(2, 4, 5)],
    ),
    "2d-transposed": (lambda: nn.ConvTranspose2d(4, 3, (3, 2), bias=False), [(2, 4, 4, 4)]),
    "2d-transposed-geometry": (
        lambda: nn.ConvTranspose2d(
            4, 6, (3, 2), stride=(2, 3), padding=(1, 2), output_padding=(1, 2), groups=2, dilation=(2, 1)
        ),
        [(2, 4, 4, 4)],
    ),
    "3d-transposed": (
        lambda: nn.ConvTranspose3d(2, 4, (2, 1, 3), stride=(1, 2, 2), padding=(0, 0, 1), groups=2),
        [(2, 2, 2, 2, 3)],
    ),
}
NORMS: Layers = {
    "batch-1d": (lambda: nn.BatchNorm1d(4), [(5, 4)]),
    "batch-1d-sequence": (lambda: nn.BatchNorm1d(4, eps=0.1), [(5, 4, 3)]),
    "batch-2d": (lambda: nn.BatchNorm2d(4), [(2, 4, 3, 2)]),
    "batch-3d": (lambda: nn.BatchNorm3d(4), [(2, 4, 3, 2, 2)]),
    "instance-1d": (lambda: nn.InstanceNorm1d(4, affine=True), [(2, 4, 5)]),
    "instance-2d": (lambda: nn.InstanceNorm2d(4, affine=True), [(2, 4, 3, 2)]),
    "instance-3d": (lambda: nn.InstanceNorm3d(4, affine=True), [(2, 4, 3, 2, 2)]),
    "layer": (lambda: nn.LayerNorm((3, 4)), [(2, 3, 4)]),
    "layer-no-bias": (lambda: nn.LayerNorm(4, bias=False), [(2, 3, 4)]),
    "group": (lambda: nn.GroupNorm(2, 4), [(2, 4, 3)]),
    "rms": (lambda: nn.RMSNorm(4), [(2, 3, 4)]),
}
OTHERS: Layers = {
    "linear": (lambda: nn.Linear(7, 5), [(4, 7)]),
    "linear-no-bias": (lambda: nn.Linear(5, 7, bias=False), [(2, 3, 5)]),
    "linear-one-input": (lambda: nn.Linear(5, 7), [(5,)]),
    "attention": (lambda: nn.MultiheadAttention(4, 2), [(3, 2, 4)] * 3),
    "attention-no-bias": (lambda: nn.MultiheadAttention(4, 2, bias=False, batch_first=True), [(2, 3, 4)] * 3),
    "attention-sizes": (
        lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=5, add_bias_kv=True, batch_first=True),
        [(2, 3, 4), (2, 5, 3), (2, 5, 5)],
    ),
    "embedding": (lambda: nn.Embedding(6, 4), [(2, 3)]),
    "embedding-padding": (lambda: nn.Embedding(4, 6, padding_idx=1), [(2, 3)]),
}


class Case(NamedTuple):
    """A layer, inputs for it, and how it is adapted; in double precision."""

    build: Callable[[], nn.Module]
    shapes: list[tuple[int, ...]]
    options: dict[str, Any]

    def layer(self) -> nn.Module:
        """In evaluation mode, and away from the simple numbers that norms and biases start at."""
        layer = self.build().double().eval()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(0.3 * torch.rand_like(parameter))
            for name, buffer in layer.named_buffers():
                if name.startswith("running"):
                    buffer.add_(torch.rand_like(buffer))
        return layer

    def inputs(self) -> tuple[Tensor, ...]:
        layer = self.build()
        if isinstance(layer, nn.Embedding):
            return (torch.randint(layer.num_embeddings, self.shapes[0]),)
        return tuple(torch.randn(shape, dtype=torch.float64) for shape in self.shapes)

    def wrapped(self, layer: nn.Module) -> Floral:
        return Floral(layer, 2, C, **self.options)

    def trained(self) -> Floral:
        """With adaptors, router and the client's own statistics away from where they start."""
        layer = self.layer()
        model = self.wrapped(layer)
        with torch.no_grad():
            for parameter in [*model.adaptors.parameters(), model.router_logits]:
                parameter.normal_()
            for statistic in model.statistics.buffers():
                statistic.add_(torch.rand_like(statistic))
            if isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
                model.get_parameter("adaptors.weight.V")[:, layer.padding_idx] = 0  # where training leaves it
        return model


def call(model: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Tensor:
    """The model's outputs; attention returns its weights beside them."""
    outputs = model(*inputs)
    first: Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
    return first


def can_be_split_into_filters(layer: nn.Module) -> bool:
    kernel = layer.get_parameter("weight").shape[2:]
    return len(kernel) == 2 and max(kernel) > 1


TABLE = {f"{name}-affine": Case(*row, {}) for name, row in {**OTHERS, **NORMS}.items()}
TABLE |= {f"{name}-nora": Case(*row, {"norms": "batch_nora"}) for name, row in NORMS.items()}
TABLE |= {
    f"{name}-{kind}": Case(*row, {"convolution": kind})
    for name, row in CONVOLUTIONS.items()
    for kind in get_args(Convolution)
    if kind != "filter" or can_be_split_into_filters(row[0]())
}


@pytest.fixture(params=TABLE.values(), ids=TABLE)
def case(request: pytest.FixtureRequest) -> Case:
    chosen: Case = request.param
    return chosen


def close(actual: Tensor, expected: Tensor) -> None:
    """Equal to the rounding of double precision."""
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)


def test_the_table_has_every_layer_of_the_registry() -> None:
    assert {type(case.build()) for case in TABLE.values()} == set(KINDS)


def test_every_parameter_of_the_table_is_adapted(case: Case) -> None:
    layer = case.build()
    assert plan(layer, Options(rank=2, **case.options)).keys() == dict(layer.named_parameters()).keys()


@pytest.mark.parametrize("init", INITS)
def test_nothing_is_added_at_the_start(case: Case, init: Initialisation) -> None:
    layer, inputs = case.layer(), case.inputs()
    model = Floral(layer, 2, C, init=init, **case.options)
    personal = model.personal_parameters()
    assert all(torch.equal(personal[name], base) for name, base in layer.named_parameters())
    for model.mixing in ROUTES:
        close(call(model, inputs), call(layer, inputs))


def test_every_route_computes_what_the_merged_layer_computes(case: Case) -> None:
    model, inputs = case.trained(), case.inputs()
    expected = call(model.merge(), inputs)
    assert not torch.allclose(expected, call(model.base, inputs))
    cotangent = torch.randn_like(expected)
    gradients = {}
    for model.mixing in ROUTES:
        outputs = call(model, inputs)
        close(outputs, expected)
        gradients[model.mixing] = torch.autograd.grad((outputs * cotangent).sum(), list(model.parameters()))
    for route in ROUTES[1:]:
        for gradient, by_merging in zip(gradients[route], gradients["merged"], strict=True):
            close(gradient, by_merging)


def test_merging_twice_is_merging_once_and_leaves_the_base_as_it_is(case: Case) -> None:
    model = case.trained()
    before = copy.deepcopy(model.state_dict())
    once, twice = model.merge(), model.merge()
    assert type(once) is type(model.base)
    for name, tensor in once.state_dict().items():
        assert torch.equal(tensor, twice.state_dict()[name])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_mixture_is_the_weighted_sum_of_the_single_adaptors(case: Case) -> None:
    model = case.trained()
    mixture = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    mixed = model.personal_parameters(mixture)
    singles = [model.personal_parameters(one_hot) for one_hot in torch.eye(C, dtype=torch.float64)]
    for name in model.plan:
        base = model.base.get_parameter(name)
        # u + sum_c pi_c a_c, with a_c what adaptor c alone adds
        added = [weight * (single[name] - base) for weight, single in zip(mixture, singles, strict=True)]
        assert all(one.any() for one in added)
        close(mixed[name], base + added[0] + added[1] + added[2])


def test_only_adaptors_and_router_move_where_the_base_is_frozen(case: Case) -> None:
    model, inputs = case.trained(), case.inputs()
    model.base.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    outputs = call(model, inputs)
    (outputs * torch.randn_like(outputs)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == {"router_logits", *(f"adaptors.{name}" for name in model.clustered())}


def test_the_gradients_of_what_is_added_agree_with_finite_differences(case: Case) -> None:
    model = case.trained()
    for name, adaptor in model.plan.items():
        factors = [model.get_parameter(f"adaptors.{name}.{factor}") for factor in adaptor.shapes]

        def delta(mixture: Tensor, *factors: Tensor, adaptor: Any = adaptor) -> Tensor:
            added: Tensor = adaptor.delta(dict(zip(adaptor.shapes, factors, strict=True)), mixture)
            return added

        assert torch.autograd.gradcheck(delta, (model.mixture(), *factors), fast_mode=True)


def test_a_saved_model_is_loaded_again(case: Case, tmp_path: Path) -> None:
    model, inputs = case.trained(), case.inputs()
    save(model, tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors", case.layer()).eval()
    assert loaded.plan == model.plan
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in loaded.state_dict().items())
    assert torch.equal(call(loaded, inputs), call(model, inputs))


def test_clients_run_side_by_side_under_vmap(case: Case) -> None:
    model = case.trained()
    clients = [case.inputs() for _ in range(2)]
    logits = torch.randn(2, C, dtype=torch.float64)

    def client(router_logits: Tensor, *inputs: Tensor) -> Tensor:
        return call(lambda *inputs: functional_call(model, {"router_logits": router_logits}, inputs), inputs)

    one_by_one = torch.stack([client(own, *inputs) for own, inputs in zip(logits, clients, strict=True)])
    for model.mixing in ROUTES:
        close(vmap(client)(logits, *map(torch.stack, zip(*clients, strict=True))), one_by_one)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "name",
    [
        "linear-affine",
        "attention-sizes-affine",
        "embedding-affine",
        "layer-affine",
        "batch-1d-affine",
        "1d-geometry-channel_out",
        "2d-geometry-balanced",
        "2d-valid-filter",
        "3d-transposed-channel_in",
    ],
)
def test_the_gradients_of_a_model_agree_with_finite_differences(name: str, route: Any) -> None:
    model, inputs = TABLE[name].trained(), TABLE[name].inputs()
    model.mixing = route
    names, parameters = zip(*model.named_parameters(), strict=True)

    def outputs(*parameters: Tensor) -> Tensor:
        own = dict(zip(names, parameters, strict=True))
        return call(lambda *inputs: functional_call(model, own, inputs), inputs)

    assert torch.autograd.gradcheck(outputs, parameters, fast_mode=True)


def test_one_tensor_per_shape_with_a_leading_axis_of_clusters(case: Case) -> None:
    for adaptor in plan(case.layer(), Options(rank=2, **case.options)).values():
        fresh = adaptor.initialise(C, torch.Generator())
        assert {name: tuple(tensor.shape) for name, tensor in fresh.items()} == {
            name: (C, *shape) for name, shape in adaptor.shapes.items()
        }
        assert adaptor.num_parameters == sum(tensor[0].numel() for tensor in fresh.values())


def test_of_all_words_only_the_paddings_coefficients_start_at_zero() -> None:
    model = Floral(nn.Embedding(4, 6, padding_idx=1), rank=2, num_clusters=3, init="authors")
    assert model.clustered()["weight.V"].all(dim=-1).tolist() == [[True, False, True, True]] * 3
