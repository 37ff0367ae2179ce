"""The figures of kernels draw what they are given."""

from collections.abc import Callable

import numpy as np
import pytest

from floral_lite import plots
from floral_lite.plots import convolutions

KERNEL = np.arange(24.0).reshape(2, 3, 2, 2) - 10
PARTS = convolutions.Parts(np.ones((2, 1, 1, 2)), 3 * np.ones((1, 3, 2, 1)), KERNEL)

FIGURES: dict[str, Callable[[], plots.Picture]] = {
    "kernels": lambda: convolutions.kernels({"one": KERNEL, "two": 2 * KERNEL}),
    "factored_kernels": lambda: convolutions.factored_kernels({"balanced": PARTS}),
    "feature_maps": lambda: convolutions.feature_maps({"a": KERNEL[0], "b": KERNEL[1]}, ["x", "y", "z"]),
}


@pytest.mark.parametrize("name", FIGURES)
def test_text_is_grey_the_background_transparent_and_it_can_be_shown(name: str) -> None:
    figure = FIGURES[name]()
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert figure.get_facecolor()[3] == 0
    for axis in figure.axes:
        for text in [axis.title, axis.xaxis.label, axis.yaxis.label]:
            if text.get_text():
                assert text.get_color() == plots.GREY, text.get_text()


def test_a_mosaic_has_a_filter_for_each_pair_of_channels() -> None:
    image = convolutions.mosaic(KERNEL)
    assert image.shape == (2 * 3 - 1, 3 * 3 - 1)
    for i in range(2):
        for j in range(3):
            filter_ = image[3 * i : 3 * i + 2, 3 * j : 3 * j + 2]
            assert (filter_ == KERNEL[i, j]).all()
    assert np.isnan(image[2]).all()
    assert np.isnan(image[:, [2, 5]]).all()
    assert np.isfinite(image).sum() == KERNEL.size


def test_kernels_share_one_scale() -> None:
    one, two, bar = FIGURES["kernels"]().axes
    assert [axis.images[0].get_clim() for axis in (one, two)] == [(-26, 26)] * 2
    shown = two.images[0].get_array()
    assert np.array_equal(shown.filled(np.nan), convolutions.mosaic(2 * KERNEL), equal_nan=True)
    assert [one.get_title(), two.get_title()] == ["one", "two"]
    assert (one.get_xlabel(), one.get_ylabel()) == ("input channel", "output channel")
    assert bar.get_ylabel() == "entry"


def test_factors_stand_beside_their_product_each_on_its_own_scale() -> None:
    u, v, product = FIGURES["factored_kernels"]().axes
    assert [axis.images[0].get_clim()[1] for axis in (u, v, product)] == [1, 3, 13]
    assert u.get_title() == "kernel of $U$: 2 x 1 x 1 x 2"
    assert v.get_title() == "kernel of $V$: 1 x 3 x 2 x 1"
    assert product.get_title().endswith("2 x 3 x 2 x 2")
    assert u.get_ylabel() == "balanced"


def test_feature_maps_have_a_column_an_image_and_a_row_a_channel() -> None:
    axes = FIGURES["feature_maps"]().axes
    assert [axis.get_title() for axis in axes] == ["a", "b", "", "", "", ""]
    assert [axis.get_ylabel() for axis in axes] == ["x", "", "y", "", "z", ""]
    assert (axes[3].images[0].get_array() == KERNEL[1, 1]).all()
    assert {axis.images[0].get_clim() for axis in axes} == {(-13, 13)}
