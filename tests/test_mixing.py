"""Mixing: which route is taken, and that no use of an adapted parameter escapes it."""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from floral_lite import Floral, InputError
from floral_lite.adaptors import Options, plan
from floral_lite.factored import FACTORED, AdaptedParameter

ROUTES = ("merged", "factored", "auto")


def trained(base: nn.Module, rank: int = 2, num_clusters: int = 3, **options: Any) -> Floral:
    """In double precision, with adaptors and router away from where they start."""
    model = Floral(base.double(), rank, num_clusters, **options)
    with torch.no_grad():
        for parameter in [*model.adaptors.parameters(), model.router_logits]:
            parameter.normal_()
    return model


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


class Calls(TorchFunctionMode):
    """Counts the calls of torch functions that a model ends up making."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Any] = []

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.made.append(function)
        return function(*args, **(kwargs or {}))


def calls(model: Floral, inputs: Tensor, function: Callable[..., Any]) -> int:
    with Calls() as counted:
        model(inputs)
    return counted.made.count(function)


# ---------------------------------------------------------------------------------------------
# The choice.


@pytest.mark.parametrize(
    ("batch", "factored"),
    # B (m + n) < m n: 64 * 32 / 96 = 21.3, whatever C and r are
    [((1,), True), ((21,), True), ((22,), False), ((3, 7), True), ((2, 11), False), ((), True)],
)
@pytest.mark.parametrize(("rank", "num_clusters"), [(1, 2), (5, 4)])
def test_a_linear_layer_runs_factors_for_small_batches(
    batch: tuple[int, ...], factored: bool, rank: int, num_clusters: int
) -> None:
    model = trained(nn.Linear(64, 32), rank, num_clusters)
    inputs = random(*batch, 64)
    # beside the layer there are two more: V, then U
    assert calls(model, inputs, functional.linear) == (3 if factored else 1)
    automatic = model(inputs)
    for model.mixing in ("merged", "factored"):
        close(model(inputs), automatic)
    model.mixing = "factored" if factored else "merged"
    assert torch.equal(model(inputs), automatic)


@pytest.mark.parametrize(
    ("build", "shape", "function", "factored"),
    [
        # words times features < vocabulary times features
        (lambda: nn.Embedding(10, 4), (9,), functional.embedding, True),
        (lambda: nn.Embedding(10, 4), (10,), functional.embedding, False),
        # 4 positions of 16 * 3 + 16 * 3 against 16 * 16 * 9 = 24 * 96
        (lambda: nn.Conv2d(16, 16, 3, padding=1), (1, 16, 2, 2), torch.conv2d, True),
        (lambda: nn.Conv2d(16, 16, 3, padding=1), (1, 16, 5, 5), torch.conv2d, False),
        (lambda: nn.ConvTranspose1d(16, 16, 3), (1, 16, 4), torch.conv_transpose1d, True),
        (lambda: nn.ConvTranspose1d(16, 16, 3), (4, 16, 4), torch.conv_transpose1d, False),
    ],
)
def test_other_layers_run_factors_for_few_positions(
    build: Callable[[], nn.Module], shape: tuple[int, ...], function: Callable[..., Any], factored: bool
) -> None:
    model = trained(build())
    inputs = torch.zeros(shape, dtype=torch.long) if function is functional.embedding else random(*shape)
    # an embedding looks up twice, and then multiplies by U
    more = 2 if function is functional.embedding else 3
    assert calls(model, inputs, function) == (more if factored else 1)
    for model.mixing in ("merged", "factored"):
        assert calls(model, inputs, function) == (1 if model.mixing == "merged" else more)


CONVOLUTIONS: list[
    tuple[Callable[..., nn.Module], Callable[..., Tensor], tuple[int, ...], dict[str, Any]]
] = [
    (nn.Conv1d, torch.conv1d, (6,), {"kernel_size": 3, "padding": 1}),
    (nn.Conv2d, torch.conv2d, (6, 6), {"kernel_size": (3, 1), "padding": (1, 0)}),
    (nn.Conv2d, torch.conv2d, (6, 8), {"kernel_size": (3, 2), "stride": (3, 2)}),
    (
        nn.Conv2d,
        torch.conv2d,
        (6, 8),
        {"kernel_size": (2, 3), "stride": (2, 1), "padding": (0, 1), "groups": 2},
    ),
    (nn.Conv2d, torch.conv2d, (4, 4), {"kernel_size": 3, "padding": "same", "groups": 4}),
    (nn.Conv3d, torch.conv3d, (4, 4, 6), {"kernel_size": (1, 2, 3), "stride": (1, 2, 3)}),
    (nn.ConvTranspose1d, torch.conv_transpose1d, (5,), {"kernel_size": 3, "padding": 1}),
    (
        nn.ConvTranspose2d,
        torch.conv_transpose2d,
        (4, 5),
        {"kernel_size": (3, 2), "stride": (3, 2), "groups": 2},
    ),
    (nn.ConvTranspose3d, torch.conv_transpose3d, (2, 3, 2), {"kernel_size": (1, 2, 3), "stride": (1, 2, 3)}),
]


@pytest.mark.parametrize("kind", ["balanced", "channel_in", "channel_out"])
@pytest.mark.parametrize(("layer_type", "function", "size", "settings"), CONVOLUTIONS)
def test_the_cost_of_a_convolutions_factors_is_what_torch_counts(
    layer_type: type[nn.Module],
    function: Callable[..., Tensor],
    size: tuple[int, ...],
    settings: dict[str, Any],
    kind: Any,
) -> None:
    layer: Any = layer_type(4, 8, bias=False, **settings)
    weight, inputs = mixture(layer, kind), torch.randn(2, 4, *size)
    geometry = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "groups")}
    cost, run = FACTORED[function][1](weight, inputs, **geometry)
    # a multiply-add is two operations; each of the C R stacked ranks costs the same
    assert 2 * cost * 3 * weight.adaptor.rank == operations(run) - operations(lambda: layer(inputs))


def test_a_convolutions_settings_may_be_one_number_for_all_sides() -> None:
    model = trained(nn.Conv2d(4, 8, 3, stride=(2,), padding=(1,), dilation=(1,)))  # type: ignore[arg-type]
    inputs = random(2, 4, 6, 6)
    model.mixing = "merged"
    merged = model(inputs)
    model.mixing = "factored"
    close(model(inputs), merged)


@pytest.mark.parametrize("shape", [(5, 6), (2, 3, 6), (6,)])
def test_the_cost_of_a_linear_layers_factors_is_what_torch_counts(shape: tuple[int, ...]) -> None:
    layer, inputs = nn.Linear(6, 4), torch.randn(shape)
    weight = mixture(layer)
    cost, run = FACTORED[functional.linear][1](weight, inputs)
    assert 2 * cost * 3 * weight.adaptor.rank == operations(run) - operations(lambda: layer(inputs))


def test_the_cost_of_an_embeddings_factors_is_what_torch_counts() -> None:
    layer, words = nn.Embedding(6, 4), torch.tensor([[1, 2, 3], [3, 4, 5]])
    weight = mixture(layer)
    cost, run = FACTORED[functional.embedding][1](weight, words)
    assert 2 * cost * 3 * weight.adaptor.rank == operations(run)  # looking up costs nothing


@pytest.mark.parametrize(
    "layer", [nn.Linear(6, 4), nn.Conv2d(4, 8, (3, 2), groups=2), nn.Embedding(6, 4)], ids=str
)
def test_the_cost_of_merging_is_what_torch_counts(layer: nn.Module) -> None:
    weight = mixture(layer)
    # pi_c U_c V_c^T: as many multiply-adds as the weight has numbers, for each of the C R ranks
    assert operations(weight.delta) == 2 * 3 * weight.adaptor.rank * prod(weight.adaptor.shape)


def mixture(layer: nn.Module, kind: Any = "balanced") -> Any:
    """Three adaptors of rank 2 of a layer's weight."""
    adaptor = plan(layer, Options(rank=2, convolution=kind))["weight"]
    factors = adaptor.initialise(3, torch.Generator())
    return AdaptedParameter(layer.get_parameter("weight"), adaptor, factors, torch.full((3,), 1 / 3))


def operations(run: Callable[[], Tensor]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    total: int = counter.get_total_flops()
    return total


# ---------------------------------------------------------------------------------------------
# Every use of an adapted parameter.


class Uses(nn.Module):
    """Layers whose weights are used by `use(module, inputs)` instead of by a call of the layer."""

    def __init__(self, use: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.use = use
        self.layer = nn.Linear(4, 4)
        self.words = nn.Embedding(4, 4)
        self.convolution = nn.Conv2d(4, 4, 3)
        self.norm = nn.LayerNorm(4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.use(self, inputs)


USES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "matmul": lambda module, inputs: inputs @ module.layer.weight.T,
    "attribute": lambda module, inputs: inputs @ module.layer.weight.mT,
    "method": lambda module, inputs: module.layer.weight.mul(2).sum() + inputs,
    "operator": lambda module, inputs: inputs - 2 * module.layer.weight,
    "index": lambda module, inputs: inputs * module.layer.weight[0],
    "list": lambda module, inputs: torch.cat([inputs, module.layer.weight, module.norm.weight[None]]),
    "tuple": lambda module, inputs: torch.stack((module.norm.weight, module.layer.bias)) @ inputs,
    "keyword": lambda module, inputs: functional.linear(inputs, weight=module.layer.weight),
    "bias-keyword": lambda module, inputs: functional.linear(
        inputs, module.layer.weight, bias=module.layer.bias
    ),
    "bias-of-another": lambda module, inputs: functional.linear(
        inputs, module.layer.weight, module.norm.bias
    ),
    "einsum": lambda module, inputs: torch.einsum("bi,oi->bo", inputs, module.layer.weight),
    "inputs": lambda module, inputs: module.layer(module.words.weight) @ inputs,
    "vector-as-weight": lambda module, inputs: functional.linear(inputs, module.norm.weight),
    # a weight read the other way round, as in tied models; of a square one nothing shows in the shapes
    "tied-to-embedding": lambda module, inputs: functional.linear(inputs, module.words.weight),
    "tied-to-linear": lambda module, inputs: functional.embedding(torch.tensor([0, 3]), module.layer.weight),
    "tied-to-convolution": lambda module, inputs: functional.conv_transpose2d(
        inputs.expand(4, 4, 4), module.convolution.weight
    ),
    "twice": lambda module, inputs: module.layer(module.layer(inputs)),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_any_use_of_a_weight_gets_the_mixture(use: Callable[[Any, Tensor], Tensor]) -> None:
    model = trained(Uses(use))
    inputs = random(4, 4)
    expected = model.merge()(inputs)
    assert not torch.allclose(expected, model.base(inputs))
    for model.mixing in ROUTES:
        close(model(inputs), expected)


@pytest.mark.parametrize("padding", [1, -3])
def test_the_padding_of_a_tied_embedding_has_the_same_gradients_on_every_route(padding: int) -> None:
    def use(module: Any, inputs: Tensor) -> Tensor:
        found = functional.embedding(torch.tensor([[0, 1], [1, 3]]), module.words.weight, padding)
        return functional.linear(found.sum(dim=1), module.words.weight)

    model = trained(Uses(use))
    words = [tensor for name, tensor in model.named_parameters() if "words" in name or "router" in name]
    inputs = random(4, 4)
    outputs = torch.func.functional_call(model.base, model.personal_parameters(), (inputs,))
    expected = torch.autograd.grad(outputs.square().sum(), words)
    for model.mixing in ROUTES:
        for actual, wanted in zip(
            torch.autograd.grad(model(inputs).square().sum(), words), expected, strict=True
        ):
            close(actual, wanted)


def beside_torch_functions(module: Any, inputs: Tensor) -> Tensor:
    """Stands for an extension in C++, which Python's dispatch does not see."""
    with torch._C.DisableTorchFunction():
        return inputs @ module.layer.weight


def test_a_use_that_cannot_be_seen_gives_no_number_rather_than_the_base() -> None:
    assert trained(Uses(beside_torch_functions))(random(4, 4)).isnan().all()


def test_the_base_is_whole_again_after_a_pass() -> None:
    layer = nn.Linear(4, 4)
    model = trained(nn.Sequential(layer, nn.Tanh(), layer))  # one layer by two names
    own = dict(model.base.named_parameters())
    before = {name: parameter.detach().clone() for name, parameter in own.items()}
    inputs = random(2, 4)
    expected = model.merge()(inputs)
    for model.mixing in ROUTES:
        close(model(inputs), expected)
    assert all(model.base.get_parameter(name) is parameter for name, parameter in own.items())
    assert all(torch.equal(own[name], tensor) for name, tensor in before.items())


def test_a_failed_pass_leaves_the_base_whole() -> None:
    model = trained(nn.Linear(4, 4))
    own = dict(model.base.named_parameters())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(random(2, 5))
    assert all(model.base.get_parameter(name) is parameter for name, parameter in own.items())


# ---------------------------------------------------------------------------------------------
# Modules that do more than call their layers.


@pytest.fixture(params=["training", "evaluation", "without-gradients"])
def way(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether to train; attention takes its fast path in evaluation without gradients."""
    with torch.set_grad_enabled(request.param != "without-gradients"):
        yield request.param == "training"


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


class Attention(nn.Module):
    """Self-attention; `arguments` go to its call."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self.attention, self.arguments = nn.MultiheadAttention(8, 2, batch_first=True), arguments

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.attention(tokens, tokens, tokens, **self.arguments)[0]
        return outputs


@pytest.mark.parametrize(
    "build",
    [
        Attention,
        lambda: Attention(need_weights=False),
        transformer,
        lambda: nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, norm_first=True, activation="gelu"),
    ],
    ids=["attention", "attention-without-weights", "encoder", "encoder-layer"],
)
def test_attention_computes_what_its_merged_model_does(build: Callable[[], nn.Module], way: bool) -> None:
    model = trained(build()).train(way)
    tokens = random(2, 3, 8)
    expected = model.merge()(tokens)
    assert not torch.allclose(expected, model.base(tokens))
    for model.mixing in ROUTES:
        close(model(tokens), expected)


def test_a_floral_inside_a_module_is_a_layer_like_any_other() -> None:
    inner = trained(nn.Linear(4, 4))
    inputs = random(2, 4)
    alone = inner(inputs)
    close(nn.Sequential(inner, nn.Tanh())(inputs), alone.tanh())


def test_a_floral_inside_a_floral_adds_both() -> None:
    inner = trained(nn.Linear(4, 3))
    outer = trained(nn.Sequential(inner, nn.Linear(3, 2)))
    assert outer.plan.keys() == {"0.base.weight", "0.base.bias", "1.weight", "1.bias"}
    inputs = random(2, 4)
    # u + sum_c pi_c a_c inside, plus the same outside
    personal = outer.personal_parameters()
    delta = {
        name: inner.personal_parameters()[name] - inner.base.get_parameter(name)
        for name in ("weight", "bias")
    }
    hidden = functional.linear(
        inputs, personal["0.base.weight"] + delta["weight"], personal["0.base.bias"] + delta["bias"]
    )
    expected = functional.linear(hidden, personal["1.weight"], personal["1.bias"])
    for inner.mixing in ROUTES:
        for outer.mixing in ROUTES:
            close(outer(inputs), expected)
    close(outer.merge()(inputs), expected)


class Target(nn.Module):
    """Uses its layer for a target without gradients first, and then to be trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            target = self.layer(inputs)
        outputs: Tensor = self.layer(inputs) - target - 1
        return outputs


def test_a_first_use_without_gradients_takes_none_from_the_next() -> None:
    model = trained(Target())
    for model.mixing in ("merged", "factored", "auto"):
        model.zero_grad()
        model(random(64, 8)).square().sum().backward()  # type: ignore[no-untyped-call]
        for name, parameter in [*model.base.named_parameters(), *model.adaptors.named_parameters()]:
            assert parameter.grad is not None, name
            assert parameter.grad.any(), name


def test_an_unknown_way_of_mixing_is_refused() -> None:
    model = trained(nn.Linear(3, 2))
    model.mixing = "mergd"  # type: ignore[assignment]
    with pytest.raises(InputError, match="mixing is 'mergd'; it must be 'auto', 'merged' or 'factored'"):
        model(random(1, 3))
