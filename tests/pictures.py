"""What every figure of the book owes its readers."""

from matplotlib.colors import to_hex

from floral_lite.plots import GREY, Picture


def assert_shown(made: Picture) -> None:
    """A notebook can show it, on a white page and on a dark one."""
    assert made._repr_png_().startswith(b"\x89PNG")
    assert made.get_facecolor()[3] == 0
    legends = [legend for legend in (*made.legends, *(axis.get_legend() for axis in made.axes)) if legend]
    texts = [text for legend in legends for text in legend.get_texts()]
    for axis in made.axes:
        assert axis.get_facecolor()[3] == 0 or axis.get_label() == "<colorbar>"
        texts += [axis.title, axis.xaxis.label, axis.yaxis.label]
        texts += [*axis.get_xticklabels(), *axis.get_yticklabels()]
    assert {to_hex(text.get_color()) for text in texts if text.get_text()} == {GREY}


def assert_readable(made: Picture, of_rows: bool = False) -> None:
    """And its axes and lines have names.

    Where it is of rows, each row's name stands in place of that of the vertical axis.
    """
    assert_shown(made)
    legend = [text for legend in made.legends for text in legend.get_texts()]
    for axis in made.axes:
        named = [axis.xaxis.label, *legend, *([] if of_rows else [axis.yaxis.label])]
        assert all(text.get_text() for text in named)
        assert {to_hex(text.get_color()) for text in axis.texts if of_rows} <= {GREY}
