"""The router: its softmax, gradient and options, and the closed form that gradient steps approximate."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from floral_lite import Floral, InputError, router
from floral_lite.adaptors import Options, initialise, personalise, plan
from floral_lite.methods import FLoRAL
from floral_lite.models import seeded
from floral_lite.router import Router, closed_form, entropy, momentum_form

MODEL = seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), seed=0).double()
PLAN = plan(MODEL, Options(rank=2))
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
    loss = loss_of(personalise(PLAN, BASE, adaptors, Router().mixture(theta)))
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
        loss = loss_of(personalise(PLAN, BASE, adaptors, Router().mixture(theta).double()))
        (gradient,) = torch.autograd.grad(loss, theta)
        assert torch.equal(gradient, torch.zeros_like(gradient))
        theta = theta.detach() - 10.0 * gradient
    assert torch.equal(theta, first)
    assert torch.equal(Router().mixture(theta), torch.eye(4, dtype=precision)[2])


def test_the_mixture_by_hand() -> None:
    # exp(0), exp(log 3), exp(log 4) = 1, 3, 4 of 8
    theta = torch.tensor([1.0, 3.0, 4.0]).log()
    torch.testing.assert_close(Router().mixture(theta), torch.tensor([0.125, 0.375, 0.5]))


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=6), st.floats(-20, 20))
def test_the_mixture_lies_on_the_simplex_and_a_shift_does_not_change_it(
    logits: list[float], by: float
) -> None:
    theta = torch.tensor(logits, dtype=torch.float64)
    pi = Router().mixture(theta)
    assert (pi >= 0).all()
    assert float(pi.sum()) == pytest.approx(1.0)
    torch.testing.assert_close(Router().mixture(theta + by), pi)


def test_uniform_routers_use_every_adaptor_alike() -> None:
    assert torch.equal(Router().mixture(router.uniform_logits(3, 5)), torch.full((3, 5), 0.2))


def test_one_hot_routers_take_the_cluster_modulo_the_number_of_adaptors() -> None:
    pi = Router().mixture(router.one_hot_logits(torch.tensor([0, 1, 2, 4]), 3))
    assert torch.equal(pi, torch.eye(3)[[0, 1, 2, 1]])


@pytest.mark.parametrize("integers", [torch.int32, torch.uint8])
def test_clusters_may_be_integers_of_any_type(integers: torch.dtype) -> None:
    clusters = torch.tensor([2, 0])
    assert torch.equal(router.one_hot_logits(clusters.to(integers), 3), router.one_hot_logits(clusters, 3))
    assert torch.equal(
        router.leaning_logits(clusters.to(integers), 3, 0.7), router.leaning_logits(clusters, 3, 0.7)
    )


def test_leaning_routers_give_one_adaptor_its_weight_and_the_others_the_rest() -> None:
    pi = Router().mixture(router.leaning_logits(torch.tensor([0, 2]), 3, weight=0.9))
    torch.testing.assert_close(pi, torch.tensor([[0.9, 0.05, 0.05], [0.05, 0.05, 0.9]]))


@pytest.mark.parametrize(
    ("num_clusters", "weight", "told"),
    [
        (1, 0.7, "num_clusters is 1; it must be at least 2"),
        (3, 1.0, r"weight is 1.0; it must be in \(0, 1\): for 1 take one_hot_logits"),
        (3, 0.0, "weight is 0.0"),
    ],
)
def test_routers_cannot_lean_on_the_only_adaptor_nor_with_all_weight(
    num_clusters: int, weight: float, told: str
) -> None:
    with pytest.raises(InputError, match=told):
        router.leaning_logits(torch.tensor([0]), num_clusters, weight)


@pytest.mark.parametrize("temperature", [0.25, 1.0, 3.0])
def test_a_temperature_divides_the_logits(temperature: float) -> None:
    theta = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)
    weights = [math.exp(logit / temperature) for logit in theta.tolist()]
    pi = Router(temperature=temperature).mixture(theta)
    assert pi.tolist() == pytest.approx([weight / sum(weights) for weight in weights])


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=5), st.floats(0, 0.19))
def test_no_weight_is_below_the_floor_and_their_sum_is_one(logits: list[float], floor: float) -> None:
    theta = torch.tensor(logits, dtype=torch.float64)
    pi = Router(floor=floor).mixture(theta)
    assert (pi >= floor).all()
    assert float(pi.sum()) == pytest.approx(1.0)
    # a larger logit never has a smaller weight
    assert (pi[theta.argsort()].diff() > -1e-15).all()


def test_the_floor_of_a_one_hot_router_by_hand() -> None:
    theta = router.one_hot_logits(torch.tensor([1]), 4)[0]
    # 1 - 3 * 0.01 is left for the one
    torch.testing.assert_close(Router(floor=0.01).mixture(theta), torch.tensor([0.01, 0.97, 0.01, 0.01]))
    torch.testing.assert_close(Router(floor=0.01).mixture(torch.zeros(4)), torch.full((4,), 0.25))


@pytest.mark.parametrize("floor", [0.25, 0.3])
def test_a_floor_that_leaves_no_choice_is_refused(floor: float) -> None:
    with pytest.raises(InputError, match=f"floor is {floor}; with 4 adaptors it must be below 0.25"):
        Router(floor=floor).mixture(torch.zeros(4))
    with pytest.raises(InputError, match=f"floor is {floor}; with 4 adaptors it must be below 0.25"):
        Floral(nn.Linear(8, 8), num_clusters=4, rank=1, router=Router(floor=floor))  # before any input


def test_noise_is_uniform_on_the_logits_in_training_only() -> None:
    noisy, theta = Router(noise=0.5), torch.tensor([[0.0, 1.0]], dtype=torch.float64).expand(4000, 2)
    assert torch.equal(noisy.mixture(theta), Router().mixture(theta))
    draws = torch.rand(4000, 2, generator=torch.Generator().manual_seed(0))
    pi = noisy.mixture(theta, draws)
    # log(pi_2 / pi_1) = 1 + 0.5 (a - b) with a and b uniform in [0, 1): a triangle from 0.5 to 1.5
    shifts = (pi[:, 1] / pi[:, 0]).log()
    assert 0.5 < float(shifts.min()) < 0.55
    assert 1.45 < float(shifts.max()) < 1.5
    assert float(shifts.mean()) == pytest.approx(1, abs=0.02)
    # variance 2 * 0.5^2 / 12
    assert float(shifts.var()) == pytest.approx(1 / 24, rel=0.1)
    # no noise was asked for
    assert torch.equal(Router().mixture(theta, draws), Router().mixture(theta))


@pytest.mark.parametrize("precision", [torch.float16, torch.float32, torch.float64])
def test_noise_is_what_was_drawn_times_its_width_in_the_precision_of_the_logits(
    precision: torch.dtype,
) -> None:
    theta, draws = torch.tensor([0.5, -1.0, 2.0], dtype=precision), torch.tensor([0.0, 0.5, 0.25])
    pi = Router(noise=2.0, temperature=0.5, floor=0.1).mixture(theta, draws)
    # theta + 2 draws = 0.5, 0, 2.5, divided by the temperature
    weights = [math.exp(logit) for logit in (1.0, 0.0, 5.0)]
    expected = [0.1 + 0.7 * weight / sum(weights) for weight in weights]
    assert pi.tolist() == pytest.approx(expected, rel=1e-3 if precision == torch.float16 else 1e-6)
    assert pi.dtype == precision


def test_noise_leaves_a_weight_of_zero_and_differs_between_clients_under_vmap() -> None:
    theta = router.one_hot_logits(torch.tensor([2]), 4)
    noisy, draws = Router(noise=1.0), torch.rand(6, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(noisy.mixture(theta, torch.rand(1, 4)), torch.eye(4)[[2]])
    pi = torch.func.vmap(noisy.mixture)(torch.zeros(6, 3), draws)
    torch.testing.assert_close(pi, torch.softmax(draws, dim=1))
    assert len({tuple(row) for row in pi.tolist()}) == 6


def test_the_gradient_of_theta_passes_the_noise_and_draws_nothing_from_torch() -> None:
    theta = torch.tensor([0.3, -0.4, 1.0], dtype=torch.float64).requires_grad_()
    draws, before = torch.tensor([0.9, 0.1, 0.4]).double(), torch.get_rng_state()
    weights = torch.tensor([1.0, -2.0, 0.5]).double()
    (gradient,) = torch.autograd.grad((Router(noise=1.0).mixture(theta, draws) * weights).sum(), theta)
    pi = torch.softmax(theta.detach() + draws, 0)
    # d / d theta_c <pi, a> = pi_c (a_c - <pi, a>)
    torch.testing.assert_close(gradient, pi * (weights - (pi * weights).sum()))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_wrapped_model_is_noisy_in_training_only() -> None:
    model, inputs = Floral(nn.Linear(4, 3), rank=1, router=Router(noise=1.0)), torch.ones(2, 4)
    with torch.no_grad():
        for tensor in model.clustered().values():
            tensor.normal_()
    first, second = model(inputs), model(inputs)
    assert not torch.allclose(first, second)
    model.eval()
    assert torch.equal(model(inputs), model(inputs))
    torch.testing.assert_close(model(inputs), model.merge(torch.full((4,), 0.25))(inputs))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, r"temperature is 0\.0.*positive"),
        ({"temperature": -1.0}, r"temperature is -1\.0"),
        ({"floor": -0.1}, r"floor is -0\.1"),
        ({"floor": 1.0}, r"floor is 1\.0"),
        ({"noise": -1.0}, r"noise is -1\.0"),
        ({"noise": math.inf}, "noise is inf; it must be finite"),
        ({"entropy": math.nan}, "entropy is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Router(**options)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6))
def test_entropy_lies_between_one_hot_and_uniform(weights: list[float]) -> None:
    pi = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    expected = -sum(weight * math.log(weight) for weight in pi.tolist())
    assert float(entropy(pi)) == pytest.approx(expected, abs=1e-12)
    count = len(weights)
    assert -1e-12 < float(entropy(pi)) < math.log(count) + 1e-12
    one_hot, uniform = torch.eye(count).double()[0], torch.full((count,), 1 / count).double()
    assert entropy(torch.stack([one_hot, uniform])).tolist() == pytest.approx([0, math.log(count)], abs=1e-7)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.5}, {"floor": 0.1}])
def test_the_gradient_of_the_penalty_is_that_of_finite_differences(options: dict[str, float]) -> None:
    regularised = Router(entropy=0.7, **options)
    theta = torch.tensor([0.5, -1.0, 0.2], dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(regularised.penalty, theta)
    # -lambda H(pi)
    assert float(regularised.penalty(theta).detach()) == pytest.approx(
        -0.7 * float(entropy(Router(**options).mixture(theta.detach())))
    )
    # several routers: the sum
    rows = torch.stack([theta.detach(), torch.zeros(3).double()])
    expected = sum(float(regularised.penalty(row)) for row in rows)
    assert float(regularised.penalty(rows)) == pytest.approx(expected)


def test_an_unknown_choice_is_refused_with_the_nearest_name() -> None:
    message = "no choice of a router is called 'temprature'; did you mean 'temperature'"
    with pytest.raises(InputError, match=message):
        FLoRAL(nn.Linear(2, 2), router={"floor": 0.01, "temprature": 1})
    with pytest.raises(InputError, match=message):
        FLoRAL(nn.Linear(2, 2), router={"temprature": 1})


def test_without_entropy_there_is_no_penalty() -> None:
    assert Router().penalty(torch.tensor([1.0, 2.0])) == 0


@pytest.mark.parametrize("logits", [[-math.inf, 0.0, -math.inf], [0.0, -2000.0, -1.0]])
def test_the_penalty_of_a_weight_of_zero_has_a_gradient(logits: list[float]) -> None:
    """pi log pi has the slope -inf at 0, but theta cannot move such a weight."""
    theta = torch.tensor(logits, dtype=torch.float64).requires_grad_()
    (gradient,) = torch.autograd.grad(Router(entropy=1.0).penalty(theta), theta)
    pi = torch.softmax(theta.detach(), 0)
    # d -H / d theta_c = pi_c (log pi_c + H)
    expected = torch.where(pi > 0, pi * (pi.log() + entropy(pi)), 0)
    torch.testing.assert_close(gradient, expected)


def objective(pi: Tensor, losses: Tensor, learning_rate: float) -> Tensor:
    """<pi, f> - H(pi) / eta."""
    return (pi * losses).sum(-1) + torch.special.xlogy(pi, pi).sum(-1) / learning_rate


LOSSES = torch.tensor([0.3, 1.7, 0.2, 4.0], dtype=torch.float64)


@pytest.mark.parametrize("learning_rate", [0.1, 1.0, 5.0])
def test_the_closed_form_minimises_the_loss_and_the_entropy_over_the_simplex(learning_rate: float) -> None:
    pi = closed_form(LOSSES, learning_rate)
    weights = [math.exp(-learning_rate * loss) for loss in LOSSES.tolist()]
    assert pi.tolist() == pytest.approx([weight / sum(weights) for weight in weights])
    # the first-order condition: f_c + (log pi_c + 1) / eta is the same multiplier for every c
    multipliers = LOSSES + (pi.log() + 1) / learning_rate
    torch.testing.assert_close(multipliers, multipliers[:1].expand(4))
    # and no other point of the simplex is as good: corners, far points, near points
    points = torch.distributions.Dirichlet(torch.ones(4).double()).sample((500,))
    points = torch.cat([torch.eye(4).double(), points, pi + 1e-3 * (points - pi)])
    least = objective(pi, LOSSES, learning_rate)
    assert (objective(points, LOSSES, learning_rate) > least).all()


def test_closed_form_without_a_step_is_uniform_and_large_losses_do_not_overflow() -> None:
    torch.testing.assert_close(closed_form(LOSSES, 0.0), torch.full((4,), 0.25).double())
    assert torch.equal(closed_form(1e6 * LOSSES, 1.0), torch.eye(4).double()[2])
    # rows are clients
    rows = torch.stack([LOSSES, 2 * LOSSES])
    torch.testing.assert_close(closed_form(rows, 0.5), torch.stack([closed_form(row, 0.5) for row in rows]))


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_momentum_form_from_uniform_is_the_closed_form_of_the_summed_losses(steps: int) -> None:
    losses = torch.rand(steps, 4, generator=GENERATOR, dtype=torch.float64)
    pi = torch.full((4,), 0.25).double()
    for step in range(steps):
        pi = momentum_form(pi, losses[step], 0.8)
    torch.testing.assert_close(pi, closed_form(losses.sum(0), 0.8))


def test_the_momentum_form_by_hand_and_a_weight_of_zero_stays_zero() -> None:
    # 0.5 * 1, 0.25 * 1/4, 0.25 * 1/2 and 0, of 11/16
    pi = torch.tensor([0.5, 0.25, 0.25, 0.0])
    losses = torch.tensor([1.0, 4.0, 2.0, 0.5]).log()
    after = momentum_form(pi, losses, 1.0)
    assert after.tolist() == pytest.approx([8 / 11, 1 / 11, 2 / 11, 0])
    assert after[3] == 0
    assert torch.equal(momentum_form(torch.eye(4)[1], losses, 3.0), torch.eye(4)[1])


def test_a_negative_learning_rate_is_refused_for_it_would_choose_the_worst() -> None:
    with pytest.raises(InputError, match=r"learning_rate is -1\.0; it must be at least 0"):
        closed_form(LOSSES, -1.0)


def order_of_the_difference(learning_rate_of_the_closed_form: float, num_clusters: int = 3) -> float:
    """The slope of log ||difference of the centred logits|| over log max_c ||w_c - w_hat||."""
    step, shape = 0.5, (num_clusters,)
    adaptors = trained_adaptors(num_clusters)
    distances, errors = [], []
    for scale in (1e-2, 3e-3, 1e-3, 3e-4, 1e-4):
        # a_c = scale * U_c V_c^T
        scaled = {name: t if name.endswith("V") else scale * t for name, t in adaptors.items()}
        theta = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
        uniform = Router().mixture(theta)
        (gradient,) = torch.autograd.grad(loss_of(personalise(PLAN, BASE, scaled, uniform)), theta)
        after = (theta - step * gradient).detach()

        corners = torch.eye(num_clusters).double()
        w = [personalise(PLAN, BASE, scaled, corner) for corner in corners]
        exact = closed_form(
            torch.stack([loss_of(of_c) for of_c in w]), learning_rate_of_the_closed_form
        ).log()
        errors.append(float(((after - after.mean()) - (exact - exact.mean())).norm()))
        w_hat = personalise(PLAN, BASE, scaled, uniform.detach())
        distances.append(
            max(math.sqrt(sum(float((of_c[n] - w_hat[n]).square().sum()) for n in BASE)) for of_c in w)
        )
    return float(np.polyfit(np.log(distances), np.log(errors), 1)[0])


def test_from_uniform_a_gradient_step_is_the_closed_form_to_second_order() -> None:
    """theta - eta d f / d theta is -eta / C f(w_c) up to ||w_c - w_hat||^2, appendix 'Router Update'."""
    assert order_of_the_difference(0.5 / 3) == pytest.approx(2, abs=0.1)
    # and it is eta / C: with any other learning rate the first order stays
    assert order_of_the_difference(0.5) == pytest.approx(1, abs=0.1)
