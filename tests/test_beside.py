"""Adaptors beside a linear layer: the steps of the backward pass against autograd's gradients."""

import pytest
import torch
from torch import Tensor

from floral_lite import methods, tasks, train
from floral_lite.federation import Settings
from floral_lite.federation.beside import (
    SteppingBeside,
    beside,
    in_memory_side_by_side,
    laid_side_by_side,
    side_by_side,
)
from floral_lite.federation.products import Descent
from floral_lite.precondition import by_matrix
from floral_lite.roles import Roles

CLIENTS, SAMPLES, CLUSTERS, RANK, OUT, IN = 3, 5, 4, 2, 7, 6


def tensors(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """What an adapted layer is given, and the gradient that comes back."""
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "outputs": (CLIENTS, SAMPLES, OUT),
        "inputs": (CLIENTS, SAMPLES, IN),
        "u": (CLIENTS, CLUSTERS, OUT, RANK),
        "v": (CLIENTS, CLUSTERS, IN, RANK),
        "mixture": (CLIENTS, CLUSTERS),
        "gradient": (CLIENTS, SAMPLES, OUT),
    }
    made = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        for name, shape in shapes.items()
    }
    made["mixture"] = made["mixture"].softmax(dim=1)
    for name in ("u", "v"):
        made[name] = laid_side_by_side(made[name])
    return made


@pytest.mark.parametrize("preconditioned", [True, False])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_backward_pass_takes_the_steps_that_the_gradients_say(
    preconditioned: bool, weight_decay: float, momentum: float
) -> None:
    given = tensors()
    settings = Settings(learning_rate=0.3, weight_decay=weight_decay, momentum=momentum)
    velocities = {name: given[name].sin() if momentum else None for name in ("u", "v")}
    names = ["outputs", "inputs", "u", "v", "mixture"]
    plain = {name: given[name].clone().requires_grad_() for name in names}
    inner = torch.bmm(plain["inputs"], side_by_side(plain["v"]))
    expected = beside(plain["outputs"], inner, plain["u"], plain["mixture"])
    slopes = dict(
        zip(names, torch.autograd.grad(expected, list(plain.values()), given["gradient"]), strict=True)
    )
    wanted = {}
    for name, other in (("u", "v"), ("v", "u")):
        slope = by_matrix(slopes[name], given[other]) if preconditioned else slopes[name]
        wanted[name] = given[name] - 0.3 * (momentum * given[name].sin() + slope + weight_decay * given[name])

    stepped = {name: tensor.clone() for name, tensor in given.items()}
    leaves = {name: stepped[name].detach().requires_grad_() for name in names}
    descents = [Descent(leaves[name], velocities[name], settings) for name in ("u", "v")]
    outputs = SteppingBeside.apply(*leaves.values(), descents, preconditioned)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-12)
    others = ["outputs", "inputs", "mixture"]
    found = torch.autograd.grad(outputs, [leaves[name] for name in others], given["gradient"])
    for name, slope in zip(others, found, strict=True):
        torch.testing.assert_close(slope, slopes[name], rtol=1e-12, atol=1e-12)
    for name, after in wanted.items():
        torch.testing.assert_close(stepped[name], after, rtol=1e-9, atol=1e-9)
        if (velocity := velocities[name]) is not None:
            torch.testing.assert_close(given[name] - 0.3 * velocity, after, rtol=1e-9, atol=1e-9)


def test_columns_that_are_equal_stay_equal_in_single_precision() -> None:
    # what cancels in x V (V^T V + eps I)^-1 is 1e5 times the result
    given = tensors(torch.float32)
    given["v"][..., 1] = given["v"][..., 0]
    exact = {name: tensor.double() for name, tensor in given.items()}
    after = {}
    for precision, some in {"single": given, "double": exact}.items():
        names = ["outputs", "inputs", "u", "v", "mixture"]
        leaves = [some[name].detach().requires_grad_() for name in names]
        descents = [Descent(leaf, None, Settings(learning_rate=0.3)) for leaf in leaves[2:4]]
        outputs = SteppingBeside.apply(*leaves, descents, True)  # type: ignore[no-untyped-call]
        torch.autograd.grad(outputs, leaves[0], some["gradient"])
        after[precision] = some["u"].double()
    torch.testing.assert_close(after["single"], after["double"], rtol=1e-4, atol=1e-4)


def test_only_factors_that_lie_side_by_side_can_be_written_into() -> None:
    factor = torch.zeros(CLIENTS, CLUSTERS, OUT, RANK)
    assert not in_memory_side_by_side(factor)
    assert in_memory_side_by_side(laid_side_by_side(factor))
    assert in_memory_side_by_side(laid_side_by_side(factor)[:2])  # some clients have no further batch


class Resting(methods.FLoRAL):
    """FLoRAL whose adaptors never move."""

    def precondition(self, client: Roles, gradients: Roles) -> Roles:
        """None of the factors' gradients is left."""
        clustered = {name: torch.zeros_like(slope) for name, slope in gradients.clustered.items()}
        return gradients._replace(clustered=clustered)


def test_a_method_with_a_preconditioner_of_its_own_sees_every_gradient() -> None:
    task = tasks.load("digits-rotate")
    method = Resting(task.model, budget=0.1)
    before = method.initialise(task.clusters, 0).clustered
    after = train(task, method, rounds=1, engine="fast").state.clustered
    for name in before:  # the average of equal numbers rounds
        torch.testing.assert_close(after[name], before[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_products_in_bfloat16_move_a_weight_in_single_precision(momentum: float) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, velocity = (torch.randn(CLIENTS, OUT, IN, generator=generator) for _ in range(2))
    left = torch.randn(CLIENTS, OUT, SAMPLES, generator=generator).bfloat16()
    right = torch.randn(CLIENTS, SAMPLES, IN, generator=generator).bfloat16()
    settings = Settings(learning_rate=0.25, momentum=momentum, weight_decay=0.1)
    wanted = weight - 0.25 * (momentum * velocity + left.float() @ right.float() + 0.1 * weight)
    Descent(weight, velocity if momentum else None, settings).step(left, right)
    assert weight.dtype == torch.float32
    torch.testing.assert_close(weight, wanted, rtol=1e-2, atol=2e-2)
