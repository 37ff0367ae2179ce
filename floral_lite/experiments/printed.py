"""A table as text: for a terminal or a page, and for LaTeX."""

from collections.abc import Sequence
from dataclasses import dataclass

from .schema import Column, Row
from .tables import OFF, Filled, number


def markdown(filled: Filled) -> str:
    """The table for a terminal or a page: a column of ours and one of the paper's for each task."""
    head = ["", *(name for column in filled.columns for name in (column.label, "paper"))]
    body = [
        [row.label, *(text for column in filled.columns for text in pair(filled, row, column, MARKDOWN))]
        for row in filled.rows
    ]
    widths = [max(len(line[place]) for line in [head, *body]) for place in range(len(head))]

    def line(texts: Sequence[str]) -> str:
        return "| " + " | ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    table = [line(head), rule, *map(line, body)]
    return "\n".join([filled.title, "", *table, "", *(f"- {note}" for note in filled.notes())]) + "\n"


def latex(filled: Filled) -> str:
    """The table for a paper; it needs the package booktabs."""
    count = len(filled.columns)
    head = " & ".join(["", *(rf"\multicolumn{{2}}{{c}}{{{escaped(c.label)}}}" for c in filled.columns)])
    lines = [
        f"% {filled.title}",
        *(f"% {note}" for note in filled.notes()),
        rf"\begin{{tabular}}{{l{'cc' * count}}}",
        r"\toprule",
        head + r" \\",
        " & ".join(["Method", *["ours & paper"] * count]) + r" \\",
        r"\midrule",
    ]
    for row in filled.rows:
        texts = [text for column in filled.columns for text in pair(filled, row, column, LATEX)]
        lines.append(" & ".join([escaped(row.label), *texts]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def escaped(text: str) -> str:
    """Text in which LaTeX reads no command."""
    return text.replace("%", r"\%")


@dataclass(frozen=True)
class Style:
    """How a format writes numbers: best and second best, a deviation, a difference, nothing."""

    ranks: tuple[str, str]
    deviation: str
    off: str
    nothing: str


MARKDOWN = Style(("**{}**", "*{}*"), "{} ± {}", f" {OFF}", "-")
LATEX = Style((r"\textbf{{{}}}", r"\textit{{{}}}"), r"{} $\pm$ {}", r"$^\dagger$", "--")


def pair(filled: Filled, row: Row, column: Column, style: Style) -> tuple[str, str]:
    """Ours and the paper's, as text."""
    entry = filled.entries[row.name, column.name]
    texts = []
    for value, is_paper in ((entry.ours, False), (entry.paper, True)):
        if value is None:
            texts.append("diverged" if entry.diverged and not is_paper else style.nothing)
            continue
        text = number(value.mean, column)
        if value.sd is not None:
            text = style.deviation.format(text, number(value.sd, column))
        rank = filled.ranks(column, is_paper).get(row.name)
        text = text if rank is None else style.ranks[rank].format(text)
        if not is_paper:
            text += style.off if entry.off else ""
            text += f" [{len(entry.results)}]" if len(entry.results) < filled.seeds else ""
        texts.append(text)
    return texts[0], texts[1]
