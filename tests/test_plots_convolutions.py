"""The figures of kernels draw what they are given."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional

from floral_lite import plots
from floral_lite.adaptors import LowRankAdaptor
from floral_lite.plots import convolutions

from .pictures import assert_shown

KERNEL = np.arange(24.0).reshape(2, 3, 2, 2) - 10
PARTS = convolutions.Parts(np.ones((2, 1, 1, 2)), 3 * np.ones((1, 3, 2, 1)), KERNEL)
DEALT = {"channel_out": ((0, 2, 3), (1,)), "channel_in": ((0,), (1, 2, 3)), "balanced": ((0, 3), (1, 2))}

FIGURES: dict[str, Callable[[], plots.Picture]] = {
    "kernels": lambda: convolutions.kernels({"one": KERNEL, "two": 2 * KERNEL}),
    "unfoldings": lambda: convolutions.unfoldings(KERNEL, DEALT),
    "factored_kernels": lambda: convolutions.factored_kernels({"balanced": PARTS}),
    "feature_maps": lambda: convolutions.feature_maps({"a": KERNEL[0], "b": KERNEL[1]}, ["x", "y", "z"]),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_notebook_can_show_it_in_both_themes(name: str) -> None:
    assert_shown(FIGURES[name]())


def test_the_parts_of_an_adaptor_are_two_kernels_whose_chain_is_the_third() -> None:
    adaptor = LowRankAdaptor("balanced", (4, 3, 2, 5), rows=(0, 3), columns=(1, 2), rank=2)
    generator = torch.Generator().manual_seed(0)
    factors = {
        name: torch.randn(1, *shape, generator=generator, dtype=torch.float64)
        for name, shape in adaptor.shapes.items()
    }
    u, v, product = (torch.as_tensor(part) for part in convolutions.parts(adaptor, factors))
    assert (u.shape, v.shape) == ((4, 2, 1, 5), (2, 3, 2, 1))
    x = torch.randn(1, 3, 6, 7, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(functional.conv2d(functional.conv2d(x, v), u), functional.conv2d(x, product))


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


def test_unfoldings_are_matrices_with_a_frame_around_the_first_filter() -> None:
    axes = FIGURES["unfoldings"]().axes
    titles = ["channel_out: 8 x 3", "channel_in: 2 x 12", "balanced: 4 x 6"]
    assert [axis.get_title() for axis in axes] == titles
    assert (axes[2].get_ylabel(), axes[2].get_xlabel()) == ("$i$, $b$", "$j$, $a$")
    for axis, (height, width) in zip(axes, [(4, 1), (1, 4), (2, 2)], strict=True):
        matrix = axis.images[0].get_array()
        # the frame holds the filter (0, 0), and neither less nor more
        assert sorted(matrix[:height, :width].ravel()) == sorted(KERNEL[0, 0].ravel())
        (frame,) = axis.patches
        assert (*frame.get_xy(), frame.get_width(), frame.get_height()) == (-0.5, -0.5, width, height)
    assert (axes[2].images[0].get_array()[2:, 4:] == KERNEL[1, 2].T).all()


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
