"""The fast engine: Algorithm 1 for all sampled clients at once.

The clients of a round do not see each other, so their local steps can be taken side by side: every
parameter becomes one tensor with an axis of clients in front. `loop.py` says what is computed; here
it is only arranged differently, and both give the same numbers to rounding.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..devices import send
from ..methods import ROUTER
from ..roles import Roles
from ..seeds import stream
from . import loop
from .aggregate import Sums
from .batch import client_losses
from .beside import laid_side_by_side
from .clients import size
from .cuda_graphs import Step, Steps
from .layers import Layers, chain
from .local import candidate_losses
from .memory import Memory, in_halves
from .outputs import outputs_together
from .plan import STEPS_FETCHED, Job, Member, Plan, narrow, places_of, stack
from .settings import Settings
from .stacked import stacked_step
from .vmapped import vmapped_step


@in_halves
def federated_round(
    members: Sequence[Member], settings: Settings, number: int, memory: Memory, steps: Steps
) -> list[tuple[Roles, dict[int, float]]]:
    """One communication round of every run of a stack; see `loop.federated_round`.

    Args:
        members: the runs; they differ in data, parameters and seeds only.
        settings: how to train.
        number: 1, 2, ...: the round.
        memory: how many clients fit side by side.
        steps: runs the local steps.

    Returns:
        For each run the average that the server makes, and each sampled client's training loss.
    """
    jobs = []
    for index, member in enumerate(members):
        generator = stream(member.seed, "clients", number)
        for client in loop.sample_clients(member.task.num_clients, settings.participation, generator):
            jobs.append(Job(index, client, size(member.task.train, client)))
    settings = fitting(settings, jobs)
    sums = [
        Sums(
            member.state,
            sum(job.num_samples for job in jobs if job.member == index),
            as_updates=not settings.averages_plainly,
        )
        for index, member in enumerate(members)
    ]
    losses: dict[Job, Tensor] = {}
    for chunk in chunks(members[0], jobs, settings, memory):
        trained, chunk_losses = train_together(members, chunk, settings, number, steps, memory)
        losses |= zip(chunk, chunk_losses.unbind(), strict=True)
        for index, mine in places_of(chunk).items():
            own = trained
            if len(mine) < len(chunk):
                own = trained.at(send(torch.tensor(mine), chunk_losses.device))
            num_samples = torch.tensor([float(chunk[place].num_samples) for place in mine])
            mixture = members[index].method.mixtures(own.private, len(mine))
            sums[index].add([chunk[place].client for place in mine], own, num_samples, mixture)
    # only here does the host wait for the results
    told = dict(zip(losses, torch.stack(list(losses.values())).tolist(), strict=True))
    return [
        (total.average(), {job.client: told[job] for job in jobs if job.member == index})
        for index, total in enumerate(sums)
    ]


def fitting(settings: Settings, jobs: Sequence[Job]) -> Settings:
    """The settings with a batch no larger than the largest client."""
    largest = max(job.num_samples for job in jobs)
    return settings.with_changes(batch_size=min(settings.batch_size, largest))


def chunks(member: Member, jobs: list[Job], settings: Settings, memory: Memory) -> Iterator[list[Job]]:
    """Cut the jobs into stacks that fit into memory, large clients first, so that a stack's sizes are alike.

    Where a batch may not be filled up, because of a batch norm or a loss that is no plain mean, a stack
    holds clients of one size only.
    """
    member.task.model.train()
    fillable = memory.fillable(member)
    limit = memory.clients_at_once(member, settings)
    # stacks of about the same length
    limit = math.ceil(len(jobs) / math.ceil(len(jobs) / limit) / memory.parts)
    chunk: list[Job] = []
    for job in sorted(jobs, key=lambda job: (-job.num_samples, job.member, job.client)):
        if chunk and (len(chunk) == limit or not (fillable or chunk[0].num_samples == job.num_samples)):
            yield chunk
            chunk = []
        chunk.append(job)
    yield chunk


def train_together(
    members: Sequence[Member],
    jobs: Sequence[Job],
    settings: Settings,
    number: int,
    steps: Steps,
    memory: Memory,
    narrowly: bool = True,
) -> tuple[Roles, Tensor]:
    """The local training of a stack of clients.

    Args:
        members: the runs.
        jobs: the clients, the largest first.
        settings: how to train.
        number: the round.
        steps: runs the local steps.
        memory: knows whether a short batch may be filled up.
        narrowly: leave out the clusters that can never count.

    Returns:
        Their trained parameters, each with an axis of clients in front and, where a client uses one
        cluster only, that cluster alone; and their training losses, mean over the steps, shape (k,).
    """
    task, method = members[0].task, members[0].method
    layers = chain(task.model)
    begun = begin_together(members, jobs, layers, settings, memory)
    start = narrow(method, begun) if narrowly else begun
    narrowed = start is not begun
    client = start.map(torch.clone)
    factors = {
        name: laid_side_by_side(t)
        for name, t in client.clustered.items()
        if name.endswith((".U", ".V")) and t.dim() > 3  # a parameter may be called so, too
    }
    client = client._replace(clustered=client.clustered | factors)
    velocity = client.map(torch.zeros_like) if settings.momentum else Roles({}, {}, {})
    start = start if method.remembers_start else Roles({}, {}, {})
    client, velocity, start = steps.fixed(client, velocity, start)
    step: Step = partial(vmapped_step, task, method, settings)
    if layers is not None:
        step = partial(stacked_step, task, method, layers, settings)
    plan = Plan(members, jobs, settings, number)
    total = torch.zeros(len(jobs), device=client.tensors()[0].device)
    for batch in plan.batches():
        active = len(batch.inputs)
        busy = slice(active)
        losses = steps.run(step, client.at(busy), velocity.at(busy), batch, start.at(busy))
        total = total.to(torch.promote_types(losses.dtype, torch.float32))  # bfloat16 soon stops counting
        total[:active] += losses
    client = method.finish(client, start)
    if narrowed:  # the only cluster's router has not moved
        client = client._replace(private=client.private | {ROUTER: begun.private[ROUTER]})
    return client, total / send(torch.tensor(plan.num_steps), total.device)


@torch.no_grad()
def begin_together(
    members: Sequence[Member], jobs: Sequence[Job], layers: Layers | None, settings: Settings, memory: Memory
) -> Roles:
    """What the clients of a stack take their local steps from; see `local.candidate_losses`."""
    task, method = members[0].task, members[0].method
    client = stack(members, jobs, settings.stateful)
    losses: Any = None
    if method.candidates(client):
        task.model.eval()
        if memory.fillable(members[0]):
            rows = STEPS_FETCHED * settings.batch_size  # as many as are fetched at once for the steps
            seen = outputs_together(members, jobs, "train", layers, client, method.candidates, rows)
            losses = sum(
                torch.stack([client_losses(task.loss, one, targets, weights) for one in outputs], dim=1)
                for outputs, targets, weights in seen
            )
        else:
            own = [
                candidate_losses(task, method, client.at(place), members[job.member].task.train[job.client])
                for place, job in enumerate(jobs)
            ]
            losses = torch.stack([one for one in own if one is not None])
    task.model.train()
    return method.begin(client, losses)
