"""Memory is counted before it is taken: by hand, by what is alive, and by what a process takes."""

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from floral_lite import InputError, Task, methods, train
from floral_lite.federation import engine, evaluation, load_checkpoint
from floral_lite.federation.cuda_graphs import Steps
from floral_lite.federation.engine import train_together
from floral_lite.federation.evaluation import evaluate_clients
from floral_lite.federation.memory import (
    ALONE_BYTES,
    CPU_BYTES,
    Memory,
    activation_bytes,
    client_bytes,
    samples_meet,
)
from floral_lite.federation.plan import STEPS_FETCHED, Job

from .federations import make_task, member_of, normal

CPU = torch.device("cpu")
DOUBLE = 8  # bytes


def mlp_task(**changes: Any) -> Task:
    return make_task(lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), normal(4), **changes)


@pytest.mark.parametrize("batch_size", [1, 5, 32])
def test_what_a_backward_pass_needs_of_an_mlp(batch_size: int) -> None:
    """The inputs of the first layer, and ReLU's outputs, which are also the inputs of the second."""
    task = mlp_task()
    method = methods.FedAvg(task.model)
    inputs = torch.zeros(batch_size, 4, dtype=torch.float64)
    counted = activation_bytes(member_of(task, method), inputs)
    assert counted == batch_size * (4 + 6) * DOUBLE


def test_what_a_backward_pass_needs_of_several_networks() -> None:
    """Each network's, though the forward pass of one may free what the next one takes."""
    task = mlp_task()
    method = methods.MFL(task.model, num_clusters=40)
    inputs = torch.zeros(500, 4, dtype=torch.float64)
    counted = activation_bytes(member_of(task, method), inputs)
    assert counted == 500 * (4 + 40 * 6) * DOUBLE


def test_what_a_backward_pass_needs_of_adaptors() -> None:
    """One linear layer: beside its inputs, mixed weights and biases, and what they are mixed from."""
    task = make_task(lambda: nn.Linear(4, 3), normal(4))
    counted = {}
    for name, method in (
        ("plain", methods.FedAvg(task.model)),
        ("mixed", methods.FLoRAL(task.model, 5, rank=2)),
    ):
        inputs = torch.zeros(7, 4, dtype=torch.float64)
        counted[name] = activation_bytes(member_of(task, method), inputs)
    assert counted["plain"] == 7 * 4 * DOUBLE
    # at least the mixture; at most the 3 x 4 weight, and a few tensors like the 5 adaptors
    own = 5 * ((3 + 4) * 2 + 3) * DOUBLE
    assert 5 * DOUBLE <= counted["mixed"] - counted["plain"] <= 3 * 4 * DOUBLE + 3 * own


def test_counting_leaves_nothing_behind() -> None:
    task = make_task(lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), normal(4))
    method = methods.FLoRAL(task.model, num_clusters=2, rank=1)
    member, inputs = member_of(task, method), torch.randn(2, 4).double()

    def alive() -> int:
        gc.collect()
        return sum(type(thing) is Tensor for thing in gc.get_objects())

    counted = activation_bytes(member, inputs)
    before = alive()
    for mode in (True, False):
        task.model.train(mode)
        assert activation_bytes(member, inputs) == counted
        assert task.model.training == mode
    assert alive() == before


def test_a_client_works_with_everything_but_the_others_own() -> None:
    task = mlp_task()
    shared = 4 * 6 + 6 + 6 * 3 + 3
    fedavg = methods.FedAvg(task.model)
    assert client_bytes(member_of(task, fedavg)) == shared * DOUBLE
    # two adaptors of rank 1 of each weight and of each bias, and a router
    clustered = 2 * ((4 + 6) + 6 + (6 + 3) + 3)
    floral = methods.FLoRAL(task.model, 2, rank=1)
    assert client_bytes(member_of(task, floral)) == (shared + clustered + 2) * DOUBLE
    # of the optimal one only an adaptor of its own
    optimal = methods.FLoRAL(task.model, 2, rank=1, routing="optimal")
    assert client_bytes(member_of(task, optimal)) == (shared + clustered // 2 + 1) * DOUBLE


@given(
    st.integers(1, 10**7),
    st.integers(1, 40),
    st.sampled_from([0.0, 0.9]),
    # the others keep where the round began, or step ahead to another place
    st.sampled_from([("fedavg", 0), ("fedprox", 1), ("per-fedavg", 1)]),
)
def test_a_stack_takes_as_much_as_is_allowed_and_no_more(
    max_memory: int, batch_size: int, momentum: float, method_and_copies: tuple[str, int]
) -> None:
    name, more = method_and_copies
    task = mlp_task(batch_size=batch_size, momentum=momentum)
    method = methods.make(name, task.model)
    memory, member = Memory(max_memory, CPU), member_of(task, method)
    # whatever another round's batches were
    memory.clients_at_once(member, task.settings.with_changes(batch_size=batch_size + 1))
    num_clients = memory.clients_at_once(member, task.settings)
    parameters = (4 * 6 + 6 + 6 * 3 + 3) * ((4 if momentum else 3) + more)
    fetched = 2 * STEPS_FETCHED * batch_size * 4
    kept = 2 * batch_size * (4 + 6)
    of_a_client = (parameters + fetched + kept) * DOUBLE
    assert num_clients == 1 or num_clients * of_a_client <= max_memory
    assert (num_clients + 1) * of_a_client > max_memory


@pytest.mark.parametrize("rows", [1, 10])
def test_a_test_takes_parameters_inputs_and_what_is_made_on_the_way(rows: int) -> None:
    task = mlp_task()
    method = methods.FedAvg(task.model)
    # inputs twice, as they are fetched and as they are taken
    of_a_client = (4 * 6 + 6 + 6 * 3 + 3 + 2 * rows * 4 + rows * (4 + 6)) * DOUBLE
    for max_memory, num_clients in ((3 * of_a_client, 3), (3 * of_a_client - 1, 2)):
        memory = Memory(max_memory, CPU)
        assert memory.clients_tested(member_of(task, method), rows) == num_clients


def test_a_device_has_its_own_limit() -> None:
    assert Memory(None, CPU).max_memory == CPU_BYTES


@pytest.mark.parametrize(
    ("convolution", "shape"), [(nn.Conv2d, (16, 16)), (nn.Conv1d, (256,)), (nn.ConvTranspose2d, (16, 16))]
)
def test_a_cpu_takes_clients_with_much_to_convolve_one_by_one_and_others_together(
    convolution: Callable[[int, int, int], nn.Module], shape: tuple[int, ...]
) -> None:
    """ReLU keeps the convolution's outputs, two channels of doubles, and the convolution its inputs."""
    task = make_task(
        lambda: nn.Sequential(convolution(1, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 256, 3)),
        normal(1, *shape),
    )
    member = member_of(task, methods.FedAvg(task.model))
    most = ALONE_BYTES // ((1 + 2) * 256 * DOUBLE)

    def tested(rows: int, device: torch.device) -> int:
        return Memory(10**9, device).clients_tested(member, rows)

    def trained(rows: int, device: torch.device) -> int:
        settings = task.settings.with_changes(batch_size=rows)
        return Memory(10**9, device).clients_at_once(member, settings)

    for taken in (tested, trained):
        assert taken(most, CPU) > 1
        assert taken(most + 1, CPU) == 1
        assert taken(most + 1, torch.device("meta")) > 1


class Centred(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.tensor(share))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs - self.share * inputs.mean(dim=0)


class UpToEight(nn.Linear):
    """Takes no more than two samples of each of four clients at once."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.flatten(1) + inputs.new_zeros(8, 1)[: len(inputs)])


class Refusing(nn.Linear):
    """Says so itself."""

    def forward(self, inputs: Tensor) -> Tensor:
        if len(inputs) > 8:
            raise ValueError("no more than eight")
        return super().forward(inputs.flatten(1))


class Rooted(nn.Module):
    """Has no number to say where an input is below 0."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.sqrt()


class Attention(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout, batch_first=True)
        self.last = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.attention(inputs, inputs, inputs)[0].mean(dim=1))


def between(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv1d(5, 6, 1), *layers, nn.Flatten(), nn.Linear(24, 3))


class OverLargest(nn.Module):
    """Divides by the largest number of a batch."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs / inputs.abs().max()


MEETINGS: dict[str, tuple[Callable[[], nn.Module], bool, bool]] = {
    "samples apart": (lambda: between(nn.GroupNorm(2, 6), nn.Dropout(0.5), nn.Dropout1d(0.5)), False, False),
    "attention": (lambda: Attention(0.0), False, False),
    "batch norm": (lambda: between(nn.BatchNorm1d(6)), True, False),
    "without statistics": (lambda: between(nn.BatchNorm1d(6, track_running_stats=False)), True, True),
    "a user's own": (lambda: between(Centred(1.0)), True, True),
    "no more than eight": (lambda: UpToEight(20, 3), True, True),
    "no more than eight, it says": (lambda: Refusing(20, 3), True, True),
    "who knows": (lambda: between(Rooted()), True, True),
    "the largest": (lambda: nn.Sequential(nn.Flatten(), OverLargest(), nn.Linear(20, 3)), True, True),
    "nothing at first": (lambda: between(Centred(0.0)), True, True),
    # with more samples every output is smaller
    "shares of the batch": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(20, 3), nn.Softmax(0)), True, True),
    # dropout that draws for the whole batch from torch's own generator
    "its own draws": (lambda: Attention(0.5), True, False),
}


@pytest.mark.parametrize("name", MEETINGS)
def test_whether_samples_meet_is_tried_out_in_training_and_in_evaluation(name: str) -> None:
    build, *expected = MEETINGS[name]
    task = make_task(build, normal(5, 4))
    method = methods.FLoRAL(task.model, 2, rank=1)
    generator = torch.get_rng_state()
    memory, member = Memory(None, CPU), member_of(task, method)
    for mode, meet in zip((True, False), expected, strict=True):
        task.model.train(mode)
        assert samples_meet(member) == meet
        assert memory.fillable(member) == (not meet)
    assert torch.equal(torch.get_rng_state(), generator)


def test_running_variances_stay_above_zero_while_it_is_tried_out() -> None:
    task = make_task(lambda: between(nn.BatchNorm1d(6)), normal(5, 4))
    member = member_of(task, methods.FedAvg(task.model))
    small = {name: 1e-3 * tensor for name, tensor in member.state.private.items()}
    task.model.eval()
    assert not samples_meet(member._replace(state=member.state._replace(private=small)))


def test_only_known_means_are_filled_up() -> None:
    for loss, expected in ((nn.functional.cross_entropy, True), (nn.CrossEntropyLoss(), False)):
        task = mlp_task(loss=loss)
        member = member_of(task, methods.FedAvg(task.model))
        assert Memory(None, CPU).fillable(member) == expected


class Alive(TorchDispatchMode):
    """Adds up the memory of all tensors that are made while it is entered, and notes the most."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = function(*args, **(kwargs or {}))
        for output in tree_leaves(outputs):
            if isinstance(output, Tensor):
                storage = output.untyped_storage()
                self.storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.storages = {key: kept for key, kept in self.storages.items() if not kept[0].expired()}
        self.peak = max(self.peak, sum(num_bytes for _, num_bytes in self.storages.values()))
        return outputs


NETWORKS = {
    "chain": lambda: nn.Sequential(
        nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 3)
    ),
    "vmapped": lambda: nn.Sequential(
        nn.Linear(20, 60), nn.LayerNorm(60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 3)
    ),
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(48, 3)
    ),
}  # fmt: skip
MAKE: dict[str, Any] = {
    "fedavg": methods.FedAvg,
    "floral": lambda model: methods.FLoRAL(model, 4, rank=2),
    "ensemble": lambda model: methods.Ensemble(model, 4),
}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_stack_takes_about_what_was_counted(network: str, make: str, momentum: float) -> None:
    """Thirty clients side by side: at most twice as much, and no small part of the count.

    Of the tensors that are alive at once while they are trained, and while they are tested.
    """
    sizes = [64] * 30
    inputs = normal(1, 4, 5) if network == "convolutions" else normal(20)
    task = make_task(
        NETWORKS[network], inputs, sizes=sizes, test_sizes=sizes, clusters=[0] * 30,
        batch_size=16, momentum=momentum,
    )  # fmt: skip
    member = member_of(task, MAKE[make](task.model))
    plenty = 10**12
    memory = Memory(plenty, torch.device("meta"))  # any but a CPU, where convolutions may go one by one
    trained = plenty // memory.clients_at_once(member, task.settings)
    tested = plenty // memory.clients_tested(member, rows=64)
    with Alive() as alive:
        jobs = [Job(0, client, 64) for client in range(30)]
        train_together([member], jobs, task.settings, 1, Steps(None), memory)
    assert 0.25 * 30 * trained <= alive.peak <= 2 * 30 * trained
    with Alive() as alive:
        evaluate_clients([member], task.settings, 1, Memory(plenty, CPU), Steps(None))
    assert 0.25 * 30 * tested <= alive.peak <= 2 * 30 * tested


POPULATION = """
import resource
import sys

import torch
from torch import nn
from torch.nn import functional

from floral_lite import Settings, Shard, Task, methods, train
from floral_lite.federation import Population

NUM_CLIENTS = int(sys.argv[1])


def make(client: int) -> Shard:
    generator = torch.Generator().manual_seed(client)
    return Shard(torch.randn(8, 4, generator=generator), torch.randint(3, (8,), generator=generator))


shards, model = Population(NUM_CLIENTS, make), nn.Linear(4, 3)
clusters = torch.arange(NUM_CLIENTS) % 4
settings = Settings(rounds=2, participation=10 / NUM_CLIENTS, batch_size=4, evaluate_every=0)
task = Task("many", model, functional.cross_entropy, shards, shards, clusters, settings, {})
method = methods.FLoRAL(model, num_clusters=4, rank=1)
peaks = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]
federation = train(task, method)
peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
assert federation.state.private["router_logits"].shape == (NUM_CLIENTS, 4)
moved = federation.state.private["router_logits"].any(dim=1).sum()
print(*peaks, int(moved))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
def test_a_million_clients_take_little_more_than_their_routers() -> None:
    """Twenty of them are trained. The routers are 16 MB; before, during and after a round there is one
    copy each, and the clients' clusters and a permutation of their numbers take as much again.
    """
    peaks = {}
    for num_clients in (1_000, 1_000_000):
        done = subprocess.run(
            [sys.executable, "-c", POPULATION, str(num_clients)],
            capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        before, after, moved = map(int, done.stdout.split())
        peaks[num_clients] = 1024 * (after - before)
        assert 18 <= moved <= 20
    routers = 4 * 4 * 1_000_000
    assert peaks[1_000_000] - peaks[1_000] <= 6 * routers


def short_of_memory(monkeypatch: pytest.MonkeyPatch, fails: Callable[[int, int], bool]) -> list[int]:
    """A device that is at times too small for a step; how many clients took each step that it was asked for.

    Args:
        monkeypatch: makes it so.
        fails: whether it does, by the step's number, 0, 1, ..., and how many clients it has.
    """
    sizes: list[int] = []
    original = engine.stacked_step

    def step(*arguments: Any) -> Any:
        # task, method, layers, settings, client
        sizes.append(len(arguments[4].tensors()[0]))
        if fails(len(sizes) - 1, sizes[-1]):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore lines.")
        return original(*arguments)

    monkeypatch.setattr(engine, "stacked_step", step)
    return sizes


@pytest.mark.parametrize("failing", range(0, 12, 3))
def test_where_memory_is_not_enough_a_round_begins_anew_in_smaller_stacks(
    failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = mlp_task(rounds=2, participation=1.0)
    method = methods.FLoRAL(task.model, 2, rank=1)
    monkeypatch.setattr(Memory, "clients_at_once", lambda *_: 2)
    quiet = train(task, method)
    sizes = short_of_memory(monkeypatch, lambda number, _: number == failing)
    forgotten: list[Steps] = []
    monkeypatch.setattr(Steps, "forget", lambda steps: forgotten.append(steps))
    tried = train(task, method)
    assert len(forgotten) == 1  # what is recorded would keep its memory
    assert sizes[failing] == 2
    assert set(sizes[failing + 1 :]) == {1}
    for one, other in zip(tried.state.tensors(), quiet.state.tensors(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    losses = [[entry.train_loss for entry in run.history.rounds] for run in (tried, quiet)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    assert len(losses[0]) == 2


def test_stacks_are_halved_as_often_as_memory_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    task, done = mlp_task(rounds=2, participation=1.0), []
    monkeypatch.setattr(Memory, "clients_at_once", lambda *_: 4)
    sizes = short_of_memory(monkeypatch, lambda _, size: size > 2 - len(done))  # in each round a smaller one
    train(task, methods.FedAvg(task.model), on_round=done.append)
    assert len(done) == 2
    assert sizes[0] == 3
    assert sizes[-1] == 1


def test_memory_that_is_never_enough_is_told_in_a_sentence_and_what_was_done_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = mlp_task(rounds=3)
    method = methods.FLoRAL(task.model, 2, rank=1)
    with monkeypatch.context() as patched:
        sizes = short_of_memory(patched, lambda *_: False)
        first = train(task, method, rounds=1)
        in_a_round = len(sizes)
    short_of_memory(monkeypatch, lambda number, _: number >= in_a_round)
    with pytest.raises(
        InputError, match=r"round 2 does not fit into the memory of cpu.*2 GiB\.\)$"
    ) as caught:
        train(task, method, checkpoints=tmp_path, checkpoint_every=1)
    assert "\n" not in str(caught.value)
    (kept,) = load_checkpoint(tmp_path) or []
    assert len(kept.history.rounds) == 1
    for role, whole in zip(kept.state, first.state, strict=True):
        assert role.keys() == whole.keys()
        assert all(torch.equal(tensor, whole[name]) for name, tensor in role.items())


def test_a_test_keeps_to_the_memory_that_is_allowed_largest_clients_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stacks: list[list[int]] = []
    original = evaluation.score_together

    def score(members: Any, jobs: Any, *others: Any) -> Any:
        stacks.append([job.num_samples for job in jobs])
        return original(members, jobs, *others)

    monkeypatch.setattr(evaluation, "score_together", score)
    task = mlp_task(rounds=1)
    train(task, methods.FedAvg(task.model), max_memory=1)
    assert stacks == [[4], [3], [2], [2], [1]]


def test_where_memory_is_not_enough_for_a_test_it_is_made_in_smaller_stacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = mlp_task(rounds=1)
    method = methods.FedAvg(task.model)
    quiet = train(task, method).history.rounds[0]
    sizes: list[int] = []
    original = evaluation.score_together

    def score(members: Any, jobs: Any, *others: Any) -> Any:
        sizes.append(len(jobs))
        if len(jobs) > 3:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return original(members, jobs, *others)

    monkeypatch.setattr(evaluation, "score_together", score)
    tried = train(task, method).history.rounds[0]
    assert sizes == [5, 3, 2]
    assert tried.client_loss == pytest.approx(quiet.client_loss, rel=1e-12)
