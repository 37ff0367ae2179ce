"""Run the missing cells of a table, one after the other, as often interrupted as may be."""

import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

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

    Several processes may fill one folder: each cell has a lock, and one that another process is running is
    left to it. At the end this one waits for those: the system frees the lock of a process that was killed,
    and its cell goes on here from its last checkpoint. On CUDA the missing seeds of a row are trained
    together.

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
    progress = Progress(cells, folder)
    with progress.bar:
        while missing:
            for stack in stacks(missing, together=place.type == "cuda"):
                with ExitStack() as locks:
                    absent = [cell for cell in stack if find(cell, folder) is None]
                    held = [cell for cell in absent if locked(cell, folder, locks)]
                    # between the look and the lock another process may have finished it
                    mine = [cell for cell in held if find(cell, folder) is None]
                    if mine:
                        run_stack(mine, folder, place, made, data, checkpoint_seconds, progress)
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


def run_stack(
    cells: Sequence[Cell],
    folder: Path,
    device: torch.device,
    made: dict[str, object],
    data: Path | str | None,
    checkpoint_seconds: float,
    progress: Progress,
) -> None:
    """Train cells that differ in their seeds, go on from their checkpoints, write their results."""
    runs = make_runs(cells, data)
    olds = [load_checkpoint(checkpoints(cell, folder)) for cell in cells]

    def rounds_done(index: int) -> int:
        old = olds[index]
        return 0 if old is None else len(old[0].history.rounds)

    # only seeds that stand at the same round can go on together
    order = sorted(range(len(cells)), key=rounds_done)
    for _, indices in groupby(order, key=rounds_done):
        some = list(indices)
        resumed = [federation for index in some for federation in olds[index] or []]
        train(
            [cells[index] for index in some],
            [runs[index] for index in some],
            resumed,
            folder,
            device,
            made,
            checkpoint_seconds,
            progress,
        )


def train(
    cells: Sequence[Cell],
    runs: Sequence[Run],
    resumed: Sequence[Federation],
    folder: Path,
    device: torch.device,
    made: dict[str, object],
    checkpoint_seconds: float,
    progress: Progress,
) -> None:
    """Train cells that stand at the same round side by side, and write their results."""
    begin = saved = time.monotonic()
    before = training_seconds(resumed[0].history) if resumed else 0.0
    federations = list(resumed)
    message = None
    try:
        for federations in stacked_rounds(runs, cells[0].settings, str(device), resumed or None):
            progress.show(cells, federations)
            if time.monotonic() - saved >= checkpoint_seconds:
                save(cells, federations, folder)
                saved = time.monotonic()
    except KeyboardInterrupt:
        save(cells, federations, folder)
        raise
    except OtherRun as error:
        where = ", ".join(str(checkpoints(cell, folder)) for cell in cells)
        raise OtherRun(f"{error} (its checkpoints are in {where}: remove them to start anew)") from None
    except DivergenceError as error:
        if len(cells) > 1:  # one of them did, and does not say which: each goes on alone
            for index, (cell, run) in enumerate(zip(cells, runs, strict=True)):
                old = federations[index : index + 1]
                train([cell], [run], old, folder, device, made, checkpoint_seconds, progress)
            return
        message = str(error)
    seconds = before + (time.monotonic() - begin) / len(cells)
    for index, (cell, run) in enumerate(zip(cells, runs, strict=True)):
        history = federations[index].history if federations else nothing(run)
        times = {
            "seconds": round(seconds, 1),
            "training_seconds": round(training_seconds(history), 1),
            "seeds_together": len(cells),
        }
        history = against_true_clusters(cell, run, history)
        summarise(cell, history, {**made, **times}, message).save(folder / cell.path)
        shutil.rmtree(checkpoints(cell, folder), ignore_errors=True)
        progress.finished(cell)


def nothing(run: Run) -> History:
    """The history of a run that diverged in its first round."""
    return History({}, run.task.clusters.tolist(), 0, 0, {})


def training_seconds(history: History) -> float:
    """Of all rounds so far."""
    return sum(entry.seconds for entry in history.rounds)


def checkpoints(cell: Cell, folder: Path) -> Path:
    """The folder of a cell's checkpoints."""
    return (folder / UNFINISHED / cell.path).with_suffix("")


def save(cells: Sequence[Cell], federations: Sequence[Federation], folder: Path) -> None:
    """A checkpoint for each cell; nothing before the first round."""
    for cell, federation in zip(cells, federations, strict=False):
        save_checkpoint([federation], checkpoints(cell, folder))
