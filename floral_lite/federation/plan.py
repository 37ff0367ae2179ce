"""What a stack of clients does in a round: who is in it, with which samples, in which step."""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..devices import send
from ..methods import ROUTER, Method
from ..roles import Roles
from .batch import Batch
from .clients import gather
from .draws import Draws, draw
from .own_method import ours
from .settings import Settings
from .shards import Changes, Shard
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
        self.draws: list[Draws] = []
        for job in jobs:
            task, method, *_, seed = members[job.member]
            self.draws.append(draw(task, method, job.num_samples, settings, seed, number, job.client))
        self.num_steps = [len(draws.keys) for draws in self.draws]

    def batches(self) -> Iterator[Batch]:
        """The batches of the steps, one after the other; later ones may have fewer clients.

        The samples of a few steps are fetched at once: a step alone would wait for small copies.
        """
        places, there = self._places()
        active = there.any(dim=2).sum(dim=0).tolist()  # clients that are still busy at each step
        rows = _taken([draws.order for draws in self.draws], places)
        augment = [draws.augment for draws in self.draws if draws.augment is not None]
        augmented = _taken(augment, places) if augment else None
        model = self.members[0].task.model
        device = next(model.parameters()).device
        keys = send(pad_sequence([draws.keys for draws in self.draws], batch_first=True), device)
        drawn = [draws.noise for draws in self.draws if draws.noise is not None]
        noise = send(pad_sequence(drawn, batch_first=True), device) if drawn else None
        # weights are in single precision at least: inputs, and some parameters, may be integers or shorter
        dtypes = (tensor.dtype for tensor in model.parameters() if tensor.is_floating_point())
        precision = reduce(torch.promote_types, dtypes, torch.float32)
        for start in range(0, self.num_steps[0], STEPS_FETCHED):
            steps = slice(start, min(start + STEPS_FETCHED, self.num_steps[0]))
            busy = slice(active[start])
            own = rows[busy, steps].flatten(1)
            changed = None if augmented is None else augmented[busy, steps].flatten(1, 2)
            inputs, targets = fetch(self.members, self.jobs[busy], "train", own, changed)
            for step in range(start, steps.stop):
                busy = slice(active[step])
                counts = there[busy, step].sum(dim=1, keepdim=True)
                width = int(counts.max())
                weights = None
                if int(counts.min()) < width:
                    share = there[busy, step, :width].double() / counts
                    weights = send(share.to(precision), device)
                begin = (step - start) * self.batch_size
                samples = slice(begin, begin + width)
                yield Batch(
                    inputs[busy, samples],
                    targets[busy, samples],
                    weights,
                    None if noise is None else noise[busy, step],
                    keys[busy, step],
                )

    def _places(self) -> tuple[Tensor, Tensor]:
        """Which of a client's draws, counted over all epochs, each step uses, and where there is a sample.

        Both (k, steps, B). What only fills up a batch points at the first draw, not at zeros: an augmentation
        may divide by what is drawn.
        """
        sizes = torch.tensor([job.num_samples for job in self.jobs])[:, None, None]
        steps = torch.arange(self.num_steps[0])[:, None]
        steps_an_epoch = -(-sizes // self.batch_size)
        # the place in its epoch: full batches, then what is left
        place = self.batch_size * (steps % steps_an_epoch) + torch.arange(self.batch_size)
        there = (place < sizes) & (steps < torch.tensor(self.num_steps)[:, None, None])
        return torch.where(there, steps // steps_an_epoch * sizes + place, 0), there


def _taken(drawn: Sequence[Tensor], places: Tensor) -> Tensor:
    """Of each client's draws, (epochs, N^k, ...), those at its places, (k, steps, B, ...)."""
    return torch.stack([of_client.flatten(0, 1)[own] for of_client, own in zip(drawn, places, strict=True)])


def places_of(jobs: Sequence[Job]) -> dict[int, list[int]]:
    """Where in a stack the clients of each run are, by the run's number."""
    places: dict[int, list[int]] = {}
    for place, job in enumerate(jobs):
        places.setdefault(job.member, []).append(place)
    return places


def fetch(
    members: Sequence[Member], jobs: Sequence[Job], split: str, rows: Tensor, draws: Tensor | None = None
) -> Shard:
    """Samples of clients of several runs: inputs (k, B, ...) and targets (k, B, ...) for rows (k, B).

    They are augmented as was drawn for each of them, draws (k, B, ...), if anything was.
    """
    augment = members[0].task.augment
    changes = None if draws is None or augment is None else Changes(augment, draws)
    found, places = [], []
    for index, mine in places_of(jobs).items():
        shards = getattr(members[index].task, split)
        own = rows if len(mine) == len(jobs) else rows[mine]
        changed = None if changes is None else changes.of(mine)
        found.append(gather(shards, [jobs[place].client for place in mine], own, changed))
        places += mine
    if len(found) == 1:
        return found[0]
    back = send(torch.tensor(places).argsort(), found[0].inputs.device)
    inputs, targets = (torch.cat(parts)[back] for parts in zip(*found, strict=True))
    return Shard(inputs, targets)


def narrow(method: Method, client: Roles) -> Roles:
    """A stack of clients without the clusters that can never count for them, if there are any.

    A client with a fixed one-hot router needs one adaptor of C: (k, C, ...) becomes (k, 1, ...), and
    the softmax of its only logit is 1. Its copies of the others would have weight 0 in every average.
    """
    kind = type(method)
    # a user's class may give several clusters weight although it inherits from one that does not
    asked = ours(kind) or "only_cluster" in vars(kind)
    only = method.only_cluster(client.private) if asked else None
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
    starts = [
        member.state if stateful else member.state._replace(private=member.first.private)
        for member in members
    ]
    first, *others = [starts[job.member].of_client(job.client) for job in jobs]

    def together(*tensors: Tensor) -> Tensor:
        if all(tensor is tensors[0] for tensor in tensors):  # everyone's: there is no need of copies
            return tensors[0].expand(len(jobs), *tensors[0].shape)
        return torch.stack(tensors)

    client = first.map(together, *others)
    # of one client alone it is the state's own, and `begin` may write in private tensors
    return client._replace(private={name: own.clone() for name, own in client.private.items()})
