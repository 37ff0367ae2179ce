"""The figures of the chapter on roles draw what they are given."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from floral_lite.plots import Picture, roles

from .pictures import assert_readable

# two rounds of two local steps, three clients in two clusters
SHARED = np.arange(18.0).reshape(2, 3, 3)
PATHS = {"shared": SHARED, "private": -SHARED}
CLUSTERS = [0, 1, 0]
BEST = np.array([-17.0, 5.0, 17.0])
FRAME = pd.DataFrame(
    {
        "shared": [2000, 0],
        "clustered": [0, 4000],
        "private": [500, 4],
        "bytes": [8000, 16000],
        "accuracy": [0.25, 0.9],
    },
    index=["one", "two"],
)
FIGURES: dict[str, Callable[[], Picture]] = {
    "fates": lambda: roles.fates(PATHS, CLUSTERS, 2, BEST),
    "side_by_side": lambda: roles.side_by_side(FRAME),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_notebook_can_show_it_in_both_themes(name: str) -> None:
    assert_readable(FIGURES[name](), of_rows=True)


def test_a_fate_is_a_line_for_each_client_and_round() -> None:
    made = roles.fates(PATHS, CLUSTERS, 2, BEST)
    assert [axis.get_title() for axis in made.axes] == ["shared", "private"]
    assert made.axes[0].get_ylabel() == "value at each client"
    for axis, path in zip(made.axes, PATHS.values(), strict=True):
        *lines, average = [line for line in axis.lines if line.get_marker() == "None"]
        goals = [line for line in axis.lines if line.get_marker() != "None"]
        assert [line.get_xydata().tolist() for line in goals] == [[[4, value]] for value in BEST]
        drawn = [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in lines]
        assert drawn == [
            ([2 * number, 2 * number + 1, 2 * number + 2], path[number, :, client].tolist())
            for client in range(3)
            for number in range(2)
        ]
        styles = [(line.get_color(), line.get_linestyle()) for line in lines]
        assert len(set(styles)) == 2
        assert styles[:2] == styles[4:]
        assert average.get_xdata() == [2, 2]
        assert axis.get_xlim() == (0, 4)
        assert axis.get_ylim()[0] < -17
        assert axis.get_ylim()[1] > 17
    assert [text.get_text() for text in made.legends[0].get_texts()] == ["cluster 0", "cluster 1"]


def test_methods_side_by_side_have_bars_in_thousands_and_accuracy_in_per_cent() -> None:
    made = roles.side_by_side(FRAME)
    held, sent, right = made.axes
    assert [label.get_text() for label in held.get_yticklabels()] == ["one", "two"]
    assert [text.get_text() for text in made.legends[0].get_texts()] == list(roles.ROLES)
    bars = [(bar.get_x(), bar.get_width()) for bars in held.containers for bar in bars]
    assert np.allclose(bars, [(0, 2), (0, 0), (2, 0), (0, 4), (2, 0.5), (4, 0.004)])
    assert [bar.get_width() for bar in sent.containers[0]] == [8, 16]
    (dots,) = right.lines
    assert dots.get_xdata().tolist() == [25, 90]
    assert [text.get_text() for text in right.texts] == ["25", "90"]
    for axis in made.axes:
        low, high = axis.get_ylim()
        assert low > 1 > 0 > high  # the first row is on top
    assert right.get_xlim()[0] == 0
    assert right.get_xlim()[1] > 100
