"""A run from its first round to its last, on either engine."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Literal

import torch

from ..devices import find_device
from ..errors import check_choice, require, whole_number
from ..methods import Method
from ..seeds import stream
from .begin import begin, go_on
from .history import Round
from .plan import Member
from .precision import arithmetic
from .record import add_scores, train_loss
from .runs import Federation, Run
from .server import server_step
from .settings import Settings
from .task import Task
from .two_engines import Fast, Loop

Engine = Literal["fast", "loop"]


def federated_rounds(
    task: Task,
    method: Method,
    settings: Settings,
    seed: int = 0,
    device: str | torch.device = "cpu",
    engine: Engine = "fast",
) -> Iterator[Federation]:
    """Run a federation round by round, and hand out what there is after each.

    Args:
        task: the clients' data, the model and the loss.
        method: who shares what, made on the task's model.
        settings: how to train.
        seed: of the adaptors, the sampled clients and the batches; the same seed gives the same numbers.
        device: "cpu", "cuda", "mps", or "auto" for the first of cuda, mps and cpu that is there.
        engine: "fast" trains many clients at once; "loop" is Algorithm 1 as it is read, client by client.

    Yields:
        The history so far and the parameters after the round; they belong together whenever the caller
        stops, or is stopped.

    Raises:
        InputError: the device or the engine is not there.
        DivergenceError: a client's loss is not a finite number.

    Source: section 'Algorithm', 'Simple FLoRAL Averaging'.
    """
    for (federation,) in stacked_rounds([Run(task, method, seed)], settings, device, engine=engine):
        yield federation


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
        settings: see `federated_rounds`, as for device and engine.
        device: where to compute.
        resumed: the interrupted runs, one a seed, all after the same round; they are yielded first.
        engine: "fast" or "loop".
        max_memory: bytes that the fast engine may take for clients in training; None for what suits
            the device.

    Yields:
        After every round a Federation for each run, in the same order.

    Raises:
        InputError: as in `federated_rounds`, or max_memory is no whole number above 0, or the runs are of
            different configurations, or not those that are resumed.
        DivergenceError: a client's loss is not a finite number.
    """
    require(len(runs) > 0, "runs is empty; give at least one Run(task, method, seed)")
    check_choice("engine", engine, Engine)
    require(
        max_memory is None or whole_number("max_memory", max_memory) > 0,
        f"max_memory is {max_memory}; it is the bytes that clients in training may take: try 2**30",
    )
    device = find_device(device)
    with arithmetic("float32"):
        runs, federations, asked, answers = begin(runs, settings, device, engine)
    # from which stateless clients take their private parameters
    firsts = [federation.state for federation in federations]
    if resumed is not None:
        federations = go_on(federations, resumed, settings, device)
        yield federations
    members = [
        Member(run.task, run.method, federation.state, first, run.seed)
        for run, federation, first in zip(runs, federations, firsts, strict=True)
    ]
    clients = Fast(runs, device, max_memory) if engine == "fast" else Loop()
    for number in range(len(federations[0].history.rounds) + 1, settings.rounds + 1):
        began = time.perf_counter()
        with own_generators(device, runs[0].seed, number), arithmetic(settings.precision):
            if number <= asked:  # some clients have sent a gradient, and nothing has been trained
                results = [
                    (member.state, {client: told[client] for client in range(number - 1, len(told), asked)})
                    for member, told in zip(members, answers, strict=True)
                ]
            else:
                results = clients.train(members, settings, number)
        seconds = (time.perf_counter() - began) / len(runs)

        after = []
        for member, federation, (average, losses) in zip(members, federations, results, strict=True):
            entry = Round(number, train_loss(member.task, losses, settings, number), seconds)
            state, moments = average, federation.moments
            if number > asked:
                state, moments = server_step(member.state, average, moments, settings, number - asked)
            # not appended: the federation that was yielded before keeps its history
            history = replace(federation.history, rounds=[*federation.history.rounds, entry])
            after.append(Federation(history, state, moments))
        federations = after
        members = [
            member._replace(state=federation.state)
            for member, federation in zip(members, federations, strict=True)
        ]

        if settings.evaluate_every and (number % settings.evaluate_every == 0 or number == settings.rounds):
            with own_generators(device, runs[0].seed, number + 1), arithmetic("float32"):
                scores = clients.test(members, settings, number)
            for federation, member, of_run in zip(federations, members, scores, strict=True):
                add_scores(
                    federation.history.rounds[-1], member.task, clients.mixtures(member), of_run, settings
                )
        yield federations


@contextmanager
def own_generators(device: torch.device, seed: int, *place: int) -> Iterator[None]:
    """Seed torch's own generators, for layers other than dropout that draw by themselves; restore them after.

    The place is a round's number; over Flower, where each client has a process of its own, the client too.
    """
    on_cuda, on_mps = device.type == "cuda", device.type == "mps"
    generators = torch.random.fork_rng(devices=[device] if on_cuda else [])
    theirs = torch.mps.get_rng_state() if on_mps else None
    with generators, torch.cuda.device(device) if on_cuda else nullcontext():
        begin = stream(seed, "layers", *place).initial_seed()
        torch.default_generator.manual_seed(begin)
        if on_cuda:
            torch.cuda.manual_seed(begin)
        if on_mps:
            torch.mps.manual_seed(begin)
        try:
            yield
        finally:
            if theirs is not None:
                torch.mps.set_rng_state(theirs)
