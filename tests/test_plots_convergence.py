"""The figures of the chapter on convergence draw what they are given."""

from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.colors import to_hex

from floral_lite.plots import Picture, convergence

from .pictures import assert_readable

BEST = np.array([[1.0, 0.5], [-1.0, 0.0], [1.2, 0.1]])
OWN = [True, False, True]
PATH = np.array([[0.0, 0.0], [0.5, 0.1], [0.9, 0.3]])
STEPS = np.array([10.0, 100.0, 1000.0])
FIGURES: dict[str, Callable[[], Picture]] = {
    "plane": lambda: convergence.plane(BEST, OWN, [1.1, 0.3], PATH),
    "rates": lambda: convergence.rates(
        STEPS,
        {"federation": (1 / STEPS, 0.1 / STEPS), "draws": (1 / STEPS**2, 2 / STEPS**2)},
        {"noise": 9 / STEPS, "drift": 9 / STEPS**2},
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_it_is_readable_in_both_themes(name: str) -> None:
    assert_readable(FIGURES[name]())


def test_a_plane_has_both_kinds_of_clients_the_optimum_and_the_path() -> None:
    axis = FIGURES["plane"]().axes[0]
    own, others, end, optimum = axis.collections
    assert own.get_offsets().tolist() == BEST[[0, 2]].tolist()
    assert others.get_offsets().tolist() == BEST[[1]].tolist()
    assert end.get_offsets().tolist() == PATH[-1:].tolist()
    assert optimum.get_offsets().tolist() == [[1.1, 0.3]]
    assert axis.lines[0].get_xydata().tolist() == PATH.tolist()
    assert axis.get_aspect() == 1


def test_rates_have_a_line_for_each_error_and_each_bound() -> None:
    made = FIGURES["rates"]()
    axis = made.axes[0]
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    names = [text.get_text() for text in made.legends[0].get_texts()]
    assert names == ["federation", "draws", "noise", "drift"]
    wanted = (1 / STEPS, 1 / STEPS**2, 9 / STEPS, 9 / STEPS**2)
    for line, values in zip(axis.lines, wanted, strict=True):
        assert line.get_xydata().tolist() == np.stack([STEPS, values], axis=1).tolist()
    measured, bounds = axis.lines[:2], axis.lines[2:]
    assert [line.get_linestyle() for line in measured] == ["-", "-"]
    assert "-" not in [line.get_linestyle() for line in bounds]
    assert len({line.get_marker() for line in measured}) == 2
    assert {line.get_marker() for line in bounds} == {"None"}
    assert len({to_hex(line.get_color()) for line in axis.lines}) == 4


def test_a_bound_has_the_colour_of_its_error() -> None:
    error = (1 / STEPS, 0 * STEPS)
    made = convergence.rates(STEPS, {"one": error, "two": error}, {"bound, two": STEPS, "bias": STEPS})
    _, two, bound, bias = (to_hex(line.get_color()) for line in made.axes[0].lines)
    assert two == bound != bias


def test_the_areas_are_two_standard_errors_wide_and_stay_above_zero() -> None:
    first, second = FIGURES["rates"]().axes[0].collections
    edges = first.get_paths()[0].vertices
    at_ten = edges[edges[:, 0] == 10, 1]
    assert (at_ten.min(), at_ten.max()) == pytest.approx((0.08, 0.12))
    edges = second.get_paths()[0].vertices  # an error larger than its mean
    at_ten = edges[edges[:, 0] == 10, 1]
    assert (at_ten.min(), at_ten.max()) == pytest.approx((0.001, 0.05))
