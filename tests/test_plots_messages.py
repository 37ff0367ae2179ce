"""The figures of the chapter on more than one machine draw what they are given."""

import numpy as np
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation

from floral_lite.plots import GREY, messages

from .pictures import assert_readable


def test_an_arrow_goes_down_to_each_client_and_one_comes_up() -> None:
    made = messages.travels("server", "model", ["one", "two"], ["mine", "yours"])
    (axis,) = made.axes
    words = [text for text in axis.texts if text.get_text()]
    wanted = ["mine", "model", "model", "one", "server", "two", "yours"]
    assert sorted(text.get_text() for text in words) == wanted
    assert {text.get_color() for text in words} == {GREY}
    # of each client what it keeps, what comes down to it, and what it sends
    for client, own in enumerate((["mine", "model", "one"], ["yours", "model", "two"])):
        assert [text.get_text() for text in words if client < text.get_position()[0] < client + 1] == own
    arrows = [text for text in axis.texts if isinstance(text, Annotation)]
    falls = [arrow.xyann[1] > arrow.xy[1] for arrow in arrows]  # drawn from xyann to xy
    assert falls == [True, False, True, False]
    assert made._repr_png_().startswith(b"\x89PNG")


def test_clients_who_are_left_out_have_words_and_no_arrows() -> None:
    (axis,) = messages.travels("server", "model", ["one", "", "two"], ["mine", "...", "yours"]).axes
    assert [text.get_text() for text in axis.texts if 1 < text.get_position()[0] < 2] == ["server", "..."]
    assert len([text for text in axis.texts if isinstance(text, Annotation)]) == 4
    assert len(axis.patches) == 3  # the frames of the server and of the other two


def test_parts_follow_each_other_and_a_cross_ends_what_was_killed() -> None:
    made = messages.timeline({"begin": 2.0, "train": 3.0, "end": 1.0}, {"train": "it"})
    assert_readable(made, of_rows=True)
    (axis,) = made.axes
    bars = [(bar.get_x(), bar.get_width()) for bar in axis.patches if isinstance(bar, Rectangle)]
    assert bars == [(0, 2), (2, 3), (5, 1)]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["begin", "train", "end"]
    (cross,) = axis.lines
    assert np.asarray(cross.get_xydata()).tolist() == [[5, 1]]
    assert [text.get_text().strip() for text in axis.texts] == ["it killed"]
