"""The figure of a round draws the moves and averages that it was given."""

import numpy as np
import pytest
from matplotlib.collections import PathCollection

from floral_lite.plots import rounds

BASE = [[3.0, 0.0, 0.0], [0.0, 1.0, 0.0], [3.0, 1.0, 0.0]]
ADAPTOR = [[0.0, 0.0, 2.0], [0.0, 0.5, 0.0], [0.0, 0.0, -2.0]]
WEIGHTS = [[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]]


def test_the_plane_keeps_lengths_and_averages() -> None:
    seen = rounds.in_plane(BASE)
    assert seen.shape == (3, 2)
    assert np.linalg.norm(seen, axis=1) == pytest.approx(np.linalg.norm(BASE, axis=1))
    # another basis of the same space is seen alike
    turned = np.array(BASE) @ np.linalg.qr(np.array([[1.0, 2, 0], [0, 1, 3], [1, 0, 1]])).Q
    assert np.linalg.norm(rounds.in_plane(turned).mean(axis=0)) == pytest.approx(
        np.linalg.norm(np.mean(BASE, axis=0))
    )


def test_every_client_and_the_average_are_where_the_numbers_say() -> None:
    axes = rounds.moves([BASE, ADAPTOR], WEIGHTS, groups=[0, 1, 0]).axes
    for axis, moved, weights in zip(axes, [BASE, ADAPTOR], np.array(WEIGHTS), strict=True):
        places = rounds.in_plane(moved)
        *arrows, star = axis.lines[:4]
        for arrow, place in zip(arrows, places, strict=True):
            assert arrow.get_xydata().tolist() == [[0, 0], pytest.approx(place)]
        assert star.get_xydata()[0] == pytest.approx(weights @ places)
        marks = [mark for mark in axis.collections if isinstance(mark, PathCollection)][:3]
        sizes = np.array([mark.get_sizes()[0] for mark in marks])
        assert sizes - 20 == pytest.approx(500 * weights)
        assert axis.get_xlim() == axis.get_ylim()
        assert np.abs(places).max() < axis.get_xlim()[1]
    assert marks[0].get_facecolor().tolist() == marks[2].get_facecolor().tolist()
    assert marks[0].get_facecolor().tolist() != marks[1].get_facecolor().tolist()


def test_panels_and_legend_have_names() -> None:
    made = rounds.moves([BASE, ADAPTOR], WEIGHTS, groups=[0, 1, 0])
    assert [axis.get_title() for axis in made.axes] == ["base", "adaptor 0"]
    assert [text.get_text() for text in made.legends[0].get_texts()] == [
        "client of cluster 0",
        "client of cluster 1",
        "the server's average",
    ]


def test_copies_that_did_not_move_are_drawn_at_the_origin() -> None:
    (axis,) = rounds.moves([np.zeros((2, 3))], [[0.0, 0.0]], groups=[0, 1]).axes
    assert all(line.get_xydata().tolist()[-1] == [0, 0] for line in axis.lines[:3])
    assert axis.get_xlim() == (-1, 1)
