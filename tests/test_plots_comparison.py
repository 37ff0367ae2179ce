"""The figures that compare methods and cases draw what they are given."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from floral_lite.plots import COLOURS, Picture, comparison

from .pictures import assert_readable

ROWS = {"fedavg": "FedAvg", "ifca": "IFCA"}
COLUMNS = {"a": "Task A", "b": "Task B"}
RUNS = pd.DataFrame(
    {
        "row": ["fedavg", "fedavg", "ifca", "ifca", "ifca"],
        "column": ["a", "a", "a", "a", "b"],
        "accuracy": [50.0, 54.0, 90.0, 80.0, 70.0],
        "rand": [0.0, 0.0, 1.0, 0.6, 0.5],
    }
)
CELLS = {
    "Task A": {"both": {"1%": [50.0, 52.0], "10%": [60.0]}, "none": {"no adaptor": [40.0, 44.0]}},
    "Task B": {"both": {"1%": [70.0, 72.0], "10%": [80.0]}, "none": {"no adaptor": [30.0, 31.0]}},
}


def names(axis: Axes) -> list[str]:
    return [label.get_text() for label in axis.get_yticklabels()]


def test_each_seed_is_a_dot_and_their_mean_a_line() -> None:
    made = comparison.seeds(RUNS, ROWS, COLUMNS)
    assert_readable(made, of_rows=True)
    first, second = made.axes
    drawn = [(line.get_marker(), np.asarray(line.get_xdata()).ravel().tolist()) for line in first.lines]
    assert drawn == [("o", [50, 54]), ("|", [52]), ("o", [90, 80]), ("|", [85])]
    assert [line.get_ydata()[0] for line in first.lines] == [0, 0, 1, 1]  # type: ignore[index]
    assert [label.get_text() for label in first.get_yticklabels()] == ["FedAvg", "IFCA"]
    assert not any(label.get_text() for label in second.get_yticklabels())
    assert [axis.get_title() for axis in made.axes] == list(COLUMNS.values())


def test_the_fourth_column_stands_below_and_names_its_rows_again() -> None:
    made = comparison.seeds(RUNS, ROWS, {name: f"Task {name}" for name in "abcd"})
    named = [any(label.get_text() for label in axis.get_yticklabels()) for axis in made.axes[:4]]
    assert named == [True, False, False, True]
    assert not np.isfinite(made.axes[3].lines[0].get_xdata()).any()  # it has no runs


def test_each_method_has_a_mark_where_its_runs_came_to() -> None:
    made = comparison.found(RUNS[RUNS["column"] == "a"], ROWS, level=60.0)
    assert_readable(made)
    (axis,) = made.axes
    *methods, level = axis.lines
    assert [line.get_label() for line in methods] == ["FedAvg", "IFCA"]
    assert len({line.get_marker() for line in methods}) == 2
    assert np.asarray(methods[1].get_xdata()).tolist() == [1.0, 0.6]
    assert np.asarray(methods[1].get_ydata()).tolist() == [90, 80]
    assert set(np.asarray(level.get_ydata()).tolist()) == {60.0}


@pytest.mark.parametrize("made", [comparison.cases(CELLS), comparison.ahead(CELLS, "points")])
def test_cases_can_be_read_in_both_themes(made: Picture) -> None:
    assert_readable(made, of_rows=True)
    assert [axis.get_title() for axis in made.axes] == list(CELLS)


def test_every_seed_is_a_point_and_a_mean_is_marked() -> None:
    made = comparison.cases(CELLS)
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
    made = comparison.ahead(CELLS, "points ahead")
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
    made = comparison.cases({"Task": {"base": {"here": [0.01, 0.1]}}}, "relative error", log=True)
    (axis,) = made.axes
    assert_readable(made, of_rows=True)
    assert axis.get_xlabel() == "relative error"
    assert axis.get_xscale() == "log"
    assert list(axis.lines[0].get_ydata()) == [0, 0]


def test_a_kind_that_is_late_in_the_first_task_is_in_the_legend_once() -> None:
    made = comparison.cases({"Task": {"both": {"1%": [1.0]}, "one": {"1%": [2.0], "10%": [3.0]}}})
    assert [text.get_text() for text in made.legends[0].get_texts()] == ["1%", "10%"]


def test_kin_have_one_colour_and_the_second_is_hollow() -> None:
    kinds = ["ours, 1%", "ours, 10%", "paper, 1%"]
    for draw in (comparison.cases, lambda cells: comparison.ahead(cells, "points")):
        axis = draw({"Task": {"one": {kind: [float(place)] for place, kind in enumerate(kinds)}}}).axes[0]
        marks = {next(iter(line.get_xdata())): line for line in axis.lines if line.get_marker() in "os"}
        own, own_too, paper = (marks[place] for place in range(3))
        assert own.get_color() == own_too.get_color() != paper.get_color()
        assert own.get_marker() == own_too.get_marker() != paper.get_marker()
        assert [line.get_markerfacecolor() == "none" for line in (own, own_too, paper)] == [
            False,
            True,
            False,
        ]


def test_ticks_between_whole_numbers_are_not_quarters() -> None:
    seeds = {"one": {"1%": [77.7, 79.4]}, "two": {"1%": [93.4, 95.8]}}
    made = comparison.cases({"Task": seeds, "Other": seeds})
    made.draw_without_rendering()
    for axis in made.axes:
        assert all(float(tick).is_integer() for tick in axis.get_xticks())
