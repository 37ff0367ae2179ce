"""What a stack of runs begins with: all that precedes the first round, or the round after an interruption."""

import copy
from collections.abc import Sequence
from typing import Any

import torch

from ..errors import InputError, require
from ..methods import Method
from ..roles import Roles
from .asking import ask, asked_rounds
from .own_method import check_own
from .record import check_one_configuration, check_same_run, new_history
from .runs import Federation, Run, check_batches, check_run, initial_state
from .server import first_moments
from .settings import Settings, check_settings


def begin(
    runs: Sequence[Run], settings: Settings, device: torch.device, engine: str
) -> tuple[list[Run], list[Federation], int, list[list[float]]]:
    """Check the runs, bring them to the device, and ask the clients where the method does.

    Returns:
        The runs, with tasks and methods on the device; their federations, without rounds, at the first
        parameters; how many rounds go to asking every client, see `asking.py`; and, where clients are asked,
        the losses (K,) that they answer with, of each run.

    Raises:
        InputError: something is no Run, or no Settings, or cannot be trained with these; runs differ in more
            than data and seed; gradients are switched off; or torch's default type is a half one.
    """
    require(
        torch.is_grad_enabled(),
        "gradients are switched off here, by torch.no_grad() or torch.inference_mode(): train outside of it",
    )
    require(
        torch.get_default_dtype() in (torch.float32, torch.float64),
        f"torch's default type is {torch.get_default_dtype()}, in which the weights N^k are rounded: call "
        "torch.set_default_dtype(torch.float32); the model may be in another type",
    )
    check_settings(settings)
    for run in runs:
        check_run(run)
    moved: dict[Any, Any] = {}
    runs = [run._replace(task=run.task.to(device, moved)) for run in runs]
    for run in runs:
        check_batches(run.task, settings.batch_size)
    firsts = [initial_state(run, settings, device) for run in runs]
    runs = [run._replace(method=on_model(run.method, run.task.model)) for run in runs]
    check_own(runs[0].method, firsts[0], runs[0].task, engine)
    asked, *others = (asked_rounds(run.task, run.method, settings) for run in runs)
    require(
        all(other == asked for other in others),
        "the runs have different numbers of clients, so routing='clustered' takes different numbers of "
        "rounds to ask them: train them one by one",
    )
    answers = []
    for index, run in enumerate(runs if asked else ()):
        firsts[index], losses = ask(run.task, run.method, firsts[index], run.seed)
        answers.append(losses.tolist())
    federations = [
        Federation(new_history(run, first, settings, device, engine), first, first_moments(first, settings))
        for run, first in zip(runs, firsts, strict=True)
    ]
    check_one_configuration(runs, federations)
    return runs, federations, asked, answers


class OtherRun(InputError):
    """The run that was to be resumed is not the one that is to be trained."""


def check_resumed(fresh: Sequence[Federation], resumed: Sequence[Federation], settings: Settings) -> None:
    """Raise InputError unless the interrupted runs match the fresh ones, and can go on together."""
    require(
        len(resumed) == len(fresh),
        f"the run to be resumed has {len(resumed)} seeds, and {len(fresh)} were given: give as many",
    )
    lengths = sorted({len(old.history.rounds) for old in resumed})
    require(
        len(lengths) == 1,
        f"the runs to be resumed have done {lengths} rounds: only those of the same round go on together, so "
        "train the others apart",
    )
    (done,) = lengths
    for old, new in zip(resumed, fresh, strict=True):
        check_same_run(old, new)
        require(
            done <= settings.rounds,
            f"rounds is {settings.rounds}, but the run to be resumed has done {done} already: give at least "
            "as many",
        )
        require(
            done < settings.rounds
            or not settings.evaluate_every
            or old.history.rounds[-1].test_loss is not None,
            f"rounds is {settings.rounds}, which the run to be resumed has done, and it was not evaluated "
            "there: give more rounds",
        )


def go_on(
    fresh: Sequence[Federation], resumed: Sequence[Federation], settings: Settings, device: torch.device
) -> list[Federation]:
    """The interrupted runs, on the device, with the configuration of the fresh ones.

    Raises:
        OtherRun: an InputError; see `check_resumed`.
    """
    try:
        check_resumed(fresh, resumed, settings)
    except InputError as error:
        raise OtherRun(str(error)) from None

    def moved(new: Roles, old: Roles) -> Roles:
        # so that sums round as without an interruption: in the new one's order, in which a clip adds up its
        # norm and which no file keeps; and as copies, since a file's tensors begin anywhere in memory
        return new.map(lambda _, tensor: tensor.to(device).clone(), old)

    federations = []
    for old, new in zip(resumed, fresh, strict=True):
        new.history.rounds.extend(old.history.rounds)
        moments = {name: moved(new.moments[name], moment) for name, moment in old.moments.items()}
        federations.append(Federation(new.history, moved(new.state, old.state), moments))
    return federations


def on_model(method: Method, model: torch.nn.Module) -> Method:
    """A copy of the method that takes frozen parameters from this model, which has been moved."""
    there = copy.copy(method)
    if hasattr(there, "model"):
        there.model = model
    if there.adaptation is not None:
        there.adaptation = on_model(there.adaptation, model)
    return there
