"""The figures of the page on routing rules draw what they are given."""

from collections.abc import Callable

import numpy as np
import pytest

from floral_lite.plots import Picture, clustering

from .pictures import assert_readable

POINTS = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
FIGURES: dict[str, Callable[[], Picture]] = {
    "places": lambda: clustering.places({"raw": POINTS, "white": -POINTS}, [0, 1, 0]),
    "effects": lambda: clustering.effects(
        {"clusters": {1: 0.5, 2: 1.7}, "none": {1: 0.2, 2: 0.4}}, limit=1.0
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_it_is_readable_in_both_themes(name: str) -> None:
    assert_readable(FIGURES[name]())


def test_each_client_is_at_its_place_with_its_clusters_mark() -> None:
    raw, white = FIGURES["places"]().axes
    assert raw.get_title() == "raw"
    first, second = raw.collections
    assert first.get_offsets().tolist() == POINTS[[0, 2]].tolist()
    assert second.get_offsets().tolist() == POINTS[[1]].tolist()
    assert white.collections[1].get_offsets().tolist() == (-POINTS[[1]]).tolist()
    assert len(FIGURES["places"]().legends[0].get_texts()) == 2


def test_each_federation_has_a_line_and_the_limit_too() -> None:
    axis = FIGURES["effects"]().axes[0]
    clusters, none, limit = axis.lines
    assert clusters.get_xydata().tolist() == [[1, 0.5], [2, 1.7]]
    assert none.get_ydata().tolist() == [0.2, 0.4]
    assert set(limit.get_ydata()) == {1.0}
