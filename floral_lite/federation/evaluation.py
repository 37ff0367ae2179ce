"""The test of all clients' personal models, many at once; `loop.evaluate_clients` says what is computed."""

import math
from collections.abc import Sequence

import torch

from ..roles import Roles
from . import engine, loop
from .batch import client_losses
from .clients import size
from .cuda_graphs import Steps
from .layers import Layers, chain
from .local import Score
from .memory import Memory, in_halves
from .outputs import outputs_together
from .plan import Job, Member, narrow, stack
from .precision import arithmetic
from .settings import Settings

# Test samples of a client that are evaluated together.
TEST_ROWS = 256


@in_halves
@torch.no_grad()
def evaluate_clients(
    members: Sequence[Member], settings: Settings, number: int, memory: Memory, steps: Steps
) -> list[list[Score]]:
    """Every client's personal model on its own test shard, for every run of a stack.

    Args:
        members: the runs after the round.
        settings: how to train.
        number: of the round.
        memory: how many clients fit side by side.
        steps: runs the local steps of a method that adapts its models before they are tested.
    """
    first = members[0]
    first.task.model.eval()
    if not memory.fillable(first):
        # a model whose samples meet needs its shard whole: scores of parts do not add up
        return [
            loop.evaluate_clients(**member._asdict(), settings=settings, number=number) for member in members
        ]
    layers = chain(first.task.model)
    jobs = [
        Job(index, client, size(member.task.test, client))
        for index, member in enumerate(members)
        for client in range(member.task.num_clients)
    ]
    ordered = sorted(jobs, key=lambda job: -job.num_samples)
    rows = min(TEST_ROWS, ordered[0].num_samples)
    limit = min(len(jobs), memory.clients_tested(first, rows))
    limit = math.ceil(limit / memory.parts)
    scores: dict[Job, Score] = {}
    for start in range(0, len(ordered), limit):
        chunk = ordered[start : start + limit]
        if first.method.adaptation is None:
            client = narrow(first.method, stack(members, chunk, stateful=True))
        else:
            client = adapt_together(members, chunk, settings, number, memory, steps)
        scores |= zip(chunk, score_together(members, chunk, client, layers), strict=True)
    return [[scores[job] for job in jobs if job.member == index] for index in range(len(members))]


def adapt_together(
    members: Sequence[Member],
    tested: Sequence[Job],
    settings: Settings,
    number: int,
    memory: Memory,
    steps: Steps,
) -> Roles:
    """The parameters that clients test after one more round of training; see `loop.evaluate_clients`."""
    adapting = [member._replace(method=member.method.adaptation) for member in members]  # type: ignore[arg-type]
    jobs = [job._replace(num_samples=size(members[job.member].task.train, job.client)) for job in tested]
    settings = engine.fitting(settings, jobs)
    done: list[Job] = []
    stacks = []
    with torch.enable_grad(), arithmetic(settings.precision):
        for chunk in engine.chunks(adapting[0], jobs, settings, memory):
            # with all clusters: the method that is tested may mix them otherwise than the one that adapts
            trained, _ = engine.train_together(
                adapting, chunk, settings, number + 1, steps, memory, narrowly=False
            )
            done += chunk
            stacks.append(trained.map(torch.clone))  # the next chunk may take the same memory
    members[0].task.model.eval()
    places = {job: place for place, job in enumerate(done)}
    everyone = stacks[0].map(lambda *tensors: torch.cat(tensors), *stacks[1:])
    return everyone.at([places[job] for job in jobs])


def score_together(
    members: Sequence[Member], jobs: Sequence[Job], client: Roles, layers: Layers | None
) -> list[Score]:
    """The scores of a stack of clients, some rows of their test shards at a time."""
    task, method = members[0].task, members[0].method
    losses, hits = [], []
    for of_networks, targets, weights in outputs_together(
        members, jobs, "test", layers, client, method.networks, TEST_ROWS
    ):
        outputs = method.predict(client, of_networks, task.is_classification)
        losses.append(client_losses(task.loss, outputs, targets, weights))
        if task.is_classification:
            hits.append(((outputs.argmax(dim=-1) == targets) & (weights > 0)).sum(dim=1))
    loss = torch.stack(losses).sum(dim=0).tolist()
    if not hits:
        return [Score(one, None) for one in loss]
    # counted, not summed: N times 1 / N may be a little more than 1
    right = torch.stack(hits).sum(dim=0).tolist()
    return [Score(one, hit / job.num_samples) for one, hit, job in zip(loss, right, jobs, strict=True)]
