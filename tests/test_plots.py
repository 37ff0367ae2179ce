"""Every figure function, outside the book: what it draws is what it was given."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from matplotlib.colors import to_rgb

from floral_lite import InputError, plots, tasks, train
from floral_lite.federation import Federation, History, Round
from floral_lite.methods import METHODS
from floral_lite.plots import adaptors, convolutions, norms
from floral_lite.plots.style import SIGNED, legend, line_style
from floral_lite.roles import Roles

from .pictures import assert_shown

CLUSTERS = [0, 1, 0]
MIXTURES = {1: [[0.5, 0.5]] * 3, 3: [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]}


def history(accuracy: bool = True) -> History:
    """A made-up run of three rounds, three clients and two adaptors; round 2 was not evaluated."""
    rounds = [
        Round(
            number,
            train_loss=1 / number,
            seconds=0.1,
            test_loss=2 / number,
            test_accuracy=0.3 * number if accuracy else None,
            client_loss=[1.0, 2.0, 3.0],
            client_accuracy=[0.5, 0.875, 1.0] if accuracy else None,
            mixture=MIXTURES[number],
            mismatch=0.5,
        )
        for number in (1, 3)
    ]
    rounds.insert(1, Round(2, train_loss=0.5, seconds=0.1))
    config = {"task": "made-up", "method": "floral"}
    return History(config, CLUSTERS, 12, 8, {"base": 10, "added": 4}, rounds)


FIGURES: dict[str, Callable[[], plots.Picture]] = {
    "image_grid": lambda: plots.image_grid(np.zeros((2, 3, 8, 8)), ["a", "b"], ["x", "y", "z"]),
    "curves": lambda: plots.curves({"one": history(), "two": history()}),
    "accuracy_per_cluster": lambda: plots.accuracy_per_cluster({"one": history(), "two": history()}),
    "mixtures": lambda: plots.mixtures(history(), rounds=[1, 3]),
    "base_plus_adaptors": lambda: plots.base_plus_adaptors(np.eye(3), np.ones((2, 3, 3)), [0.25, 0.75]),
    "run_figure": lambda: plots.run_figure(history()),
    "run_figure of a regression": lambda: plots.run_figure(history(accuracy=False)),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_notebook_can_show_it_in_both_themes(name: str) -> None:
    assert_shown(FIGURES[name]())


@pytest.mark.parametrize("name", ["curves", "accuracy_per_cluster", "run_figure"])
def test_axes_are_labelled(name: str) -> None:
    axis = FIGURES[name]().axes[0]
    assert axis.get_xlabel()
    assert "(%)" in axis.get_ylabel()


def test_curves_draw_the_evaluated_rounds_in_per_cent() -> None:
    (line,) = plots.curves({"one": history()}).axes[0].lines
    assert line.get_xdata().tolist() == [1, 3]
    assert line.get_ydata().tolist() == pytest.approx([30, 90])


def test_losses_are_no_per_cent() -> None:
    of_loss = plots.curves({"one": history()}, "test_loss"), plots.run_figure(history(accuracy=False))
    for made in of_loss:
        assert made.axes[0].lines[0].get_ydata().tolist() == pytest.approx([2, 2 / 3])
        assert made.axes[0].get_ylabel().startswith("test loss")


def test_a_grid_names_its_rows_and_columns() -> None:
    axes = np.reshape(FIGURES["image_grid"]().axes, (2, 3))
    assert [axis.get_ylabel() for axis in axes[:, 0]] == ["a", "b"]
    assert [axis.get_title() for axis in axes[0]] == ["x", "y", "z"]


def test_curves_are_means_over_samples_as_their_axis_says() -> None:
    task = tasks.load("digits-label-groups")  # its clients have 12 to 23 test samples
    run = train(task, METHODS["fedavg"](task.model), rounds=1, seed=0).history
    (axis,) = plots.curves({"one": run}).axes
    of_clients = run.last_evaluated.client_accuracy
    assert of_clients is not None
    over_samples = 100 * np.average(of_clients, weights=[len(shard) for shard in task.test])
    assert axis.lines[0].get_ydata().tolist() == [pytest.approx(over_samples)]
    assert abs(over_samples - 100 * np.mean(of_clients)) > 0.1
    assert axis.get_ylabel().endswith("mean over samples")


def test_curves_know_their_values() -> None:
    with pytest.raises(InputError, match="no value is called 'accuracy'; did you mean 'test_accuracy'"):
        plots.curves({"one": history()}, "accuracy")


@pytest.mark.parametrize("draw", [plots.curves, plots.accuracy_per_cluster])
def test_runs_have_labels(draw: Callable[[Any], plots.Picture]) -> None:
    for runs in (history(), [history()], {}, {"one": Federation(history(), Roles({}, {}, {}), {})}):
        with pytest.raises(InputError, match=r"histories is .*; give runs by their labels"):
            draw(runs)


def test_curves_are_told_apart_without_colour() -> None:
    lines = plots.curves({"one": history(), "two": history()}).axes[0].lines
    assert len({line.get_linestyle() for line in lines}) == 2
    for alike in ((1, 5), (3, 8), (0, 9)):  # places of colours
        one, other = (line_style(number)["linestyle"] for number in alike)
        assert one != other


def test_every_line_stands_out_from_white_and_from_dark_pages() -> None:
    def light(colour: tuple[float, float, float]) -> float:
        """The relative luminance of WCAG, with what it adds for glare."""
        of_screen = np.array(colour)
        linear = np.where(of_screen < 0.04, of_screen / 12.92, ((of_screen + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722]) + 0.05

    for colour in plots.COLOURS:
        assert light(to_rgb("white")) / light(colour) > 3
        assert light(colour) / light(to_rgb("#121212")) > 3
    for end in (0.0, 1.0):  # of signed images
        assert light(SIGNED(end)[:3]) / light(to_rgb("#121212")) > 2.3


def test_no_run_is_left_out_however_many_there_are() -> None:
    runs = {str(run): history() for run in range(12)}
    assert len(plots.curves(runs).axes[0].lines) == 12
    assert len(plots.accuracy_per_cluster(runs).axes[0].patches) == 24


def test_a_round_without_evaluation_has_no_mixtures_to_draw() -> None:
    with pytest.raises(InputError, match=r"round 2 was not evaluated; there are \[1, 3\]"):
        plots.mixtures(history(), rounds=[1, 2])
    for rounds in (3, np.int64(3), []):
        with pytest.raises(InputError, match=r"rounds is .*; give a list of .* evaluated, of \[1, 3\]"):
            plots.mixtures(history(), rounds=rounds)  # type: ignore[arg-type]
    for entry in (run := history()).rounds:
        entry.mixture = None  # as over Flower
    for draw in (plots.mixtures, plots.run_figure):
        with pytest.raises(InputError, match="the round has no mixtures: over Flower"):
            draw(run)


@pytest.mark.parametrize("number", [6, 23])
def test_titles_have_room_however_many_panels_there_are(number: int) -> None:
    run = history()
    run.rounds = [replace(run.rounds[0], round=100 + n) for n in range(number)]
    drawn = plots.mixtures(run, rounds=range(100, 100 + number))
    whole = plots.base_plus_adaptors(np.ones((4, 5)), np.ones((number, 4, 5)), np.full(number, 1 / number))
    for made, panels in ((drawn, number), (whole, number + 2)):
        made.draw_without_rendering()
        titles = [axis.title.get_window_extent() for axis in made.axes if axis.get_title()]
        assert len(titles) == panels
        assert not any(one.overlaps(two) for one, two in combinations(titles, 2))


def test_many_adaptors_have_room_for_their_numbers() -> None:
    run = history()
    run.rounds = [replace(run.rounds[0], mixture=np.full((3, 30), 1 / 30).tolist())]
    assert plots.mixtures(run).axes[0].get_xticks().tolist() == list(range(0, 30, 3))


NAMES = [*METHODS, *(f"a name that is long, {n}" for n in range(6))]


@pytest.mark.parametrize("names", [NAMES[:2], NAMES[:12], NAMES[-6:]])
def test_the_names_of_bars_are_all_there_and_stand_on_nothing(names: list[str]) -> None:
    run = history()
    run.rounds[-1].client_accuracy = [0.98, 0.97, 1.0]
    for made in (
        plots.accuracy_per_cluster(dict.fromkeys(names, run)),
        norms.accuracy_bars({name: [98, 100] for name in names}, ["one", "two"]),
    ):
        made.draw_without_rendering()
        (words,) = made.legends
        assert len(words.get_texts()) == len(names)
        legend = words.get_window_extent()
        assert 0 <= legend.x0 < legend.x1 <= made.bbox.x1
        assert not any(text.get_window_extent().overlaps(legend) for text in made.axes[0].texts)


def test_bars_are_of_one_task_with_accuracies() -> None:
    with pytest.raises(InputError, match=r"run 'two' has no accuracy of each client: .* over Flower"):
        plots.accuracy_per_cluster({"one": history(), "two": history(accuracy=False)})
    other = history()
    other.clusters = [0, 1, 2]
    with pytest.raises(
        InputError, match=r"run 'two' has the clusters \[0, 1, 2\], and the first has \[0, 1\]"
    ):
        plots.accuracy_per_cluster({"one": history(), "two": other})


def test_a_legend_names_what_only_a_later_panel_has() -> None:
    made, axes = plots.figure(1, 2, 4, 2)
    for axis, names in zip(axes[0], ("ab", "bc"), strict=True):
        for name in names:
            axis.plot([0, 1], label=name)
    legend(made)
    assert [text.get_text() for text in made.legends[0].get_texts()] == ["a", "b", "c"]


@pytest.mark.parametrize(("matrix", "limit"), [(np.zeros((2, 2)), 1), ([[1, np.nan], [2, -3]], 3)])
def test_zero_is_pale_and_what_is_missing_changes_no_colour(matrix: npt.ArrayLike, limit: float) -> None:
    kernel = np.asarray(matrix, dtype=float)[None, None]
    for made in (
        adaptors.matrices({"m": matrix}),
        convolutions.kernels({"k": kernel}),
        convolutions.unfoldings(kernel, {"k": ((0, 2), (1, 3))}),
        convolutions.feature_maps({"f": kernel[0]}, ["row"]),
        convolutions.factored_kernels({"k": convolutions.Parts(kernel, kernel, kernel)}),
        plots.base_plus_adaptors(np.zeros((2, 2)), [matrix], [0.5]),
    ):
        assert {axis.images[0].get_clim() for axis in made.axes if axis.images} == {(-limit, limit)}


def test_bars_are_the_means_of_the_clusters() -> None:
    axis = plots.accuracy_per_cluster({"one": history()}).axes[0]
    bars = axis.patches
    assert [label.get_text() for label in axis.get_xticklabels()] == ["0", "1"]
    # cluster 0 has the clients 0 and 2: (50 + 100) / 2; cluster 1 has client 1
    assert [bar.get_height() for bar in bars] == pytest.approx([75, 87.5])


def test_one_point_is_seen() -> None:
    one = history()
    one.rounds = one.rounds[:1]
    for made in (plots.curves({"one": one}), plots.run_figure(one)):
        assert made.axes[0].lines[0].get_marker() == "o"
        assert plots.curves({"three": history()}).axes[0].lines[0].get_marker() == "None"
        made.draw_without_rendering()
        assert all(float(tick).is_integer() for tick in made.axes[0].get_xticks())


def test_a_title_has_the_accuracy_where_there_is_one() -> None:
    titles = [plots.mixtures(history(accuracy=given)).axes[0].get_title() for given in (True, False)]
    assert titles == ["round 3: 90.0%", "round 3"]


def test_mixtures_are_sorted_by_cluster_and_those_of_their_round() -> None:
    first, last, *_ = plots.mixtures(history(), rounds=[1, 3]).axes
    assert first.images[0].get_array().tolist() == MIXTURES[1]
    for axis in (last, plots.mixtures(history()).axes[0], plots.run_figure(history()).axes[1]):
        assert axis.images[0].get_array().tolist() == [[0.9, 0.1], [0.7, 0.3], [0.2, 0.8]]
        # each cluster's number beside the middle of its rows
        assert [label.get_text() for label in axis.get_yticklabels()] == ["0", "1"]
        assert axis.get_yticks().tolist() == [0.5, 2]


def test_the_personal_matrix_is_the_base_plus_the_mixture() -> None:
    figure = plots.base_plus_adaptors(np.eye(2), np.array([np.ones((2, 2)), 2 * np.ones((2, 2))]), [0.5, 0.5])
    personal = figure.axes[-1].images[0].get_array()
    assert personal.tolist() == [[2.5, 1.5], [1.5, 2.5]]
    parts = [rf"$+\ {weight} \times U_{c} V_{c}^\top$" for c, weight in enumerate(("0.25", "0.75"))]
    titles = [axis.get_title() for axis in FIGURES["base_plus_adaptors"]().axes]
    assert titles == ["shared $W$", *parts, "$=$ personal"]


def test_negative_weights_are_purple_and_positive_ones_orange() -> None:
    colours = plots.base_plus_adaptors(np.eye(2), np.ones((1, 2, 2)), [1.0]).axes[0].images[0].get_cmap()
    negative, positive = colours(0.1), colours(0.9)
    assert negative[2] > negative[0]
    assert positive[0] > positive[2]


def test_many_panels_make_no_wide_figure_in_which_words_are_small() -> None:
    many = [
        plots.image_grid(np.zeros((4, 10, 8, 8)), list("abcd")),
        plots.mixtures(history(), rounds=[1, 3] * 3),
        plots.base_plus_adaptors(np.ones((4, 5)), np.ones((6, 4, 5)), np.full(6, 1 / 6)),
    ]
    assert max(made.get_figwidth() for made in many) < 8
