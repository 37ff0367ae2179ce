"""The terms of the convergence bound: by hand, by their exponents, and against runs that they must bound."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from floral_lite.errors import InputError
from floral_lite.theory import bound_terms, evenness, smallest_offset

RUN = {
    "variance": 0.5,
    "second_moment": 4.0,
    "mismatch": 1.5,
    "decay": 0.5,
    "local_steps": 2,
    "offset": 16.0,
    "smoothness": 6.0,
    "convexity": 2.0,
}


def test_the_terms_by_hand() -> None:
    """mu = 2, alpha = 1 / mu: with these constants the paper's formulas, printed with kappa = 3, G^2 = 4."""
    terms = bound_terms(100, **RUN, rate=0.5)
    # 24 G^2 (s - 1) s^2 / (mu T^3)
    assert float(terms["start"]) == pytest.approx(24 * 4 * 15 * 256 / (2 * 1e6))
    # 12 sigma~^2 (1 / (mu T) + (2 s - 1) / (mu T^2))
    assert float(terms["noise"]) == pytest.approx(12 * 0.5 * (1 / 200 + 31 / 20000))
    # 48 G^2 ||delta||^2 (1 / (mu T^(1 + beta)) + s^(2 - beta) / (mu T^3)), with ||delta||^2 s^beta
    squared = 1.5**2 * 16**0.5
    assert float(terms["mismatch"]) == pytest.approx(48 * 4 * squared * (100**-1.5 + 16**1.5 / 1e6) / 2)
    # 48 L H^2 G^2 / (mu^2 T^2)
    assert float(terms["drift"]) == pytest.approx(48 * 6 * 4 * 4 / (4 * 1e4))


@pytest.mark.parametrize(
    ("term", "argument", "power"),
    [
        ("start", "steps", -3),
        ("noise", "steps", -1),
        ("mismatch", "steps", -1.5),
        ("drift", "steps", -2),
        ("noise", "variance", 1),
        ("mismatch", "mismatch", 2),
        ("drift", "local_steps", 2),
        ("drift", "smoothness", 1),
        ("noise", "rate", 1),
        ("drift", "rate", 2),
        ("start", "second_moment", 1),
    ],
)
def test_the_terms_have_the_theorems_exponents(term: str, argument: str, power: float) -> None:
    given = {**RUN, "steps": 10**9, "rate": 1.5}
    doubled = {**given, argument: 2 * given[argument]}
    ratio = bound_terms(**doubled)[term] / bound_terms(**given)[term]
    assert float(ratio.log2()) == pytest.approx(power, abs=1e-3)


def test_many_runs_at_once() -> None:
    steps, local_steps = torch.tensor([10.0, 100.0]).double(), torch.tensor([[1.0], [2.0], [4.0]]).double()
    terms = bound_terms(steps, **{**RUN, "local_steps": local_steps})
    one = bound_terms(100, **{**RUN, "local_steps": 4})
    assert terms["drift"].shape == (3, 2)
    assert float(terms["drift"][2, 1]) == pytest.approx(float(one["drift"]))
    assert float(terms["noise"][1]) == pytest.approx(float(one["noise"]))


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5, torch.tensor([0.5, 1.5])])
def test_a_decay_out_of_the_theorems_range(decay: float | Tensor) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        bound_terms(10, **{**RUN, "decay": decay})


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        *((name, 0.0, "positive") for name in ("offset", "local_steps", "smoothness", "convexity", "rate")),
        *((name, -1e-9, "at least 0") for name in ("variance", "second_moment", "mismatch")),
        ("steps", torch.tensor([10.0, math.nan]), "positive"),
    ],
)
def test_what_no_bound_has_is_named(name: str, value: float | Tensor, allowed: str) -> None:
    given: dict[str, Any] = {"steps": 10.0, **RUN, name: value}
    with pytest.raises(InputError, match=rf"{name} is .*; it must be {allowed}"):
        bound_terms(given.pop("steps"), **given)


@pytest.mark.parametrize(("name", "value"), [("evenness", 1.1), ("evenness", 0.0), ("smoothness", -2.0)])
def test_no_offset_for_what_is_out_of_range(name: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{name} is {value}; it must be"):
        smallest_offset(1, **{"smoothness": 4.0, "evenness": 0.25, name: value})


def test_evenness() -> None:
    copies = torch.full((9, 3), 1 / 3)  # copies of one problem: all clients serve all clusters alike
    assert evenness(copies, torch.ones(9)).tolist() == pytest.approx([1, 1, 1])
    assert evenness(copies, torch.ones(9)).max() <= 1  # whatever the rounding of p(c)
    one_hot = torch.eye(2)[torch.tensor([0, 1, 1, 1])]
    # client 0 has 2 of 8 samples: p(c) = 1/4 and 3/4, and pi = 1
    assert evenness(one_hot, torch.tensor([2.0, 1.0, 2.0, 3.0])).tolist() == pytest.approx([0.25, 0.75])
    mixed = torch.tensor([[0.8, 0.2], [0.4, 0.6]])
    # p(c) = 0.6, 0.4; the clients above it have 0.8 and 0.6
    assert evenness(mixed, torch.ones(2)).tolist() == pytest.approx([0.6 / 0.8, 0.4 / 0.6])


def test_a_cluster_without_clients() -> None:
    with pytest.raises(InputError, match=r"clusters \[1\]"):
        evenness(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.ones(2))
    for mixture, num_samples, message in (
        (torch.ones(2, 2), torch.ones(2), "mixture has sums"),
        (torch.eye(2), torch.ones(3), "num_samples is"),
        (torch.eye(2), torch.zeros(2), "num_samples is"),
    ):
        with pytest.raises(InputError, match=message):
            evenness(mixture, num_samples)


def test_the_smallest_offset() -> None:
    assert float(smallest_offset(1, smoothness=4.0, evenness=0.25)) == 24 * 4 / 0.25
    assert float(smallest_offset(200, smoothness=4.0, evenness=0.25)) == 600
    many = smallest_offset(torch.tensor([1, 400]), smoothness=torch.tensor([1.0, 2.0]).double(), evenness=1.0)
    assert many.tolist() == [24, 1200]


def gradient_descent(rate: float, offset: float, steps: int) -> float:
    """f(w_hat_T) of f = w^2 / 2 from w = 1, with w_hat the mean with the weights (t + s)^2."""
    t = torch.arange(steps, dtype=torch.float64) + offset
    path = torch.cat([torch.ones(1).double(), torch.cumprod(1 - rate / t, 0)[:-1]])
    return float(((t**2 * path).sum() / (t**2).sum()) ** 2 / 2)


@pytest.mark.parametrize(
    ("rate", "offset", "steps", "holds"),
    [
        (1.0, 80.0, 100_000, False),
        (1.2, 192.0, 100_000, False),
        (1.2, 192.0, 2_000_000, True),  # above 1 / mu the error falls faster than the drift's T^-2
        (3.0, 480.0, 100_000, True),
    ],
)
def test_the_rate_decides_whether_it_is_a_bound(rate: float, offset: float, steps: int, holds: bool) -> None:
    """No noise, one client, kappa = 20: the error passes the bound with alpha = 1 / mu and s = 4 kappa."""
    quiet = {"variance": 0.0, "second_moment": 1.0, "mismatch": 0.0, "decay": 0.5, "local_steps": 1}
    terms = bound_terms(steps, **quiet, offset=offset, smoothness=20.0, rate=rate)
    assert (gradient_descent(rate, offset, steps) <= float(sum(terms.values()))) == holds


def error_of_noise(steps: int, kept_for: int, offset: float) -> float:
    """Two clients with (w - 1)^2 / 2 and (w + 1)^2 / 2, two places, draws kept for so many steps; exactly."""
    t = torch.arange(steps, dtype=torch.float64) + offset
    stays = torch.cat([torch.ones(1).double(), torch.cumprod(1 - 3 / t, 0)])
    later = (t**2 * stays[:-1]).flip(0).cumsum(0).flip(0)
    share = 3 / t[:-1] / stays[1:-1] * later[1:] / (t**2).sum()  # what of each step's draw is in w_hat_T
    of_draw = torch.nn.functional.pad(share, (0, -len(share) % kept_for)).view(-1, kept_for).sum(1)
    return float(0.5 * 0.5 * of_draw.square().sum())


def test_clients_who_are_kept_for_a_round_are_h_times_as_loud() -> None:
    steps, local_steps, offset = 2_000_000, 128, 384.0
    run = {"second_moment": 2.0, "mismatch": 0.0, "decay": 0.5, "local_steps": local_steps}
    as_printed, mended = (
        float(sum(bound_terms(steps, variance=variance, offset=offset, smoothness=1.0, **run).values()))
        for variance in (0.5, local_steps * 0.5)
    )
    step, kept = (error_of_noise(steps, kept_for, offset) for kept_for in (1, local_steps))
    assert kept == pytest.approx(local_steps * step, rel=0.01)
    assert step < as_printed < kept < mended
