"""The figures of the chapters on photographs and ablations draw what they are given."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from floral_lite.plots import COLOURS, Picture, cifar, image_grid

from .pictures import assert_readable

LAYERS = pd.DataFrame(
    [("small", "first", 1000, 50, 1), ("small", "last", 64, 16, 1), ("large", "only", 200_000, 2000, 2)],
    columns=["network", "layer", "weight", "adaptor", "rank"],
)
CELLS = {
    "Task A": {"both": {"1%": [50.0, 52.0], "10%": [60.0]}, "none": {"no adaptor": [40.0, 44.0]}},
    "Task B": {"both": {"1%": [70.0, 72.0], "10%": [80.0]}, "none": {"no adaptor": [30.0, 31.0]}},
}


def names(axis: Axes) -> list[str]:
    return [label.get_text() for label in axis.get_yticklabels()]


@pytest.mark.parametrize(
    "made", [cifar.parameters(LAYERS, 0.1), cifar.cases(CELLS), cifar.ahead(CELLS, "points")]
)
def test_a_notebook_can_show_it_in_both_themes(made: Picture) -> None:
    assert_readable(made, of_rows=True)
    assert [axis.get_title() for axis in made.axes] in (["small", "large"], list(CELLS))


def test_every_layer_has_its_weight_its_adaptor_and_its_budget() -> None:
    small, large = cifar.parameters(LAYERS, 0.1).axes
    adaptors, weights, budget = small.lines
    assert list(weights.get_xdata()) == [1000, 64]
    assert list(adaptors.get_xdata()) == [50, 16]
    assert list(budget.get_xdata()) == [100, 6.4]
    assert len({line.get_marker() for line in small.lines}) == 3
    (joined,) = small.collections  # from the adaptor to the weight
    assert [path[:, 0].tolist() for path in joined.get_segments()] == [[50, 1000], [16, 64]]
    assert [text.get_text() for text in small.texts] == ["rank 1", "rank 1"]
    assert [text.get_text() for text in large.texts] == ["rank 2"]
    assert (names(small), names(large)) == (["first", "last"], ["only"])
    assert [text.xy for text in small.texts] == [(1000, 0), (64, 1)]  # behind the weights
    assert small.get_xscale() == "log"
    bottom, top = small.get_ylim()
    assert bottom > top  # the first layer at the top


def test_every_seed_is_a_point_and_a_mean_is_marked() -> None:
    made = cifar.cases(CELLS)
    for axis, task in zip(made.axes, CELLS.values(), strict=True):
        wanted = [task["both"]["1%"], task["both"]["10%"], task["none"]["no adaptor"]]
        points, means = axis.lines[::2], axis.lines[1::2]
        assert [list(line.get_xdata()) for line in points] == wanted
        assert [next(iter(line.get_xdata())) for line in means] == [np.mean(seeds) for seeds in wanted]
        assert [round(float(line.get_ydata()[0])) for line in points] == [0, 0, 1]
        assert [to_hex(line.get_color()) for line in points] == [to_hex(c) for c in COLOURS[:3]]
    assert [text.get_text() for text in made.legends[0].get_texts()] == ["1%", "10%", "no adaptor"]
    assert names(made.axes[0]) == ["both", "none"]
    assert not any(names(made.axes[1]))


def test_a_difference_is_a_mean_with_two_errors_to_each_side_of_it() -> None:
    made = cifar.ahead(CELLS, "points ahead")
    for axis, task in zip(made.axes, CELLS.values(), strict=True):
        assert axis.get_xlabel() == "points ahead"
        zero, *seeds = axis.lines[:1], *(line for line in axis.lines[1:] if line.get_alpha())
        assert list(zero[0].get_xdata()) == [0, 0]
        several = [task["both"]["1%"], task["none"]["no adaptor"]]
        assert [list(line.get_xdata()) for line in seeds] == several
        means = [container.lines[0].get_xdata().item() for container in axis.containers]
        assert means == [
            np.mean(task["both"]["1%"]),
            60 if task is CELLS["Task A"] else 80,
            np.mean(several[1]),
        ]
        bars = [container.lines[2] for container in axis.containers]
        (low, high) = bars[0][0].get_segments()[0][:, 0]
        # of two seeds the standard error is half their distance
        assert (low, high) == (means[0] - 2, means[0] + 2)
        assert not bars[1]  # one seed
    assert [text.get_text() for text in made.legends[0].get_texts()] == ["1%", "10%", "no adaptor"]
    assert names(made.axes[0]) == ["both", "none"]


def test_other_numbers_have_their_name_and_one_kind_alone_is_on_its_row() -> None:
    made = cifar.cases({"Task": {"base": {"here": [0.01, 0.1]}}}, "relative error", log=True)
    (axis,) = made.axes
    assert_readable(made, of_rows=True)
    assert axis.get_xlabel() == "relative error"
    assert axis.get_xscale() == "log"
    assert list(axis.lines[0].get_ydata()) == [0, 0]


def test_a_kind_that_is_late_in_the_first_task_is_in_the_legend_once() -> None:
    made = cifar.cases({"Task": {"both": {"1%": [1.0]}, "one": {"1%": [2.0], "10%": [3.0]}}})
    assert [text.get_text() for text in made.legends[0].get_texts()] == ["1%", "10%"]


def test_a_grid_shows_colours() -> None:
    images = np.random.default_rng(0).random((2, 3, 4, 4, 3))
    made = image_grid(images, ["a", "b"])
    np.testing.assert_array_equal(made.axes[4].images[0].get_array(), images[1, 1])


def test_ticks_between_whole_numbers_are_not_quarters() -> None:
    seeds = {"one": {"1%": [77.7, 79.4]}, "two": {"1%": [93.4, 95.8]}}
    made = cifar.cases({"Task": seeds, "Other": seeds})
    made.draw_without_rendering()
    for axis in made.axes:
        assert all(float(tick).is_integer() for tick in axis.get_xticks())
