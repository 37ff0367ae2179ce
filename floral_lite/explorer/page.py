"""The explorer on a page without a kernel: HTML that is there from the start, numbers, and a script."""

import json
from collections.abc import Mapping
from html import escape
from itertools import cycle
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import require
from ..plots import COLOURS
from ..plots.style import as_html
from .figure import explore_figure
from .values import Value, codes, digits, is_scale, numbers, short, text

if TYPE_CHECKING:
    from .explorer import Explorer

ASSETS = Path(__file__).parent / "assets"
DASHES = ("", "8 4", "2 4", "8 4 2 4", "8 4 2 4 2 4", "16 4")  # those of the figures, in SVG
MOST_BYTES = 300_000


def data(explorer: "Explorer") -> dict[str, Any]:
    """What the script draws from: whole numbers exactly, others to as many digits as their axis shows."""
    frame, colour = explorer.frame, explorer.colour
    limits = {axis: explorer.limits(axis) for axis in ("x", "y")}
    places = {axis: digits(*ends) for axis, ends in limits.items()}
    shown = {"x": explorer.x, "y": explorer.y}
    drawn = shown | dict(zip(("low", "high"), explorer.band or (), strict=False))
    axes = {
        axis: {
            "label": explorer.label(column),
            "limits": limits[axis],
            "digits": places[axis],
            "log": axis in explorer.log,
        }
        for axis, column in shown.items()
    }
    styles = zip(explorer.lines, COLOURS.as_hex(), cycle(DASHES), strict=False)
    return axes | {
        "title": explorer.title,
        "colour": None if colour is None else explorer.label(colour),
        "band": {part: explorer.label(column) for part, column in drawn.items() if part not in shown},
        "sliders": [
            {"label": explorer.label(slider), "stops": [text(stop) for stop in stops]}
            for slider, stops in explorer.stops.items()
        ],
        "lines": [{"name": text(line), "colour": hue, "dash": dash} for line, hue, dash in styles],
        "columns": {
            "sliders": [codes(frame[slider], stops) for slider, stops in explorer.stops.items()],
            "line": [0] * len(frame) if colour is None else codes(frame[colour], explorer.lines),
            **{
                part: [
                    short(number, places["x" if part == "x" else "y"]) for number in numbers(frame[column])
                ]
                for part, column in drawn.items()
            },
        },
    }


def to_json(explorer: "Explorer") -> str:
    """The data as they stand inside a script element, which no text of theirs can close."""
    return json.dumps(data(explorer), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def check_size(explorer: "Explorer") -> None:
    """Raise InputError if the numbers are too many for a page."""
    size, rows = len(to_json(explorer)), len(explorer.frame)
    require(
        size <= MOST_BYTES,
        f"the frame's {rows} rows take {size // 1000} kB in a page, of at most {MOST_BYTES // 1000} kB; "
        f"keep one {explorer.x} in {ceil(size / MOST_BYTES)}, or fewer values of a slider",
    )


def heading(explorer: "Explorer") -> str:
    """The title."""
    return f'<p class="heading">{escape(explorer.title)}</p>'


def about(explorer: "Explorer") -> str:
    """How the numbers were made: a sentence, or a list of names and what they stand for."""
    if not isinstance(explorer.about, Mapping):
        return f'<p class="about">{escape(explorer.about)}</p>'
    rows = (f"<dt>{escape(name)}</dt><dd>{escape(str(said))}</dd>" for name, said in explorer.about.items())
    return f'<dl class="about">{"".join(rows)}</dl>'


def control(explorer: "Explorer", slider: str) -> str:
    """A range input for numbers, a list for others; the script enables them.

    The value beside a label is no <output>: the label would name that, and not the input.
    """
    stops, value = explorer.stops[slider], explorer.chosen[slider]
    label, start = escape(explorer.label(slider)), stops.index(value)
    if is_scale(explorer.frame[slider]):
        said = escape(text(value))
        return (
            f'<label><span>{label}<strong aria-hidden="true">{said}</strong></span>'
            f'<input type="range" min="0" max="{len(stops) - 1}" value="{start}" aria-valuetext="{said}" '
            'autocomplete="off" disabled></label>'
        )
    options = "".join(
        f'<option value="{place}"{" selected" if place == start else ""}>{escape(text(stop))}</option>'
        for place, stop in enumerate(stops)
    )
    return f'<label><span>{label}</span><select autocomplete="off" disabled>{options}</select></label>'


def key(line: dict[str, str]) -> str:
    """A line's colour, dash and name in the legend."""
    return (
        '<li><svg width="30" height="10" aria-hidden="true"><line class="line" x1="1" x2="29" y1="5" y2="5" '
        f'stroke-dasharray="{line["dash"]}" style="--hue: {line["colour"]}"/></svg>'
        f"{escape(line['name'])}</li>"
    )


def picture(explorer: "Explorer", chosen: Mapping[str, Value]) -> str:
    """The figure where its sliders stand at `chosen`, as an image."""
    words = f"{explorer.title}: {explorer.label(explorer.y)} against {explorer.label(explorer.x)}"
    return as_html(explore_figure(explorer, chosen), words)


def fragment(explorer: "Explorer") -> str:
    """The explorer's part of a page that has the script; without the script, a picture of its start."""
    lines = data(explorer)["lines"]
    keys = "" if explorer.colour is None else f'<ul class="keys">{"".join(map(key, lines))}</ul>'
    x, y = escape(explorer.label(explorer.x)), escape(explorer.label(explorer.y))
    title = escape(explorer.title)
    return (
        f'<div class="floral-explorer" role="group" aria-label="{title}">{heading(explorer)}'
        f'<div class="controls">{"".join(control(explorer, slider) for slider in explorer.sliders)}</div>'
        f'{keys}<div class="axis">{y}</div>'
        f'<div class="plot">{picture(explorer, explorer.chosen)}</div>'
        f'<div class="axis below">{x}</div>'
        f'<details><summary>The numbers in a table</summary><div class="scroll" tabindex="0" role="region" '
        f'aria-label="The numbers in a table"></div></details>{about(explorer)}'
        f'<script type="application/json">{to_json(explorer)}</script></div>'
    )


def with_script(explorer: "Explorer") -> str:
    """The explorer's part of a page that has neither the script nor its style, such as a notebook."""
    style, script = ((ASSETS / f"explorer.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    return f"<style>{style}</style>{fragment(explorer)}<script>{script}</script>"


def document(explorer: "Explorer") -> str:
    """A whole page with nothing but the explorer."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(explorer.title)}</title></head>'
        '<body style="max-width:46rem;margin:2rem auto;padding:0 1rem;font:1rem/1.5 system-ui,sans-serif">'
        f"{with_script(explorer)}</body></html>"
    )
