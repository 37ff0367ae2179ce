"""A federation from its first round to its last, in one call."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..methods import Method
from .checkpoint import checkpointed_rounds
from .loop import Federation, federated_rounds
from .task import Task


def train(
    task: Task,
    method: Method,
    *,
    seed: int = 0,
    device: str = "cpu",
    on_round: Callable[[Federation], None] | None = None,
    checkpoints: Path | str | None = None,
    checkpoint_every: int = 10,
    **changes: Any,
) -> Federation:
    """Run a federation to its end.

    Args:
        task: the clients' data, the model and the loss.
        method: who shares what, made on the task's model.
        seed: of the adaptors, the sampled clients and the batches.
        device: "cpu", "cuda", "mps" or "auto".
        on_round: called after every round with what there is so far.
        checkpoints: a folder; the run goes on from the newest checkpoint there, and leaves its own.
        checkpoint_every: rounds between two checkpoints, >= 1.
        changes: settings that differ from the task's own, such as rounds=20.

    Raises:
        InputError: a setting is out of range or unknown, the device is not there, or the
            checkpoints are of another run.
        DivergenceError: a client's loss is not a finite number.

    Example:
        >>> from floral_lite import methods, tasks
        >>> task = tasks.load("digits-rotate")
        >>> federation = train(task, methods.FedAvg(task.model), rounds=1)
        >>> federation.history.frame().shape
        (1, 5)
    """
    run = (task, method, task.settings.with_changes(**changes), seed, device)
    if checkpoints is None:
        rounds = federated_rounds(*run)
    else:
        rounds = checkpointed_rounds(*run, folder=checkpoints, every=checkpoint_every)
    for federation in rounds:
        if on_round is not None:
            on_round(federation)
    return federation
