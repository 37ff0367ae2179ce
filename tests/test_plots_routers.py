"""The figures of the chapter on routers draw what they are given."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from floral_lite.plots import Picture, routers

from .pictures import assert_shown

MODELS = np.array([[1.0, 0.0], [-1.0, 0.5], [0.0, -1.0]])
PATH = np.array([[0.0, 0.0], [0.1, 0.2], [0.3, 0.3]])
SIZES = np.array([0.01, 0.1, 1.0])
LOSSES = np.array([[0.5, 2.0, 3.0], [4.0, 1.0, 1.5]])


def frame(factor: float) -> pd.DataFrame:
    index = pd.Index([1, 5, 9], name="round")
    columns = {"gradient": [0.1, 0.2, 0.4], "distance": [1.0, 2.0, 4.0], "entropy": [1.3, np.nan, 0.1]}
    return factor * pd.DataFrame({**columns, "mismatch": [np.nan, 1.0, 0.0]}, index=index)


RUNS = {"slow": frame(1.0), "fast": frame(2.0)}
FIGURES: dict[str, Callable[[], Picture]] = {
    "followed": lambda: routers.followed(RUNS),
    "triangle": lambda: routers.triangle(MODELS, [2.0, 0.0], PATH),
    "orders": lambda: routers.orders(SIZES, {"a": SIZES**2, "b": 3 * SIZES}, "size", "error"),
    "crowding": lambda: routers.crowding(
        [2, 4], {0: [0.1, -0.2], 3: [0.1, 0.3]}, {0: [0.6, 0.1], 3: [0.7, 1]}
    ),
    "matrix": lambda: routers.matrix(LOSSES, "adaptor c", "cluster", "losses"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_notebook_can_show_it_in_both_themes(name: str) -> None:
    made = FIGURES[name]()
    assert_shown(made)
    assert made.axes[-1].get_xlabel()
    assert all(axis.get_ylabel() for axis in made.axes)


def test_a_followed_run_has_a_panel_for_each_number() -> None:
    made = routers.followed(RUNS)
    for axis, (column, (label, scale)) in zip(made.axes, routers.FOLLOWED.items(), strict=True):
        assert (axis.get_ylabel(), axis.get_yscale()) == (label, scale)
        for line, run in zip(axis.lines, RUNS.values(), strict=True):
            kept = run[column].dropna()
            assert line.get_xdata().tolist() == kept.index.tolist()
            assert line.get_ydata().tolist() == kept.tolist()
        assert len({line.get_linestyle() for line in axis.lines}) == 2
    assert [text.get_text() for text in made.legends[0].get_texts()] == ["slow", "fast"]


def test_a_triangle_has_its_models_optimum_and_path() -> None:
    axis = routers.triangle(MODELS, [2.0, 0.0], PATH).axes[0]
    assert axis.lines[-1].get_xydata().tolist() == PATH.tolist()
    assert axis.lines[-1].get_markevery() == 5
    models, optimum = axis.collections
    assert models.get_offsets().tolist() == MODELS.tolist()
    assert optimum.get_offsets().tolist() == [[2.0, 0.0]]
    assert axis.patches[0].get_xy()[:3].tolist() == MODELS.tolist()
    assert axis.get_xlim() == axis.get_ylim() == (-2.2, 2.2)
    # a model's name stands outside: beyond the model, as seen from the middle
    for model, name in zip(MODELS, axis.texts, strict=True):
        away = np.asarray(model) - np.mean(MODELS, axis=0)
        assert np.dot(away, name.get_position()) == pytest.approx(14 * np.linalg.norm(away))
    # the lines of equal loss are circles around the optimum, 1/2 apart
    radii = [np.linalg.norm(line.get_xydata() - [2, 0], axis=1) for line in axis.lines[:-1]]
    assert [radius.mean() for radius in radii[:3]] == pytest.approx([0.5, 1.0, 1.5])
    assert all(np.ptp(radius) < 1e-12 for radius in radii)


def test_orders_are_told_in_the_legend() -> None:
    axis = FIGURES["orders"]().axes[0]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["a, slope 2.0", "b, slope 1.0"]
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    assert axis.lines[1].get_ydata().tolist() == (3 * SIZES).tolist()


def test_crowding_has_a_line_for_each_cluster_in_both_panels() -> None:
    advantage, weight = FIGURES["crowding"]().axes
    assert [line.get_xydata().tolist() for line in advantage.lines[:2]] == [
        [[2, 0.1], [4, -0.2]],
        [[2, 0.1], [4, 0.3]],
    ]
    assert [line.get_xydata().tolist() for line in weight.lines] == [[[2, 0.6], [4, 0.1]], [[2, 0.7], [4, 1]]]
    assert list(advantage.lines[2].get_ydata()) == [0, 0]
    assert [line.get_label() for line in weight.lines] == ["cluster 0", "cluster 3"]
    assert weight.lines[0].get_linestyle() != weight.lines[1].get_linestyle()
    low, high = weight.get_ylim()
    assert low < 0 < 1 < high


def test_a_matrix_shows_its_numbers_and_frames_the_least_of_each_row() -> None:
    axis = FIGURES["matrix"]().axes[0]
    assert axis.images[0].get_array().tolist() == LOSSES.tolist()
    texts = {text.get_position(): text.get_text() for text in axis.texts}
    assert texts[1, 0] == "2.00"
    assert texts[2, 1] == "1.50"
    middles = [
        (
            float(np.ptp(line.get_xdata()) / 2 + min(line.get_xdata())),
            float(np.mean(line.get_ydata()[[0, 2]])),
        )
        for line in axis.lines
    ]
    assert middles == [pytest.approx((0, 0)), pytest.approx((1, 1))]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["0", "1"]
    # text stands out: white on dark cells, black on light ones
    colours = {text.get_text(): text.get_color() for text in axis.texts}
    assert (colours["4.00"], colours["0.50"]) == ("white", "black")
