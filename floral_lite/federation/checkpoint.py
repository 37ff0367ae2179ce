"""Checkpoints: a federation between two rounds, on disk, from which a run goes on."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from safetensors.torch import load_file, save_file

from ..errors import require
from ..methods import Method
from ..roles import Roles
from .history import History
from .loop import Federation, federated_rounds
from .settings import Settings
from .task import Task

# While it is being written a checkpoint has this name; only a whole one gets the name of its round.
UNFINISHED = "unfinished"


def checkpointed_rounds(
    task: Task,
    method: Method,
    settings: Settings,
    seed: int = 0,
    device: str = "cpu",
    *,
    folder: Path | str,
    every: int = 10,
) -> Iterator[Federation]:
    """`federated_rounds` with a checkpoint every few rounds and at the end.

    It goes on from the newest checkpoint in the folder, if there is one, bit for bit as if the run
    had not been interrupted: every random number of a round follows from the seed and its number.

    Args:
        task: see `federated_rounds`, as for the next four.
        method: made on the task's model.
        settings: how to train; the number of rounds may have grown.
        seed: of everything random.
        device: where to compute; it may have changed, but then the last digits do too.
        folder: where checkpoints are, one at a time; made if missing.
        every: rounds between two checkpoints, >= 1.

    Yields:
        The history so far and the parameters; first of all those of the checkpoint.

    Raises:
        InputError: the checkpoint is of another configuration or model, or `every` is smaller than
            1. That the data are the same is not checked.
    """
    require(every >= 1, f"checkpoint_every is {every}; it must be at least 1")
    resumed = load_checkpoint(folder)
    begun = 0 if resumed is None else len(resumed.history.rounds)
    for federation in federated_rounds(task, method, settings, seed, device, resumed):
        number = len(federation.history.rounds)
        if number > begun and (number % every == 0 or number == settings.rounds):
            save_checkpoint(federation, folder)
        yield federation


def save_checkpoint(federation: Federation, folder: Path | str) -> None:
    """Write the folder round-000050 beside the older one, whole or not at all, then remove the older one.

    Args:
        federation: history and parameters after a round.
        folder: where checkpoints are; made if missing.
    """
    folder = Path(folder)
    part, whole = folder / UNFINISHED, folder / f"round-{len(federation.history.rounds):06d}"
    if whole.exists():
        return
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    tensors = {
        f"{role}/{name}": tensor.contiguous()
        for role, named in federation.state._asdict().items()
        for name, tensor in named.items()
    }
    save_file(tensors, part / "state.safetensors")
    federation.history.save(part / "history.json")
    older = _checkpoints(folder)
    os.replace(part, whole)
    for path in older:
        shutil.rmtree(path)


def load_checkpoint(folder: Path | str) -> Federation | None:
    """The newest checkpoint in a folder, or None if there is none."""
    checkpoints = _checkpoints(Path(folder))
    if not checkpoints:
        return None
    roles = Roles({}, {}, {})
    for path, tensor in load_file(checkpoints[-1] / "state.safetensors").items():
        role, name = path.split("/", 1)
        getattr(roles, role)[name] = tensor
    return Federation(History.load(checkpoints[-1] / "history.json"), roles)


def _checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints in a folder, oldest first."""
    return sorted(folder.glob("round-*"))
