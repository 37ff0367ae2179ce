"""The registry: what of a model is adapted, and what is refused."""

from collections.abc import Callable, Mapping
from typing import Any, cast, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from floral_lite import Floral, InputError, methods, personal_floral, personal_model, tasks, train
from floral_lite.adaptors import (
    KINDS,
    Options,
    initialise,
    personalise,
    plan,
)
from floral_lite.federation import Engine

# ---------------------------------------------------------------------------------------------
# The plan: what is adapted.


class Block(nn.Module):
    """A module with adaptable layers below it, and a parameter that no adaptor fits."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
        self.head = nn.Linear(4, 2, bias=False)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.inner(inputs)) * self.scale
        return outputs


class MyLinear(nn.Linear):
    """A linear layer by another name."""


WEIGHTS, BIASES = ["inner.0.weight", "head.weight"], ["inner.0.bias"]
NORM = ["inner.1.weight", "inner.1.bias"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, {*WEIGHTS, *BIASES, *NORM}),
        ({"biases": False}, {*WEIGHTS, *NORM}),  # a norm's beta goes with the norm
        ({"norms": "none"}, {*WEIGHTS, *BIASES}),
        ({"biases": False, "norms": "none"}, {*WEIGHTS}),
    ],
)
def test_the_plan_names_the_parameters_that_are_adapted(options: dict[str, Any], names: set[str]) -> None:
    assert plan(Block(), Options(rank=1, **options)).keys() == names


@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        (MyLinear(3, 2), {"weight": "linear", "bias": "bias"}),
        (nn.Conv2d(3, 2, 3), {"weight": "balanced", "bias": "bias"}),
        (nn.LayerNorm(3), {"weight": "norm", "bias": "norm"}),
        (nn.RMSNorm(3), {"weight": "norm"}),
        (nn.BatchNorm1d(3), {"weight": "batch_nora", "bias": "batch_nora"}),
        (nn.Embedding(3, 2), {"weight": "embedding"}),
    ],
    ids=str,
)
def test_each_adaptor_has_a_kind(model: nn.Module, kinds: dict[str, str]) -> None:
    adaptors = plan(model, Options(rank=1, norms="batch_nora"))
    assert {name: adaptor.kind for name, adaptor in adaptors.items()} == kinds
    assert {name: adaptor.shape for name, adaptor in adaptors.items()} == {
        name: tuple(parameter.shape) for name, parameter in model.named_parameters()
    }


def test_frozen_parameters_get_no_adaptor() -> None:
    model = Block()
    model.inner.requires_grad_(False)
    assert list(plan(model, Options(rank=1))) == ["head.weight"]


def test_a_layer_used_twice_gets_one_adaptor() -> None:
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    assert list(plan(model, Options(rank=1))) == ["0.weight", "0.bias"]
    wrapped = Floral(model.double(), rank=2)
    with torch.no_grad():
        for parameter in [*wrapped.adaptors.parameters(), wrapped.router_logits]:
            parameter.normal_()
    inputs = torch.randn(2, 3, dtype=torch.float64)
    for wrapped.mixing in ("merged", "factored", "auto"):
        torch.testing.assert_close(wrapped(inputs), wrapped.merge()(inputs))


def test_personalise_adds_to_adapted_parameters_and_keeps_the_others() -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.PReLU())
    base = dict(model.named_parameters())
    clustered = {
        "0.weight.U": torch.tensor([[[1.0]], [[2.0]]]),
        "0.weight.V": torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]]),
        "0.bias.L": torch.tensor([[4.0], [8.0]]),
    }
    personal = personalise(plan(model, Options(rank=1)), base, clustered, torch.tensor([0.5, 0.5]))
    # 0.5 * 1 * (1, 2) + 0.5 * 2 * (3, 4) = (3.5, 5)
    torch.testing.assert_close(personal["0.weight"], base["0.weight"] + torch.tensor([[3.5, 5.0]]))
    torch.testing.assert_close(personal["0.bias"], base["0.bias"] + 6.0)
    assert personal["1.weight"] is base["1.weight"]
    assert list(personal) == list(base)


# ---------------------------------------------------------------------------------------------
# What is refused.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "rank is None and budget is None.*exactly one"),
        ({"rank": 8, "budget": 0.1}, "rank is 8 and budget is 0.1.*exactly one"),
        ({"rank": 0}, "rank is 0.*at least 1"),
        ({"rank": -2}, "rank is -2"),
        ({"budget": 0.0}, r"budget is 0\.0.*\(0, 1\]"),
        ({"budget": 1.5}, r"budget is 1\.5.*\(0, 1\]"),
        ({"budget": -0.1}, r"budget is -0\.1"),
        ({"budget": float("nan")}, "budget is nan"),
        ({"budget": "0.1"}, "budget is '0.1'; it must be a number"),
        ({"rank": 1, "biases": "no"}, "biases is 'no'; it is True or False"),
        ({"rank": 1, "init": "zeros"}, "init is 'zeros'; it must be 'paper' or 'authors'"),
        ({"rank": 1, "convolution": "2d"}, "convolution is '2d'.*'balanced', 'channel'"),
        ({"rank": 1, "norms": "all"}, "norms is 'all'.*'affine', 'batch_nora' or 'none'"),
    ],
)
def test_options_out_of_range_are_refused(arguments: Mapping[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Options(**arguments)


def test_adaptors_are_the_papers_unless_told() -> None:
    assert Options(rank=1) == Options(1, None, "paper", "balanced", True, "affine")
    assert Floral(nn.Linear(3, 2), rank=1).options == Options(rank=1)


@pytest.mark.parametrize("num_clusters", [0, -1])
def test_fewer_than_one_cluster_is_refused(num_clusters: int) -> None:
    with pytest.raises(InputError, match=f"num_clusters is {num_clusters}.*at least 1"):
        initialise(plan(nn.Linear(3, 2), Options(rank=1)), num_clusters, torch.Generator())


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (nn.ReLU(), {}),
        (nn.PReLU(), {}),
        (nn.LayerNorm(3), {"norms": "none"}),
        (nn.LayerNorm(3, elementwise_affine=False), {}),
    ],
    ids=["nothing", "no-kind", "left-out", "no-parameters"],
)
def test_a_model_with_nothing_to_adapt_is_refused(model: nn.Module, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{type(model).__name__} has nothing to adapt.*Linear"):
        plan(model, Options(rank=1, **options))


def test_what_is_no_model_is_refused() -> None:
    task = tasks.load("digits-rotate", num_clients=4)
    with pytest.raises(InputError, match=r"model is Task\(.*; give an nn\.Module, .* a task's \.model"):
        methods.FLoRAL(cast(Any, task), budget=0.1)


def test_a_frozen_model_is_adapted_as_if_it_were_not() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    assert plan(model.requires_grad_(False), Options(rank=1)) == plan(model.requires_grad_(), Options(rank=1))


FILTER, NORA = {"convolution": "filter"}, {"norms": "batch_nora"}
COMPUTED = "computed from other parameters.*remove the parametrisation"


@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        pytest.param(
            lambda: nn.Conv2d(3, 2, 1), FILTER, r"'filter'.*\(1, 1\).*larger than 1 x 1.*balanced", id="1x1"
        ),
        pytest.param(lambda: nn.Conv1d(3, 2, 3), FILTER, r"'filter'.*\(3,\).*two-dimensional", id="1d"),
        pytest.param(lambda: nn.Conv3d(3, 2, 3), FILTER, r"'filter'.*\(3, 3, 3\).*two-dimensional", id="3d"),
        pytest.param(
            lambda: nn.Embedding(3, 2, max_norm=1.0), {}, r"max_norm=1\.0.*in place.*max_norm=None", id="max"
        ),
        pytest.param(
            lambda: nn.Embedding(3, 2, sparse=True), {}, "sparse gradients.*sparse=False", id="sparse"
        ),
        pytest.param(
            lambda: nn.Embedding(3, 2, scale_grad_by_freq=True),
            {},
            "how often a word occurs.*scale_grad_by_freq=False",
            id="scaled-gradients",
        ),
        pytest.param(
            lambda: nn.BatchNorm1d(3, track_running_stats=False),
            NORA,
            "track_running_stats=False.*norms='affine'",
            id="no-statistics",
        ),
        pytest.param(lambda: nn.LazyLinear(3), {}, "lazy.*one batch", id="lazy"),
        pytest.param(lambda: parametrizations.weight_norm(nn.Linear(3, 2)), {}, COMPUTED, id="weight-norm"),
        pytest.param(
            lambda: parametrizations.spectral_norm(nn.Linear(3, 2)), {}, COMPUTED, id="spectral-norm"
        ),
        pytest.param(lambda: nn.utils.weight_norm(nn.Conv1d(3, 2, 3)), {}, COMPUTED, id="older-weight-norm"),
        pytest.param(lambda: nn.utils.spectral_norm(nn.Linear(3, 2)), {}, COMPUTED, id="older-spectral-norm"),
    ],
)
def test_a_layer_that_cannot_be_adapted_is_refused(
    build: Callable[[], nn.Module], options: dict[str, Any], message: str
) -> None:
    layer = build()
    with pytest.raises(InputError, match=rf"^0\.weight .*{message}"):
        plan(nn.Sequential(layer), Options(rank=1, **options))


@pytest.mark.filterwarnings("ignore")  # torch announces where its quantisation moves
def test_a_quantised_layer_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(InputError, match=r"Linear is quantised.*before"):
        plan(quantised, Options(rank=1))


def test_a_weight_of_whole_numbers_is_refused() -> None:
    layer = nn.Linear(3, 2, bias=False)
    layer.weight = nn.Parameter(torch.ones(2, 3, dtype=torch.int8), requires_grad=False)
    with pytest.raises(InputError, match=r"weight has type torch\.int8.*floating-point"):
        plan(layer, Options(rank=1))


def test_a_weight_shared_between_layers_is_refused_unless_frozen() -> None:
    model = nn.ModuleDict({"words": nn.Embedding(4, 3), "head": nn.Linear(3, 4)})
    model.get_submodule("head").weight = model.get_submodule("words").weight
    with pytest.raises(InputError, match=r"words\.weight and head\.weight are one parameter.*requires_grad_"):
        plan(model, Options(rank=1))
    model.get_parameter("words.weight").requires_grad_(False)
    assert list(plan(model, Options(rank=1))) == ["head.bias"]
    assert list(plan(model.requires_grad_(False), Options(rank=1))) == ["head.bias"]


def test_a_shared_parameter_is_refused_only_where_it_would_be_adapted() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.bias = first.bias
    assert set(Floral(nn.Sequential(first, second), rank=1, biases=False).plan) == {"0.weight", "1.weight"}
    with pytest.raises(InputError, match=r"0\.bias and 1\.bias are one parameter"):
        Floral(nn.Sequential(first, second), rank=1)


def test_a_layer_may_share_a_parameter_with_itself() -> None:
    layer = nn.LayerNorm(3)
    layer.bias = layer.weight
    with pytest.raises(InputError, match=r"^weight and bias are one parameter"):
        plan(layer, Options(rank=1))


def test_an_empty_weight_has_no_adaptor() -> None:
    with pytest.warns(UserWarning, match="zero-element"):
        base = nn.Sequential(nn.Linear(3, 0), nn.Linear(0, 2))
    model = Floral(base, rank=1)
    assert list(model.plan) == ["1.bias"]
    assert torch.equal(model(torch.ones(1, 3)), model.base(torch.ones(1, 3)))


def test_an_entry_for_a_buffer_is_refused_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(3))

    monkeypatch.setitem(KINDS, Fixed, {"scale": lambda *_: None})
    with pytest.raises(InputError, match=r"0\.scale is a buffer, or .*: give a parameter, or remove"):
        Floral(nn.Sequential(Fixed()), rank=1)


# ---------------------------------------------------------------------------------------------
# Adaptors of a user's own: what they do otherwise than they say is told.


class Scaled:
    """One row for all rows of the weight. It is no dataclass: two of them are not equal."""

    kind = "scaled"
    num_parameters = 3

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"s": (), "v": self.shape[1:]}

    def initialise(self, num_clusters: int, generator: torch.Generator) -> dict[str, Tensor]:
        drawn = torch.randn(num_clusters, *self.shapes["v"], generator=generator)
        return {"s": torch.zeros(num_clusters), "v": drawn}

    def delta(self, factors: Mapping[str, Tensor], mixture: Tensor) -> Tensor:
        row = torch.einsum("...c,...c,...ci->...i", mixture, factors["s"], factors["v"])
        return row[..., None, :].expand(*row.shape[:-1], *self.shape)


OTHERWISE: dict[str, tuple[dict[str, Any], str]] = {
    "arguments": (
        {"delta": lambda self, factors: 0},
        r"delta takes \(factors\); write it as delta\(self, fac",
    ),
    "no property": ({"shapes": Scaled.shapes.fget}, r"Other\.shapes is <bound .*write @property above it"),
    "no axis": (
        {"initialise": lambda self, num_clusters, generator: {"s": torch.zeros(()), "v": torch.zeros(3)}},
        r"for weight and two clusters, makes {'s': \(\), 'v': \(3,\)}; its shapes ask for {'s': \(2,\)",
    ),
    "draws": (
        {"initialise": lambda self, num_clusters, generator: {"s": torch.zeros(2), "v": torch.randn(2, 3)}},
        r"draws other numbers each time: take .*generator=generator",
    ),
    "nothing": ({"delta": lambda self, factors, mixture: None}, r"gives None; its shape is \(4, 3\)"),
    "a row": (
        {"delta": lambda self, factors, mixture: factors["v"][0]},
        r"gives \(3,\); its shape is \(4, 3\)",
    ),
    "a class": (
        {"shape": None, "__init__": lambda self, shape: None},
        r"the shape None, and weight has \(4, 3\)",
    ),
}


@pytest.mark.parametrize(("changes", "message"), OTHERWISE.values(), ids=OTHERWISE)
def test_an_adaptor_that_does_otherwise_than_it_says_is_told(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other: type[Scaled] = type("Other", (Scaled,), changes)
    monkeypatch.setitem(KINDS, MyLinear, {"weight": lambda layer, name, options: other((4, 3))})
    with pytest.raises(InputError, match=message):
        plan(MyLinear(3, 4), Options(rank=1))


def test_a_parameter_that_a_layer_does_not_have_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"wieght": lambda *_: Scaled((4, 3))}
    monkeypatch.setitem(KINDS, MyLinear, entry)
    with pytest.raises(InputError, match=r"'wieght' of MyLinear, whose parameters are weight, bias: mend"):
        plan(nn.Sequential(MyLinear(3, 4), nn.Linear(4, 2)), Options(rank=1))

    class Bare(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 4)
            del self.bias

        def extra_repr(self) -> str:
            return ""  # nn.Linear's looks for the bias

    assert list(plan(Bare(), Options(rank=1))) == ["weight"]  # its base's entry has a bias, too


def test_an_adaptor_that_is_no_dataclass_is_trained_and_comes_with_a_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(
        KINDS, MyLinear, {"weight": lambda layer, name, options: Scaled(tuple(layer.weight.shape))}
    )
    data = {name: (torch.rand(6, 3), torch.arange(6) % 4) for name in "ab"}
    task = tasks.from_clients(data, model=nn.Sequential(MyLinear(3, 4)))
    method = methods.FLoRAL(task.model, 2, rank=1)
    fast, loop = (train(task, method, rounds=2, engine=engine) for engine in get_args(Engine))
    torch.testing.assert_close(fast.state.clustered, loop.state.clustered, rtol=1e-4, atol=1e-5)
    assert fast.state.clustered["0.weight.s"].any()
    apart, whole = (get(task, method, fast, 1) for get in (personal_floral, personal_model))
    torch.testing.assert_close(apart(data["b"][0]), whole(data["b"][0]))
