"""The commands `floral-lite table` and `floral-lite figure`."""

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from ..errors import require
from ..files import write_whole
from .catalogue import ROUTING, TABLES, find_table
from .cells import cells
from .printed import latex, markdown
from .rounds import curves
from .routing import judged
from .runner import fill
from .tables import collect, frame

Name = Annotated[str, typer.Argument(help=", ".join(TABLES))]
Columns = Annotated[str | None, typer.Option(help="tasks, with commas between; the table's if none")]
Rows = Annotated[str | None, typer.Option(help="rows, with commas between; all if none")]
Seeds = Annotated[int, typer.Option(help="how many seeds: 1, 2, ...")]
Out = Annotated[Path, typer.Option(help="folder of results")]

# The exit code that a shell gives what Ctrl-C ended, so that a script does not go on as if all were done.
STOPPED = 130


def names(text: str | None) -> list[str] | None:
    """Those of a list with commas; None stays None."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def repeated(name: str, chosen: Mapping[str, object]) -> str:
    """The command that makes the same numbers anywhere, without this machine's folders."""
    options = [f"--{option} {quote(str(value))}" for option, value in chosen.items() if value is not None]
    return " ".join(["floral-lite table", name, *options])


def table(
    name: Name,
    columns: Columns = None,
    rows: Rows = None,
    seeds: Seeds = 4,
    rounds: Annotated[
        int | None,
        typer.Option(help="communication rounds; if none the task's, or with --show those there are"),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps")] = "auto",
    data: Annotated[Path | None, typer.Option(help="folder of downloaded image sets")] = None,
    out: Out = Path("results"),
    show: Annotated[bool, typer.Option("--show", help="run nothing: print what is there")] = False,
) -> None:
    """Fill a table: run what is missing in --out, print and save it beside the paper's numbers."""
    wanted = cells(name, names(columns), names(rows), seeds, rounds)
    stopped = False
    if not show:
        try:
            chosen = {"columns": columns, "rows": rows, "seeds": seeds, "rounds": rounds, "device": device}
            fill(wanted, out, device=device, data=data, command=repeated(name, chosen))
        except KeyboardInterrupt:
            typer.echo("stopped; the same command goes on from here")
            stopped = True
    filled = collect(name, out, names(columns), names(rows), seeds, rounds)
    typer.echo(markdown(filled))
    if name == ROUTING.name and len(judgements := judged(filled)) > 0:
        typer.echo(judgements.round(2).to_string(na_rep="-"))
    if not show and out.is_dir():
        write_whole(out / f"{name}.md", markdown(filled).encode())
        write_whole(out / f"{name}.tex", latex(filled).encode())
        write_whole(out / f"{name}.csv", frame(filled).to_csv(index=False).encode())
    if stopped:
        raise typer.Exit(STOPPED)


def draw(
    name: Name,
    save: Annotated[Path, typer.Option(help="file of the figure: .svg, .png or .pdf")],
    columns: Columns = None,
    rows: Rows = None,
    seeds: Seeds = 4,
    value: Annotated[
        str | None, typer.Option(help="test_loss, test_accuracy, train_loss or mismatch")
    ] = None,
    out: Out = Path("results"),
) -> None:
    """Draw a table's runs over the rounds, from what is in --out."""
    kinds = (".svg", ".png", ".pdf")
    require(save.suffix in kinds, f"save is {save}; its name must end in one of {', '.join(kinds)}")
    drawn = curves(name, out, names(columns), names(rows), seeds, value)
    from . import figures  # here: matplotlib takes long to load

    save.parent.mkdir(parents=True, exist_ok=True)
    figures.save(figures.draw(drawn, value or find_table(name).curve), save)
    count = {kind: drawn[kind].nunique() for kind in ("row", "column")}
    text = " in ".join(f"{number} {kind}{'s' if number > 1 else ''}" for kind, number in count.items())
    typer.echo(f"{text}: {save}")
