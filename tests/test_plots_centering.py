"""The figures of centering draw the numbers that they were given."""

import numpy as np
import pytest
from matplotlib.colors import same_color

from floral_lite.plots import GREY, Picture, centering

from .pictures import assert_readable

BASE, ADAPTORS = np.array([1.0, 0.0]), np.array([[2.0, 1.0], [4.0, 3.0]])
SPECTRA = [[3.0, 2.0, 0.5, 0.1], [2.5, 1.0, 0.7, 0.2]]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0, 2.0])
def test_the_base_moves_and_the_models_stay(share: float) -> None:
    plane, _ = centering.shifted(BASE, ADAPTORS, share).axes
    *tips, base = plane.lines
    assert base.get_xydata()[0] == pytest.approx([1 + 3 * share, 2 * share])
    assert [tuple(tip.get_xydata()[0]) for tip in tips] == [pytest.approx((3, 1)), pytest.approx((5, 3))]
    # every arrow leads from the base to a model
    arrows = [text for text in plane.texts if text.arrow_patch is not None]
    for arrow, tip in zip(arrows, tips, strict=True):
        assert arrow.xyann == pytest.approx(base.get_xydata()[0])
        assert arrow.xy == pytest.approx(tip.get_xydata()[0])
        assert same_color(arrow.arrow_patch.get_edgecolor(), tip.get_color())


@pytest.mark.parametrize(("share", "length"), [(0, (5 + 25) / 2), (1, 2), (2, (5 + 25) / 2)])
def test_the_length_is_that_of_the_arrows_and_least_at_the_mean(share: float, length: float) -> None:
    _, axis = centering.shifted(BASE, ADAPTORS, share).axes
    curve, here = axis.lines
    assert here.get_xydata()[0] == pytest.approx([share, length])
    shares, lengths = curve.get_data()
    assert shares[np.argmin(lengths)] == pytest.approx(1)
    assert np.interp(share, shares, lengths) == pytest.approx(length)


def test_the_picture_stands_still_while_the_share_changes() -> None:
    axes = [centering.shifted(BASE, ADAPTORS, share).axes for share in (0.0, 2.0)]
    for first, last in zip(*axes, strict=True):
        assert first.get_xlim() == pytest.approx(last.get_xlim())
        assert first.get_ylim() == pytest.approx(last.get_ylim())


def test_many_models_have_their_numbers_and_room_for_their_names() -> None:
    made = centering.shifted(BASE, np.arange(24.0).reshape(12, 2), 0.5)
    made.draw_without_rendering()
    names = [text.get_text() for text in made.legends[0].get_texts()]
    assert names[9:] == ["$u + a_{10}$", "$u + a_{11}$", "$u + a_{12}$", "base $u$"]
    assert made.legends[0].get_window_extent().x1 <= made.bbox.x1


def test_spectra_part_the_kept_from_the_lost() -> None:
    (axis,) = centering.spectra(SPECTRA, rank=2).axes
    *lines, cut = axis.lines
    for cluster, values in enumerate(SPECTRA):
        whole, kept, lost = lines[3 * cluster : 3 * cluster + 3]
        assert whole.get_xydata().tolist() == [[i + 1, value] for i, value in enumerate(values)]
        assert kept.get_xydata().tolist() == whole.get_xydata()[:2].tolist()
        assert lost.get_xydata().tolist() == whole.get_xydata()[2:].tolist()
        assert kept.get_markerfacecolor() != "none"
        assert lost.get_markerfacecolor() == "none"
    assert cut.get_xdata() == [2.5, 2.5]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["adaptor 0", "adaptor 1"]
    assert axis.get_ylim()[0] == 0
    # told apart without colour
    assert lines[1].get_marker() != lines[4].get_marker()


@pytest.mark.parametrize(
    "made",
    [centering.shifted(BASE, ADAPTORS, 0.5), centering.spectra(SPECTRA, rank=2)],
    ids=["shifted", "spectra"],
)
def test_the_house_style(made: Picture) -> None:
    assert_readable(made)
    assert all(text.get_color() == GREY for axis in made.axes for text in axis.texts if text.get_text())
