"""A widget, and what a page without a kernel shows in its place."""

from dataclasses import dataclass

import ipywidgets

STATIC_VARIABLE = "FLORAL_LITE_STATIC_PAGE"
WIDGET = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True)
class OnPage:
    """A widget that works where a kernel runs, and the HTML that a rendered page shows in its place."""

    widget: ipywidgets.Widget
    page: str
    words: str

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, object]:
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        return {"text/plain": self.words, "text/html": self.page, WIDGET: view}
