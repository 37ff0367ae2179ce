"""Where a server begins: at the newest checkpoint in its folder, or with a new federation."""

import secrets
from pathlib import Path

import torch

from ..errors import require
from ..federation.begin import go_on
from ..federation.checkpoint import load_checkpoint
from ..federation.own_method import check_own
from ..federation.record import new_history
from ..federation.runs import Federation, Run
from ..federation.server import first_moments
from ..roles import Roles

# What only a configuration over Flower has: the federation's name, and which clusters were found.
NAME, TOLD = "federation", "told"


def begin(run: Run, first: Roles, folder: Path | str) -> Federation:
    """The newest checkpoint in a folder, or a federation that has not begun.

    Args:
        run: task, method and seed.
        first: the federation before its first round; of private tensors those of one client are enough.
        folder: of checkpoints.

    Returns:
        History, averaged tensors and moments. The history's configuration has the federation's own name,
        by which clients tell their files apart, and the clusters that clients are told.

    Raises:
        InputError: see `check_first`; or the checkpoint is of another run, or has more rounds than are
            wanted.
    """
    check_first(run, first)
    settings, cpu = run.task.settings, torch.device("cpu")
    history = new_history(run, first, settings, cpu, "flower")
    new = Federation(history, first._replace(private={}), first_moments(first, settings))
    resumed = load_checkpoint(folder)
    if resumed is None:
        history.config[NAME] = secrets.token_hex(8)
        return new
    config = resumed[0].history.config
    told = config.get(TOLD)
    require(
        told is None or len(told) == run.task.num_clients,
        f"the task has {run.task.num_clients} clients, and the run that is to be resumed was told the "
        f"clusters of {len(told or ())}: give as many, or start a new run",
    )
    history.config |= {key: config[key] for key in (NAME, TOLD) if key in config}
    (federation,) = go_on([new], resumed, settings, cpu)
    return federation


def check_first(run: Run, first: Roles) -> None:
    """Refuse what cannot be trained over Flower.

    Raises:
        InputError: the method has nothing that a server could average, or parameters in half precision, or
            is one of a user's own that the engines refuse; or the task's details have the name "federation"
            or "told".
    """
    for name in (NAME, TOLD):
        require(
            name not in run.task.details,
            f"details has {name!r}, which a history over Flower says of the run itself: call it "
            f"'task_{name}', say",
        )
    check_own(run.method, first, run.task, "loop")
    require(
        bool(first.shared or first.clustered),
        f"with method {run.method.name!r} clients share nothing: there is nothing to send, train them alone",
    )
    kinds = {tensor.dtype for tensor in first.tensors()}
    require(
        kinds <= {torch.float32, torch.float64},
        f"the model has parameters of {sorted(map(str, kinds))}; over Flower they must be torch.float32 or "
        "torch.float64, since weights that round by more would not sum to N^k: give model.float()",
    )
