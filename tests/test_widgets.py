"""One slider, two renderings: computed when it moves, or picked from pictures made beforehand."""

import re

import ipywidgets
import numpy as np
import pytest
from IPython.display import HTML
from matplotlib.figure import Figure

from floral_lite import InputError, plots, widgets


def squares(count: int) -> plots.Picture:
    """A picture that depends on the slider."""
    return plots.image_grid(np.zeros((1, count, 2, 2)), ["row"])


def make(**changes: object) -> object:
    options = {"values": [1, 2, 3], "start": 2, "label": "squares", "alt": "some squares", **changes}
    return widgets.slider(squares, **options)  # type: ignore[arg-type]


def make_page(**changes: object) -> str:
    """The slider's HTML, as for a rendered page."""
    both = make(**changes)
    assert isinstance(both, widgets.OnPage)
    return str(both._repr_mimebundle_()["text/html"])


def test_live_slider_draws_anew_when_it_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(widgets.STATIC_VARIABLE, raising=False)
    drawn: list[int] = []

    def draw(count: int) -> plots.Picture:
        drawn.append(count)
        return squares(count)

    widget = widgets.slider(draw, [1, 2, 3], label="squares", start=2, alt="")
    assert isinstance(widget, ipywidgets.VBox)
    assert drawn == [2]
    assert widget.children[0].style.description_width == "initial"  # as long as the label is
    widget.children[0].value = 3
    assert drawn[-1] == 3


def test_a_live_slider_describes_its_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(widgets.STATIC_VARIABLE, raising=False)
    shown: list[HTML] = []
    monkeypatch.setattr(widgets, "display", shown.append)
    make(alt=lambda count: f"{count} squares")
    assert 'alt="2 squares (squares = 2)"' in shown[0].data


def test_a_reader_may_draw_with_matplotlib_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(widgets.STATIC_VARIABLE, "1")
    page = widgets.slider(lambda count: Figure(), [1, 2], label="squares", start=2, alt="none")
    assert isinstance(page, widgets.OnPage)
    assert page.page.count("data:image/png") == 2


def test_static_slider_holds_one_picture_a_value_and_shows_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(widgets.STATIC_VARIABLE, "1")
    page = make_page()
    images = re.findall(r"<div[^>]*><img [^>]*>", page)
    assert len(images) == 3
    assert len(set(images)) == 3
    assert [image.startswith("<div hidden>") for image in images] == [True, False, True]
    assert 'alt="some squares (squares = 3)"' in images[2]
    assert 'max="2" value="1" aria-valuetext="2"' in page
    assert 'data-values="1 2 3"' in page


def test_a_slider_may_tell_each_value_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(widgets.STATIC_VARIABLE, "1")
    page = make_page(alt=lambda count: f"{count} squares")
    assert re.findall(r'alt="([^"]*) \(', page) == ["1 squares", "2 squares", "3 squares"]


def test_a_slider_in_words_says_where_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(widgets.STATIC_VARIABLE, "1")
    both = make(alt=lambda count: f"{count} squares", label="C < 4")
    assert isinstance(both, widgets.OnPage)
    assert both.words == "2 squares (a slider: C < 4)"
    assert "C &lt; 4 = <span" in both.page


def test_the_stops_may_be_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(widgets.STATIC_VARIABLE, "1")
    assert make_page(values=np.array([1, 2, 3])) == make_page()


def test_start_must_be_a_stop() -> None:
    with pytest.raises(InputError, match=r"start is 7; it must be one of the values \[1, 2, 3\]"):
        make(start=7)
