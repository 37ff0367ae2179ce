"""Run the missing cells of a table, one after the other, however often that is interrupted."""

import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock, Timeout

from ..devices import find_device
from ..errors import DivergenceError
from ..federation import Federation, History, Run, load_checkpoint, save_checkpoint, stacked_rounds
from ..federation.begin import OtherRun
from .cells import Cell, against_true_clusters, make_runs
from .progress import Progress
from .provenance import provenance
from .results import find, summarise

# Beside the results: the locks and the checkpoints of cells that are being run.
UNFINISHED = "unfinished"


class Work(NamedTuple):
    """What all cells of one call of `fill` have in common.

    Attributes:
        folder: of results.
        device: where it is computed.
        data: see `fill`.
        made: see `provenance`.
        checkpoint_seconds: see `fill`.
        progress: the bar.
    """

    folder: Path
    device: torch.device
    data: Path | str | None
    made: dict[str, Any]
    checkpoint_seconds: float
    progress: Progress


def fill(
    cells: Sequence[Cell],
    folder: Path | str,
    *,
    device: str = "auto",
    data: Path | str | None = None,
    command: str = "floral_lite.experiments.fill",
    checkpoint_seconds: float = 60.0,
    poll_seconds: float = 5.0,
) -> None:
    """Run what is missing in a folder of results, in the order given.

    Several processes may fill one folder: each cell has a lock, and a cell that another process is running
    is left to it. At the end this process waits for such cells: if the other one was killed, the system has
    freed its lock, and the cell goes on here from its last checkpoint. On CUDA the missing seeds of a row
    are trained together.

    Args:
        cells: what there should be.
        folder: of results; made if missing.
        device: "cpu", "cuda", "mps" or "auto".
        data: the folder of downloaded image sets; if None, the one that FLORAL_LITE_DATA names.
        command: written into the results.
        checkpoint_seconds: between two checkpoints of a cell, >= 0.
        poll_seconds: between two looks at cells that other processes are running.

    Raises:
        InputError: a result or a checkpoint in the folder is damaged or of another configuration, the device
            is not there, or the data are missing.
        KeyboardInterrupt: after a checkpoint of what was being run.
    """
    folder = Path(folder)
    place = find_device(device)
    made = provenance(place, command)
    missing = [cell for cell in cells if find(cell, folder) is None]
    progress = Progress(missing)
    work = Work(folder, place, data, made, checkpoint_seconds, progress)
    with progress.bar:
        while missing:
            for stack in stacks(missing, together=place.type == "cuda"):
                with ExitStack() as locks:
                    held = [cell for cell in stack if locked(cell, folder, locks)]
                    # another process may have finished a cell since the last look
                    mine = [cell for cell in held if find(cell, folder) is None]
                    if mine:
                        run_stack(mine, work)
            missing = [cell for cell in missing if find(cell, folder) is None]
            progress.only(missing)
            if missing:
                progress.waiting(len(missing))
                time.sleep(poll_seconds)
    for cell in cells:  # a process may have been killed between a result and the end of its checkpoints
        shutil.rmtree(checkpoints(cell, folder), ignore_errors=True)


def stacks(cells: Sequence[Cell], together: bool) -> list[list[Cell]]:
    """What is trained at once: each cell alone, or the seeds of a row together."""
    if not together:
        return [[cell] for cell in cells]
    rows: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.task, cell.row.name), []).append(cell)
    return list(rows.values())


def locked(cell: Cell, folder: Path, locks: ExitStack) -> bool:
    """Take a cell's lock, if no other process has it."""
    path = (folder / UNFINISHED / cell.path).with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        locks.enter_context(FileLock(path).acquire(timeout=0))
    except Timeout:
        return False
    return True


def run_stack(cells: Sequence[Cell], work: Work) -> None:
    """Train cells that differ in their seeds only, from their checkpoints on, and write their results."""
    # only seeds that stand at the same round can go on together
    groups: dict[int, list[tuple[Cell, Run, list[Federation]]]] = {}
    for cell, run in zip(cells, make_runs(cells, work.data), strict=True):
        old = load_checkpoint(checkpoints(cell, work.folder)) or []
        rounds_done = len(old[0].history.rounds) if old else 0
        groups.setdefault(rounds_done, []).append((cell, run, old))
    for _, group in sorted(groups.items()):
        some, runs = [cell for cell, _, _ in group], [run for _, run, _ in group]
        resumed = [federation for _, _, old in group for federation in old]
        train(some, runs, resumed, work)


def train(cells: Sequence[Cell], runs: Sequence[Run], resumed: Sequence[Federation], work: Work) -> None:
    """Train cells that stand at the same round together, and write their results."""
    folder, progress = work.folder, work.progress
    begin = saved = time.monotonic()
    before = training_seconds(resumed[0].history) if resumed else 0.0
    federations = list(resumed)
    progress.resume(cells, len(resumed[0].history.rounds) if resumed else 0)
    message = None
    try:
        for federations in stacked_rounds(runs, cells[0].settings, str(work.device), resumed or None):
            progress.show(cells, federations)
            if time.monotonic() - saved >= work.checkpoint_seconds:
                save(cells, federations, folder)
                saved = time.monotonic()
    except KeyboardInterrupt:
        save(cells, federations, folder)
        raise
    except OtherRun as error:
        where = ", ".join(str(checkpoints(cell, folder)) for cell in cells)
        raise OtherRun(f"{error} (its checkpoints are in {where}: remove them to start anew)") from None
    except DivergenceError as error:
        if len(cells) > 1:  # it does not say which of them diverged: each goes on alone
            for index, (cell, run) in enumerate(zip(cells, runs, strict=True)):
                train([cell], [run], federations[index : index + 1], work)
            return
        message = str(error)
    seconds = before + (time.monotonic() - begin) / len(cells)
    for index, (cell, run) in enumerate(zip(cells, runs, strict=True)):
        # a run that diverged in its first round has an empty history
        empty = History({}, run.task.clusters.tolist(), 0, 0, {"base": 0, "added": 0})
        history = federations[index].history if federations else empty
        times = {
            "seconds": round(seconds, 1),
            "training_seconds": round(training_seconds(history), 1),
            "seeds_together": len(cells),
        }
        history = against_true_clusters(cell, run, history)
        summarise(cell, history, {**work.made, **times}, message).save(folder / cell.path)
        shutil.rmtree(checkpoints(cell, folder), ignore_errors=True)
        progress.finished(cell)


def training_seconds(history: History) -> float:
    """The seconds of all rounds so far."""
    return sum(entry.seconds for entry in history.rounds)


def checkpoints(cell: Cell, folder: Path) -> Path:
    """The folder of a cell's checkpoints."""
    return (folder / UNFINISHED / cell.path).with_suffix("")


def save(cells: Sequence[Cell], federations: Sequence[Federation], folder: Path) -> None:
    """A checkpoint for each cell; nothing before the first round."""
    for cell, federation in zip(cells, federations, strict=False):
        save_checkpoint([federation], checkpoints(cell, folder))
