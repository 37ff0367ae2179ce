"""The figures of the chapter on synthetic federations draw what they are given."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from floral_lite.plots import GREY, Picture, synthetic

from .pictures import assert_readable

ONE, TWO = np.arange(6.0).reshape(2, 3), -np.ones((2, 3))
ROWS = [{"base": ONE, "model 0": TWO}, {"truth": TWO, "model 1": 2 * TWO}]
SEEDS = pd.DataFrame(
    {"clusters": [2, 2, 3, 4], "models": [1e-3, 2e-3, 1e-2, 1e-4], "base": [0.1, 0.2, 2e-2, 3e-4]}
)
FIGURES: dict[str, Callable[[], Picture]] = {
    "matrices": lambda: synthetic.matrices(ROWS, limit=3.0),
    "base_by_models": lambda: synthetic.base_by_models(SEEDS),
}


def test_matrices_are_shown_under_their_titles_in_the_same_colours() -> None:
    made = FIGURES["matrices"]()
    panels = [axis for axis in made.axes if axis.get_images()]
    assert [axis.get_title() for axis in panels] == ["base", "model 0", "truth", "model 1"]
    assert {to_hex(axis.title.get_color()) for axis in panels} == {GREY}
    for axis, matrix in zip(panels, [ONE, TWO, TWO, 2 * TWO], strict=True):
        (image,) = axis.get_images()
        assert np.array_equal(image.get_array(), matrix)
        assert image.get_clim() == (-3, 3)
    assert made.get_facecolor()[3] == 0


def test_the_colours_have_a_bar_with_a_name() -> None:
    (bar,) = (axis for axis in FIGURES["matrices"]().axes if axis.get_ylabel())
    assert bar.get_ylabel() == "entry"
    assert bar.get_ylim() == (-3, 3)


def test_a_row_with_another_number_of_matrices_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        synthetic.matrices([ROWS[0], {"alone": ONE}], limit=1.0)


def test_base_by_models_has_a_point_a_seed_and_a_line_where_both_are_alike() -> None:
    made = FIGURES["base_by_models"]()
    assert_readable(made)
    (axis,) = made.axes
    *points, line = axis.lines
    for drawn, (clusters, part) in zip(points, SEEDS.groupby("clusters"), strict=True):
        assert drawn.get_label() == f"{clusters} clusters"
        assert drawn.get_linestyle() == "None"
        assert np.array_equal(drawn.get_xdata(), part["models"])
        assert np.array_equal(drawn.get_ydata(), part["base"])
    assert len({point.get_marker() for point in points}) == 3
    assert np.array_equal(line.get_xdata(), line.get_ydata())
    assert line.get_xdata()[0] < SEEDS["models"].min()
    assert line.get_xdata()[1] > SEEDS["models"].max()
    assert {axis.get_xscale(), axis.get_yscale()} == {"log"}
