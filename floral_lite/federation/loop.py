"""Algorithm 1, to be read: for each round, for each sampled client, for each batch."""

import torch

from ..methods import Method
from ..roles import Roles
from ..seeds import stream
from .aggregate import aggregate
from .clients import size
from .draws import draw
from .local import Score, evaluate, local_training
from .precision import arithmetic
from .settings import Settings
from .task import Task


def num_sampled(num_clients: int, participation: float) -> int:
    """How many clients take part in a round: a share of all, rounded (a half to even), at least one."""
    return max(1, round(participation * num_clients))


def sample_clients(num_clients: int, participation: float, generator: torch.Generator) -> list[int]:
    """The clients S of a round, drawn without replacement."""
    order = torch.randperm(num_clients, generator=generator)
    return sorted(order[: num_sampled(num_clients, participation)].tolist())


def federated_round(
    task: Task, method: Method, state: Roles, first: Roles, settings: Settings, seed: int, number: int
) -> tuple[Roles, dict[int, float]]:
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
        The average that the server makes of what the clients send, and each sampled client's
        training loss.

    Source: section 'Algorithm', 'Simple FLoRAL Averaging'.
    """
    sampled = sample_clients(task.num_clients, settings.participation, stream(seed, "clients", number))
    start = state if settings.stateful else state._replace(private=first.private)
    trained, losses = [], {}
    for client in sampled:
        draws = draw(task, method, size(task.train, client), settings, seed, number, client)
        parameters, losses[client] = local_training(
            task, method, start.of_client(client), client, settings, draws
        )
        trained.append(parameters)

    num_samples = torch.tensor([float(size(task.train, client)) for client in sampled])
    mixture = torch.stack([method.mixture(parameters.private) for parameters in trained])
    as_updates = not settings.averages_plainly
    return aggregate(state, sampled, trained, num_samples, mixture, as_updates), losses


def evaluate_clients(
    task: Task, method: Method, state: Roles, first: Roles, settings: Settings, seed: int, number: int
) -> list[Score]:
    """Every client's personal model on its own test shard, after a round.

    A method that adapts its models trains each of them for one more round first, on the client's own
    training shard, with the batches of that round; nothing is kept of it.

    Args: as for federated_round.
    """
    adaptation = method.adaptation
    start = state if settings.stateful else state._replace(private=first.private)
    scores = []
    for client in range(task.num_clients):
        own = state.of_client(client)
        if adaptation is not None:
            draws = draw(task, adaptation, size(task.train, client), settings, seed, number + 1, client)
            with torch.enable_grad(), arithmetic(settings.precision):
                own, _ = local_training(task, adaptation, start.of_client(client), client, settings, draws)
        scores.append(evaluate(task, method, own, task.test[client]))
    return scores
