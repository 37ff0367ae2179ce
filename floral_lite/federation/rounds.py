"""A run from its first round to its last, on either engine."""

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Literal, NamedTuple, get_args

import torch

from ..devices import find_device
from ..errors import require
from ..methods import Method
from ..roles import Roles
from ..seeds import stream
from . import engine as fast
from . import loop
from .asking import ask, asked_rounds
from .evaluation import evaluate_clients
from .history import History, Round
from .memory import Memory
from .plan import Member
from .precision import arithmetic
from .record import (
    add_scores,
    check_one_configuration,
    check_same_run,
    check_same_shapes,
    new_history,
    train_loss,
)
from .recording import Steps, record_on_cuda
from .runs import Run, check_run, initial_state, stacks_of
from .server import Moments, first_moments, server_step
from .settings import Settings
from .task import Task

Engine = Literal["fast", "loop"]


class Federation(NamedTuple):
    """A run after some of its rounds: its history, and the parameters that it has come to.

    Attributes:
        history: every round's numbers.
        state: the parameters.
        moments: what the server's optimizer remembers.
    """

    history: History
    state: Roles
    moments: Moments = {}  # noqa: RUF012

    def tensors(self) -> dict[str, Roles]:
        """State and moments, by name."""
        return {"state": self.state, **self.moments}

    def __repr__(self) -> str:
        """In a line: its tensors would fill pages."""
        return f"Federation({self.history!r}, {len(self.state.tensors())} named tensors)"


def federated_rounds(
    task: Task,
    method: Method,
    settings: Settings,
    seed: int = 0,
    device: str | torch.device = "cpu",
    resumed: Federation | None = None,
    engine: Engine = "fast",
    max_memory: int | None = None,
) -> Iterator[Federation]:
    """Run a federation round by round, and hand out what there is after each.

    Args:
        task: the clients' data, the model and the loss.
        method: who shares what, made on the task's model.
        settings: how to train.
        seed: of the adaptors, the sampled clients and the batches; the same seed gives the same numbers.
        device: "cpu", "cuda", "mps", or "auto" for the first of cuda, mps and cpu that is there.
        resumed: an interrupted run of the same configuration; its next round is the first one here.
        engine: "fast" trains many clients at once; "loop" is Algorithm 1 as it is read, client by client.
        max_memory: bytes that the fast engine may take for clients in training; None for what suits
            the device.

    Yields:
        The history so far and the parameters after the round; they belong together whenever the caller
        stops, or is stopped.
        A resumed run begins with what it had.

    Raises:
        InputError: the device or the engine is not there, or the run to be resumed was another one.
        DivergenceError: a client's loss is not a finite number.

    Source: section 'Algorithm', 'Simple FLoRAL Averaging'.
    """
    stack = stacked_rounds(
        [Run(task, method, seed)], settings, device, [resumed] if resumed else None, engine, max_memory
    )
    for federations in stack:
        yield federations[0]


def stacked_rounds(
    runs: Sequence[Run],
    settings: Settings,
    device: str | torch.device = "cpu",
    resumed: Sequence[Federation] | None = None,
    engine: Engine = "fast",
    max_memory: int | None = None,
) -> Iterator[list[Federation]]:
    """Several seeds of one configuration, trained side by side; each gives what it would give alone.

    (Layers that draw by themselves, other than dropout, draw other numbers beside other clients.)

    Args:
        runs: one a seed; they differ in their data, first parameters and seeds only.
        settings: see `federated_rounds`, as for the next four.
        device: where to compute.
        resumed: one interrupted run a seed, all after the same round.
        engine: "fast" or "loop".
        max_memory: bytes for clients in training.

    Yields:
        After every round a Federation for each run, in the same order.

    Raises:
        InputError: as in `federated_rounds`, or the runs are of different configurations.
        DivergenceError: a client's loss is not a finite number.
    """
    require(len(runs) > 0, "runs is empty; give at least one Run(task, method, seed)")
    require(engine in get_args(Engine), f"engine is {engine!r}; it is 'fast' or 'loop'")
    for run in runs:
        check_run(run)
    place = find_device(device)
    for run in runs:
        require(
            getattr(run.method, "model", run.task.model) is run.task.model,
            f"the method of seed {run.seed} was made on another model than the task's: make it on the task's "
            f"own, such as methods.{type(run.method).__name__}(task.model)",
        )
    moved: dict[torch.Tensor, torch.Tensor] = {}
    runs = [run._replace(task=run.task.to(place, moved)) for run in runs]
    firsts = [initial_state(run, settings, place) for run in runs]
    runs = [run._replace(method=on_model(run.method, run.task.model)) for run in runs]
    asked = asked_rounds(runs[0].task, runs[0].method, settings)
    first_losses = []
    for index, run in enumerate(runs if asked else ()):
        firsts[index], answers = ask(run.task, firsts[index], run.seed)
        first_losses.append(answers.tolist())
    federations = [
        Federation(
            new_history(run.task, run.method, first, settings, run.seed, place, engine),
            first,
            first_moments(first, settings),
        )
        for run, first in zip(runs, firsts, strict=True)
    ]
    for run, federation in zip(runs[1:], federations[1:], strict=True):
        require(
            (repr(run.task.model), run.task.loss, run.task.augment)
            == (repr(runs[0].task.model), runs[0].task.loss, runs[0].task.augment),
            "the runs have different networks, losses or augmentations: train them apart",
        )
        check_one_configuration(*federations[0][:2], *federation[:2])
    if resumed is not None:
        require(
            len(resumed) == len(runs),
            f"the run to be resumed has {len(resumed)} seeds, and {len(runs)} were given: give as many",
        )
        for old, new in zip(resumed, federations, strict=True):
            check_same_run(old.history, new.history)
            check_same_shapes(old.tensors(), new.tensors())
            require(
                len(old.history.rounds) <= settings.rounds,
                f"rounds is {settings.rounds}, but the run to be resumed has done {len(old.history.rounds)} "
                "already: give at least as many",
            )
            new.history.rounds.extend(old.history.rounds)
        federations = [
            Federation(
                new.history,
                old.state.map(lambda tensor: tensor.to(place)),
                {name: moment.map(lambda tensor: tensor.to(place)) for name, moment in old.moments.items()},
            )
            for old, new in zip(resumed, federations, strict=True)
        ]
        yield federations
    memory = Memory(max_memory, place)
    # a recorded step has a model's frozen parameters in it, so that those who share a stack share the steps
    record = record_on_cuda if place.type == "cuda" else None
    stacks = [(some, Steps(record), Steps(record)) for some in stacks_of(runs)]
    for number in range(len(federations[0].history.rounds) + 1, settings.rounds + 1):
        begin = time.perf_counter()
        members = [
            Member(run.task, run.method, federation.state, first, run.seed)
            for run, federation, first in zip(runs, federations, firsts, strict=True)
        ]
        with own_generators(runs[0].seed, number, place), arithmetic(settings.precision):
            if number <= asked:  # some clients have sent a gradient, and nothing has been trained
                results = [
                    (member.state, dict(list(enumerate(answers))[number - 1 :: asked]))
                    for member, answers in zip(members, first_losses, strict=True)
                ]
            elif engine == "fast":
                results = [
                    result
                    for some, steps, _ in stacks
                    for result in fast.federated_round(members[some], settings, number, memory, steps)
                ]
            else:
                results = [
                    loop.federated_round(*member[:4], settings, member.seed, number) for member in members
                ]
        seconds = (time.perf_counter() - begin) / len(runs)

        after, entries = [], []
        for member, federation, (average, losses) in zip(members, federations, results, strict=True):
            entries.append(Round(number, train_loss(member.task, losses, settings, number), seconds))
            state, moments = average, federation.moments
            if number > asked:
                state, moments = server_step(member.state, average, moments, settings, number - asked)
            after.append(Federation(federation.history, state, moments))
        federations = after
        if settings.evaluate_every and (number % settings.evaluate_every == 0 or number == settings.rounds):
            members = [
                member._replace(state=federation.state)
                for member, federation in zip(members, federations, strict=True)
            ]
            with own_generators(runs[0].seed, number + 1, place), arithmetic("float32"):
                if engine == "fast":
                    scores = [
                        one
                        for some, _, steps in stacks
                        for one in evaluate_clients(members[some], settings, number, memory, steps)
                    ]
                else:
                    scores = [
                        loop.evaluate_clients(*member[:4], settings, member.seed, number)
                        for member in members
                    ]
            for entry, member, of_run in zip(entries, members, scores, strict=True):
                add_scores(entry, *member[:3], of_run, settings)
        # not appended: an interruption finds the rounds before this one with the parameters before it
        federations = [
            federation._replace(
                history=replace(federation.history, rounds=[*federation.history.rounds, entry])
            )
            for federation, entry in zip(federations, entries, strict=True)
        ]
        yield federations


def on_model(method: Method, model: torch.nn.Module) -> Method:
    """The same method, whose frozen base is where the task's model has been moved."""
    there = copy.copy(method)
    if hasattr(there, "model"):
        there.model = model
    return there


@contextmanager
def own_generators(seed: int, number: int, place: torch.device) -> Iterator[None]:
    """While it is entered, torch's own generators give what a round has for layers that draw by themselves.

    (All but dropout.) They are as before afterwards.
    """
    on_cuda = place.type == "cuda"
    generators = torch.random.fork_rng(devices=[place] if on_cuda else [])
    with generators, torch.cuda.device(place) if on_cuda else nullcontext():
        begin = stream(seed, "layers", number).initial_seed()
        torch.default_generator.manual_seed(begin)
        if on_cuda:
            torch.cuda.manual_seed(begin)
        yield
