"""The figures of the chapter on newcomers draw what they are given."""

from collections.abc import Callable

import numpy as np
import pytest

from floral_lite.plots import Picture, newcomers
from floral_lite.plots.newcomers import Curve

from .pictures import assert_readable

MIXTURES = np.array([[1.0, 0.0], [0.25, 0.75], [0.5, 0.5]])
IMAGES = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5) / 120
CURVES = {
    "labels": Curve([1, 5, 20], [50, 80, 90], [5, 3, 1]),
    "entropy": Curve([1, 5, 20], [40, 50, 60], [9, 8, 7]),
}
FIGURES: dict[str, Callable[[], Picture]] = {
    "mosaics": lambda: newcomers.mosaics({"turned": IMAGES, "renamed": 1 - IMAGES}),
    "matrices": lambda: newcomers.matrices(
        {
            "turned": {"labels": MIXTURES, "entropy": 1 - MIXTURES},
            "renamed": {"labels": MIXTURES, "entropy": MIXTURES},
        },
        [1, 0, 1],
    ),
    "by_samples": lambda: newcomers.by_samples(
        {"rotate": CURVES, "shift": {"labels": CURVES["labels"]}},
        {"rotate": {"uniform": 30.0, "true": 90.0}, "shift": {"uniform": 20.0}},
    ),
    "counted": lambda: newcomers.counted(
        {"rotate": {"one": [1.0, 1.2], "four": [3.0, 4.5]}, "shift": {"one": [2.0, 2.5]}},
        {"one": 1.0, "four": 4.0},
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_it_is_readable_in_both_themes(name: str) -> None:
    assert_readable(FIGURES[name]())


def test_a_row_is_a_cluster_and_a_column_a_label() -> None:
    turned, renamed = FIGURES["mosaics"]().axes
    assert [turned.get_title(), renamed.get_title()] == ["turned", "renamed"]
    shown = np.ma.filled(turned.images[0].get_array(), np.nan)
    assert shown.shape == (2 * 5 - 1, 3 * 6 - 1)  # with a gap between neighbours
    assert np.array_equal(shown[5:9, 12:17], IMAGES[1, 2])
    assert np.isnan(shown[4]).all()
    assert turned.get_xticks().tolist() == [2, 8, 14]  # the middles
    assert [label.get_text() for label in turned.get_yticklabels()] == ["0", "1"]
    assert np.array_equal(np.asarray(renamed.images[0].get_array())[:4, :5], 1 - IMAGES[0, 0])


def test_newcomers_are_sorted_by_their_cluster() -> None:
    first, second, _, last = FIGURES["matrices"]().axes
    assert (first.get_title(), last.get_title()) == ("turned: labels", "renamed: entropy")
    assert last.images[0].get_array().tolist() == MIXTURES[[1, 0, 2]].tolist()
    assert first.images[0].get_array().tolist() == MIXTURES[[1, 0, 2]].tolist()
    assert second.images[0].get_array().tolist() == (1 - MIXTURES[[1, 0, 2]]).tolist()
    assert [label.get_text() for label in first.get_yticklabels()] == ["0", "1", "1"]


def test_each_rule_has_a_line_with_its_deviations_and_references_go_across() -> None:
    rotate, shift = FIGURES["by_samples"]().axes
    labels, entropy = rotate.containers
    assert labels.lines[0].get_ydata().tolist() == [50, 80, 90]
    assert entropy.lines[0].get_ydata().tolist() == [40, 50, 60]
    bars = entropy.lines[2][0].get_segments()
    assert [(bar[0, 1], bar[1, 1]) for bar in bars] == [(31, 49), (42, 58), (53, 67)]
    assert [set(line.get_ydata()) for line in rotate.lines[-2:]] == [{30.0}, {90.0}]
    assert set(shift.lines[-1].get_ydata()) == {20.0}
    assert [label.get_text() for label in shift.get_xticklabels()] == ["1", "5", "20"]


def test_every_federation_is_a_dot_and_the_truth_a_line() -> None:
    rotate, _ = FIGURES["counted"]().axes
    dots, truths = rotate.collections[::2], rotate.collections[1::2]
    assert dots[1].get_offsets()[:, 1].tolist() == [3.0, 4.5]
    assert [line.get_segments()[0][0, 1] for line in truths] == [1.0, 4.0]
    assert abs(dots[1].get_offsets()[:, 0] - 1).max() < 0.35
    assert [label.get_text() for label in rotate.get_xticklabels()] == ["one", "four"]


def test_rules_that_ask_the_same_have_one_colour() -> None:
    curves = dict.fromkeys(["labels, gradient", "labels, closed form", "entropy"], CURVES["labels"])
    (axis,) = newcomers.by_samples({"rotate": curves}, {"rotate": {}}).axes
    one, other, entropy = (rule.lines[0] for rule in axis.containers)
    assert one.get_color() == other.get_color() != entropy.get_color()
    assert [one.get_linestyle(), other.get_linestyle()] == ["-", "--"]
