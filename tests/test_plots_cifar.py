"""The figure of the chapter on photographs draws what it is given, and a grid shows colours."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from floral_lite.plots import cifar, image_grid

from .pictures import assert_readable

LAYERS = pd.DataFrame(
    [("small", "first", 1000, 50, 1), ("small", "last", 64, 16, 1), ("large", "only", 200_000, 2000, 2)],
    columns=["network", "layer", "weight", "adaptor", "rank"],
)


def names(axis: Axes) -> list[str]:
    return [label.get_text() for label in axis.get_yticklabels()]


def test_a_notebook_can_show_it_in_both_themes() -> None:
    made = cifar.parameters(LAYERS, 0.1)
    assert_readable(made, of_rows=True)
    assert [axis.get_title() for axis in made.axes] == ["small", "large"]


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


def test_a_grid_shows_colours() -> None:
    images = np.random.default_rng(0).random((2, 3, 4, 4, 3))
    made = image_grid(images, ["a", "b"])
    np.testing.assert_array_equal(made.axes[4].images[0].get_array(), images[1, 1])
