"""The figures of the page on the relatives draw what they are given."""

import numpy as np
import pandas as pd

from floral_lite.plots import comparison

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
