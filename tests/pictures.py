"""What every figure of the book owes its readers."""

from matplotlib.colors import to_hex

from floral_lite.plots import GREY, Picture


def assert_readable(made: Picture) -> None:
    """A notebook can show it, on a white page and on a dark one, and its axes and lines have names."""
    assert made._repr_png_().startswith(b"\x89PNG")
    assert made.get_facecolor()[3] == 0
    legend = [text for legend in made.legends for text in legend.get_texts()]
    for axis in made.axes:
        assert axis.get_facecolor()[3] == 0
        texts = [axis.xaxis.label, axis.yaxis.label, *legend]
        assert all(text.get_text() for text in texts)
        assert {to_hex(text.get_color()) for text in texts} == {GREY}
