"""The figures of the chapter on weight sharing draw what they are given."""

from collections.abc import Callable

import numpy as np
import pytest

from floral_lite.plots import Picture, sharing

from .pictures import assert_readable

BEST = np.array([[0.5, -2.0], [-0.5, 2.0]])
FOUND = {"own": np.arange(12.0).reshape(3, 2, 2), "shared": -np.arange(12.0).reshape(3, 2, 2)}
CLIENTS = np.array([8.0, 16.0, 64.0])
FIGURES: dict[str, Callable[[], Picture]] = {
    "estimates": lambda: sharing.estimates(BEST, FOUND),
    "over_clients": lambda: sharing.over_clients(
        CLIENTS,
        {"own": 8 / CLIENTS, "shared": 1 / CLIENTS},
        {"bound of shared": 4 / CLIENTS + 1, "floor": 1 + 0 * CLIENTS},
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_it_is_readable_in_both_themes(name: str) -> None:
    assert_readable(FIGURES[name]())


def test_estimates_has_a_panel_for_each_way_and_a_cross_for_each_cluster() -> None:
    made = FIGURES["estimates"]()
    assert [axis.get_title() for axis in made.axes] == ["own", "shared"]
    for axis, models in zip(made.axes, FOUND.values(), strict=True):
        *clusters, crosses = axis.lines
        for number, dots in enumerate(clusters):
            assert dots.get_xydata().tolist() == models[:, number].tolist()
        assert crosses.get_xydata().tolist() == BEST.tolist()
        assert len({dots.get_marker() for dots in clusters}) == 2
        assert axis.get_xlim() == axis.get_ylim() == (-3, 3)  # whatever was found


def test_over_clients_tells_measured_from_bounds() -> None:
    made = FIGURES["over_clients"]()
    (axis,) = made.axes
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    assert [text.get_text() for text in made.legends[0].get_texts()] == [
        "own",
        "shared",
        "bound of shared",
        "floor",
    ]
    wanted = (8 / CLIENTS, 1 / CLIENTS, 4 / CLIENTS + 1, 1 + 0 * CLIENTS)
    for line, values in zip(axis.lines, wanted, strict=True):
        assert line.get_xydata().tolist() == np.stack([CLIENTS, values], axis=1).tolist()
    assert [line.get_linestyle() for line in axis.lines] == ["-", "-", "--", ":"]
    assert [line.get_marker() for line in axis.lines] == ["o", "s", "None", "None"]
    assert axis.lines[1].get_color() == axis.lines[2].get_color() != axis.lines[3].get_color()
    assert [label.get_text() for label in axis.get_xticklabels()] == ["8", "16", "64"]
