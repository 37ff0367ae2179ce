"""What a stack of clients does in a round: who is in it, with which samples, in which step."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..methods import ROUTER, Method
from ..roles import Roles
from .batch import Batch
from .clients import gather
from .draws import Draws, draw
from .settings import Settings
from .shards import Shard
from .task import Task

# Steps whose samples are fetched at once.
STEPS_FETCHED = 8


class Member(NamedTuple):
    """One run of a stack, between two rounds; a stack has one for each seed.

    Attributes:
        task: the clients' data, the model and the loss.
        method: who shares what.
        state: the parameters.
        first: the parameters before round 1.
        seed: of everything random.
    """

    task: Task
    method: Method
    state: Roles
    first: Roles
    seed: int


class Job(NamedTuple):
    """A client that is to be trained or tested: the number of its run in the stack, and its own."""

    member: int
    client: int
    num_samples: int


class Plan:
    """Which samples each client of a stack uses in which step.

    The clients stand in order of their number of steps, so that those who are still busy at a
    step are the first ones, and nobody takes part in a step that is not its own.
    """

    def __init__(
        self, members: Sequence[Member], jobs: Sequence[Job], settings: Settings, number: int
    ) -> None:
        """Draw what is random at every client."""
        self.members, self.jobs, self.batch_size = members, jobs, settings.batch_size
        self.draws: list[Draws] = [
            draw(
                members[job.member].task,
                members[job.member].method,
                job.num_samples,
                settings,
                members[job.member].seed,
                number,
                job.client,
            )
            for job in jobs
        ]
        self.num_steps = [len(draws.keys) for draws in self.draws]

    def batches(self) -> Iterator[Batch]:
        """The batches of the steps, one after the other; later ones may have fewer clients.

        The samples of a few steps are fetched at once: a step alone would wait for small copies.
        """
        rows, counts = self._rows()
        like = next(self.members[0].task.model.parameters())
        for start in range(0, self.num_steps[0], STEPS_FETCHED):
            steps = range(start, min(start + STEPS_FETCHED, self.num_steps[0]))
            active = sum(number > start for number in self.num_steps)
            wanted = rows[:active, start : steps.stop].flatten(1)
            inputs, targets = self._fetch(wanted, active, steps)
            for step in steps:
                active = sum(number > step for number in self.num_steps)
                count = counts[:active, step]
                width = int(count.max())
                begin = (step - start) * self.batch_size
                weights = None
                if int(count.min()) < width:
                    filled = torch.arange(width) < count[:, None]
                    # in the precision of the model: inputs may be integers
                    weights = (filled.double() / count[:, None]).to(like)
                keys = self._of_step([draws.keys for draws in self.draws[:active]], step, inputs.device)
                assert keys is not None
                yield Batch(
                    inputs[:active, begin : begin + width],
                    targets[:active, begin : begin + width],
                    weights,
                    self._of_step([draws.noise for draws in self.draws[:active]], step, inputs.device),
                    keys,
                )

    def _rows(self) -> tuple[Tensor, Tensor]:
        """Row numbers (k, steps, B), filled up with zeros, and how many of a step's rows count (k, steps)."""
        rows = torch.zeros(len(self.jobs), self.num_steps[0], self.batch_size, dtype=torch.long)
        counts = torch.zeros(len(self.jobs), self.num_steps[0], dtype=torch.long)
        for place, draws in enumerate(self.draws):
            batches = self._filled(draws.order)
            rows[place, : len(batches)] = batches
            counts[place, : len(batches)] = self._filled(torch.ones_like(draws.order)).sum(dim=1)
        return rows, counts

    def _filled(self, in_order: Tensor) -> Tensor:
        """The epochs (epochs, N, ...) cut into batches (steps, B, ...), short ones filled up with zeros."""
        missing = -in_order.shape[1] % self.batch_size
        padding = in_order.new_zeros(len(in_order), missing, *in_order.shape[2:])
        return torch.cat([in_order, padding], dim=1).reshape(-1, self.batch_size, *in_order.shape[2:])

    def _fetch(self, rows: Tensor, active: int, steps: range) -> tuple[Tensor, Tensor]:
        """The samples of some steps: inputs (k, rows, ...) and targets, augmented as the draws say."""
        inputs, targets = fetch(self.members, self.jobs[:active], "train", rows)
        augment = self.members[0].task.augment
        if augment is not None:
            like = self._augment(0)
            draws = like.new_zeros(active, rows.shape[1], *like.shape[2:])
            for place in range(active):
                own = self._augment(place)[steps.start : steps.stop].flatten(0, 1)
                draws[place, : len(own)] = own
            changed = augment(inputs.flatten(0, 1), draws.flatten(0, 1).to(inputs.device))
            inputs = changed.reshape(*inputs.shape[:2], *changed.shape[1:])
        return inputs, targets

    def _augment(self, place: int) -> Tensor:
        """What the augmentation of a client drew, as batches."""
        drawn = self.draws[place].augment
        assert drawn is not None
        return self._filled(drawn)

    def _of_step(self, drawn: Sequence[Tensor | None], step: int, device: torch.device) -> Tensor | None:
        """What clients drew for a step, stacked."""
        rows = [of_client[step] for of_client in drawn if of_client is not None]
        return torch.stack(rows).to(device) if rows else None


def fetch(members: Sequence[Member], jobs: Sequence[Job], split: str, rows: Tensor) -> Shard:
    """Samples of clients of several runs: inputs (k, B, ...) and targets (k, B, ...) for rows (k, B)."""
    found, places = [], []
    for index, member in enumerate(members):
        mine = [place for place, job in enumerate(jobs) if job.member == index]
        if mine:
            shards = getattr(member.task, split)
            own = rows if len(mine) == len(jobs) else rows[mine]
            found.append(gather(shards, [jobs[place].client for place in mine], own))
            places += mine
    if len(found) == 1:
        return found[0]
    back = torch.tensor(places).argsort()
    inputs, targets = (torch.cat(parts)[back.to(parts[0].device)] for parts in zip(*found, strict=True))
    return Shard(inputs, targets)


def narrow(method: Method, client: Roles) -> Roles:
    """A stack of clients without the clusters that can never count for them, if there are such.

    A client with a fixed one-hot router needs one adaptor of C: (k, C, ...) becomes (k, 1, ...), and
    the softmax of its only logit is 1. What it would do to the others has weight 0 in every average.
    """
    only = method.only_cluster(client.private)
    if only is None or len(method.networks(client)) > 1:
        return client
    everyone = torch.arange(len(only), device=only.device)
    return Roles(
        client.shared,
        {name: tensor[everyone, only][:, None] for name, tensor in client.clustered.items()},
        client.private | {ROUTER: client.private[ROUTER].new_zeros(len(only), 1)},
    )


def stack(members: Sequence[Member], jobs: Sequence[Job], stateful: bool) -> Roles:
    """What each client starts from, with an axis of clients in front."""

    def everyones(role: str, name: str) -> Tensor:
        tensors: list[Tensor] = [getattr(members[job.member].state, role)[name] for job in jobs]
        if all(tensor is tensors[0] for tensor in tensors):
            return tensors[0].expand(len(jobs), *tensors[0].shape)
        return torch.stack(tensors)

    def own(name: str) -> Tensor:
        start = [(member.state if stateful else member.first).private[name] for member in members]
        return torch.stack([start[member][client] for member, client, _ in jobs])

    state = members[0].state
    return Roles(
        {name: everyones("shared", name) for name in state.shared},
        {name: everyones("clustered", name) for name in state.clustered},
        {name: own(name) for name in state.private},
    )
