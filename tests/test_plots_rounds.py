"""The figure of a round draws the weights that it was given."""

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from floral_lite import plots
from floral_lite.plots import rounds

WEIGHTS = np.array([[0.5, 0.2, 0.3], [0.9, 0.0, 0.1]])
GROUPS = [0, 1, 0]


def test_areas_are_the_weights_of_the_sorted_clients() -> None:
    axis = rounds.who_counts(WEIGHTS, GROUPS).axes[0]
    order = [0, 2, 1]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["0", "2", "1"]
    seen = {
        (round(float(x)), round(float(y))): area
        for marks in axis.collections
        for (x, y), area in zip(marks.get_offsets(), marks.get_sizes(), strict=True)
    }
    assert len(seen) == WEIGHTS.size
    whole = sum(area for (_, row), area in seen.items() if row == 0)
    for (place, row), area in seen.items():
        assert area / whole == pytest.approx(WEIGHTS[row, order[place]])


def test_a_cluster_has_a_colour_a_name_and_a_line_before_it() -> None:
    axis = rounds.who_counts(WEIGHTS, GROUPS).axes[0]
    of_group = {0: axis.collections[:2], 1: axis.collections[2:]}
    for group, marks in of_group.items():
        for mark in marks:
            assert mark.get_facecolor()[0].tolist() == pytest.approx(to_rgba(plots.COLOURS[group]))
    # areas are compared across clusters
    one, other = (marks[0].get_paths()[0].vertices for marks in of_group.values())
    assert (one == other).all()
    assert [(note.get_text(), note.xy[0]) for note in axis.texts] == [("cluster 0", 0.5), ("cluster 1", 2)]
    assert [line.get_xdata()[0] for line in axis.lines] == [1.5]


def test_the_first_row_is_the_base_and_stands_on_top() -> None:
    axis = rounds.who_counts(WEIGHTS, GROUPS).axes[0]
    assert [text.get_text() for text in axis.get_yticklabels()] == ["base", "adaptor 0"]
    bottom, top = axis.get_ylim()
    assert top < 0 < 1 < bottom
    assert axis.get_xlabel() == "client"
