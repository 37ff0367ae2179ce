"""Preconditioning: the formulas by hand, what a step does to U V^T, and the hook of an optimizer."""

import copy
import itertools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from floral_lite import Floral, InputError, adaptors, methods, train
from floral_lite.adaptors import LowRankAdaptor, Options, personalise, plan
from floral_lite.precondition import precondition, preconditioner
from tests.federations import agree, make_task, normal


class Kind(NamedTuple):
    """A layer, and how its weight is the matrix U V^T: its axes in the order of rows and columns."""

    layer: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    axes: tuple[int, ...]
    num_rows: int
    options: dict[str, Any] = {}  # noqa: RUF012


def images() -> Tensor:
    return torch.randn(2, 4, 5, 5)


KINDS = {
    "linear": Kind(lambda: nn.Linear(6, 5), lambda: torch.randn(7, 6), (0, 1), 5),
    "embedding": Kind(lambda: nn.Embedding(9, 5), lambda: torch.arange(9).view(3, 3), (1, 0), 5),
    "reshaped": Kind(lambda: nn.Conv2d(4, 3, 2), images, (0, 2, 3, 1), 12, {"convolution": "reshaped"}),
    # the chains of two convolutions
    "balanced": Kind(lambda: nn.Conv2d(4, 3, (2, 3)), images, (0, 3, 1, 2), 9),
    "channel_out": Kind(lambda: nn.Conv2d(4, 3, 2), images, (0, 2, 3, 1), 12, {"convolution": "channel_out"}),
    "channel_in": Kind(
        lambda: nn.ConvTranspose2d(4, 3, 2), images, (1, 0, 2, 3), 3, {"convolution": "channel_in"}
    ),
    "filter": Kind(lambda: nn.Conv2d(4, 2, 3), images, (0, 3, 1, 2), 6, {"convolution": "filter"}),
}
MATRICES, CHAINS = list(KINDS)[:3], list(KINDS)[3:]
Tensors = dict[str, Tensor]


class Problem:
    """One adapted weight in float64 and a smooth loss of it."""

    def __init__(self, name: str, rank: int = 2) -> None:
        self.kind = KINDS[name]
        self.layer, inputs = self.kind.layer().double(), self.kind.inputs()
        self.inputs = inputs if name == "embedding" else inputs.double()
        self.base = {key: parameter.detach() for key, parameter in self.layer.named_parameters()}
        self.plan = plan(self.layer, Options(rank=rank, biases=False, **self.kind.options))

    def factors(self, num_clusters: int = 1) -> Tensors:
        """Random U and V, away from zero."""
        shapes = self.plan["weight"].shapes
        return {f"weight.{name}": torch.randn(num_clusters, *shapes[name]).double() for name in shapes}

    def gradients(self, factors: Tensors) -> tuple[Tensors, Tensor]:
        """G_U and G_V of the first adaptor, and G of the weight as a matrix."""
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in factors.items()}
        personal = personalise(self.plan, self.base, leaves, torch.ones(1).double())
        loss = functional_call(self.layer, personal, (self.inputs,)).sin().sum()
        *gradients, weight = torch.autograd.grad(loss, [*leaves.values(), personal["weight"]])
        matrix = weight.permute(self.kind.axes).reshape(self.kind.num_rows, -1)
        return dict(zip(leaves, gradients, strict=True)), matrix

    def change(self, factors: Tensors, rate: float, epsilon: float | None) -> Tensor:
        """How one step moves U V^T; without preconditioning where there is no epsilon."""
        gradients, _ = self.gradients(factors)
        if epsilon is not None:
            gradients = precondition(self.plan, factors, gradients, epsilon)
        return product({name: factors[name] - rate * gradients[name] for name in factors}) - product(factors)


def matrices(tensors: Tensors) -> tuple[Tensor, Tensor]:
    """U (m, R) and V (n, R) of the first adaptor."""
    u, v = (tensors[f"weight.{name}"][0] for name in "UV")
    return u.reshape(-1, u.shape[-1]), v.reshape(-1, v.shape[-1])


def product(tensors: Tensors) -> Tensor:
    u, v = matrices(tensors)
    return u @ v.T


def projection(factor: Tensor) -> Tensor:
    """P on the columns of a factor."""
    return factor @ torch.linalg.pinv(factor)


@pytest.mark.parametrize("epsilon", [1e-5, 0.3])
@pytest.mark.parametrize("name", KINDS)
def test_the_formulas_by_hand(name: str, epsilon: float) -> None:
    problem = Problem(name)
    factors, gradients = problem.factors(num_clusters=3), problem.factors(num_clusters=3)
    result = precondition(problem.plan, factors, gradients, epsilon)
    for c in range(3):
        (u, v), (g_u, g_v), (new_u, new_v) = (
            matrices({key: tensor[c : c + 1] for key, tensor in tensors.items()})
            for tensors in (factors, gradients, result)
        )
        for new, gradient, other in ((new_u, g_u, v), (new_v, g_v, u)):
            gram = other.T @ other + epsilon * torch.eye(other.shape[1]).double()
            # G_U (V^T V + eps I)^-1, and for chains G_U / ||V^T V + eps I||_F
            expected = gradient @ gram.inverse() if name in MATRICES else gradient / (gram**2).sum().sqrt()
            torch.testing.assert_close(new, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", KINDS)
def test_a_step_moves_the_product_as_the_appendix_says_up_to_the_second_order(name: str) -> None:
    """By -eta (P_U G + G P_V); for chains U U^T / ||U U^T||_F stands for P_U, and the same for V."""
    problem = Problem(name)
    factors = problem.factors()
    (u, v), (_, gradient) = matrices(factors), problem.gradients(factors)
    if name in MATRICES:
        direction = projection(u) @ gradient + gradient @ projection(v)
    else:
        left, right = u @ u.T, v @ v.T
        direction = left / left.norm() @ gradient + gradient @ right / right.norm()
    rates = 10.0 ** -np.arange(1, 5)
    errors = [float((problem.change(factors, rate, 1e-14) + rate * direction).norm()) for rate in rates]
    slope = np.polyfit(np.log(rates), np.log(errors), 1)[0]
    assert slope == pytest.approx(2, abs=0.01)


def transformed(factors: Tensors, transformation: Tensor) -> Tensors:
    """(U Q, V Q^-T), the same product."""
    u, v = factors.values()
    return {"weight.U": u @ transformation, "weight.V": v @ transformation.inverse().T}


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=5)
@given(seed=st.integers(0, 10**6))
def test_the_step_of_the_product_does_not_depend_on_how_it_is_split(name: str, seed: int) -> None:
    """Any invertible Q for matrices; for chains, where only a norm is taken, a rotation and a scale."""
    torch.manual_seed(seed)
    problem = Problem(name)
    factors = problem.factors()
    rank = factors["weight.U"].shape[-1]
    generator = torch.randn(rank, rank).double()
    rotation = torch.matrix_exp(generator - generator.T)
    q = torch.matrix_exp(generator) if name in MATRICES else 5 * rotation
    here, there = (problem.change(split, 0.1, 1e-14) for split in (factors, transformed(factors, q)))
    torch.testing.assert_close(there, here, rtol=1e-7, atol=1e-9)
    plain, other = (problem.change(split, 0.1, None) for split in (factors, transformed(factors, q)))
    assert float((plain - other).norm()) > 0.01 * float(plain.norm())


def descend(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor, steps: int
) -> list[float]:
    """The mean squared errors on the way."""
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def least_squares(preconditioned: bool, *scales: tuple[float, float]) -> tuple[list[float], Tensor]:
    """Train one adaptor (a U, b V) for each scale: the losses, and how each U V^T moved."""
    torch.manual_seed(0)
    layer, inputs = nn.Linear(6, 5, bias=False).double(), torch.randn(40, 6).double()
    targets = layer(inputs).detach() + inputs @ torch.randn(6, 2).double() @ torch.randn(2, 5).double()
    model = Floral(layer, rank=2, num_clusters=len(scales))
    u, v = model.clustered().values()
    with torch.no_grad():
        for c, (scale_u, scale_v) in enumerate(scales):
            u[c] = scale_u * torch.linspace(-0.5, 0.9, 10).view(5, 2)
            v[c] = scale_v * torch.linspace(0.4, -1, 12).view(6, 2) ** 2
    before = (u @ v.mT).detach()
    optimizer = torch.optim.SGD([u, v], lr=0.2)
    if preconditioned:
        optimizer.register_step_pre_hook(preconditioner(model, epsilon=1e-12))
    losses = descend(model, optimizer, inputs, targets, 25)
    return losses, (u @ v.mT).detach() - before


# U by a, V by b: the same model where a b = 1, or where one of the factors starts at zero
SCALES = {
    "balance": ((1.0, 1.0), (5.0, 0.2)),
    "other balance": ((1.0, 1.0), (0.2, 5.0)),
    "U alone, from V = 0": ((1.0, 0.0), (5.0, 0.0)),
    "U alone, from a small U": ((1.0, 0.0), (0.2, 0.0)),
    "V alone, from U = 0": ((0.0, 1.0), (0.0, 5.0)),
}


@pytest.mark.parametrize("scales", SCALES.values(), ids=SCALES)
def test_scaled_adaptors_learn_at_the_same_rate_with_it_and_at_different_rates_without(
    scales: tuple[tuple[float, float], tuple[float, float]],
) -> None:
    with_it, without = ([least_squares(choice, scale)[0] for scale in scales] for choice in (True, False))
    assert with_it[1] == pytest.approx(with_it[0], rel=1e-4)
    assert with_it[0][-1] < 0.05 * with_it[0][0]
    assert max(max(a / b, b / a) for a, b in zip(*without, strict=True)) > 2


@pytest.mark.parametrize("scales", SCALES.values(), ids=SCALES)
def test_the_adaptors_of_one_mixture_move_alike_whatever_their_scales(
    scales: tuple[tuple[float, float], tuple[float, float]],
) -> None:
    (alike, other), (plain, slow) = (least_squares(choice, *scales)[1] for choice in (True, False))
    torch.testing.assert_close(other, alike, rtol=1e-4, atol=1e-4)
    assert float((plain - slow).norm()) > 0.3 * float(plain.norm())


@pytest.mark.parametrize("init", ["paper", "authors"])
@pytest.mark.parametrize("name", KINDS)
def test_training_from_a_factor_of_zero_is_stable(name: str, init: Any) -> None:
    """With the default epsilon, in single precision, the loss falls at every step."""
    kind = KINDS[name]
    layer, inputs = kind.layer(), kind.inputs()
    model = Floral(layer, rank=2, num_clusters=2, init=init, **kind.options)
    targets = layer(inputs).detach() + torch.randn(2).sum() + torch.randn_like(layer(inputs))
    optimizer = torch.optim.SGD(model.clustered().values(), lr=0.1)
    optimizer.register_step_pre_hook(preconditioner(model))
    losses = descend(model, optimizer, inputs, targets, 15)
    assert all(later < earlier for earlier, later in itertools.pairwise(losses))


@pytest.mark.parametrize("norm", [1.0, 1e3])
@pytest.mark.parametrize("name", MATRICES)
def test_two_equal_columns_give_the_step_of_one_in_single_precision(name: str, norm: float) -> None:
    """P_U G + G P_V, with projections on what the columns span."""
    problem = Problem(name)
    factors = {key: tensor[..., [0, 0]] for key, tensor in problem.factors().items()}
    factors = {key: (norm * tensor / tensor.norm()).float().double() for key, tensor in factors.items()}
    gradients, gradient = problem.gradients(factors)
    single = ({key: tensor.float() for key, tensor in tensors.items()} for tensors in (factors, gradients))
    step_u, step_v = matrices(precondition(problem.plan, *single))
    (u, v), direction = matrices(factors), step_u.double() @ matrices(factors)[1].T
    direction += u @ step_v.double().T
    expected = projection(u) @ gradient + gradient @ projection(v)
    assert float((direction - expected).norm()) < 1e-4 * float(expected.norm())


@pytest.mark.parametrize("norm", [1.0, 1e3])
@pytest.mark.parametrize("name", MATRICES)
def test_two_nearly_equal_columns_move_the_product_no_further_than_two_gradients(
    name: str, norm: float
) -> None:
    """Rounding errors in the direction in which the columns differ are divided by eps, but hardly show."""
    problem = Problem(name)
    factors = {key: tensor[..., [0, 0]] for key, tensor in problem.factors().items()}
    for tensor in factors.values():
        tensor *= norm / tensor.norm()
        tensor[..., 1] += 1e-7 * norm * torch.randn(tensor.shape[:-1]).double()
    gradients, gradient = problem.gradients(factors)
    single = ({key: tensor.float() for key, tensor in tensors.items()} for tensors in (factors, gradients))
    (u, v), (step_u, step_v) = matrices(factors), matrices(precondition(problem.plan, *single))
    direction = step_u.double() @ v.T + u @ step_v.double().T
    assert float(direction.norm()) <= 2.01 * float(gradient.norm())


@pytest.mark.parametrize(("rank", "scale"), [(2, 0.0), (2, 1e-3), (2, 1.0), (1, 1.0)])
@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", KINDS)
def test_half_precision_gives_the_step_to_its_own_rounding(
    name: str, precision: torch.dtype, rank: int, scale: float
) -> None:
    problem = Problem(name, rank)
    factors = {key: scale * tensor.to(precision) for key, tensor in problem.factors().items()}
    exact = {key: tensor.double() for key, tensor in factors.items()}
    gradients = {key: tensor.to(precision) for key, tensor in problem.gradients(exact)[0].items()}
    expected = precondition(problem.plan, exact, {key: tensor.double() for key, tensor in gradients.items()})
    for tensors in (factors, {key: tensor.float() for key, tensor in factors.items()}):
        result = precondition(problem.plan, tensors, gradients)
        assert {tensor.dtype for tensor in result.values()} == {precision}
        # the products of 0.001 are below float16's normal numbers
        rounded = {key: tensor.double() for key, tensor in result.items()}
        torch.testing.assert_close(rounded, expected, rtol=torch.finfo(precision).eps, atol=1e-6)


def small_model() -> tuple[Floral, Tensor]:
    """A model with every kind of thing: matrices, chains, vectors, base and router, with gradients."""
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 3))
    model, inputs = Floral(net, rank=2, num_clusters=3), torch.randn(4, 1, 5, 5)
    with torch.no_grad():
        for tensor in model.clustered().values():
            tensor.normal_()
    model(inputs).square().mean().backward()
    return model, inputs


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.Adam(parameters, lr=0.1),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1),
    ],
    ids=["SGD", "Adam", "AdamW"],
)
def test_the_hook_gives_the_steps_that_are_made_by_hand(
    make: Callable[[Any], torch.optim.Optimizer],
) -> None:
    model, inputs = small_model()
    by_hand = copy.deepcopy(model)
    hooked, plain = make(model.parameters()), make(by_hand.parameters())
    hooked.register_step_pre_hook(preconditioner(model, epsilon=1e-3))
    for net, optimizer in ((model, hooked), (by_hand, plain)):
        for _ in range(3):
            optimizer.zero_grad()
            net(inputs).square().mean().backward()
            if net is by_hand:
                tensors = net.clustered()
                gradients = {name: tensor.grad for name, tensor in tensors.items()}
                for name, gradient in precondition(net.plan, tensors, gradients, 1e-3).items():
                    tensors[name].grad = gradient
            optimizer.step()
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), by_hand.parameters(), strict=True))


def test_only_the_gradients_of_factors_change() -> None:
    model, _ = small_model()
    before = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    preconditioner(model)(optimizer, (optimizer,), {})
    changed = {name for name, p in model.named_parameters() if not torch.equal(p.grad, before[name])}
    assert changed == {f"adaptors.{layer}.weight.{factor}" for layer in (0, 4) for factor in "UV"}


def test_what_has_no_gradient_is_left_alone() -> None:
    """A frozen adaptor, and one frozen factor: the other is preconditioned as ever."""
    model, _ = small_model()
    tensors = model.clustered()
    gradients = {name: tensor.grad.clone() for name, tensor in tensors.items()}
    expected = precondition(model.plan, tensors, gradients)
    for name in ("0.weight.U", "0.weight.V", "4.weight.U", "4.bias.L"):
        tensors[name].grad = None
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    preconditioner(model)(optimizer, (optimizer,), {})
    assert tensors["0.weight.U"].grad is None
    assert tensors["4.weight.U"].grad is None
    assert torch.equal(tensors["4.weight.V"].grad, expected["4.weight.V"])
    # and as a function
    assert set(precondition(model.plan, tensors, {"4.weight.V": gradients["4.weight.V"]})) == {"4.weight.V"}


def test_the_function_leaves_what_it_is_given_alone() -> None:
    problem = Problem("linear")
    factors, gradients = problem.factors(), problem.factors()
    before = {name: tensor.clone() for name, tensor in gradients.items()}
    precondition(problem.plan, factors, gradients)
    assert all(torch.equal(gradients[name], before[name]) for name in before)


def test_a_step_is_no_part_of_a_graph() -> None:
    """Else each gradient would keep all steps before it."""
    model, _ = small_model()
    preconditioner(model)(torch.optim.SGD(model.parameters(), lr=1.0), (), {})
    assert not any(tensor.grad.requires_grad for tensor in model.clustered().values())


def test_epsilon_is_what_the_docstrings_say() -> None:
    """Beside a factor of zero a gradient is divided by epsilon, in `methods.FLoRAL` too."""
    told, *_ = re.findall("epsilon = (.*)\\.", methods.FLoRAL.__doc__)
    problem = Problem("linear")
    zero = {name: torch.zeros_like(tensor) for name, tensor in problem.factors().items()}
    gradients = problem.factors()
    after = precondition(problem.plan, zero, gradients)
    for name, gradient in gradients.items():
        torch.testing.assert_close(after[name], gradient / float(told))


@pytest.mark.parametrize("epsilon", [0.0, -1e-5])
def test_an_epsilon_that_is_not_positive_is_refused(epsilon: float) -> None:
    problem, message = Problem("linear"), f"epsilon is {epsilon}.*positive"
    with pytest.raises(InputError, match=message):
        precondition(problem.plan, problem.factors(), problem.factors(), epsilon)
    with pytest.raises(InputError, match=message):
        preconditioner(Floral(nn.Linear(2, 2), rank=1), epsilon)


def test_a_hook_is_of_a_floral_itself() -> None:
    model = Floral(nn.Linear(3, 2), rank=1)
    preconditioner(torch.compile(model, backend="eager"))
    for other in (nn.DataParallel(model), nn.Sequential(model), model.base):
        with pytest.raises(
            InputError, match=f"model is of type {type(other).__name__}; give the Floral itself"
        ):
            preconditioner(other)  # type: ignore[arg-type]


def test_a_closure_whose_gradients_would_escape_the_hook_is_refused() -> None:
    model, inputs = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(preconditioner(model))
    with pytest.raises(InputError, match="closure"):
        optimizer.step(lambda: model(inputs).sum())
    with pytest.raises(InputError, match="closure"):
        optimizer.step(closure=lambda: model(inputs).sum())
    optimizer.step(None)


def test_an_optimizer_of_its_own_for_the_router_changes_nothing() -> None:
    def step(split: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = Floral(nn.Linear(4, 3), rank=2, generator=torch.Generator().manual_seed(0))
        adaptors, router = [*model.adaptors.parameters()], [model.router_logits]
        groups = [router, adaptors] if split else [[*adaptors, *router]]
        optimizers = [torch.optim.SGD(group, lr=0.1) for group in groups]
        model(torch.ones(2, 4)).square().sum().backward()
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(preconditioner(model))
            optimizer.step()
        return adaptors

    for together, apart in zip(step(False), step(True), strict=True):
        assert torch.equal(together, apart)


def test_a_kind_of_ones_own_name_is_preconditioned_as_a_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(layer: nn.Module, name: str, options: Options) -> LowRankAdaptor:
        return LowRankAdaptor("mine", tuple(layer.get_parameter(name).shape), (0,), (1,), 2)

    task = make_task(lambda: nn.Sequential(nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 3)), normal(9))
    named = train(task, methods.FLoRAL(task.model, num_clusters=2, rank=2, biases=False))
    monkeypatch.setitem(adaptors.KINDS, nn.Linear, {"weight": fit})
    method = methods.FLoRAL(task.model, num_clusters=2, rank=2)
    for engine in ("fast", "loop"):
        agree(named, train(task, method, engine=engine))
