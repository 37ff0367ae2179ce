"""The router: its softmax, its gradient, and one-hot routers that stay where they are."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from floral_lite import router
from floral_lite.adaptors import initialise, personalise, plan

MODEL = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
PLAN = plan(MODEL, rank=2)
BASE = {name: parameter.detach() for name, parameter in MODEL.named_parameters()}
GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(6, 4, generator=GENERATOR, dtype=torch.float64)
TARGETS = torch.randint(3, (6,), generator=GENERATOR)


def trained_adaptors(num_clusters: int) -> dict[str, Tensor]:
    """Adaptors that are all away from zero."""
    generator = torch.Generator().manual_seed(num_clusters)
    fresh = initialise(PLAN, num_clusters, generator)
    return {name: torch.randn(tensor.shape, generator=generator).double() for name, tensor in fresh.items()}


def loss_of(parameters: dict[str, Tensor]) -> Tensor:
    """f(w), the loss of the base model with these parameters."""
    return functional.cross_entropy(functional_call(MODEL, parameters, (INPUTS,)), TARGETS)


@pytest.mark.parametrize("num_clusters", [1, 2, 3, 4, 5])
def test_the_gradient_of_theta_is_the_papers(num_clusters: int) -> None:
    """d f / d theta_c = pi_c <grad f(w_hat), w_c - w_hat>, appendix 'Router Update'."""
    adaptors = trained_adaptors(num_clusters)
    theta = torch.linspace(-1, 1, num_clusters, dtype=torch.float64).requires_grad_()
    loss = loss_of(personalise(PLAN, BASE, adaptors, router.mixture(theta)))
    (gradient,) = torch.autograd.grad(loss, theta)

    pi = theta.detach().exp() / theta.detach().exp().sum()
    # w_c = u + a_c, w_hat = sum_c pi_c w_c
    w = [personalise(PLAN, BASE, adaptors, one_hot) for one_hot in torch.eye(num_clusters).double()]
    w_hat = {name: sum(pi[c] * w[c][name] for c in range(num_clusters)).requires_grad_() for name in BASE}
    gradient_w_hat = torch.autograd.grad(loss_of(w_hat), list(w_hat.values()))
    expected = [
        pi[c]
        * sum((g * (w[c][name] - w_hat[name])).sum() for g, name in zip(gradient_w_hat, BASE, strict=True))
        for c in range(num_clusters)
    ]
    torch.testing.assert_close(gradient, torch.stack(expected).detach(), rtol=1e-10, atol=1e-12)
    assert (gradient.abs().max() > 1e-3) == (num_clusters > 1)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_a_one_hot_router_is_a_fixed_point_of_gradient_descent(precision: torch.dtype) -> None:
    adaptors = trained_adaptors(4)
    first = router.one_hot_logits(torch.tensor([2]), 4)[0].to(precision)
    theta = first
    for _ in range(3):
        theta = theta.detach().requires_grad_()
        loss = loss_of(personalise(PLAN, BASE, adaptors, router.mixture(theta).double()))
        (gradient,) = torch.autograd.grad(loss, theta)
        assert torch.equal(gradient, torch.zeros_like(gradient))
        theta = theta.detach() - 10.0 * gradient
    assert torch.equal(theta, first)
    assert torch.equal(router.mixture(theta), torch.eye(4, dtype=precision)[2])


def test_the_mixture_by_hand() -> None:
    # exp(0), exp(log 3), exp(log 4) = 1, 3, 4 of 8
    theta = torch.tensor([1.0, 3.0, 4.0]).log()
    torch.testing.assert_close(router.mixture(theta), torch.tensor([0.125, 0.375, 0.5]))


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=6), st.floats(-20, 20))
def test_the_mixture_lies_on_the_simplex_and_a_shift_does_not_change_it(
    logits: list[float], by: float
) -> None:
    theta = torch.tensor(logits, dtype=torch.float64)
    pi = router.mixture(theta)
    assert (pi >= 0).all()
    assert float(pi.sum()) == pytest.approx(1.0)
    torch.testing.assert_close(router.mixture(theta + by), pi)


def test_uniform_routers_use_every_adaptor_alike() -> None:
    assert torch.equal(router.mixture(router.uniform_logits(3, 5)), torch.full((3, 5), 0.2))


def test_one_hot_routers_take_the_cluster_modulo_the_number_of_adaptors() -> None:
    pi = router.mixture(router.one_hot_logits(torch.tensor([0, 1, 2, 5]), 3))
    assert torch.equal(pi, torch.eye(3)[[0, 1, 2, 2]])
