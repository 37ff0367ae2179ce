"""The figures of the chapters on the paper's tables draw what they are given."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from floral_lite.plots import COLOURS, Picture, tables

from .pictures import assert_shown

ROWS = {"fedavg": "FedAvg", "floral-1-optimal": "FLoRAL(1%), optimal", "ensemble": "Ensemble"}
COLUMNS = {"a": "Task A", "b": "Task B", "c": "Task C"}
CELLS = pd.DataFrame(
    [
        (row, column, 50.0 + 10 * i + j, 1.0 + j, 52.0 + 10 * i + j, 2.0)
        for i, row in enumerate(ROWS)
        for j, column in enumerate(COLUMNS)
    ],
    columns=["row", "column", "mean", "sd", "paper_mean", "paper_sd"],
)
CELLS.loc[CELLS["row"] == "ensemble", "sd"] = np.nan  # one seed
CELLS.loc[(CELLS["row"] == "ensemble") & (CELLS["column"] == "b"), "mean"] = np.nan  # none
TRAILS = {
    "one": pd.DataFrame({"train_loss": [2.0, 0.5, 0.1], "test_loss": [2.1, 0.7, 0.9]}),
    "two": pd.DataFrame({"train_loss": [2.0, 1.0], "test_loss": [2.2, 1.5]}),
}
MIXTURES = {"seed 1": np.eye(2)[[0, 1, 0, 1]], "seed 2": np.full((4, 2), 0.5)}
SEEDS = pd.DataFrame(
    {
        "row": ["floral-1-optimal", "ensemble", "ensemble", "ensemble"],
        "column": ["a", "a", "a", "b"],
        "mismatch": [1.4, 0.2, 0.3, 0.9],
        "accuracy": [70.0, 80.0, 82.0, 60.0],
    }
)
PRICES = pd.DataFrame(
    {
        "column": ["a", "a", "b", "c", "a"],
        "kind": ["FLoRAL", "FLoRAL", "FLoRAL", "FLoRAL", "Ensemble"],
        "added": [38.0, 3.5, 3.5, 3.5, 300.0],
        "mean": [87.0, 84.0, 85.0, 86.0, 88.0],
        "sd": [0.5, np.nan, 1.0, 1.0, 0.2],
    }
)
FIGURES: dict[str, Callable[[], Picture]] = {
    "beside": lambda: tables.beside(CELLS, ROWS, COLUMNS),
    "against_training": lambda: tables.against_training(TRAILS),
    "final_mixtures": lambda: tables.final_mixtures(MIXTURES, [0, 1, 1, 0]),
    "by_mismatch": lambda: tables.by_mismatch(SEEDS, ROWS, COLUMNS, {"a": 75.0}),
    "prices": lambda: tables.prices(PRICES, COLUMNS, {"b": 84.5}),
}


def seen(made: Picture) -> list[str]:
    """The titles of the panels that are there."""
    return [axis.get_title() for axis in made.axes if axis.axison and axis.get_title()]


@pytest.mark.parametrize("name", FIGURES)
def test_a_notebook_can_show_it_in_both_themes(name: str) -> None:
    made = FIGURES[name]()
    assert_shown(made)
    for axis in made.axes:
        if axis.axison and len(made.axes) < 3:
            assert axis.get_xlabel() or axis.get_ylabel()


def test_panels_are_named_and_the_last_place_is_empty() -> None:
    for name in ("beside", "by_mismatch", "prices"):
        made = FIGURES[name]()
        assert seen(made) == list(COLUMNS.values())
        assert len(made.axes) == 3
        assert all(axis.get_xlabel() for axis in made.axes[:3])


def test_ours_and_the_papers_lie_side_by_side() -> None:
    made = FIGURES["beside"]()
    for axis, column in zip(made.axes, COLUMNS, strict=False):
        part = CELLS[CELLS["column"] == column]
        ours, paper = axis.containers
        np.testing.assert_array_equal(np.array(ours.lines[0].get_xdata(), float), part["mean"])
        np.testing.assert_array_equal(paper.lines[0].get_xdata(), part["paper_mean"])
        # a bar of one deviation to either side; none of one seed
        ends = [segment[:, 0] for segment in ours.lines[2][0].get_segments() if segment.size]
        wide = [float(end[1] - end[0]) for end in ends if np.isfinite(end).all()]
        np.testing.assert_allclose(wide, (2 * part["sd"].fillna(0))[part["mean"].notna()])
        bars = [segment[:, 0] for segment in paper.lines[2][0].get_segments()]
        np.testing.assert_allclose([bar[1] - bar[0] for bar in bars], 2 * part["paper_sd"])
        places = ours.lines[0].get_ydata()
        assert list(np.round(places)) == [0, 1, 2]
        assert axis.get_ylim()[0] > axis.get_ylim()[1]  # the first row at the top
    names = [label.get_text() for label in made.axes[0].get_yticklabels()]
    assert names == list(ROWS.values())
    assert not any(label.get_text() for label in made.axes[1].get_yticklabels())
    assert [text.get_text() for text in made.legends[0].get_texts()] == ["ours", "paper"]


def test_a_row_far_below_all_others_is_written_at_the_edge_and_takes_no_room() -> None:
    frame = CELLS.copy()
    frame.loc[0, ["mean", "paper_mean"]] = 10.0, 12.0  # FedAvg on Task A
    first, second, _ = tables.beside(frame, ROWS, COLUMNS).axes
    assert [(text.get_text(), text.get_position()[1]) for text in first.texts] == [
        ("\u2190 10.0, paper 12.0", 0)
    ]
    assert first.get_xlim()[0] > 50  # the others begin at 60, with bars of 1 and 2
    assert not second.texts
    drawn = np.array(first.containers[0].lines[0].get_xdata(), float)
    assert np.isnan(drawn).tolist() == [True, False, False]


@pytest.mark.parametrize(("its", "far"), [(47.9, "fedavg"), (48.1, None), (np.nan, None)])
def test_a_row_is_far_below_if_the_others_lie_nearer_to_each_other(its: float, far: str | None) -> None:
    both = pd.DataFrame({"mean": [40.0, 60.0, 70.0], "paper_mean": [its, 62.0, 72.0]}, index=list(ROWS))
    assert tables.far_below(both) == far
    assert tables.far_below(both * np.nan) is None


def test_a_title_is_nearer_to_its_own_panel_than_to_the_one_above() -> None:
    made = FIGURES["beside"]()
    made.draw_without_rendering()
    above, _, own = made.axes
    title = own.title.get_window_extent()
    assert above.xaxis.label.get_window_extent().y0 - title.y1 > 2 * (title.y0 - own.bbox.y1)


def test_a_run_goes_to_the_right_and_its_least_test_loss_is_marked() -> None:
    (axis,) = FIGURES["against_training"]().axes
    assert axis.get_xlim()[0] > axis.get_xlim()[1]
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    lines = list(axis.lines)
    for line, mark, trail in zip(lines[::2], lines[1::2], TRAILS.values(), strict=True):
        assert line.get_xdata().tolist() == trail["train_loss"].tolist()
        assert line.get_ydata().tolist() == trail["test_loss"].tolist()
        assert list(mark.get_ydata()) == [trail["test_loss"].min()]
    assert [next(iter(mark.get_xdata())) for mark in lines[1::2]] == [0.5, 1.0]
    assert lines[0].get_linestyle() != lines[2].get_linestyle()


def test_clients_are_sorted_by_cluster() -> None:
    made = FIGURES["final_mixtures"]()
    shown = made.axes[0].images[0].get_array()
    np.testing.assert_array_equal(shown, np.eye(2)[[0, 1, 1, 0]])  # clients 0, 3, 1, 2
    assert [line.get_ydata()[0] for line in made.axes[0].lines] == [1.5]
    assert seen(made) == list(MIXTURES)
    assert made.axes[0].images[0].get_clim() == (0, 1)


def test_each_seed_is_a_point_and_fedavg_a_line_where_it_is_given() -> None:
    made = FIGURES["by_mismatch"]()
    points = [line.get_xdata().tolist() for line in made.axes[0].lines[:3]]
    assert points == [[], [1.4], [0.2, 0.3]]
    assert made.axes[0].lines[2].get_ydata().tolist() == [80.0, 82.0]
    assert [len(axis.lines) for axis in made.axes[:3]] == [4, 3, 3]
    assert made.axes[0].lines[3].get_ydata()[0] == 75.0
    assert [text.get_text() for text in made.legends[0].get_texts()] == [*ROWS.values(), "FedAvg"]


@pytest.mark.parametrize("name", ["by_mismatch", "prices"])
def test_fedavg_far_below_is_a_note_and_leaves_the_panel_as_it_is(name: str) -> None:
    def draw(floor: dict[str, float]) -> Picture:
        if name == "prices":
            return tables.prices(PRICES, COLUMNS, floor)
        return tables.by_mismatch(SEEDS, ROWS, COLUMNS, floor)

    bare, made = draw({}).axes[0], draw({"a": 24.0}).axes[0]
    assert [text.get_text() for text in made.texts] == ["\u2193 FedAvg 24.0"]
    assert made.get_ylim() == bare.get_ylim()
    assert len(made.lines) == len(bare.lines)


@pytest.mark.parametrize(("largest", "right"), [(1.4, 1.6), (1.8, 1.85)])
def test_every_mismatch_is_in_the_picture(largest: float, right: float) -> None:
    made = tables.by_mismatch(SEEDS.replace({"mismatch": {1.4: largest}}), ROWS, COLUMNS, {})
    assert all(axis.get_xlim() == (-0.05, right) for axis in made.axes[:3])


def test_a_row_can_have_the_colour_that_it_has_in_another_figure() -> None:
    made = tables.by_mismatch(SEEDS, ROWS, COLUMNS, {}, first=2)
    assert [line.get_color() for line in made.axes[0].lines] == COLOURS[2:5]
    floral, ensemble = tables.prices(PRICES, COLUMNS, {}, first=2).axes[0].containers
    assert [bars.lines[0].get_color() for bars in (floral, ensemble)] == COLOURS[2:4]


def test_kinds_of_one_family_have_its_colour_and_are_told_apart() -> None:
    kinds = ["FLoRAL, optimal", "FLoRAL, learned", "Ensemble, optimal"]
    frame = pd.DataFrame({"column": "a", "kind": kinds, "added": 3.0, "mean": 80.0, "sd": 1.0})
    lines = [bars.lines[0] for bars in tables.prices(frame, {"a": "Task A"}, {}).axes[0].containers]
    assert [line.get_color() for line in lines] == [COLOURS[0], COLOURS[0], COLOURS[1]]
    assert lines[0].get_marker() == lines[1].get_marker() != lines[2].get_marker()
    assert [line.get_markerfacecolor() == "none" for line in lines] == [False, True, False]
    assert [line.get_linestyle() for line in lines] == ["-", "--", "-"]


def test_prices_are_drawn_in_order_of_size() -> None:
    made = FIGURES["prices"]()
    floral, ensemble = made.axes[0].containers
    assert floral.lines[0].get_xdata().tolist() == [3.5, 38.0]
    assert floral.lines[0].get_ydata().tolist() == [84.0, 87.0]
    assert ensemble.lines[0].get_xdata().tolist() == [300.0]
    bars = floral.lines[2][0].get_segments()
    assert [bar[:, 1].tolist() for bar in bars] == [[84.0, 84.0], [86.5, 87.5]]  # a deviation to either side
    assert made.axes[0].get_xscale() == "log"
    across = [[line for line in axis.lines if list(line.get_xdata()) == [0, 1]] for axis in made.axes]
    assert [len(lines) for lines in across] == [0, 1, 0]
    assert across[1][0].get_ydata()[0] == 84.5
    made.draw_without_rendering()
    labels = [label.get_text() for label in made.axes[0].get_xticklabels()]
    assert {"3", "10", "30", "100", "300"} <= set(labels)
