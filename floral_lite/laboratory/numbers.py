"""What the laboratory's runs come to, as a table."""

from collections.abc import Mapping, Sequence
from html import escape

from ..federation import History

COLUMNS = (
    "",
    "run",
    "round",
    "accuracy (%)",
    "loss",
    "parameters held: of FedAvg's, of Ensemble's",
    "bytes sent: of FedAvg's, of Ensemble's",
    "rounds a second",
)


def row(mark: str, words: str, history: History, rate: float, num_clusters: int) -> tuple[str, ...]:
    """A run's line in the table.

    Args:
        mark: what the figure calls it.
        words: what it is.
        history: with one round or more.
        rate: rounds a second.
        num_clusters: C, of the Ensemble that it is compared with.
    """
    last = history.evaluated[-1] if history.evaluated else None
    base = history.parameters["base"]
    held = base + history.parameters["added"]
    # FedAvg sends its d numbers of 4 bytes, and one more: its weight; Ensemble C times as much
    fedavg = 4 * (base + 1)
    return (
        mark,
        words,
        str(len(history.rounds)),
        "" if last is None or last.test_accuracy is None else f"{100 * last.test_accuracy:.1f}",
        "" if last is None else f"{last.test_loss:.3f}",
        _shares(held, base, num_clusters),
        _shares(history.bytes_up, fedavg, num_clusters),
        f"{rate:.1f}",
    )


def table(rows: Sequence[tuple[str, ...]], colours: Mapping[str, str]) -> str:
    """The lines of all runs under their heads, as HTML.

    Args:
        rows: see `row`.
        colours: of the marks that have one in the figure.
    """
    head = "".join(f'<th scope="col" style="padding:0 .6em">{column}</th>' for column in COLUMNS)
    body = ""
    for mark, *others in rows:
        # beside the word: some of the colours are too pale for words
        colour = f"border-left:.5em solid {colours[mark]};padding-left:.4em" if mark in colours else ""
        cells = "".join(f'<td style="padding:0 .6em">{escape(cell)}</td>' for cell in others)
        body += f'<tr><td style="{colour}">{escape(mark)}</td>{cells}</tr>'
    rows_of_page = f"<tr>{head}</tr>{body}"
    return f'<div style="overflow-x:auto;line-height:1.5"><table>{rows_of_page}</table></div>'


def _shares(size: int, fedavg: int, num_clusters: int) -> str:
    """A size as a part of FedAvg's and of an Ensemble's."""
    return f"{size / fedavg:.2f}, {size / (num_clusters * fedavg):.2f}"
