"""The figures of norms draw what they are given."""

from collections.abc import Callable

import numpy as np
import pytest

from floral_lite import plots
from floral_lite.plots import norms

from .pictures import assert_shown

MASK = np.array([[True, False, False], [True, False, False]])

FIGURES: dict[str, Callable[[], plots.Picture]] = {
    "reaches": lambda: norms.reaches({"batch": MASK, "layer": ~MASK}),
    "client_statistics": lambda: norms.client_statistics([1, 5], [0.5, 2], {"averaged": (3, 1)}),
    "fitted_lines": lambda: norms.fitted_lines(
        [2, 4], [5, 7], {"affine": [(0, 1), (2, 1), (1, 3)], "Batch-NorA": [(1, 3)]}
    ),
    "accuracy_bars": lambda: norms.accuracy_bars(
        {"local": [90, 80], "averaged": [50, 40]}, ["dark", "light"]
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_notebook_can_show_it_in_both_themes(name: str) -> None:
    assert_shown(FIGURES[name]())


def test_dark_cells_are_those_that_the_output_depends_on() -> None:
    batch, layer = FIGURES["reaches"]().axes
    assert ((batch.images[0].get_array() == 1) == MASK).all()
    assert ((layer.images[0].get_array() == 1) == ~MASK).all()
    assert [batch.get_title(), layer.get_title()] == ["batch", "layer"]
    assert (batch.get_xlabel(), batch.get_ylabel()) == ("channel", "sample")
    marked = batch.lines[-1]
    assert (list(marked.get_xdata()), list(marked.get_ydata())) == ([0], [0])


def test_statistics_are_points_with_deviations_beside_them() -> None:
    axis = FIGURES["client_statistics"]().axes[0]
    clients, server = axis.containers
    assert clients.lines[0].get_xydata().tolist() == [[0, 1], [1, 5]]
    assert server.lines[0].get_xydata().tolist() == [[2, 3]]
    (bars,) = clients.lines[2]
    assert [segment[:, 1].tolist() for segment in bars.get_segments()] == [[0.5, 1.5], [3, 7]]
    assert axis.get_xticks().tolist() == [0, 1]
    assert "deviation" in axis.get_ylabel()


def test_the_first_line_is_dashed_and_the_last_is_thick() -> None:
    affine, nora = FIGURES["fitted_lines"]().axes
    assert [affine.get_title(), nora.get_title()] == ["affine", "Batch-NorA"]
    dots, between, first, last = affine.lines
    assert dots.get_xydata().tolist() == [[2, 5], [4, 7]]
    for line, scale, shift in ((between, 2, 1), (first, 0, 1), (last, 1, 3)):
        x, y = line.get_xydata().T
        assert x[0] == 0
        assert y == pytest.approx(scale * x + shift)
    assert (first.get_linestyle(), last.get_linestyle()) == ("--", "-")
    assert last.get_linewidth() > 2 * between.get_linewidth()
    assert affine.get_xlim() == nora.get_xlim()
    assert affine.get_ylim() == nora.get_ylim()
    assert len(nora.lines) == 3  # of a single line the first is the last


def test_bars_are_the_accuracies_side_by_side() -> None:
    axis = FIGURES["accuracy_bars"]().axes[0]
    local, averaged = axis.containers
    assert [bar.get_height() for bar in local] == [90, 80]
    assert [bar.get_height() for bar in averaged] == [50, 40]
    assert local[0].get_x() + local[0].get_width() == pytest.approx(averaged[0].get_x())
    assert [label.get_text() for label in axis.get_xticklabels()] == ["dark", "light"]
    assert axis.get_ylabel() == "test accuracy (%)"
