"""What a reader moves: a slider over figures, and the laboratory."""

import html
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import ipywidgets
from IPython.display import HTML, display
from matplotlib.figure import Figure

from .errors import require
from .laboratory import Laboratory
from .on_page import STATIC_VARIABLE, OnPage
from .plots.style import as_html

Value = TypeVar("Value", int, float)

__all__ = ["Laboratory", "slider", "static_slider"]


def slider(
    draw: Callable[[Value], Figure],
    values: Sequence[Value],
    *,
    label: str,
    start: Value,
    alt: str | Callable[[Value], str],
) -> ipywidgets.Widget | OnPage:
    """A figure, and a slider that draws it anew.

    In a notebook the figure is computed when the slider moves. A rendered page has no
    Python behind it: there, all figures are computed beforehand and the slider picks one,
    if FLORAL_LITE_STATIC_PAGE is set while the notebook runs.

    Args:
        draw: value -> figure; a pure function.
        values: the slider's stops.
        label: what the slider sets, such as "adaptors C".
        start: the value shown first, one of `values`.
        alt: describes the figure to a reader who does not see it; or value -> what its own figure shows.

    Raises:
        InputError: `start` is not one of the values.
    """
    values = list(values)
    require(start in values, f"start is {start}; it must be one of the values {values}")
    stops = ipywidgets.SelectionSlider(
        options=values,
        value=start,
        description=label,
        style={"description_width": "initial"},
        continuous_update=False,
    )

    def told(value: Value) -> str:
        return alt if isinstance(alt, str) else alt(value)

    def picture(value: Value) -> str:
        return as_html(draw(value), f"{told(value)} ({label} = {value})")

    # by name, and draw may name its parameter as it likes
    drawn = ipywidgets.interactive_output(lambda value: display(HTML(picture(value))), {"value": stops})  # type: ignore[no-untyped-call]
    widget = ipywidgets.VBox([stops, drawn])
    if not os.environ.get(STATIC_VARIABLE):
        return widget
    page = static_slider([picture(value) for value in values], values, label, start)
    return OnPage(widget, page, f"{told(start)} (a slider: {label})")


def static_slider(pictures: Sequence[str], values: Sequence[float], label: str, start: float) -> str:
    """HTML with one picture a value and a range input that shows one of them; it needs no other file."""
    stops = "".join(
        f"<div{'' if value == start else ' hidden'}>{picture}</div>"
        for picture, value in zip(pictures, values, strict=True)
    )
    show = (
        "const box=this.closest('.floral-slider');"
        "box.querySelectorAll('div').forEach((stop,i)=>{stop.hidden=i!=this.value});"
        "const value=this.dataset.values.split(' ')[this.value];"
        "box.querySelector('span').textContent=value;this.setAttribute('aria-valuetext',value)"
    )
    # no <output>, which the label would name in place of the input; a page that is come back to starts anew
    return (
        f'<div class="floral-slider"><label>{html.escape(label)} = <span aria-hidden="true">{start}</span> '
        f'<input type="range" min="0" max="{len(values) - 1}" value="{list(values).index(start)}" '
        f'aria-valuetext="{start}" autocomplete="off" '
        f'data-values="{" ".join(map(str, values))}" oninput="{show}" '
        'style="width:16em;height:1.5rem;vertical-align:middle">'
        f"</label>{stops}</div>"
    )
