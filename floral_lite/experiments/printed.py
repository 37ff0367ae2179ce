"""A table as text: for a terminal or a page, and for LaTeX."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .schema import Column, Row
from .tables import OFF, Filled, number


def markdown(filled: Filled) -> str:
    """The table for a terminal or a page: for each task a column of ours, and the paper's if any."""
    head = [""]
    for column in filled.columns:
        label = in_a_cell(column.label)
        head += [label, "paper"] if filled.has_paper(column) else [label]
    body = [[in_a_cell(row.label), *texts(filled, row, MARKDOWN)] for row in filled.rows]
    widths = [max(len(line[place]) for line in [head, *body]) for place in range(len(head))]

    def line(parts: Sequence[str]) -> str:
        return "| " + " | ".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    table = [line(head), rule, *map(line, body)]
    return "\n".join([filled.title, "", *table, "", *(f"- {note}" for note in filled.notes())]) + "\n"


def latex(filled: Filled) -> str:
    """The table for a paper; it needs the package booktabs."""
    spans = [2 if filled.has_paper(column) else 1 for column in filled.columns]
    head = [
        rf"\multicolumn{{{span}}}{{c}}{{{escaped(column.label)}}}"
        for column, span in zip(filled.columns, spans, strict=True)
    ]
    names = [name for span in spans for name in ("ours", "paper")[:span]]
    lines = [
        f"% {filled.title}",
        *(f"% {note}" for note in filled.notes()),
        rf"\begin{{tabular}}{{l{'c' * sum(spans)}}}",
        r"\toprule",
        " & ".join(["", *head]) + r" \\",
        " & ".join(["", *names]) + r" \\",
        r"\midrule",
    ]
    for row in filled.rows:
        lines.append(" & ".join([escaped(row.label), *texts(filled, row, LATEX)]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def in_a_cell(text: str) -> str:
    """Text whose bars do not end a cell of a Markdown table."""
    return text.replace("|", r"\|")


def escaped(text: str) -> str:
    """Text with what LaTeX takes for commands escaped, as far as labels have it."""
    return re.sub(r"([%&_#$])", r"\\\1", text)


@dataclass(frozen=True)
class Style:
    """How a format writes numbers: best and second best, a deviation, a difference, nothing."""

    ranks: tuple[str, str]
    deviation: str
    off: str
    nothing: str


MARKDOWN = Style(("**{}**", "*{}*"), "{} ± {}", f" {OFF}", "-")
LATEX = Style((r"\textbf{{{}}}", r"\textit{{{}}}"), r"{} $\pm$ {}", r"$^\dagger$", "--")


def texts(filled: Filled, row: Row, style: Style) -> list[str]:
    """A row's numbers as text: for each task ours and, where the column has one, the paper's."""
    made = []
    for column in filled.columns:
        entry = filled.entries[row.name, column.name]
        ours = "diverged" if entry.diverged else value_text(filled, row, column, style, is_paper=False)
        ours += style.off if entry.off else ""
        ours += f" [{len(entry.results)}]" if 0 < len(entry.results) < filled.seeds else ""
        made.append(ours)
        if filled.has_paper(column):
            made.append(value_text(filled, row, column, style, is_paper=True))
    return made


def value_text(filled: Filled, row: Row, column: Column, style: Style, is_paper: bool) -> str:
    """A mean with its deviation, ours or the paper's, marked where it is best or second best."""
    entry = filled.entries[row.name, column.name]
    value = entry.paper if is_paper else entry.ours
    if value is None:
        return style.nothing
    text = number(value.mean, column)
    if value.sd is not None:
        text = style.deviation.format(text, number(value.sd, column))
    rank = filled.ranks(column, is_paper).get(row.name)
    return text if rank is None else style.ranks[rank].format(text)
