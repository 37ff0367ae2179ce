"""The two engines as `rounds.py` asks them: train a round, test the clients, say how they mix."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..roles import Roles
from . import engine, loop
from .cuda_graphs import Steps, record_on_cuda
from .evaluation import evaluate_clients
from .local import Score
from .memory import Memory
from .plan import Member
from .runs import Run, stacks_of
from .settings import Settings

Trained = tuple[Roles, dict[int, float]]


class Loop:
    """Algorithm 1 as it is read, one run after the other, client by client: `loop.py`."""

    def train(self, members: Sequence[Member], settings: Settings, number: int) -> list[Trained]:
        """For each run the average after a round, and each sampled client's training loss."""
        return [
            loop.federated_round(**member._asdict(), settings=settings, number=number) for member in members
        ]

    def test(self, members: Sequence[Member], settings: Settings, number: int) -> list[list[Score]]:
        """For each run every client's score, on its own test shard."""
        return [
            loop.evaluate_clients(**member._asdict(), settings=settings, number=number) for member in members
        ]

    def mixtures(self, member: Member) -> Tensor:
        """Pi of every client of a run, (K, C), asked about one client at a time."""
        clients = map(member.state.of_client, range(member.task.num_clients))
        return torch.stack([member.method.mixture(client.private) for client in clients])


class Fast:
    """The same for all clients at once, of all runs that may share a stack: `engine.py`, `evaluation.py`."""

    def __init__(self, runs: Sequence[Run], device: torch.device, max_memory: int | None) -> None:
        """Sort the runs into stacks; each has memory and recorded steps of its own.

        They are not shared between stacks, since frozen parameters may differ there: a recorded step holds
        them, and whether a batch may be filled up depends on them. The local steps before a test, where a
        method adapts its models, are recorded apart: they are other steps on tensors of the same shapes.
        """
        record = record_on_cuda if device.type == "cuda" else None
        beside: list[Steps] = []
        self.stacks = [
            (some, Memory(max_memory, device), Steps(record, beside), Steps(record, beside))
            for some in stacks_of(runs)
        ]

    def train(self, members: Sequence[Member], settings: Settings, number: int) -> list[Trained]:
        """As `Loop.train`, stack by stack."""
        return [
            trained
            for some, memory, steps, _ in self.stacks
            for trained in engine.federated_round(members[some], settings, number, memory, steps)
        ]

    def test(self, members: Sequence[Member], settings: Settings, number: int) -> list[list[Score]]:
        """As `Loop.test`, stack by stack."""
        return [
            scores
            for some, memory, _, steps in self.stacks
            for scores in evaluate_clients(members[some], settings, number, memory, steps)
        ]

    def mixtures(self, member: Member) -> Tensor:
        """As `Loop.mixtures`, in one call."""
        return member.method.mixtures(member.state.private, member.task.num_clients)
