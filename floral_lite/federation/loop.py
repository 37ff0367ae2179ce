"""Algorithm 1, to be read: for each round, for each sampled client, for each batch."""

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from .._version import __version__
from ..devices import device_name, find_device
from ..errors import DivergenceError, require
from ..methods import Method
from ..roles import Roles, num_bytes
from ..seeds import stream
from .aggregate import aggregate, mismatch
from .history import History, Round
from .local import evaluate, local_training
from .settings import Settings
from .task import Task


class Federation(NamedTuple):
    """A finished run: its history, and the parameters that it ended with."""

    history: History
    state: Roles

    def __repr__(self) -> str:
        """In a line: its tensors would fill pages."""
        return f"Federation({self.history!r}, {len(self.state.tensors())} named tensors)"


def sample_clients(num_clients: int, participation: float, generator: torch.Generator) -> list[int]:
    """The clients S of a round, drawn without replacement: a share of all, at least one."""
    count = max(1, round(participation * num_clients))
    return sorted(torch.randperm(num_clients, generator=generator)[:count].tolist())


def federated_round(
    task: Task, method: Method, state: Roles, first: Roles, settings: Settings, seed: int, number: int
) -> tuple[Roles, float]:
    """One communication round: sample, train locally, average.

    Args:
        task: the clients' data, the model and the loss.
        method: who shares what.
        state: the federation before the round.
        first: the federation before round 1, from which stateless clients take their private parameters.
        settings: how to train.
        seed: the run's seed.
        number: 1, 2, ...: the round.

    Returns:
        The federation after the round and the mean training loss.

    Raises:
        DivergenceError: a client's loss is not a finite number.

    Source: section 'Algorithm', 'Simple FLoRAL Averaging'.
    """
    task.model.train()
    sampled = sample_clients(task.num_clients, settings.participation, stream(seed, "clients", number))
    start = state if settings.stateful else state._replace(private=first.private)
    accelerators = [place for place in {tensor.device for tensor in state.tensors()} if place.type == "cuda"]
    trained, losses = [], []
    for client in sampled:
        with torch.random.fork_rng(devices=accelerators):
            # dropout draws from torch's own generator
            torch.manual_seed(stream(seed, "dropout", number, client).initial_seed())
            parameters, loss = local_training(
                task,
                method,
                start.of_client(client),
                task.train[client],
                settings,
                stream(seed, "batches", number, client),
            )
        check_finite(f"the training loss of client {client} is {loss} in round {number}", loss, settings)
        trained.append(parameters)
        losses.append(loss)

    num_samples = torch.tensor([float(len(task.train[client])) for client in sampled])
    mixture = torch.stack([method.mixture(parameters.private) for parameters in trained])
    state = aggregate(state, sampled, trained, num_samples, mixture)
    return state, float((num_samples * torch.tensor(losses)).sum() / num_samples.sum())


def check_finite(told: str, loss: float, settings: Settings) -> None:
    """Raise DivergenceError, with what is told and the learning rates, unless the loss is a finite number."""
    if not math.isfinite(loss):
        raise DivergenceError(
            f"{told}, with learning_rate={settings.learning_rate} and "
            f"router_learning_rate={settings.router_learning_rate}: try a tenth of them"
        )


def evaluate_clients(task: Task, method: Method, state: Roles) -> dict[str, Any]:
    """Every client's personal model on its own test shard: the evaluated fields of a Round."""
    task.model.eval()
    clients = [state.of_client(client) for client in range(task.num_clients)]
    scores = [evaluate(task, method, *pair) for pair in zip(clients, task.test, strict=True)]
    mixture = torch.stack([method.mixture(client.private) for client in clients]).cpu()
    num_train = torch.tensor([float(len(shard)) for shard in task.train])
    num_test = [len(shard) for shard in task.test]

    loss = [score.loss for score in scores]
    accuracy = [score.accuracy for score in scores if score.accuracy is not None]
    return {
        "test_loss": float(np.average(loss, weights=num_test)),
        "test_accuracy": float(np.average(accuracy, weights=num_test)) if accuracy else None,
        "client_loss": loss,
        "client_accuracy": accuracy or None,
        "mixture": mixture.tolist(),
        "mismatch": mismatch(mixture, task.clusters, num_train),
    }


def federated_rounds(
    task: Task,
    method: Method,
    settings: Settings,
    seed: int = 0,
    device: str = "cpu",
    resumed: Federation | None = None,
) -> Iterator[Federation]:
    """Run a federation round by round, and hand out what there is after each.

    Args:
        task: the clients' data, the model and the loss.
        method: who shares what, made on the task's model.
        settings: how to train.
        seed: of the adaptors, the sampled clients and the batches; the same seed gives the same numbers.
        device: "cpu", "cuda", "mps", or "auto" for the first of cuda, mps and cpu that is there.
        resumed: an interrupted run of the same configuration; its next round is the first one here.

    Yields:
        The history so far and the parameters after the round; the caller may stop at any round.
        A resumed run begins with what it had.

    Raises:
        InputError: the device is not there, or the run to be resumed was another one.
        DivergenceError: a client's loss is not a finite number.

    Source: section 'Algorithm', 'Simple FLoRAL Averaging'.
    """
    place = find_device(device)
    task = task.to(place)
    first = method.initialise(task.clusters, seed).map(lambda tensor: tensor.detach().to(place))
    check_same_model(task, method, first)
    history = new_history(task, method, first, settings, seed, place)
    state = first
    if resumed is not None:
        check_same_run(resumed, Federation(history, first))
        history.rounds.extend(resumed.history.rounds)
        state = resumed.state.map(lambda tensor: tensor.to(place))
        yield Federation(history, state)
    for number in range(len(history.rounds) + 1, settings.rounds + 1):
        begin = time.perf_counter()
        state, train_loss = federated_round(task, method, state, first, settings, seed, number)
        entry = Round(number, train_loss, seconds=time.perf_counter() - begin)
        if number % settings.evaluate_every == 0 or number == settings.rounds:
            tested = evaluate_clients(task, method, state)
            check_finite(
                f"the test loss is {tested['test_loss']} in round {number}", tested["test_loss"], settings
            )
            entry = replace(entry, **tested)
        history.rounds.append(entry)
        yield Federation(history, state)


def check_same_model(task: Task, method: Method, first: Roles) -> None:
    """Raise InputError unless the method makes parameters for the task's model."""
    made = {name: tensor.shape for name, tensor in method.personalise(first.of_client(0)).items()}
    wanted = {name: p.shape for name, p in task.model.named_parameters() if p.requires_grad}
    require(
        made == wanted,
        "the method was made on another model than the task's: make it on the task's own, "
        f"such as methods.{type(method).__name__}(task.model)",
    )


def check_same_run(old: Federation, new: Federation) -> None:
    """Raise InputError unless a run can go on from another's rounds: its length and device may differ."""
    may_change = {"rounds", "device", "version"}
    was, is_now = (json.loads(json.dumps(run.history.config)) for run in (old, new))
    for key in sorted((was.keys() | is_now.keys()) - may_change):
        require(
            was.get(key) == is_now.get(key),
            f"{key} is {is_now.get(key)!r}, but the run that is to be resumed has {was.get(key)!r}: "
            "give the same, or start a new run",
        )
    shapes = [[{name: t.shape for name, t in role.items()} for role in run.state] for run in (old, new)]
    require(shapes[0] == shapes[1], "the run that is to be resumed has another model: give the same one")


def new_history(
    task: Task, method: Method, first: Roles, settings: Settings, seed: int, device: torch.device
) -> History:
    """The history of a run that has not begun."""
    num_base = sum(parameter.numel() for parameter in task.model.parameters())
    num_all = sum(tensor.numel() for role in (first.shared, first.clustered) for tensor in role.values())
    down = num_bytes(first.shared) + num_bytes(first.clustered)
    # Beside its parameters a client sends pi_c^k N^k for each c (their sum is N^k).
    num_clusters = len(method.mixture(first.of_client(0).private))
    return History(
        config={
            "task": task.name,
            **task.details,
            "method": method.name,
            **method.options(),
            **asdict(settings),
            "seed": seed,
            "device": device_name(device),
            "version": __version__,
        },
        clusters=task.clusters.tolist(),
        bytes_up=down + 4 * num_clusters,
        bytes_down=down,
        parameters={"base": num_base, "added": num_all - num_base},
    )
