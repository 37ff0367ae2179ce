"""The figures of the laboratory, on made-up runs."""

from dataclasses import replace

import numpy as np
import pytest

from floral_lite.federation import History, Round
from floral_lite.methods import METHODS
from floral_lite.plots import laboratory

from .pictures import assert_readable

CLUSTERS = [0, 1, 0]


def history(mixes: bool = True, accuracy: bool = True) -> History:
    """Three rounds, three clients; round 2 was not evaluated."""
    rounds = [
        Round(
            number,
            train_loss=1.0,
            seconds=0.1,
            test_loss=2 / number,
            test_accuracy=0.3 * number if accuracy else None,
            client_loss=[1.0, 5.0, 3.0],
            client_accuracy=[0.5, 0.875, 1.0] if accuracy else None,
            mixture=[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]] if mixes else [[1.0]] * 3,
        )
        for number in (1, 3)
    ]
    rounds.insert(1, Round(2, train_loss=0.5, seconds=0.1))
    return History({}, CLUSTERS, 12, 8, {"base": 10, "added": 4}, rounds)


def test_means_are_thick_and_clusters_thin() -> None:
    made = laboratory.progress({"one": history(), "two": history()})
    assert_readable(made)
    accuracy, loss = made.axes
    one, *clusters = accuracy.lines[:3]
    assert one.get_label() == "one"
    assert np.allclose(one.get_xydata(), [(1, 30), (3, 90)])
    # the clients 0 and 2, and client 1
    assert [line.get_ydata().tolist() for line in clusters] == [[75, 75], [87.5, 87.5]]
    assert max(line.get_linewidth() for line in clusters) < one.get_linewidth()
    assert np.allclose(loss.lines[0].get_xydata(), [(1, 2), (3, 2 / 3)])
    assert [line.get_ydata().tolist() for line in loss.lines[1:3]] == [[2, 2], [5, 5]]
    assert len({line.get_linestyle() for line in (accuracy.lines[0], accuracy.lines[3])}) == 2


@pytest.mark.parametrize("accuracy", [True, False])
@pytest.mark.parametrize("number", [1, 4, 6, 12, len(METHODS)])
def test_the_names_of_many_methods_are_all_there_and_stand_above_the_panels(
    number: int, accuracy: bool
) -> None:
    names = list(METHODS)[-number:]
    one = history(accuracy=accuracy)
    made = laboratory.progress({"one": one})
    made = laboratory.progress(dict.fromkeys(names, one), again=made)
    made.draw_without_rendering()
    (words,) = made.legends
    assert len(words.get_texts()) == number
    legend = words.get_window_extent()
    assert legend.x1 <= made.bbox.x1
    assert all(axis.bbox.y1 <= legend.y0 + 2 for axis in made.axes)


def test_runs_from_before_are_there_with_their_names() -> None:
    made = laboratory.progress({"one": history()}, {"7": history().frame()})
    before = made.axes[0].lines[0]
    assert before.get_color() == laboratory.GREY
    assert np.allclose(before.get_xydata(), [(1, 30), (3, 90)])
    (name,) = made.axes[0].texts
    assert (name.get_text(), name.xy) == ("7", (3, pytest.approx(90)))  # where the line ends
    assert [text.get_text() for text in made.legends[0].get_texts()] == ["one"]


def test_a_picture_that_is_drawn_anew_is_as_a_new_one() -> None:
    """Another run before, with other lines, names and limits; a regression has one axis less."""
    long = history()
    long.rounds.append(replace(long.rounds[-1], round=50, test_loss=9.0, client_loss=[9.0, 9.0, 9.0]))
    old = laboratory.progress({"one": long, "two": history()}, {"7": long.frame()}, rounds=200)
    old._repr_png_()
    new = laboratory.progress({"one": history()}, rounds=30)
    again = laboratory.progress({"one": history()}, rounds=30, again=old)
    assert again is old
    assert again._repr_png_() == new._repr_png_()
    assert len(laboratory.progress({"one": history(accuracy=False)}, again=old).axes) == 1


def test_a_regression_has_its_loss_alone() -> None:
    (axis,) = laboratory.progress({"one": history(accuracy=False)}).axes
    assert axis.get_ylabel() == "test loss"


def test_the_axis_of_rounds_has_room_and_ends_with_the_run() -> None:
    short, long = history(), history()
    long.rounds[-1].round = 30
    long.rounds += [Round(number, 1.0, 0.1) for number in range(4, 31)]

    def end(run: History, rounds: int) -> float:
        return float(laboratory.progress({"one": run}, rounds=rounds).axes[0].get_xlim()[1])

    assert (end(short, 100), end(short, 10), end(long, 100)) == (20, 10, 40)


def test_a_run_that_is_not_evaluated_yet_has_no_line_and_no_fault() -> None:
    young = history()
    young.rounds = young.rounds[1:2]
    made = laboratory.progress({"one": young})
    assert_readable(made)
    assert laboratory.routers({"one": young}) is None


def test_every_method_that_mixes_has_its_matrix() -> None:
    made = laboratory.routers({"one": history(), "none": history(mixes=False), "two": history()})
    assert made is not None
    assert made._repr_png_().startswith(b"\x89PNG")
    one, two, bar = made.axes
    assert bar.get_ylabel().startswith("mixture weight")
    assert all(axis.get_xlabel() and axis.get_ylabel() for axis in (one, two))
    assert [axis.get_title() for axis in (one, two)] == ["one\nround 3", "two\nround 3"]
    assert one.images[0].get_array().tolist() == [[0.9, 0.1], [0.7, 0.3], [0.2, 0.8]]
    assert laboratory.routers({"none": history(mixes=False)}) is None


@pytest.mark.parametrize("quantity", ["test_accuracy", "test_loss"])
def test_the_mean_of_a_cluster_is_that_of_its_clients(quantity: str) -> None:
    frame = laboratory.per_cluster(history(), quantity)
    assert frame.index.tolist() == [1, 3]
    assert frame.columns.tolist() == [0, 1]
    assert frame.loc[3].tolist() == ([0.75, 0.875] if quantity == "test_accuracy" else [2.0, 5.0])
