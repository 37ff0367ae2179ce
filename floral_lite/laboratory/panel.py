"""The laboratory as a panel of widgets."""

import time
from collections import deque
from html import escape
from typing import Any, NamedTuple

import ipywidgets
import pandas as pd
from matplotlib.colors import to_hex
from traitlets import Unicode

from .. import tasks
from ..devices import devices
from ..errors import InputError
from ..on_page import OnPage
from ..plots import Picture
from ..plots.laboratory import progress as draw_progress
from ..plots.laboratory import routers as draw_routers
from ..plots.style import line_style, png
from . import numbers
from .choices import Choices
from .code import as_code
from .controls import choices, controls
from .training import Progress, Training

MOST_KEPT = 8  # finished runs; more thin lines could not be told apart
PAUSE = 0.5  # seconds between two drawings, at least
ON_PAGE = (
    "<p>Here the laboratory stands where the page has a kernel: open this chapter in Colab or in JupyterLab, "
    "and run this cell.</p>"
)


class Titled(ipywidgets.Image):  # type: ignore[misc]
    """An image whose tooltip names it to a reader who does not see it: there is no other alternative text."""

    description = Unicode("").tag(sync=True)  # the page looks for it before it shows a tooltip


class Kept(NamedTuple):
    """What stays of a run that was finished or stopped."""

    curve: pd.DataFrame
    row: tuple[str, ...]


class Laboratory:
    """Train a federation while you move its sliders.

    Run starts what the controls say, and Stop ends it. A control that changes while it runs starts it anew.
    What was finished or stopped stays as a thin line, numbered as in the table: the last eight, until another
    task is chosen. 'As code' is the Python that repeats the runs. It begins on the GPU where there is one.

    It shows itself in a notebook: in JupyterLab, VS Code and Colab. It trains in a thread, so that other
    cells can be run meanwhile; `stop()` ends it as the button does.

    Example:
        >>> laboratory = Laboratory()
        >>> laboratory.controls["methods"].value
        ('fedavg', 'floral')
    """

    def __init__(self) -> None:
        """Make the widgets; nothing runs yet."""
        start = Choices(device=devices()[0])
        self.controls = controls(start)
        self.training = Training(self._show)
        self._kept: deque[Kept] = deque(maxlen=MOST_KEPT)
        self._count = 0
        self._shown = start  # the choices of what is drawn
        self._next = 0.0  # when it may be drawn again; 0 before a run's first drawing
        self._picture: Picture | None = None  # of the curves
        self._resetting = False
        self._wrong = ""  # what is wrong with the choices, if that ended a run
        self.run_button = ipywidgets.Button(description="Run", button_style="primary", icon="play")
        self.stop_button = ipywidgets.Button(description="Stop", icon="stop", disabled=True)
        self.message = ipywidgets.HTML("Choose, and press Run.")
        self.curves, self.routers = (Titled(format="png", value=b"") for _ in range(2))
        self.table, self.code = ipywidgets.HTML(), ipywidgets.Textarea(rows=16)
        self.code.layout.width = "100%"
        folded = ipywidgets.Accordion(children=[self.code], selected_index=None)
        folded.set_title(0, "As code: copy it, and it repeats these runs")
        for picture in (self.curves, self.routers):
            picture.layout = ipywidgets.Layout(display="none", max_width="100%", height="auto")
        buttons = ipywidgets.HBox([self.run_button, self.stop_button])
        left = ipywidgets.VBox([*self.controls.values(), buttons])
        right = ipywidgets.VBox([self.message, self.curves, self.routers])
        # pictures as wide as they are, and smaller where there is no room
        right.layout = ipywidgets.Layout(flex="1 1 26em", min_width="0", align_items="flex-start")
        both = ipywidgets.HBox([left, right], layout=ipywidgets.Layout(flex_flow="row wrap"))
        self.widget = ipywidgets.VBox([both, self.table, folded])
        self.run_button.on_click(lambda _: self.run())
        self.stop_button.on_click(lambda _: self.stop())
        for control in self.controls.values():
            control.observe(self._changed, names="value")
        self._write_code()

    def run(self) -> None:
        """Train what the controls say."""
        try:
            chosen = choices(self.controls)
        except InputError as error:
            self._wrong = str(error)
            self.stop()
            self._say(self._wrong)
            return
        self._wrong = ""
        self.stop_button.disabled = False
        self._say("Getting ready ...")
        self.training.start(chosen)

    def stop(self) -> None:
        """End it after the round that it is in."""
        self.training.stop()

    def _changed(self, change: dict[str, Any]) -> None:
        """A control has been let go."""
        if self._resetting:
            return
        if change["owner"] is self.controls["task"]:
            recipe = tasks.TASKS[self.controls["task"].value]
            self._resetting = True
            self.controls["num_clusters"].value = recipe.num_clusters
            self.controls["participation"].value = recipe.settings.participation
            self._resetting = False
        self._write_code()
        if self.training.running:
            self.run()

    def _write_code(self) -> None:
        """What the controls say, as Python."""
        try:
            self.code.value = as_code(choices(self.controls))
        except InputError as error:
            self.code.value = f"# {error}"

    def _show(self, now: Progress) -> None:
        """Called in the training's thread: what the runs have come to so far."""
        ended = now.state != "running"
        begins = now.choices is not self._shown
        if begins:
            if now.choices.task != self._shown.task:
                self._kept.clear()
                _set(self.routers, None, "")  # those of other clients
            self._shown, self._next = now.choices, 0.0
        # the first point waits for the first round of every method
        complete = len(now.histories) == len(now.choices.methods)
        if (ended and now.histories) or (complete and time.monotonic() > self._next):
            self._draw(now, with_routers=self._next > 0)
        if ended and not self.training.running:
            last = min((len(history.rounds) for history in now.histories.values()), default=0)
            words = {
                "finished": f"Finished after {last} rounds.",
                "stopped": self._wrong or f"Stopped after {last} rounds.",
                "failed": now.message,
            }
            self._say(words[now.state])
            self.stop_button.disabled = True
        elif begins:
            self._say(f"Training, {now.choices.settings().rounds} rounds.")
            self.stop_button.disabled = False
        if now.state in ("finished", "stopped"):
            self._keep(now)

    def _draw(self, now: Progress, with_routers: bool) -> None:
        """Pictures and table; the first curves do without the routers, which have not moved yet."""
        begin = time.monotonic()
        before = {kept.row[0]: kept.curve for kept in self._kept}
        self._picture = draw_progress(now.histories, before, now.choices.settings().rounds, self._picture)
        words = f"Test scores over rounds of {', '.join(now.histories)}: see the table below"
        _set(self.curves, self._picture, words)
        if with_routers:
            _set(self.routers, draw_routers(now.histories), "The weights of every client's mixture")
        # the colours of the figure, by the order of the methods
        colours = {name: to_hex(line_style(place)["color"]) for place, name in enumerate(now.histories)}
        rows = [_row(name, name, now) for name in now.histories]
        end = time.monotonic()
        self._next = end + max(PAUSE, 2 * (end - begin))  # most of the time is for training
        self.table.value = numbers.table([*rows, *(kept.row for kept in self._kept)], colours)

    def _keep(self, now: Progress) -> None:
        """The curves of runs that have ended, by a number."""
        for name, history in now.histories.items():
            if history.evaluated:
                self._count += 1
                curve = history.frame()[["test_accuracy", "test_loss"]].dropna(how="all")
                self._kept.append(Kept(curve, _row(str(self._count), name, now)))

    def _say(self, words: str) -> None:
        """A sentence above the figure."""
        self.message.value = f'<span role="status">{escape(words)}</span>'

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, object]:
        """The widget, and a sentence where there is no kernel."""
        words = "The laboratory (it shows itself in a notebook)"
        return OnPage(self.widget, ON_PAGE, words)._repr_mimebundle_()


def _row(mark: str, name: str, now: Progress) -> tuple[str, ...]:
    """A run's line in the table."""
    return numbers.row(
        mark, now.choices.words(name), now.histories[name], now.rates[name], now.choices.num_clusters
    )


def _set(image: Titled, picture: Picture | None, words: str) -> None:
    """Show a picture, with words for a reader who does not see it; none takes no room."""
    image.layout.display = "none" if picture is None else ""
    image.tooltip = words
    if picture is not None:
        image.value = png(picture)
