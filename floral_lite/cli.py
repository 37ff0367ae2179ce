"""The command line: run a task with a method, list what there is."""

import errno
import io
import signal
import sys
from datetime import datetime
from pathlib import Path
from shlex import quote
from statistics import fmean
from typing import Annotated, Any, cast

import typer
from tqdm import tqdm

from . import methods, tasks
from ._version import __version__
from .arguments import named
from .devices import find_device, keep_memory
from .errors import DivergenceError, InputError, check_choice, check_names, require
from .experiments import commands
from .federation import (
    Engine,
    Federation,
    History,
    Run,
    checkpointed_rounds,
    load_checkpoint,
    save_checkpoint,
)
from .files import LOCK, alone_in
from .seeds import check_num_seeds

# A full disk or quota, a file larger than allowed, a folder that may only be read.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
# A file where a folder is wanted or the other way round, no place for one, too long a name, a link to itself.
MISNAMED = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP)

app = typer.Typer(
    help="Federated learning with mixtures of adaptors.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("table")(commands.table)
app.command("figure")(commands.draw)


def show_version(asked: bool) -> None:
    """Print the package's version and end."""
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="show the version")
    ] = False,
) -> None:
    """What stands before a command."""


@app.command()
def run(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="what to learn, see `floral-lite tasks`")],
    method: Annotated[str, typer.Option(help="who shares what, see `floral-lite methods`")] = "floral",
    budget: Annotated[float | None, typer.Option(help="rho, in (0, 1]; 0.01 if there is no rank")] = None,
    rank: Annotated[int | None, typer.Option(help="rank of the adaptors, instead of a budget")] = None,
    num_clusters: Annotated[int | None, typer.Option(help="C, the task's own if none")] = None,
    routing: Annotated[str | None, typer.Option(help="learned, closed-form, clustered or optimal")] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="any option of the method; repeatable")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="communication rounds")] = None,
    seed: Annotated[int, typer.Option(help="the same seed gives the same numbers")] = 0,
    seeds: Annotated[int, typer.Option(help="how many seeds, from --seed on, are trained together")] = 1,
    data_fraction: Annotated[float, typer.Option(help="share of the training data kept, in (0, 1]")] = 1.0,
    stateless: Annotated[
        bool, typer.Option("--stateless", help="reset private parameters every round")
    ] = False,
    evaluate_every: Annotated[int | None, typer.Option(help="rounds between two tests; 0: none")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="any of the Settings; repeatable"),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps")] = "auto",
    engine: Annotated[str, typer.Option(help="fast, or loop for Algorithm 1 client by client")] = "fast",
    precision: Annotated[str | None, typer.Option(help="float32, bfloat16, or tf32 on NVIDIA GPUs")] = None,
    max_memory: Annotated[
        float | None, typer.Option(help="GB for clients in training; what suits the device if none")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="folder of downloaded image sets")] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder for the results; a new one in runs/ if none")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(help="rounds between two checkpoints")] = 10,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in --out")] = False,
) -> None:
    """Train a federation, show its progress, keep its history and, if it is tested, a figure."""
    require(
        out is not None or not resume,
        "resume is given without out; name the folder of the run that was interrupted: --out DIR --resume",
    )
    out = out or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{task}-{method}-{seed}"
    # two processes would take away each other's checkpoints
    context.with_resource(alone_in(out))
    checkpoints = out / "checkpoints"
    behind = done_before(out, checkpoints, resume)
    # before the data are loaded and the bar is drawn
    single = {"budget": budget, "rank": rank, "num_clusters": num_clusters, "routing": routing}
    options = named(single, "--option", option or ())
    stateful = False if stateless else None
    changes = named(
        {"rounds": rounds, "evaluate_every": evaluate_every, "precision": precision, "stateful": stateful},
        "--set",
        setting or (),
    )
    find_device(device)
    check_choice("engine", engine, Engine)
    require(
        max_memory is None or 1e-9 <= max_memory <= 1e9,
        f"max_memory is {max_memory} GB; it must be from 1e-9 to 1e9: try 1",
    )
    check_num_seeds(seeds)
    numbers = range(seed, seed + seeds)
    check_names("task", [task], tasks.TASKS)
    recipe = tasks.TASKS[task]
    if "num_clusters" in methods.option_names(method):
        options.setdefault("num_clusters", recipe.num_clusters)
    settings = recipe.settings.with_changes(**changes)
    problems = tasks.load_seeds(task, numbers, data_fraction=data_fraction, data=data)
    runs = [
        Run(problem, methods.make(method, problem.model, **options), number)
        for problem, number in zip(problems, numbers, strict=True)
    ]
    federations: list[Federation] = []
    try:
        # the bar's speed is of the rounds from here on
        with tqdm(total=settings.rounds, initial=behind, unit="round") as bar:
            for federations in checkpointed_rounds(
                runs,
                settings,
                device,
                checkpoints=checkpoints,
                checkpoint_every=checkpoint_every,
                engine=cast(Engine, engine),
                max_memory=None if max_memory is None else int(max_memory * 10**9),
            ):
                show_progress(bar, [federation.history for federation in federations])
    except KeyboardInterrupt:
        typer.echo("stopped")
        if federations:
            save_checkpoint(federations, checkpoints)
            typer.echo(f"the same command with --out {quote(str(out))} --resume goes on from here")
        else:
            told = f"the {behind} rounds from before are" if resume else "nothing was done yet, nothing is"
            typer.echo(f"{told} kept")
        raise typer.Exit(commands.STOPPED) from None
    finally:
        folders = [out] if seeds == 1 else [out / f"seed-{number}" for number in numbers]
        save({folder: each.history for folder, each in zip(folders, federations, strict=False)})
        if len(federations) > 1 and federations[0].history.evaluated:
            from .report import over_seeds

            typer.echo(f"over the {seeds} seeds: {over_seeds([f.history for f in federations])}")


def done_before(out: Path, checkpoints: Path, resume: bool) -> int:
    """The rounds behind a run to go on with, 0 of a new one; InputError where the folder suits neither."""
    resumed = load_checkpoint(checkpoints)
    # checkpoints of which none was ever whole have nothing to lose
    empty = {LOCK} if resumed else {LOCK, checkpoints.name}
    require(
        not resume or resumed is not None,
        f"out is {out}, where there is no checkpoint: name the folder of the run that was interrupted, "
        "or begin anew in another without --resume",
    )
    require(
        resume or {path.name for path in out.iterdir()} <= empty,
        f"out is {out}, which holds another run or other files; name a new folder, or add --resume",
    )
    return len(resumed[0].history.rounds) if resumed else 0


@app.command("tasks")
def list_tasks() -> None:
    """List the tasks."""
    for name, recipe in tasks.TASKS.items():
        typer.echo(f"{name:27} {recipe.about} (K = {recipe.num_clients}, C = {recipe.num_clusters})")


@app.command("methods")
def list_methods() -> None:
    """List the methods."""
    for name, kind in methods.METHODS.items():
        typer.echo(f"{name:20} {(kind.__doc__ or '').splitlines()[0]}")


def show_progress(bar: "tqdm[Any]", histories: list[History]) -> None:
    """Move the bar on by a round, with the newest loss and accuracy beside it, means over the seeds."""
    numbers = {"loss": f"{fmean(history.rounds[-1].train_loss for history in histories):.3f}"}
    lasts = [history.evaluated[-1].test_accuracy for history in histories if history.evaluated]
    if scores := [score for score in lasts if score is not None]:
        numbers["accuracy"] = f"{fmean(scores):.1%}"
    bar.set_postfix(numbers, refresh=False)
    bar.update(len(histories[0].rounds) - bar.n)


def save(histories: dict[Path, History]) -> None:
    """Write each history.json, all before printing, which may fail; then draw and sum up what was tested."""
    for out, history in histories.items():
        history.save(out / "history.json", replace=True)
    for out, history in histories.items():
        typer.echo(f"{len(history.rounds)} rounds are kept in {out / 'history.json'}")
        if history.evaluated:
            from . import plots
            from .experiments import figures
            from .report import summary

            figures.save(plots.run_figure(history), out / "figure.png")
            typer.echo(summary(history).to_string())


def main() -> None:
    """Run the command line; what the user got wrong is told in a line, with exit code 2."""
    # what a batch system sends when the time is up: it stops a run as Ctrl-C does
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a folder's name that its encoding, in a pipe, cannot spell
        sys.stdout.reconfigure(errors="backslashreplace")
    keep_memory()
    try:
        app()
    except (InputError, DivergenceError) as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2) from None
    except OSError as error:
        if error.errno not in FULL + MISNAMED:
            raise
        told = f"{error.strerror}{f': {error.filename}' if error.filename else ''}"
        typer.echo(
            f"error: {told}; make room, or name another folder. What was whole before is kept", err=True
        )
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
