"""What recording leaves behind, on stand-ins for CUDA's streams and graphs; test_cuda.py has real ones."""

import random
import weakref
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from floral_lite.federation import cuda_graphs
from floral_lite.federation.batch import Batch
from floral_lite.federation.cuda_graphs import Recorded, Step, Steps, record_on_cuda
from floral_lite.roles import Roles

from .federations import replayed


def stand_in(monkeypatch: pytest.MonkeyPatch, told: list[str], states: list[object]) -> object:
    """As if there were a GPU: `told` hears of streams, `states` of a generator, whose clone is returned."""

    class Stream:
        device = torch.device("cuda", 1)

        def wait_stream(self, other: "Stream") -> None:
            told.append("wait")

    unused = object()
    drawing = SimpleNamespace(clone_state=lambda: unused, graphsafe_set_state=states.append)
    fork = torch.random.fork_rng
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: fork(devices=[]))
    stands_in: dict[str, Any] = {
        "current_stream": Stream,
        "Stream": Stream,
        "stream": nullcontext,
        "set_stream": lambda stream: told.append("back"),
        "graph": nullcontext,
        "CUDAGraph": lambda: SimpleNamespace(replay=None),
        "default_generators": (None, drawing),
    }
    for name, one in stands_in.items():
        monkeypatch.setattr(torch.cuda, name, one)
    return unused


@pytest.mark.parametrize("failing", [None, 2, 4])
def test_a_recording_waits_and_leaves_numbers_and_generators_as_they_were(
    failing: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a step fails half-way: what the other stream still writes comes before what was there."""
    told: list[str] = []
    states: list[object] = []
    unused = stand_in(monkeypatch, told, states)

    def step(client: Roles, velocity: Roles, batch: Batch, start: Roles) -> Tensor:
        told.append("step")
        client.shared["w"].add_(torch.rand(2))
        velocity.shared["w"].add_(1)
        batch.inputs.add_(1)  # as the next batch will be copied there
        if told.count("step") == failing:
            raise RuntimeError("no memory")
        return torch.zeros(1)

    client, velocity = Roles({"w": torch.ones(2)}, {}, {}), Roles({"w": torch.zeros(2)}, {}, {})
    nothing = Roles({}, {}, {})
    batch = Batch(torch.zeros(1, 2), torch.zeros(1, 2), None, None, torch.zeros(1))
    generator = torch.get_rng_state()
    with nullcontext() if failing is None else pytest.raises(RuntimeError, match="no memory"):
        record_on_cuda(step, client, velocity, batch, nothing)
    assert client.shared["w"].tolist() == [1.0, 1.0]
    assert velocity.shared["w"].tolist() == [0.0, 0.0]
    assert not batch.inputs.any()
    assert torch.equal(torch.get_rng_state(), generator)
    steps = ["step", "step"] if failing == 2 else ["step", "step", "step", "wait", "step"]
    assert told == ["wait", *steps, "back", "wait"]
    # CUDA's generator keeps the state that was recorded with: a replayed graph draws from it
    assert states == ([] if failing is None else [unused])


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_what_python_draws_is_not_recorded(draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph would repeat what was drawn in the recording for ever."""
    stand_in(monkeypatch, [], [])

    def step(client: Roles, velocity: Roles, batch: Batch, start: Roles) -> Tensor:
        return torch.full((1,), draw())

    batch = Batch(torch.zeros(1, 2), torch.zeros(1, 2), None, None, torch.zeros(1))
    nothing, before = Roles({}, {}, {}), (random.getstate(), str(np.random.get_state()))  # noqa: NPY002
    with pytest.raises(RuntimeError, match="from Python's or NumPy's generator"):
        record_on_cuda(step, nothing, nothing, batch, nothing)
    assert (random.getstate(), str(np.random.get_state())) == before  # noqa: NPY002


def test_smaller_stacks_take_the_memory_of_the_largest_and_all_is_freed_together() -> None:
    beside: list[Steps] = []
    nothing, steps, other = Roles({}, {}, {}), Steps(replayed, beside), Steps(replayed, beside)
    kept = []
    for each in (steps, other):
        places = set()
        for num_clients in (2, 5, 3, 1, 5):
            given = Roles({"w": torch.rand(num_clients, 2)}, {}, {})
            client, *_ = each.fixed(given, nothing, nothing)
            assert torch.equal(client.shared["w"], given.shared["w"])
            places.add(client.tensors()[0].data_ptr())
            each.fixed(Roles({"w": torch.rand(9, 3)}, {}, {}), nothing, nothing)  # another kind, in turns
        assert len(places) == 2  # of 2 clients, and of 5
        kept.append(weakref.ref(client.shared["w"].untyped_storage()))
        del client, given
    assert all(one() is not None for one in kept)
    steps.forget()
    assert not any(one._fixed or one._recorded for one in beside)


def test_where_recording_fails_its_memory_is_free_before_the_step_is_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Else what did not fit would not fit again."""
    left: list[weakref.ref[Tensor]] = []

    def record(*arguments: object) -> Recorded:
        large = torch.zeros(3)
        left.append(weakref.ref(large))
        raise RuntimeError("no memory")

    def step(*arguments: object) -> Tensor:
        assert left[0]() is None
        return torch.ones(1)

    nothing, batch = (
        Roles({}, {}, {}),
        Batch(torch.zeros(1, 2), torch.zeros(1, 2), None, None, torch.zeros(1)),
    )
    client = Roles({"w": torch.ones(2)}, {}, {})
    steps = Steps(record)
    client, *_ = steps.fixed(client, nothing, nothing)
    for _ in range(2):
        assert steps.run(step, client, nothing, batch, nothing).item() == 1
    assert caplog.text.count("not recorded") == len(left) == 1
    kept = weakref.ref(client.shared["w"])
    del client
    assert kept() is None


def test_only_so_many_kinds_of_steps_are_recorded_and_their_memory_can_be_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded: list[int] = []

    def record(step: Step, client: Roles, velocity: Roles, batch: Batch, start: Roles) -> Recorded:
        recorded.append(len(batch.inputs))
        return replayed(step, client, velocity, batch, start)

    def step(client: Roles, velocity: Roles, batch: Batch, start: Roles) -> Tensor:
        return batch.inputs.sum(dim=1)

    monkeypatch.setattr(cuda_graphs, "MOST", 1)
    nothing, steps = Roles({}, {}, {}), Steps(record)
    client, *_ = steps.fixed(Roles({"w": torch.ones(2)}, {}, {}), nothing, nothing)
    kept = weakref.ref(client.shared["w"])
    for num_clients in (1, 2, 1, 2):
        inputs = torch.full((num_clients, 2), float(num_clients))
        batch = Batch(inputs, inputs, None, None, torch.zeros(num_clients))
        losses = steps.run(step, client, nothing, batch, nothing)
        assert losses.tolist() == [2.0 * num_clients] * num_clients
    assert recorded == [1]
    steps.forget()
    del client
    assert kept() is None
