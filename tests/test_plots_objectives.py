"""The figures of the chapter on objectives draw what they are given."""

from collections.abc import Callable

import numpy as np
import pytest

from floral_lite.plots import Picture, objectives
from floral_lite.plots.objectives import Answer

from .pictures import assert_shown

POINTS = np.arange(24.0).reshape(4, 3, 2) % 7
CLUSTERS = [0, 1, 0, 1]
CLIENTS = POINTS.mean(axis=1)
MODELS = np.array([[1.0, 2.0], [3.0, 5.0]])
FOUND = {"two": Answer(MODELS, MODELS[CLUSTERS]), "one": Answer(MODELS[:1], MODELS[[0, 0, 0, 0]])}

FIGURES: dict[str, Callable[[], Picture]] = {
    "readings": lambda: objectives.readings(POINTS, CLUSTERS),
    "answers": lambda: objectives.answers(CLIENTS, CLUSTERS, FOUND),
    "jensen": lambda: objectives.jensen(2.0),
    "segment": lambda: objectives.segment([0.0, 0.5, 1.0], {"a": [1, 2, 3], "b": [4, 5, 6]}, "loss"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_notebook_can_show_it_in_both_themes(name: str) -> None:
    made = FIGURES[name]()
    assert_shown(made)
    assert all(axis.get_xlabel() for axis in made.axes)
    assert made.axes[0].get_ylabel()


def test_every_reading_is_drawn_in_its_clusters_panel() -> None:
    panels = objectives.readings(POINTS, CLUSTERS).axes
    for cluster, panel in enumerate(panels):
        drawn = [scatter.get_offsets().tolist() for scatter in panel.collections]
        assert drawn == [POINTS[client].tolist() for client in (cluster, cluster + 2)]
        labels = [text.get_text() for text in panel.get_legend().get_texts()]
        assert labels == [f"client {cluster}", f"client {cluster + 2}"]
        assert panel.get_xlim()[0] < POINTS[..., 0].min() < POINTS[..., 0].max() < panel.get_xlim()[1]
    assert panels[0].get_ylim() == panels[1].get_ylim()


def test_an_answer_has_its_models_and_a_line_from_each_client_to_its_own() -> None:
    panels = objectives.answers(CLIENTS, CLUSTERS, FOUND).axes
    assert [panel.get_title() for panel in panels] == ["two", "one"]
    for panel, (models, personal) in zip(panels, FOUND.values(), strict=True):
        assert panel.collections[-1].get_offsets().tolist() == np.asarray(models).tolist()
        ends = [np.transpose(line.get_data()).tolist() for line in panel.lines]
        expected = [[a.tolist(), b] for a, b in zip(CLIENTS, np.asarray(personal).tolist(), strict=True)]
        assert ends == expected
        first, second = panel.collections[:2]
        assert first.get_offsets().tolist() == CLIENTS[[0, 2]].tolist()
        assert first.get_paths()[0].vertices.shape != second.get_paths()[0].vertices.shape  # other markers


def test_rows_of_answers() -> None:
    many = {str(number): Answer(MODELS, MODELS[CLUSTERS]) for number in range(4)}
    made = objectives.answers(CLIENTS, CLUSTERS, many)
    assert len(made.axes) == 4
    assert made.axes[3].get_subplotspec().rowspan.start == 1


@pytest.mark.parametrize("distance", [0.0, 1.0, 4.0])
def test_jensens_gap_is_that_of_the_losses(distance: float) -> None:
    made = objectives.jensen(distance)
    plane, section = made.axes
    stars, mixed = plane.collections[::2], plane.collections[1::2]
    assert [star.get_offsets().tolist() for star in stars] == [[[-distance / 2, 0]], [[distance / 2, 0]]]
    # client 1: 0.7 (-d/2) + 0.3 d/2 = -0.2 d
    np.testing.assert_allclose(mixed[0].get_offsets(), [[-0.2 * distance, 0]], atol=1e-12)
    np.testing.assert_allclose(mixed[1].get_offsets(), [[0.2 * distance, 0]], atol=1e-12)
    upper, lower, gap = (line.get_ydata() for line in section.lines)
    assert upper[[0, -1]].tolist() == lower[[0, -1]].tolist() == [0, distance**2 / 2]
    assert (lower <= upper).all()
    assert (upper[50], lower[50]) == pytest.approx((distance**2 / 4, distance**2 / 8))
    # 1/2 d^2 (0.3 - 0.09)
    assert gap[1] - gap[0] == pytest.approx(0.105 * distance**2)
    assert section.texts[0].get_text().strip() == f"gap {0.105 * distance**2:.2f}"
    other = objectives.jensen(2.0)
    assert section.get_ylim() == other.axes[1].get_ylim()
    assert plane.get_xlim() == other.axes[0].get_xlim()
    assert section.get_ylim()[1] > 8


def test_a_segment_draws_its_curves() -> None:
    made = FIGURES["segment"]()
    axis = made.axes[0]
    assert [text.get_text() for text in made.legends[0].get_texts()] == ["a", "b"]
    assert [line.get_ydata().tolist() for line in axis.lines] == [[1, 2, 3], [4, 5, 6]]
    assert len({line.get_linestyle() for line in axis.lines}) == 2
    assert axis.get_ylabel() == "loss"
