"""Which samples a stack uses in which step: each client its own, each once an epoch, and no others."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from floral_lite import Settings, Shard, Task, methods, train
from floral_lite.federation.batch import Batch
from floral_lite.federation.draws import batches, draw
from floral_lite.federation.layers import chain
from floral_lite.federation.plan import STEPS_FETCHED, Job, Member, Plan, fetch, stack
from floral_lite.federation.stacked import stacked_step
from floral_lite.federation.vmapped import vmapped_step
from floral_lite.methods import Method
from floral_lite.roles import Roles

from .federations import agree, first_state, identical, make_task, member_of, normal

NUMBER = 4  # of the round


class Marks:
    """Augmentation that adds what it drew, a number of its own for each sample and epoch."""

    def draws(self, num_samples: int, generator: torch.Generator) -> Tensor:
        return torch.rand(num_samples, generator=generator, dtype=torch.float64)

    def __call__(self, inputs: Tensor, draws: Tensor) -> Tensor:
        return inputs + draws[:, None] / 2


def marked(sizes: list[int], first: int, settings: Settings, augment: Marks | None = None) -> Task:
    """Clients whose samples say whose they are: number r of client k is 1000 (first + k) + r."""
    shards = []
    for client, size in enumerate(sizes):
        numbers = 1000.0 * (first + client) + torch.arange(size, dtype=torch.float64)
        shards.append(Shard(numbers[:, None], numbers[:, None]))
    model = nn.Linear(1, 1).double()
    clusters = torch.zeros(len(sizes), dtype=torch.long)
    return Task("marked", model, nn.functional.mse_loss, shards, shards, clusters, settings, {}, augment)


def members_of(sizes: list[list[int]], settings: Settings, augment: Marks | None = None) -> list[Member]:
    """A run for each list of sizes; the second run's clients are counted from 100, and so on."""
    members = []
    for index, of_run in enumerate(sizes):
        task = marked(of_run, 100 * index, settings, augment)
        method = methods.FLoRAL(task.model, 2, rank=1, router={"noise": 1.0})
        members.append(member_of(task, method, seed=index))
    return members


def all_jobs(members: list[Member]) -> list[Job]:
    """Every client of every run, the largest first."""
    jobs = [
        Job(m, k, len(shard)) for m, member in enumerate(members) for k, shard in enumerate(member.task.train)
    ]
    return sorted(jobs, key=lambda job: -job.num_samples)


@given(
    st.lists(st.lists(st.integers(1, 23), min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(1, 9),
    st.integers(1, 3),
    st.booleans(),
)
def test_every_client_takes_its_own_samples_in_the_order_of_its_draws(
    sizes: list[list[int]], batch_size: int, local_epochs: int, augmented: bool
) -> None:
    """Whatever the stack, a client's batches are those that it would have alone."""
    settings = Settings(batch_size=batch_size, local_epochs=local_epochs)
    members = members_of(sizes, settings, Marks() if augmented else None)
    jobs = all_jobs(members)
    plan = Plan(members, jobs, settings, NUMBER)
    steps = list(plan.batches())
    assert len(steps) == max(plan.num_steps)
    for place, job in enumerate(jobs):
        member = members[job.member]
        shard = member.task.train[job.client]
        drawn = draw(member.task, member.method, len(shard), settings, member.seed, NUMBER, job.client)
        expected = batches(drawn.order, batch_size)
        marks = (
            batches(drawn.augment, batch_size) if augmented else [torch.zeros(len(rows)) for rows in expected]
        )
        assert plan.num_steps[place] == len(expected)
        for step, (rows, mark) in enumerate(zip(expected, marks, strict=True)):
            batch = steps[step]
            count = len(rows)
            assert torch.equal(batch.targets[place, :count], shard.targets[rows])
            assert torch.equal(batch.inputs[place, :count], shard.inputs[rows] + mark[:, None] / 2)
            if batch.weights is None:
                assert batch.inputs.shape[1] == count
            else:
                share = torch.full((count,), 1 / count, dtype=torch.float64)
                torch.testing.assert_close(batch.weights[place, :count], share)
                assert not batch.weights[place, count:].any()
            assert int(batch.keys[place]) == int(drawn.keys[step])
            assert torch.equal(batch.noise[place], drawn.noise[step])
        # and no others: it takes no part in later steps
        assert all(len(batch.inputs) <= place for batch in steps[len(expected) :])


def test_steps_are_fetched_a_few_at_a_time_and_none_is_lost() -> None:
    """More steps than are fetched at once, and clients that are done within, at and after that number."""
    sizes = [3 * STEPS_FETCHED + 1, 2 * STEPS_FETCHED, STEPS_FETCHED + 1, STEPS_FETCHED, 1]
    settings = Settings(batch_size=1)
    members = members_of([sizes], settings)
    taken: dict[int, list[float]] = {client: [] for client in range(len(sizes))}
    for batch in Plan(members, all_jobs(members), settings, NUMBER).batches():
        for client, targets in enumerate(batch.targets):
            taken[client] += targets.flatten().tolist()
    assert {client: sorted(of_client) for client, of_client in taken.items()} == {
        client: members[0].task.train[client].targets.flatten().tolist() for client in range(len(sizes))
    }


def test_samples_of_several_runs_come_in_the_order_of_the_jobs() -> None:
    members = members_of([[5, 6], [7, 8, 9]], Settings())
    jobs = [Job(1, 2, 9), Job(0, 1, 6), Job(1, 0, 7), Job(0, 0, 5)]
    rows = torch.tensor([[8, 0], [5, 1], [6, 2], [4, 3]])
    inputs, targets = fetch(members, jobs, "train", rows)
    assert targets.squeeze(-1).tolist() == [
        [102008.0, 102000.0],
        [1005.0, 1001.0],
        [100006.0, 100002.0],
        [4.0, 3.0],
    ]
    assert torch.equal(inputs, targets)


@pytest.mark.parametrize("stateful", [True, False])
def test_every_client_starts_from_its_own_parameters(stateful: bool) -> None:
    members = members_of([[5, 6], [7, 8, 9]], Settings())
    fill = iter(range(1000))
    members = [
        member._replace(
            **{
                which: getattr(member, which).map(lambda t: torch.rand_like(t) + next(fill))
                for which in ("state", "first")
            }
        )
        for member in members
    ]
    jobs = [Job(1, 2, 9), Job(0, 1, 6), Job(1, 0, 7)]
    started = stack(members, jobs, stateful)
    for place, job in enumerate(jobs):
        state, first = members[job.member].state, members[job.member].first
        expected = state._replace(private=(state if stateful else first).private).of_client(job.client)
        assert all(
            torch.equal(*pair) for pair in zip(started.at(place).tensors(), expected.tensors(), strict=True)
        )


STEPS: dict[str, Any] = {
    "stacked": lambda task, method, settings, *rest: stacked_step(
        task, method, chain(task.model), settings, *rest
    ),
    "vmapped": vmapped_step,
}


def stepped(task: Task, method: Method, which: str, settings: Settings, batch: Batch) -> list[Tensor]:
    """The losses and the parameters after a step of five clients."""
    task.model.train()
    state = first_state(task, method)
    client = Roles(
        {name: torch.stack([tensor] * 5) for name, tensor in state.shared.items()},
        {name: torch.stack([tensor] * 5) for name, tensor in state.clustered.items()},
        {name: tensor.clone() for name, tensor in state.private.items()},
    )
    velocity = client.map(torch.zeros_like) if settings.momentum else Roles({}, {}, {})
    losses = STEPS[which](task, method, settings, client, velocity, batch, Roles({}, {}, {}))
    return [losses, *client.tensors(), *velocity.tensors()]


@pytest.mark.parametrize("which", STEPS)
@pytest.mark.parametrize("changes", [{}, {"momentum": 0.9, "clip_norm": 0.5}], ids=str)
def test_rows_that_only_fill_up_do_not_count_whatever_is_in_them(which: str, changes: dict[str, Any]) -> None:
    """Other inputs and other labels there change no loss and no parameter."""
    task = make_task(
        lambda: nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.ReLU(), nn.Linear(6, 3)), normal(4),
        sizes=(8, 7, 6, 3, 1), batch_size=8, **changes,
    )  # fmt: skip
    method = methods.FLoRAL(task.model, 2, rank=1)
    member = member_of(task, method)
    (batch,) = Plan([member], all_jobs([member]), task.settings, NUMBER).batches()
    assert batch.weights is not None
    filling = batch.weights == 0
    assert filling.sum(dim=1).tolist() == [0, 1, 2, 5, 7]
    elsewhere = batch._replace(
        inputs=torch.where(filling[..., None], 1e3 * torch.randn_like(batch.inputs), batch.inputs),
        targets=torch.where(filling, (batch.targets + 1) % 3, batch.targets),
    )
    for one, other in zip(
        stepped(task, method, which, task.settings, batch),
        stepped(task, method, which, task.settings, elsewhere),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@st.composite
def federations(draw: st.DrawFn) -> tuple[Task, Method]:
    """Any small federation: a client alone, clusters of nobody, more adaptors than clients."""
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    num_clusters = draw(st.integers(1, 8))
    task = make_task(
        lambda: nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.2), nn.Tanh(), nn.Linear(5, 3)),
        normal(3),
        sizes=sizes,
        test_sizes=draw(st.lists(st.integers(1, 9), min_size=len(sizes), max_size=len(sizes))),
        clusters=draw(st.lists(st.integers(0, 9), min_size=len(sizes), max_size=len(sizes))),
        rounds=draw(st.integers(1, 3)),
        batch_size=draw(st.integers(1, 10)),
        local_epochs=draw(st.integers(1, 3)),
        participation=draw(st.floats(0.01, 1.0)),
        momentum=draw(st.sampled_from([0.0, 0.9])),
        stateful=draw(st.booleans()),
    )
    routing = draw(st.sampled_from(["learned", "optimal"]))
    method = draw(
        st.sampled_from(
            [
                methods.FedAvg(task.model),
                methods.FLoRAL(task.model, num_clusters, rank=1, routing=routing),
                methods.Ensemble(task.model, num_clusters, routing=routing),
                methods.LocalAdaptor(task.model, rank=1),
            ]
        )
    )
    return task, method


@given(federations(), st.integers(0, 5), st.sampled_from([1, 20_000, 10**9]))
def test_any_federation_comes_to_the_same_on_both_engines(
    federation: tuple[Task, Method], seed: int, max_memory: int
) -> None:
    task, method = federation
    fast, loop = (
        train(task, method, seed=seed, engine=engine, max_memory=max_memory) for engine in ("fast", "loop")
    )
    agree(fast, loop)


def test_federations_that_differ_in_one_number_do_not_agree(ragged_task: Task) -> None:
    """What holds two runs together in all these tests."""
    method = methods.FLoRAL(ragged_task.model, num_clusters=3, rank=1)
    one = train(ragged_task, method)
    last = one.history.rounds[-1]
    others = [
        one._replace(state=one.state._replace(**{role: {**tensors, name: tensors[name] + 1e-8}}))
        for role, tensors in one.state._asdict().items()
        for name in tensors
    ]
    for changed in (
        replace(last, test_loss=last.test_loss + 1e-8),  # type: ignore[operator]
        replace(last, client_accuracy=None),
        replace(last, mixture=[[1.0, 0.0, 0.0]] * 5),
    ):
        rounds = [*one.history.rounds[:-1], changed]
        others.append(one._replace(history=replace(one.history, rounds=rounds)))
    for same in (agree, identical):
        same(one, one)
        for other in others:
            with pytest.raises(AssertionError):
                same(one, other)
