"""The figures of low-rank adaptors draw what they are given."""

from collections.abc import Callable

import numpy as np
import pytest

from floral_lite import plots
from floral_lite.plots import adaptors

from .pictures import assert_shown

D = np.array([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]])  # singular values 4 and 3

FIGURES: dict[str, Callable[[], plots.Picture]] = {
    "matrices": lambda: adaptors.matrices({"one": D, "two": -D}, signs="+"),
    "singular_values": lambda: adaptors.singular_values({"one": [4.0, 3.0], "two": [1.0, 1.0, 1.0]}),
    "best_of_rank": lambda: adaptors.best_of_rank(D, 1),
    "accuracy_over_rank": lambda: adaptors.accuracy_over_rank({"cut": ([1, 2], [50, 60])}, {"top": 90}),
    "factor_shapes": lambda: adaptors.factor_shapes(200, 784, 15),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_notebook_can_show_it_in_both_themes(name: str) -> None:
    assert_shown(FIGURES[name]())


def test_matrices_share_one_scale_and_have_the_signs_between_them() -> None:
    one, two, _ = FIGURES["matrices"]().axes
    assert [axis.images[0].get_clim() for axis in (one, two)] == [(-4, 4)] * 2
    assert (one.images[0].get_array() == D).all()
    assert (two.images[0].get_array() == -D).all()
    assert [one.get_ylabel(), two.get_ylabel()] == ["", "$+$"]
    assert [one.get_title(), two.get_title()] == ["one", "two"]


def test_a_given_limit_is_the_scale() -> None:
    axis = adaptors.matrices({"one": D}, limit=0.5).axes[0]
    assert axis.images[0].get_clim() == (-0.5, 0.5)


def test_singular_values_over_the_largest_and_shares_of_the_squares() -> None:
    values, shares = FIGURES["singular_values"]().axes
    assert values.lines[0].get_ydata().tolist() == [1, 0.75]
    assert shares.lines[0].get_ydata().tolist() == pytest.approx([64, 100])
    assert shares.lines[1].get_ydata().tolist() == pytest.approx([100 / 3, 200 / 3, 100])
    assert shares.lines[0].get_xdata().tolist() == [1, 2]
    assert len({line.get_linestyle() for line in values.lines}) == 2
    assert shares.get_ylabel() == "share of the squares (%)"
    assert values.get_ylim()[0] == 0


@pytest.mark.parametrize(("rank", "kept"), [(0, 0), (1, 64), (2, 100)])
def test_the_closest_matrix_and_what_is_left_add_up(rank: int, kept: int) -> None:
    whole, closest, left, _ = adaptors.best_of_rank(D, rank).axes
    shown = [np.asarray(axis.images[0].get_array()) for axis in (whole, closest, left)]
    assert np.allclose(shown[1] + shown[2], shown[0])
    assert np.linalg.matrix_rank(shown[1]) == rank
    assert closest.get_title() == f"rank {rank}: {kept}% of the squares"


def test_accuracy_over_rank_draws_runs_and_levels() -> None:
    run, level = FIGURES["accuracy_over_rank"]().axes[0].lines
    assert (run.get_xdata().tolist(), run.get_ydata().tolist()) == ([1, 2], [50, 60])
    assert list(level.get_ydata()) == [90, 90]
    axis = FIGURES["accuracy_over_rank"]().axes[0]
    assert axis.get_ylabel() == "test accuracy (%)"
    assert axis.get_xlabel() == "rank $r$"
    assert axis.get_ylim()[0] == 0


def test_areas_are_numbers_of_parameters() -> None:
    axis = FIGURES["factor_shapes"]().axes[0]
    areas = [patch.get_width() * patch.get_height() for patch in axis.patches]
    assert areas == [200 * 784, 200 * 15, 15 * 784]
    assert all(patch.get_edgecolor()[3] * patch.get_linewidth() > 0.5 for patch in axis.patches)
    assert axis.get_title() == "rank 15: 14,760 parameters beside 156,800, 9.4%"
    assert axis.get_aspect() == 1
    left, right = axis.get_xlim()
    for before, after in zip(axis.patches, axis.patches[1:], strict=False):
        assert before.get_x() + before.get_width() < after.get_x()
    assert left < 0 < axis.patches[-1].get_x() + 784 < right
    bottom, top = axis.get_ylim()
    assert top < 0 < 200 < bottom
    for rank in (1, 160):  # W stands still while the rank changes
        other = adaptors.factor_shapes(200, 784, rank).axes[0]
        assert (other.get_xlim(), other.get_ylim()) == (axis.get_xlim(), axis.get_ylim())
