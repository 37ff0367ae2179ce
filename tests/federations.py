"""Small federations in double precision, and what it means that two of them came to the same."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from floral_lite import Federation, Settings, Shard, Task
from floral_lite.federation import engine
from floral_lite.federation.batch import Batch
from floral_lite.federation.cuda_graphs import Recorded, Step
from floral_lite.federation.plan import Job, Member
from floral_lite.federation.runs import Run, initial_state
from floral_lite.federation.shards import Augment
from floral_lite.federation.task import Loss
from floral_lite.methods import Method
from floral_lite.models import seeded
from floral_lite.roles import Roles

# Two pairs of clients with as many samples: stacks that may not be filled up then hold two of them.
SIZES = (7, 3, 10, 7, 3)
TEST_SIZES = (2, 1, 3, 2, 4)
CLUSTERS = (0, 1, 0, 2, 1)

# inputs (n, ...) of n samples
Draw = Callable[[int, torch.Generator], Tensor]


def normal(*shape: int) -> Draw:
    """Standard normal inputs."""
    return lambda num, generator: torch.randn(num, *shape, generator=generator, dtype=torch.float64)


def words(num_words: int, length: int) -> Draw:
    """Sequences of integers."""
    return lambda num, generator: torch.randint(num_words, (num, length), generator=generator)


def make_task(
    build: Callable[[], nn.Module],
    inputs: Draw,
    *,
    sizes: Sequence[int] = SIZES,
    test_sizes: Sequence[int] = TEST_SIZES,
    clusters: Sequence[int] = CLUSTERS,
    outputs: int | None = None,
    loss: Loss = functional.cross_entropy,
    augment: Augment | None = None,
    **settings: Any,
) -> Task:
    """Ragged clients with 3 labels, or with that many real outputs; most of them are sampled a round."""
    generator = torch.Generator().manual_seed(3)

    def shard(num_samples: int) -> Shard:
        drawn = inputs(num_samples, generator)
        if outputs is None:
            return Shard(drawn, torch.randint(3, (num_samples,), generator=generator))
        return Shard(drawn, torch.rand(num_samples, outputs, generator=generator, dtype=torch.float64))

    usual = {"rounds": 3, "participation": 0.8, "batch_size": 4, "learning_rate": 0.1, "evaluate_every": 1}
    return Task(
        name="ragged",
        model=seeded(build, 0).double(),
        loss=loss,
        train=[shard(num_samples) for num_samples in sizes],
        test=[shard(num_samples) for num_samples in test_sizes],
        clusters=torch.tensor(clusters),
        settings=Settings(**usual | {"router_learning_rate": 2.0} | settings),
        details={},
        augment=augment,
    )


class Jitter(nn.Module):
    """A layer that draws by itself."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + torch.rand_like(inputs) if self.training else inputs


def single(task: Task, precision: torch.dtype = torch.float32) -> Task:
    """The same task in single precision, or in another."""

    def shards(of: Sequence[Shard]) -> list[Shard]:
        return [Shard(x.to(precision) if x.is_floating_point() else x, targets) for x, targets in of]

    return replace(task, model=task.model.to(precision), train=shards(task.train), test=shards(task.test))


def stack(clients: Sequence[Roles]) -> Roles:
    """What several clients have, with an axis of clients in front."""
    first, *others = clients
    return first.map(lambda *tensors: torch.stack(tensors), *others)


def first_state(task: Task, method: Method, seed: int = 0) -> Roles:
    """The federation before its first round."""
    return initial_state(Run(task, method, seed), task.settings, torch.device("cpu"))


def member_of(task: Task, method: Method, seed: int = 0) -> Member:
    """A run before its first round, as a stack has it."""
    state = first_state(task, method, seed)
    return Member(task, method, state, state, seed)


def numbers(federation: Federation, without: Collection[str] = ()) -> dict[str, list[float]]:
    """Every number in a history, but for the time that it took, by what it is and the round."""
    told: dict[str, list[float]] = {}
    for entry in federation.history.rounds:
        for name, value in asdict(entry).items():
            if value is not None and name not in ("seconds", *without):
                told[f"{name} of round {entry.round}"] = np.ravel(value).tolist()
    return told


def agree(
    one: Federation, other: Federation, tolerance: float = 1e-10, without: Collection[str] = ()
) -> None:
    """The same parameters and the same history, to rounding, but for numbers of these names.

    In double precision a number is rounded at 1e-16. A few rounds of some ten steps, each of products
    of up to a hundred terms, leave differences of up to 1e-13; the tolerance leaves room for other
    machines. A wrong sample, weight or learning rate shows at 1e-3 or more.
    """
    assert not any(tensor.isnan().any() for tensor in one.state.tensors())
    for first, second in zip(one.state, other.state, strict=True):
        assert first.keys() == second.keys()
        for name in first:
            torch.testing.assert_close(
                first[name], second[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
            )
    ours, theirs = numbers(one, without), numbers(other, without)
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        assert values == pytest.approx(theirs[name], rel=tolerance, abs=tolerance), name


def identical(one: Federation, other: Federation) -> None:
    """The same parameters, moments and history, bit for bit."""
    assert numbers(one) == numbers(other)
    assert one.tensors().keys() == other.tensors().keys()
    for key, roles in one.tensors().items():
        for first, second in zip(roles, other.tensors()[key], strict=True):
            assert first.keys() == second.keys()
            assert all(torch.equal(first[name], second[name]) for name in first)


def standing(task: Task, method: Method, federation: Federation, seed: int = 0) -> set[str]:
    """The names of the tensors that are as they were at first: to compare those says nothing."""
    first = first_state(task, method, seed)
    return {
        name
        for before, after in zip(first, federation.state, strict=True)
        for name in before
        if torch.equal(before[name], after[name])
    }


class Tape(TorchDispatchMode):
    """Hears which kernels are run on which memory while it is entered, and runs them again without Python."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[tuple[Any, Any, Any, dict[int, Tensor]]] = []

    def __torch_dispatch__(self, kernel: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it; what reads a number, as `item` does, cannot be heard."""
        kwargs = kwargs or {}
        if kernel is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        as_they_are = tree_map(_here, (args, kwargs))
        made = kernel(*args, **kwargs)
        given = {one.untyped_storage().data_ptr() for one in tree_leaves(as_they_are) if _is_tensor(one)}
        new = {
            place: _here(one)
            for place, one in enumerate(tree_leaves(made))
            if _is_tensor(one) and one.untyped_storage().data_ptr() not in given
        }
        self.kernels.append((kernel, *as_they_are, new))
        return made

    @torch.no_grad()
    def replay(self) -> None:
        """The same kernels on the same memory."""
        for kernel, args, kwargs, new in self.kernels:
            made = tree_leaves(kernel(*args, **kwargs))
            for place, one in new.items():
                one.copy_(made[place])


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def _here(value: Any) -> Any:
    """The same memory in the shape that it has now."""
    return value.detach() if _is_tensor(value) else value


def replayed(step: Step, client: Roles, velocity: Roles, batch: Batch, start: Roles) -> Recorded:
    """A step that is recorded once and replayed, as a CUDA graph is, on any device."""
    given = {name: tensor.clone() for name, tensor in batch._asdict().items() if tensor is not None}
    fixed = batch._replace(**given)
    before, tape = (client.map(torch.clone), velocity.map(torch.clone)), Tape()
    with torch.random.fork_rng(devices=[]), tape:
        losses = step(client, velocity, fixed, start)
    for roles, values in zip((client, velocity), before, strict=True):
        roles.copy_(values)
    return Recorded(fixed, tape.replay, losses)


def watch_stacks(monkeypatch: pytest.MonkeyPatch, told: Callable[[Job], int]) -> list[list[int]]:
    """Of each stack that the engine trains from now on, a number of each of its clients' jobs."""
    stacks: list[list[int]] = []

    def together(members: Any, jobs: Sequence[Job], *rest: Any) -> Any:
        stacks.append([told(job) for job in jobs])
        return original(members, jobs, *rest)

    original = engine.train_together
    monkeypatch.setattr(engine, "train_together", together)
    return stacks
