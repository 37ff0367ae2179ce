"""Floral on ordinary modules: plug and play, training, saving, merging."""

import copy
import io
import pickle
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from floral_lite import Floral, InputError, Router, load, save


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


class Normed(nn.Module):
    """What behaves differently in training: batch norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5)
        )
        self.head = nn.Linear(64, 3)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.layers(images))
        return outputs


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
        pytest.param(
            lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), TOKENS, id="transformer"
        ),
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


def test_a_layer_under_two_names_has_one_adaptor() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8)
            self.second = self.first

        def forward(self, tokens: Tensor) -> Tensor:
            outputs: Tensor = self.second(torch.relu(self.first(tokens)))
            return outputs

    base = Twice()
    own, before = base.first.weight, base.first.weight.detach().clone()
    model = perturb(Floral(base, rank=2, num_clusters=3))
    assert model.plan.keys() == {"first.weight", "first.bias"}
    outputs = model(TOKENS)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(model, backend="eager")(TOKENS), outputs)
    assert base.first.weight is base.second.weight is own
    assert torch.equal(own, before)
    torch.testing.assert_close(model.merge()(TOKENS), outputs)


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


def test_every_parameter_of_an_ordinary_model_has_an_adaptor() -> None:
    base = Net()
    model = Floral(base, rank=2, num_clusters=3)
    factors = {name.rpartition(".")[0] for name, _ in model.adaptors.named_parameters()}
    assert factors == set(model.plan) == {name for name, _ in base.named_parameters()}
    with torch.no_grad():
        model.get_parameter("adaptors.features.0.bias.L").copy_(
            torch.tensor([[3.0] * 3, [6.0] * 3, [9.0] * 3])
        )
    # 1/3 (3 + 6 + 9)
    personal = model.personal_parameters()["features.0.bias"]
    torch.testing.assert_close(personal, base.get_parameter("features.0.bias") + 6.0)


@pytest.mark.parametrize(
    ("options", "left_out"),
    [
        ({"biases": False}, {"features.0.bias", "hidden.0.bias", "hidden.1.bias", "head.bias"}),
        ({"norms": "none"}, {"features.1.weight", "features.1.bias"}),
    ],
)
def test_an_option_leaves_parameters_alone(options: Mapping[str, Any], left_out: set[str]) -> None:
    model = perturb(Floral(Net(), rank=2, num_clusters=3, **options))
    every = set(Floral(Net(), rank=2).plan)
    assert every - set(model.plan) == left_out
    merged = dict(model.merge().named_parameters())
    same = {name for name, tensor in model.base.named_parameters() if torch.equal(tensor, merged[name])}
    assert same == left_out


def test_parameters_are_counted() -> None:
    # conv 1 -> 3, 3 x 3, at rank 2: (3 * 3 + 1 * 3) * 2, bias 3; norm 3 + 3;
    # linear 48 -> 8, 8 -> 8 and 8 -> 4 at rank 2 with their biases
    one = 24 + 3 + 6 + (2 * (48 + 8) + 8) + (2 * (8 + 8) + 8) + (2 * (8 + 4) + 4)
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


def pickled(model: Floral) -> Any:
    return pickle.loads(pickle.dumps(model))


def torch_saved(model: Floral) -> Any:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.filterwarnings("ignore:You are using .torch.load:FutureWarning")  # torch 2.4 says so of itself
@pytest.mark.parametrize("through", [pickled, torch_saved])
def test_pickling_keeps_everything(through: Callable[[Floral], Any]) -> None:
    model = perturb(Floral(Normed(), rank=2, num_clusters=3, norms="batch_nora", router=Router(floor=0.1)))
    twin = through(model.eval())
    assert torch.equal(twin(IMAGES), model(IMAGES))
    assert (twin.plan, twin.options, twin.router) == (model.plan, model.options, model.router)


@pytest.mark.parametrize("precision", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wrapped_first", [True, False])
def test_other_precisions(precision: torch.dtype, wrapped_first: bool) -> None:
    options: dict[str, Any] = {"rank": 2, "norms": "batch_nora"}
    torch.manual_seed(0)
    model = Floral(Normed(), **options) if wrapped_first else Floral(Normed().to(precision), **options)
    model = perturb(model.to(precision)).eval()
    floating = [*model.parameters(), *(buffer for buffer in model.buffers() if buffer.is_floating_point())]
    assert {tensor.dtype for tensor in floating} == {precision}
    outputs = model(IMAGES.to(precision))
    assert outputs.dtype == precision
    exactly = copy.deepcopy(model).double()(IMAGES.to(precision).double())
    # a few operations, each with a relative error of half a unit in the last place
    tolerance = 30 * torch.finfo(precision).eps * float(exactly.detach().abs().max())
    torch.testing.assert_close(outputs.double(), exactly, atol=tolerance, rtol=0)


@pytest.mark.parametrize("mixing", ["merged", "factored"])
def test_layers_of_different_precision(mixing: Any) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.layer = nn.LayerNorm(8), nn.Linear(8, 8).bfloat16()

        def forward(self, tokens: Tensor) -> Tensor:
            outputs: Tensor = self.layer(self.norm(tokens).bfloat16())
            return outputs

    model = perturb(Floral(Mixed(), rank=2, num_clusters=3))
    model.mixing = mixing
    outputs = model(TOKENS)
    assert outputs.dtype == torch.bfloat16
    torch.testing.assert_close(outputs, model.merge()(TOKENS), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("mixing", ["merged", "factored"])
def test_autocast(mixing: Any) -> None:
    model = perturb(Floral(Net(), rank=2, num_clusters=3))
    model.mixing = mixing
    exactly = model(IMAGES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = model(IMAGES)
        loss = outputs.square().mean()
    assert outputs.dtype == torch.bfloat16
    largest = float(exactly.detach().abs().max())
    torch.testing.assert_close(outputs.float(), exactly, atol=0.05 * largest, rtol=0)
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters())


@pytest.mark.parametrize(
    ("build", "inputs", "training", "norms", "backend"),
    [
        pytest.param(Net, IMAGES, True, "affine", "eager", id="nested"),
        pytest.param(Normed, IMAGES, True, "affine", "aot_eager", id="training"),
        pytest.param(Normed, IMAGES, False, "affine", "aot_eager", id="evaluation"),
        # Batch-NorA watches the calls, which is not compiled
        pytest.param(Normed, IMAGES, True, "batch_nora", "aot_eager", id="batch-nora"),
        # in evaluation these layers take a fast path of their own
        pytest.param(Attention, TOKENS, False, "affine", "aot_eager", id="attention"),
        pytest.param(
            lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
            TOKENS,
            False,
            "affine",
            "eager",
            id="transformer",
        ),
    ],
)
def test_torch_compile(build: Build, inputs: Tensor, training: bool, norms: Any, backend: str) -> None:
    # in single precision gradients as large as 2,000 would differ by more than is allowed
    model = perturb(Floral(build(), rank=2, num_clusters=3, norms=norms)).double().train(training)
    inputs = inputs.double()
    twin = copy.deepcopy(model)
    torch.compiler.reset()
    # torch 2.4 takes its compiled graph apart where other parameters are put in
    whole = norms == "affine" and torch.__version__ >= (2, 5)
    compiled = torch.compile(twin, backend=backend, fullgraph=whole)

    def run(function: Callable[[Tensor], Tensor]) -> Tensor:
        torch.manual_seed(1)  # of the dropout
        return function(inputs)

    outputs, by_compiled = run(model), run(compiled)
    torch.testing.assert_close(by_compiled, outputs)
    torch.testing.assert_close(dict(twin.named_buffers()), dict(model.named_buffers()))
    outputs.square().mean().backward()  # type: ignore[no-untyped-call]
    by_compiled.square().mean().backward()  # type: ignore[no-untyped-call]
    for parameter, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(other.grad, parameter.grad, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(run(compiled), run(model), rtol=1e-4, atol=1e-5)


def test_functional_call_takes_other_parameters() -> None:
    model, other = (perturb(Floral(Net(), rank=2, num_clusters=3), seed) for seed in (0, 1))
    wanted = other(IMAGES)
    before = model(IMAGES)
    given = {name: tensor.detach() for name, tensor in other.named_parameters()}
    assert torch.equal(functional_call(model, given, (IMAGES,)), wanted)
    assert torch.equal(model(IMAGES), before)


@pytest.mark.parametrize("mixing", ["auto", "merged", "factored"])
def test_vmap_over_clients(mixing: Any) -> None:
    model = perturb(Floral(Net(), rank=2, num_clusters=3).double())
    model.mixing = mixing
    generator = torch.Generator().manual_seed(1)

    def of_four_clients(tensor: Tensor) -> Tensor:
        return torch.randn(4, *tensor.shape, generator=generator, dtype=torch.float64)

    # every client has a router, adaptors and images of its own
    stacked = {
        name: of_four_clients(parameter)
        for name, parameter in model.named_parameters()
        if not name.startswith("base.")
    }
    images = of_four_clients(IMAGES)

    def loss(parameters: Mapping[str, Tensor], images: Tensor) -> Tensor:
        outputs: Tensor = functional_call(model, dict(parameters), (images,))
        return outputs.square().mean()

    losses, gradients = vmap(loss)(stacked, images), vmap(grad(loss))(stacked, images)
    for k in range(4):
        own = {name: tensor[k] for name, tensor in stacked.items()}
        torch.testing.assert_close(losses[k], loss(own, images[k]))
        for name, gradient in grad(loss)(own, images[k]).items():
            torch.testing.assert_close(gradients[name][k], gradient)


def test_vmap_over_routers_alone() -> None:
    model = perturb(Floral(Net(), rank=2, num_clusters=3).double())
    routers = torch.randn(4, 3, dtype=torch.float64)
    images = IMAGES.double()
    outputs = vmap(lambda logits: functional_call(model, {"router_logits": logits}, (images,)))(routers)
    for k in range(4):
        merged = model.merge(torch.softmax(routers[k], dim=0))
        torch.testing.assert_close(outputs[k], merged(images))


class Operations(TorchDispatchMode):
    """Writes down every operation that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def operations_of(module: nn.Module, *inputs: Tensor) -> list[str]:
    with torch.no_grad(), Operations() as operations:
        module(*inputs)
    return operations.names


@pytest.mark.parametrize("mixing", ["merged", "factored"])
def test_there_is_one_forward_pass_whatever_the_number_of_adaptors(mixing: Any) -> None:
    def count(num_clusters: int) -> list[str]:
        base = Net()
        model = Floral(base, rank=2, num_clusters=num_clusters)
        model.mixing = mixing
        calls: list[str] = []
        for name, layer in base.named_modules():
            layer.register_forward_hook(lambda *_, name=name: calls.append(name))
        names = operations_of(model, IMAGES)
        assert calls.count("") == calls.count("head") == 1
        return names

    assert count(2) == count(16)


def test_merging_adds_no_cost() -> None:
    base = Net()
    merged = perturb(Floral(base, rank=2, num_clusters=3)).merge()
    assert operations_of(merged, IMAGES) == operations_of(base, IMAGES)
    sizes = {name: tensor.shape for name, tensor in base.state_dict().items()}
    assert {name: tensor.shape for name, tensor in merged.state_dict().items()} == sizes
    assert [type(module) for module in merged.modules()] == [type(module) for module in base.modules()]


@pytest.mark.parametrize("norms", ["affine", "batch_nora"])
def test_a_merged_module_keeps_its_buffers(norms: Any) -> None:
    base = Normed()
    model = perturb(Floral(base, rank=2, num_clusters=3, norms=norms))
    model(IMAGES)  # training moves the running statistics
    model.eval()
    merged = model.merge()
    buffers = dict(merged.named_buffers())
    assert float(buffers["layers.1.num_batches_tracked"]) == 1
    for name, buffer in base.named_buffers():
        assert torch.equal(buffers[name], buffer)
        assert buffers[name] is not buffer
    torch.testing.assert_close(merged(IMAGES), model(IMAGES))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norms", ["affine", "batch_nora"])
def test_the_base_follows_the_mode(training: bool, norms: Any) -> None:
    base = Normed()
    alone = copy.deepcopy(base).train(training)
    model = Floral(base, rank=2, num_clusters=3, norms=norms).train(training)
    assert base.training == training

    def run(module: nn.Module) -> Tensor:
        torch.manual_seed(1)  # of the dropout
        outputs: Tensor = module(IMAGES)
        return outputs

    before = copy.deepcopy(base.state_dict())
    torch.testing.assert_close(run(model), run(alone))
    own, wanted = dict(base.named_buffers()), dict(alone.named_buffers())
    torch.testing.assert_close(own, wanted)
    moved = not torch.equal(own["layers.1.running_mean"], before["layers.1.running_mean"])
    assert moved == training
    # the same inputs again: only dropout makes a difference
    assert torch.equal(model(IMAGES), model(IMAGES)) != training


def test_the_routers_options_reach_the_mixture() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0])
    model = Floral(nn.Linear(8, 3), rank=2, num_clusters=3, router=Router(temperature=2.0, floor=0.1))
    with torch.no_grad():
        model.router_logits.copy_(logits)
    # 0.1 + 0.7 softmax(theta / 2)
    weights = (logits / 2).exp()
    wanted = 0.1 + 0.7 * weights / weights.sum()
    torch.testing.assert_close(model.mixture(), wanted)
    perturb(model, seed=1)
    torch.testing.assert_close(model(TOKENS), model.merge()(TOKENS))
    assert float(model.mixture().min().detach()) >= 0.1


def test_the_routers_noise_is_for_training_only() -> None:
    model = perturb(Floral(nn.Linear(8, 3), rank=2, num_clusters=3, router=Router(noise=1.0)))
    assert not torch.equal(model(TOKENS), model(TOKENS))
    model.eval()
    assert torch.equal(model(TOKENS), model(TOKENS))
    torch.testing.assert_close(model(TOKENS), model.merge()(TOKENS))


def test_a_model_that_is_evaluated_is_so_when_it_is_wrapped(tmp_path: Path) -> None:
    model = perturb(Floral(nn.Linear(8, 3).eval(), rank=2, num_clusters=3, router=Router(noise=1.0)))
    save(model, tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors", nn.Linear(8, 3).eval())
    for evaluated in (model, loaded):
        assert torch.equal(evaluated(TOKENS), evaluated.merge()(TOKENS))
    assert Floral(nn.Linear(8, 3), rank=2).training


def test_the_penalty_is_the_routers_entropy() -> None:
    model = Floral(nn.Linear(8, 3), rank=2, num_clusters=3, router=Router(entropy=0.5))
    # -lambda H(uniform) = -0.5 log 3
    torch.testing.assert_close(model.penalty(), torch.tensor(-0.5 * 1.0986123))
    assert float(Floral(nn.Linear(8, 3), rank=2).penalty()) == 0


def test_centering_happens_in_place() -> None:
    # rank 8 is full for all layers, so nothing is cut off
    model = perturb(Floral(Net(), rank=8, num_clusters=3).double())
    images = IMAGES.double()
    names = {name: id(parameter) for name, parameter in model.named_parameters()}
    one_hot = torch.eye(3, dtype=torch.float64)
    before = [model.merge(pi)(images) for pi in one_hot]
    mean = model.merge(torch.full((3,), 1 / 3, dtype=torch.float64)).state_dict()
    lost = model.center()
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == names
    assert lost.keys() == model.plan.keys()
    assert max(lost.values()) < 1e-12
    for pi, outputs in zip(one_hot, before, strict=True):
        torch.testing.assert_close(model.merge(pi)(images), outputs)
    # u <- u + E_c[a_c]
    for name, parameter in model.base.named_parameters():
        torch.testing.assert_close(parameter.detach(), mean[name])


def test_centering_takes_weights() -> None:
    model = perturb(Floral(nn.Linear(8, 3), rank=3, num_clusters=3).double())
    probability = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    wanted = model.merge(probability).state_dict()
    model.center(probability, p=1.0, q=torch.inf)
    torch.testing.assert_close(model.base.state_dict(), wanted)


def test_a_refused_centering_changes_nothing() -> None:
    model = perturb(Floral(Net(), rank=2, num_clusters=3))
    before = copy.deepcopy(model.state_dict())
    for refused in (partial(model.center, p=3.0, q=3.0), partial(model.center, torch.tensor([0.5, 0.5]))):
        with pytest.raises(InputError):
            refused()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    "mixture", [torch.ones(1), torch.ones(3, 1) / 3, torch.tensor(1.0), torch.ones(4) / 4]
)
def test_a_mixture_of_another_size_is_refused(mixture: Tensor) -> None:
    # one weight, or a column, would broadcast to a wrong sum without a complaint
    model = perturb(Floral(nn.Linear(8, 3), rank=2, num_clusters=3))
    with pytest.raises(InputError, match=r"mixture has shape .*each of the 3 adaptors"):
        model.merge(mixture)


def test_a_mixture_may_have_another_precision() -> None:
    model = perturb(Floral(nn.Linear(8, 3), rank=2, num_clusters=3).double())
    mixture = torch.tensor([0.25, 0.25, 0.5])
    torch.testing.assert_close(
        model.merge(mixture)(TOKENS.double()), model.merge(mixture.double())(TOKENS.double())
    )


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
        ({"rank": 2.5}, r"rank is 2\.5; it must be a whole number"),
        ({"rank": 1, "num_clusters": 2.0}, r"num_clusters is 2\.0; it must be a whole number"),
        ({"rank": 1, "init": "zeros"}, "init is 'zeros'; it must be 'paper' or 'authors'"),
        ({"rank": 1, "norms": "affin"}, "norms is 'affin'"),
        ({"rank": 1, "convolution": "channels"}, "convolution is 'channels'"),
        ({"rank": 1, "router": {"floor": 0.1}}, r"router is {.floor.: 0\.1}; give a Router"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: Mapping[str, Any], message: str) -> None:
    base = nn.Linear(3, 2)
    before = copy.deepcopy(base.state_dict())
    with pytest.raises(InputError, match=message):
        Floral(base, **arguments)
    assert list(base.state_dict()) == list(before)
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.state_dict().items())


def test_threads_that_call_one_model_take_turns() -> None:
    model = perturb(Floral(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4)), rank=2)).eval()
    inputs = torch.randn(5, 8)
    before, wanted = [tensor.clone() for tensor in model.parameters()], model(inputs)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(model, [inputs] * 200))
    assert all(torch.equal(outputs, wanted) for outputs in found)
    assert all(map(torch.equal, model.parameters(), before))


@pytest.mark.parametrize("model", ["cnn", None, nn.Linear])
def test_what_is_no_module_is_refused(model: Any) -> None:
    with pytest.raises(InputError, match=r"model is .*; give an nn\.Module"):
        Floral(model, rank=1)


@pytest.mark.parametrize(
    ("base", "options"),
    [(nn.Sequential(nn.ReLU()), {}), (nn.LayerNorm(3), {"norms": "none"})],
)
def test_a_model_with_nothing_to_adapt_is_refused(base: nn.Module, options: Mapping[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{type(base).__name__} has nothing to adapt"):
        Floral(base, rank=1, **options)


@pytest.mark.parametrize("use", [Floral.merge, Floral.personal_parameters, Floral.mixture])
@pytest.mark.parametrize("weights", [[-1, 2], [1, 1], [0.5, 0.4], [float("nan"), 1], [float("inf"), 1]])
def test_a_mixture_off_the_simplex_is_refused(use: Any, weights: list[float]) -> None:
    model = Floral(nn.Linear(3, 2), rank=1, num_clusters=2)
    with pytest.raises(InputError, match=r"mixture has sums .*; entries must be at least 0 and sum to 1"):
        use(model, torch.tensor(weights))


@pytest.mark.parametrize("mixture", ["optimal", [None, 1.0], {"first": 1.0}])
@pytest.mark.parametrize("use", [Floral.merge, Floral.personal_parameters, Floral.mixture])
def test_a_mixture_of_no_numbers_is_refused(use: Any, mixture: Any) -> None:
    with pytest.raises(
        InputError, match=r"mixture is .*; give a tensor, a NumPy array, or numbers in a list"
    ):
        use(Floral(nn.Linear(3, 2), rank=1, num_clusters=2), mixture)


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16, torch.float64])
def test_a_router_has_at_least_single_precision_to_learn_in(precision: torch.dtype) -> None:
    logits = Floral(nn.Linear(3, 2, dtype=precision), rank=1).router_logits
    assert logits.dtype == (precision if precision == torch.float64 else torch.float32)


def test_a_mixture_may_be_a_list() -> None:
    model = perturb(Floral(nn.Linear(8, 3), rank=2, num_clusters=3).double())
    mixture = [0.7, 0.1, 0.2]  # in float32 they would be others
    wanted = model.merge(torch.tensor(mixture, dtype=torch.float64))(TOKENS.double())
    assert torch.equal(model.merge(mixture)(TOKENS.double()), wanted)
    one_hot = torch.tensor([0, 0, 1])
    assert torch.equal(model.mixture(one_hot), one_hot.double())


class Keeps(nn.Module):
    """Leaves its features where others may look at them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        self.features = torch.relu(self.body(inputs))
        return self.head(self.features)  # type: ignore[no-any-return]


def test_a_model_that_keeps_a_tensor_is_merged_right_after_training() -> None:
    model, inputs = Floral(Keeps(), 2, 1), torch.randn(5, 3)
    model(inputs).sum().backward()
    merged = model.eval().merge()
    torch.testing.assert_close(merged(inputs), model(inputs))
    assert merged.features is not model.base.features
