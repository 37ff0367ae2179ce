"""What every figure of the book owes its readers."""

from matplotlib.colors import to_hex

from floral_lite.plots import GREY, Picture


def assert_readable(made: Picture, of_rows: bool = False) -> None:
    """A notebook can show it, on a white page and on a dark one, and its axes and lines have names.

    Where it is of rows, each row's name stands in place of that of the vertical axis.
    """
    assert made._repr_png_().startswith(b"\x89PNG")
    assert made.get_facecolor()[3] == 0
    legend = [text for legend in made.legends for text in legend.get_texts()]
    for axis in made.axes:
        assert axis.get_facecolor()[3] == 0
        named = [axis.xaxis.label, *legend, *([] if of_rows else [axis.yaxis.label])]
        assert all(text.get_text() for text in named)
        others = [axis.title, axis.yaxis.label, *axis.get_yticklabels(), *axis.texts] if of_rows else []
        shown = [text for text in [*named, *others] if text.get_text()]
        assert {to_hex(text.get_color()) for text in shown} == {GREY}
