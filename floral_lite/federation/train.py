"""A federation from its first round to its last, in one call."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from ..errors import require
from ..methods import Method
from .checkpoint import check_checkpoint_every, checkpointed_rounds, one_run_in
from .rounds import Engine, stacked_rounds
from .runs import Federation, Run, check_run
from .settings import Settings
from .task import Task


def train(
    task: Task,
    method: Method,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    engine: Engine = "fast",
    max_memory: int | None = None,
    on_round: Callable[[Federation], None] | None = None,
    checkpoints: Path | str | None = None,
    checkpoint_every: int = 10,
    **changes: Any,
) -> Federation:
    """Train a federation to its end.

    Args:
        task: the clients' data, the model and the loss.
        method: who shares what, made on the task's model.
        seed: of the adaptors, the sampled clients and the batches, >= 0; the same one gives the same numbers.
        device: "cpu", "cuda", "mps" or "auto", or a torch.device.
        engine: "fast", or "loop" for Algorithm 1 as it is read, client by client.
        max_memory: bytes that the fast engine may take for clients in training; None for what
            suits the device. Another number rounds the last digits otherwise.
        on_round: called after every round with what there is so far, and first with the checkpoint that the
            run goes on from.
        checkpoints: a folder of this run alone, another for another seed; the run goes on from the newest
            checkpoint there, and leaves its own.
        checkpoint_every: rounds between two checkpoints, >= 1; the first and the last round have one anyway.
        changes: settings that differ from the task's own, such as rounds=20.

    Returns:
        The history and the parameters after the last round. The task, its model too, stays as it was.

    Raises:
        InputError: task or method is something else, another argument or a setting is out of range or
            unknown, the device is not there, or the checkpoints are of another run, damaged, cannot be
            written, or in a folder where another process is at work.
        DivergenceError: a client's loss is not a finite number.
        OSError: the disk is full, say; the last checkpoint is still there.

    Example:
        >>> from floral_lite import methods, tasks
        >>> task = tasks.load("digits-rotate")
        >>> federation = train(task, methods.FedAvg(task.model), rounds=1)
        >>> federation.history.frame().shape
        (1, 5)
    """
    run = Run(task, method, seed)
    check_run(run)
    require(
        "settings" not in changes,
        "train takes no settings, only changes of the task's own, such as rounds=20: give whole Settings to "
        "the task, with dataclasses.replace(task, settings=...)",
    )
    (federation,) = train_runs(
        [run],
        task.settings.with_changes(**changes),
        device=device,
        engine=engine,
        max_memory=max_memory,
        on_round=(lambda federations: on_round(federations[0])) if callable(on_round) else on_round,
        checkpoints=checkpoints,
        checkpoint_every=checkpoint_every,
    )
    return federation


def train_runs(
    runs: Sequence[Run],
    settings: Settings,
    *,
    device: str | torch.device = "cpu",
    engine: Engine = "fast",
    max_memory: int | None = None,
    on_round: Callable[[list[Federation]], None] | None = None,
    checkpoints: Path | str | None = None,
    checkpoint_every: int = 10,
) -> list[Federation]:
    """Train several seeds of one configuration side by side; each ends as it would alone.

    Args:
        runs: one a seed: its task, its method and the seed.
        settings: how to train all of them.
        device: see `train`, as for the next two.
        engine: "fast" or "loop".
        max_memory: bytes for clients in training.
        on_round: see `train`; called with a list, one Federation a run.
        checkpoints: a folder, see `train`.
        checkpoint_every: rounds between two checkpoints, >= 1.

    Returns:
        What `train` returns for each, in the order of the runs.

    Raises:
        InputError, DivergenceError, OSError: as in `train`; or the runs differ in more than data and seeds.

    Example:
        >>> from floral_lite import methods, tasks
        >>> loaded = tasks.load_seeds("digits-rotate", seeds=[0, 1])
        >>> runs = [Run(task, methods.FedAvg(task.model), seed) for seed, task in enumerate(loaded)]
        >>> settings = loaded[0].settings.with_changes(rounds=2)
        >>> [len(federation.history.rounds) for federation in train_runs(runs, settings)]
        [2, 2]
    """
    require(
        on_round is None or callable(on_round),
        f"on_round is {on_round!r}; it must be a function of what there is after a round, or None",
    )
    check_checkpoint_every(checkpoint_every)
    with ExitStack() as stack:
        if checkpoints is None:
            rounds = stacked_rounds(runs, settings, device, engine=engine, max_memory=max_memory)
        else:
            stack.enter_context(one_run_in(checkpoints))
            rounds = checkpointed_rounds(
                runs,
                settings,
                device,
                checkpoints=checkpoints,
                checkpoint_every=checkpoint_every,
                engine=engine,
                max_memory=max_memory,
            )
        for federations in rounds:
            if on_round is not None:
                on_round(federations)
    return federations
