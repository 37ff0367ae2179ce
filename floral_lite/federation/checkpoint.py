"""Checkpoints: federations between two rounds, on disk, from which a run goes on."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from ..errors import InputError, require, whole_number
from ..files import alone_in, write_whole
from ..roles import Roles
from .history import History
from .rounds import Engine, stacked_rounds
from .runs import Federation, Run
from .settings import Settings

# While it is being written a checkpoint has this name; only a whole one gets the name of its round.
UNFINISHED = "unfinished"


def checkpointed_rounds(
    runs: Sequence[Run],
    settings: Settings,
    device: str | torch.device = "cpu",
    *,
    checkpoints: Path | str,
    checkpoint_every: int = 10,
    engine: Engine = "fast",
    max_memory: int | None = None,
) -> Iterator[list[Federation]]:
    """`stacked_rounds` with a checkpoint after the first round, every few rounds and at the end.

    It goes on from the newest checkpoint in the folder, if there is one, bit for bit as if the run
    had not been interrupted: every random number of a round follows from the seed and its number.

    Args:
        runs: one a seed; see `stacked_rounds`, as for the others.
        settings: how to train; the number of rounds may have grown.
        device: where to compute; it may have changed, but then the last digits do too.
        checkpoints: the folder where they are, one at a time; made if missing.
        checkpoint_every: rounds between two checkpoints, >= 1.
        engine: "fast" or "loop".
        max_memory: bytes for clients in training.

    Yields:
        For each run the history so far and the parameters; first of all those of the checkpoint.

    Raises:
        InputError: the checkpoint is of another configuration, network, loss or number of seeds,
            checkpoint_every is smaller than 1, or nothing can be written in the folder. That the data are the
            same is not checked, and of functions and classes of your own only the name.
        OSError: the disk is full, say; the older checkpoint is still there.
    """
    check_checkpoint_every(checkpoint_every)
    resumed = load_checkpoint(checkpoints)
    for federations in stacked_rounds(runs, settings, device, resumed, engine, max_memory):
        number = len(federations[0].history.rounds)
        # after the first round too: a folder that cannot be written is told then
        if number == 1 or number % checkpoint_every == 0 or number == settings.rounds:
            save_checkpoint(federations, checkpoints)
        yield federations


def check_checkpoint_every(rounds: int) -> None:
    """Raise InputError unless it is a whole number of rounds, at least 1."""
    require(
        whole_number("checkpoint_every", rounds) >= 1,
        f"checkpoint_every is {rounds}; it must be at least 1",
    )


@contextmanager
def one_run_in(folder: Path | str) -> Iterator[None]:
    """Keep other runs out of a folder of checkpoints, whose own they would remove.

    Raises:
        InputError: it is no folder, nothing can be written in it, or another process is at work there.
    """
    require(
        isinstance(folder, Path | str),
        f"checkpoints is {folder!r}; it must be a folder, such as 'runs/first', or None for no checkpoints",
    )
    with ExitStack() as stack:
        try:
            stack.enter_context(alone_in(Path(folder)))
        except OSError as error:
            raise unwritable(folder, error) from None
        yield


def unwritable(folder: Path | str, error: OSError) -> InputError:
    """The error for a folder where a checkpoint cannot be made."""
    return InputError(
        f"checkpoints is {str(folder)!r}, where nothing can be written ({error.strerror}): name another"
    )


def save_checkpoint(federations: Sequence[Federation], folder: Path | str) -> None:
    """Write the folder round-000050 beside the older one, whole or not at all, then remove the older one.

    If there is one of that round already, such as the one that a run goes on from, it stays as it is.

    Args:
        federations: history and parameters after a round, one for each run of a stack.
        folder: where checkpoints are; made if missing.

    Raises:
        InputError: federations are none, or after different rounds; or the folder cannot be made, or nothing
            can be written in it.
        OSError: the disk is full, say; the older checkpoint is still there.
    """
    require(
        all(isinstance(federation, Federation) for federation in federations),
        f"federations is of type {type(federations).__name__}; it must be a list, one Federation a run: give "
        "[federation] of a single one",
    )
    rounds = sorted({len(federation.history.rounds) for federation in federations})
    require(
        len(rounds) == 1,
        f"federations have done {rounds} rounds; a checkpoint is of runs after the same round: save others "
        "apart",
    )
    (done,) = rounds
    folder = Path(folder)
    part, whole = folder / UNFINISHED, folder / f"round-{done:06d}"
    if whole.exists():
        return
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
    except OSError as error:
        raise unwritable(folder, error) from None
    for index, federation in enumerate(federations):
        tensors = {
            f"{key}/{role}/{name}": tensor.contiguous()
            for key, roles in federation.tensors().items()
            for role, named in roles._asdict().items()
            for name, tensor in named.items()
        }
        # not save_file: of a full disk it says so in an error of its own
        write_whole(part / f"state-{index}.safetensors", save(tensors))
        federation.history.save(part / f"history-{index}.json")
    older = [path for path in _checkpoints(folder) if int(path.name.removeprefix("round-")) < done]
    os.replace(part, whole)
    for path in older:
        shutil.rmtree(path)


def load_checkpoint(folder: Path | str) -> list[Federation] | None:
    """The newest checkpoint in a folder, one Federation for each run, or None if there is none.

    Raises:
        InputError: it is no folder, or that of the newest round is damaged, or holds something else. It stays
            as it is.
    """
    told = f"folder is {folder!r}; it must be a folder of checkpoints, such as 'runs/first'"
    require(isinstance(folder, Path | str), told)
    require(not Path(folder).is_file(), told)
    checkpoints = _checkpoints(Path(folder))
    if not checkpoints:
        return None
    newest = checkpoints[-1]
    num_runs = len(list(newest.glob("history-*.json")))
    require(num_runs > 0, f"{newest} is no checkpoint of this version: move it away, or name another folder")
    federations = []
    for index in range(num_runs):
        kept: dict[str, Roles] = {}
        try:
            for path, tensor in load_file(newest / f"state-{index}.safetensors").items():
                key, role, name = path.split("/", 2)
                kept.setdefault(key, Roles({}, {}, {}))._asdict()[role][name] = tensor
            state = kept.pop("state")
            history = History.load(newest / f"history-{index}.json")
            done = len(history.rounds)
            require(newest.name == f"round-{done:06d}", f"history-{index}.json has {done} rounds")
        except (SafetensorError, FileNotFoundError, ValueError, KeyError) as error:
            raise InputError(
                f"{newest} is damaged, or no checkpoint of this version ({error}): move it away, and the run "
                "starts from the beginning, or name another folder"
            ) from None
        federations.append(Federation(history, state, kept))
    return federations


def _checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints in a folder, oldest first; not what a user keeps there under another name."""
    named = {path.name.removeprefix("round-"): path for path in folder.glob("round-*") if path.is_dir()}
    numbers = sorted(filter(str.isdecimal, named), key=int)
    return [named[number] for number in numbers if number == f"{int(number):06d}"]
