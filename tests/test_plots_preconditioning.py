"""The figures of preconditioning draw the numbers that they were given."""

import numpy as np
import pytest
from matplotlib.colors import same_color

from floral_lite.plots import COLOURS, GREY, Picture, preconditioning

from .pictures import assert_readable

PATHS = {"plain": [(2.0, 0.1), (2.5, 0.5), (np.inf, np.nan)], "preconditioned": [(2.0, 0.1), (2.1, 0.2)]}


def test_the_valley_shows_every_path_and_its_product() -> None:
    plane, product = preconditioning.valley(PATHS, 0.5, reach=(4, 2), title="s = 4").axes
    bottom, *paths = plane.lines
    assert [line.get_label() for line in paths] == list(PATHS)
    for line, path in zip(paths, PATHS.values(), strict=True):
        assert np.array_equal(line.get_xydata(), path, equal_nan=True)
    # at the bottom of the valley u v is the target, and it is drawn inside the picture
    assert np.prod(bottom.get_xydata(), axis=1) == pytest.approx(0.5)
    assert bottom.get_ydata().max() <= 2
    *lines, target = product.lines
    assert lines[0].get_ydata()[:2] == pytest.approx([0.2, 1.25])
    assert lines[1].get_ydata() == pytest.approx([0.2, 0.42])
    assert lines[1].get_xdata().tolist() == [0, 1]
    assert target.get_ydata() == [0.5, 0.5]
    assert plane.get_title() == "s = 4"


def test_the_valley_has_contours_of_the_loss() -> None:
    plane, _ = preconditioning.valley(PATHS, 0.5, reach=(4, 2)).axes
    (contours,) = plane.collections
    assert sum(len(path.vertices) > 0 for path in contours.get_paths()) > 5
    for level, path in zip(contours.levels, contours.get_paths(), strict=True):
        away = np.abs(path.vertices.prod(axis=1) - 0.5)
        assert away == pytest.approx((2 * level) ** 0.5, abs=0.01)


def test_the_valley_stands_still_while_paths_change() -> None:
    limits = []
    for path in ([(1.0, 1.0)], [(50.0, -3.0), (1.0, 9.0)]):
        plane, product = preconditioning.valley({"plain": path}, 0.5, reach=(4, 2)).axes
        limits.append((plane.get_xlim(), plane.get_ylim(), product.get_ylim()))
    assert limits[0] == limits[1] == (
        pytest.approx((-0.8, 4)), pytest.approx((-0.4, 2)), pytest.approx((-0.25, 1)),
    )  # fmt: skip


def test_the_two_rules_are_told_apart_without_colour() -> None:
    plane, _ = preconditioning.valley(PATHS, 0.5, reach=(4, 2)).axes
    assert len({line.get_linestyle() for line in plane.lines[1:]}) == 2


def test_rates_are_drawn_over_the_splits_on_logarithmic_axes() -> None:
    splits, speeds = [0.1, 1, 10], {"plain": [100, 2, 100], "preconditioned": [1.9, 2, 1.9]}
    (axis,) = preconditioning.rates(splits, speeds).axes
    *lines, one = axis.lines
    for line, (name, speed) in zip(lines, speeds.items(), strict=True):
        assert line.get_label() == name
        assert line.get_xdata().tolist() == splits
        assert line.get_ydata().tolist() == speed
    assert one.get_ydata() == [1, 1]
    assert axis.get_xscale() == axis.get_yscale() == "log"


def test_directions_have_a_dot_for_each_rule_and_singular_value() -> None:
    speeds = {"plain": [9.0, 0.25], "solve": [1.0, 1.0]}
    (axis,) = preconditioning.directions([3, 0.5], speeds).axes
    one, *lines = axis.lines
    assert one.get_ydata() == [1, 1]
    for line, (name, speed), colour in zip(lines, speeds.items(), COLOURS, strict=False):
        assert line.get_label() == name
        assert line.get_xdata().tolist() == [3, 0.5]
        assert list(line.get_ydata()) == speed
        assert same_color(line.get_color(), colour)
    # without colours they are told apart too
    assert len({(line.get_marker(), line.get_linestyle()) for line in lines}) == 2
    assert axis.get_xscale() == axis.get_yscale() == "log"
    assert axis.get_xticks().tolist() == [3, 0.5]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["$\\sigma_1$ = 3", "$\\sigma_2$ = 0.5"]


@pytest.mark.parametrize(
    "made",
    [
        preconditioning.valley(PATHS, 0.5, reach=(4, 2), title="s = 4"),
        preconditioning.rates([1, 2], {"plain": [1, 2]}),
        preconditioning.directions([2, 1], {"plain": [4, 1]}),
    ],
    ids=["valley", "rates", "directions"],
)
def test_the_house_style(made: Picture) -> None:
    assert_readable(made)
    assert all(text.get_color() == GREY for axis in made.axes for text in axis.texts if text.get_text())
