"""The explorer: which rows of a frame the sliders pick."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from pathlib import Path

import ipywidgets
import numpy as np
import pandas as pd
from IPython.display import HTML, display

from ..files import write_whole
from ..on_page import STATIC_VARIABLE, OnPage
from . import page
from .checks import check, measured
from .values import Value, is_scale, numbers, text, values


@dataclass(frozen=True, eq=False, repr=False)
class Explorer:
    """Curves from a table of results, and sliders that pick the rows they show.

    As the last line of a notebook's cell it shows itself: with ipywidgets where a kernel runs; on a
    rendered page a small script draws it, from numbers inside the page. `explore` is this class.

    Args:
        frame: one row a point, a full grid over the sliders. A line passes through its rows in the
            frame's order, and has a gap where y is not finite.
        x: column of the horizontal axis, finite numbers.
        y: column of the vertical axis, numbers.
        sliders: columns whose value the reader chooses: a slider if they hold numbers, else a list.
        title: says what is seen.
        about: which runs these are and how they were made: a sentence, or names with what they stand
            for, such as {"command": "floral-lite run ...", "seeds": "0 to 3"}.
        colour: column with one line for each of its values, at most ten; None draws a single line.
        band: columns with the lower and the upper edge of an area around each line.
        log: which axes have a logarithmic scale: "", "x", "y" or "xy".
        labels: what a column is called for the reader, with its unit; by default its name.
        start: the value a slider starts from; by default its first.

    Raises:
        InputError: a column is missing or holds no numbers, two values of a slider or of `colour` read alike,
            a combination of the sliders has no rows, rows of one point differ in a column that has no
            part, or the numbers take more than 300 kB.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame(
        ...     [(rank, step, 0.5 ** (rank * step)) for rank in (1, 2, 4) for step in range(10)],
        ...     columns=["rank", "step", "loss"],
        ... )
        >>> explorer = explore(
        ...     frame, x="step", y="loss", sliders=["rank"],
        ...     title="Loss by rank", about="0.5^(rank step)",
        ... )
        >>> explorer.stops
        {'rank': [1, 2, 4]}
        >>> explorer.rows({"rank": 4})["loss"].tolist()[:3]
        [1.0, 0.0625, 0.00390625]
    """

    frame: pd.DataFrame
    _: KW_ONLY
    x: str
    y: str
    sliders: Sequence[str]
    title: str
    about: str | Mapping[str, object]
    colour: str | None = None
    band: tuple[str, str] | None = None
    log: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    start: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)
        page.check_size(self)

    @cached_property
    def stops(self) -> dict[str, list[Value]]:
        """The values of each slider, in the order in which it shows them."""
        return {slider: values(self.frame[slider]) for slider in self.sliders}

    @cached_property
    def lines(self) -> list[Value]:
        """The values of `colour`, one a line; a single empty name if there is no such column."""
        return [""] if self.colour is None else values(self.frame[self.colour])

    @property
    def chosen(self) -> dict[str, Value]:
        """Where the sliders stand at first."""
        return {slider: self.start.get(slider, stops[0]) for slider, stops in self.stops.items()}

    def rows(self, chosen: Mapping[str, Value]) -> pd.DataFrame:
        """The rows that are seen when the sliders stand at `chosen`."""
        seen = np.full(len(self.frame), True)
        for slider, value in chosen.items():
            seen &= (self.frame[slider] == value).to_numpy()
        picked: pd.DataFrame = self.frame.loc[seen]
        return picked

    def limits(self, axis: str) -> tuple[float, float]:
        """The ends of the axis "x" or "y": all rows fit, so that sliders move the lines and not the axes."""
        columns = [self.x] if axis == "x" else measured(self)
        found = np.concatenate([numbers(self.frame[column]) for column in columns])
        found = found[np.isfinite(found)]
        found = np.log10(found) if axis in self.log else found
        low, high = float(found.min()), float(found.max())
        # what differs by its rounding alone is one number: between such floats there is no tick
        alike = high - low <= 1e-12 * (1 if axis in self.log else max(-low, high))
        margin = max(0.5, 0.01 * abs(high)) if alike else 0.04 * (high - low)
        low, high = low - margin, high + margin
        return (10**low, 10**high) if axis in self.log else (low, high)

    def label(self, column: str) -> str:
        """What a column is called for the reader."""
        return self.labels.get(column, column)

    def widget(self) -> ipywidgets.Widget:
        """Sliders, and the figure that follows them; needs a kernel."""
        controls = {}
        for slider, stops in self.stops.items():
            control = ipywidgets.SelectionSlider if is_scale(self.frame[slider]) else ipywidgets.Dropdown
            controls[slider] = control(
                options=[(text(stop), stop) for stop in stops],
                value=self.chosen[slider],
                description=self.label(slider),
                style={"description_width": "initial"},
            )
        # by name, and a column may be called anything
        drawn = ipywidgets.interactive_output(
            lambda **chosen: display(HTML(page.picture(self, chosen))),  # type: ignore[no-untyped-call]
            controls,
        )
        heading, about = (ipywidgets.HTML(part) for part in (page.heading(self), page.about(self)))
        return ipywidgets.VBox([heading, *controls.values(), drawn, about])

    def save(self, path: str | Path) -> None:
        """Write a page that needs no other file, and no kernel; the folder must be there."""
        write_whole(Path(path), page.document(self).encode())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, object]:
        """The widget for a notebook, and HTML for what shows it later."""
        words = f"{self.title} (an explorer: it shows itself in a notebook)"
        # a page of the book has the script already
        html = page.fragment(self) if os.environ.get(STATIC_VARIABLE) else page.with_script(self)
        return OnPage(self.widget(), html, words)._repr_mimebundle_()


explore = Explorer  # as a verb it reads well: explore(frame, x="round", ...)
