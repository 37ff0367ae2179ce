"""The controls of the laboratory, one for each of the choices."""

from typing import get_args

import ipywidgets

from .. import methods, tasks
from ..devices import devices
from ..methods.routed import Routing
from .choices import Choices

BUDGETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
FRACTIONS = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
LABELS = {  # of those that have another than their name
    "num_clusters": "clusters C",
    "budget": "budget ρ",
    "data_fraction": "data fraction",
    "local_epochs": "local epochs",
    "participation": "clients a round",
    "precondition": "preconditioning",
}


def controls(start: Choices) -> dict[str, ipywidgets.Widget]:
    """A widget for each of the choices, by its name; a slider tells its value when it is let go.

    Args:
        start: what they show at first.
    """
    made = {
        "task": ipywidgets.Dropdown(options=list(tasks.TASKS)),
        "methods": ipywidgets.SelectMultiple(options=list(methods.METHODS), rows=5),
        "num_clusters": ipywidgets.IntSlider(min=1, max=10, continuous_update=False),
        "budget": _share(BUDGETS),
        "data_fraction": _share(FRACTIONS),
        "local_epochs": ipywidgets.IntSlider(min=1, max=10, continuous_update=False),
        "participation": ipywidgets.FloatSlider(
            min=0.05, max=1, step=0.05, readout_format=".0%", continuous_update=False
        ),
        "routing": ipywidgets.Dropdown(options=list(get_args(Routing))),
        "precondition": ipywidgets.Checkbox(indent=True),
        "seed": ipywidgets.BoundedIntText(min=0, max=1000),
        "device": ipywidgets.Dropdown(options=devices()),
    }
    for name, control in made.items():
        control.description = LABELS.get(name, name)
        control.style = {"description_width": "7.5em"}
        control.layout.width = "24em"
        control.value = getattr(start, name)
    return made


def choices(controls: dict[str, ipywidgets.Widget]) -> Choices:
    """What they show.

    Raises:
        InputError: no method is chosen.
    """
    return Choices(**{name: control.value for name, control in controls.items()})


def _share(stops: tuple[float, ...]) -> ipywidgets.SelectionSlider:
    """A slider over shares, read in per cent."""
    options = [(f"{stop:.0%}", stop) for stop in stops]
    return ipywidgets.SelectionSlider(options=options, continuous_update=False)
