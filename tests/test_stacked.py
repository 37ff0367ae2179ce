"""Several seeds in one stack, stacks cut into chunks, and runs that go on: all the same run."""

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from floral_lite import Federation, InputError, Task, methods, tasks, train
from floral_lite.data import FlipAndCrop, as_float
from floral_lite.federation import Pool, Run, rounds, stacked_rounds, train_runs, two_engines
from floral_lite.federation.cuda_graphs import Steps
from floral_lite.federation.memory import Memory
from floral_lite.federation.runs import stacks_of
from floral_lite.methods import Method
from floral_lite.models import seeded
from floral_lite.roles import Roles
from floral_lite.router import Router

from .federations import agree, identical, make_task, member_of, normal, replayed, watch_stacks, words

SEEDS = (3, 1, 2)

METHODS: dict[str, Callable[[nn.Module], Method]] = {
    "fedavg": methods.FedAvg,
    "floral": lambda model: methods.FLoRAL(model, 3, rank=1, router={"noise": 1.0}),
    "ensemble": lambda model: methods.Ensemble(model, 3),
    "local adaptor": lambda model: methods.LocalAdaptor(model, rank=1),
}


def in_double(task: Task) -> Task:
    """The same task in double precision, where runs agree to 1e-16; a pool stays one pool."""

    def shards(of: Any) -> Any:
        if not isinstance(of, Pool):
            return [type(shard)(*(tensor.double() for tensor in shard)) for shard in of]

        def transform(inputs: Tensor, targets: Tensor, cluster: int) -> tuple[Tensor, Tensor]:
            inputs, targets = (of.transform or (lambda x, y, _: (x, y)))(inputs, targets, cluster)
            return as_float(inputs).double(), targets

        return replace(of, transform=transform)

    return replace(task, model=task.model.double(), train=shards(task.train), test=shards(task.test))


def runs_of(name: str, method: str, **options: Any) -> list[Run]:
    loaded = [in_double(task) for task in tasks.load_seeds(name, list(SEEDS), **options)]
    return [Run(task, METHODS[method](task.model), seed) for task, seed in zip(loaded, SEEDS, strict=True)]


def alone(run: Run, **arguments: Any) -> Federation:
    return train(run.task, run.method, seed=run.seed, **arguments)


@pytest.mark.parametrize(
    ("method", "engine"), [*((method, "fast") for method in METHODS), ("floral", "loop")]
)
@pytest.mark.parametrize("name", ["digits-rotate", "synthetic-linear"])
def test_stacked_seeds_are_the_seeds_alone(name: str, method: str, engine: Any) -> None:
    options = {"num_clients": 8} if name == "synthetic-linear" else {"data_fraction": 0.2}
    runs = runs_of(name, method, **options)
    changes = {"rounds": 3, "participation": 0.4, "evaluate_every": 2}
    stacked = train_runs(runs, runs[0].task.settings.with_changes(**changes), engine=engine)
    for federation, run in zip(stacked, runs, strict=True):
        agree(federation, alone(run, **changes))
        assert federation.history.config["seed"] == run.seed
        assert federation.history.config["task_seed"] == run.task.details["task_seed"]
    first, second, third = (federation.state.tensors()[0] for federation in stacked)
    assert not torch.allclose(first, second)
    assert not torch.allclose(second, third)


def test_seeds_of_one_size_share_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above would compare nothing with nothing."""
    stacks = watch_stacks(monkeypatch, lambda job: job.member)
    runs = runs_of("synthetic-linear", "floral", num_clients=4)
    train_runs(runs, runs[0].task.settings.with_changes(rounds=1, participation=0.5))
    assert stacks == [[0, 0, 1, 1, 2, 2]]


def ragged(name: str, **settings: Any) -> Task:
    """Small clients of a chain of layers, a network with batch norms, or one of words."""
    if name == "words":
        return make_task(
            lambda: nn.Sequential(nn.Embedding(9, 5), nn.Flatten(), nn.Linear(20, 3)), words(9, 4)
        )
    layers = {
        "chain": lambda: [nn.Linear(4, 6), nn.Dropout(0.2), nn.ReLU()],
        "batch norm": lambda: [nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU()],
    }
    return make_task(lambda: nn.Sequential(*layers[name](), nn.Linear(6, 3)), normal(4), **settings)


def ragged_runs(name: str, method: str, **settings: Any) -> list[Run]:
    """The same clients, with other first parameters and other seeds."""
    task = ragged(name, **settings)
    runs = []
    for seed in SEEDS:
        model = seeded(lambda: reset(task.model), seed)
        runs.append(Run(replace(task, model=model), METHODS[method](model), seed))
    return runs


def reset(model: nn.Module) -> nn.Module:
    """A copy of a model with first parameters of its own."""
    fresh = copy.deepcopy(model)
    for layer in fresh.modules():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    return fresh


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["chain", "batch norm", "words"])
def test_stacked_seeds_of_ragged_clients_are_the_seeds_alone(name: str, method: str) -> None:
    runs = ragged_runs(name, method)
    for federation, run in zip(train_runs(runs, runs[0].task.settings), runs, strict=True):
        agree(federation, alone(run))


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("chain", {"server_optimizer": "adam", "server_learning_rate": 0.01}),
        ("chain", {"momentum": 0.9, "stateful": False}),
        ("batch norm", {"server_momentum": 0.5, "statistics": "averaged"}),
        ("batch norm", {}),
    ],
    ids=str,
)
def test_a_resumed_stack_is_the_uninterrupted_one_bit_for_bit(
    tmp_path: Path, name: str, settings: dict[str, Any], number: int
) -> None:
    runs = ragged_runs(name, "floral", **settings)
    whole = train_runs(runs, runs[0].task.settings.with_changes(rounds=4))

    def part(rounds: int) -> list[Federation]:
        return train_runs(runs, runs[0].task.settings.with_changes(rounds=rounds), checkpoints=tmp_path)

    part(number)
    for federation, uninterrupted in zip(part(4), whole, strict=True):
        identical(federation, uninterrupted)


def test_a_stack_is_not_resumed_with_another_number_of_seeds(tmp_path: Path) -> None:
    runs = ragged_runs("chain", "fedavg")
    settings = runs[0].task.settings.with_changes(rounds=1)
    train_runs(runs, settings, checkpoints=tmp_path)
    with pytest.raises(InputError, match=r"has 3 seeds, and 2 were given"):
        train_runs(runs[:2], settings.with_changes(rounds=2), checkpoints=tmp_path)


def test_runs_of_different_rounds_are_not_resumed_together() -> None:
    """All would go on at the round after that of the first one."""
    runs = ragged_runs("chain", "fedavg")
    settings = runs[0].task.settings.with_changes(rounds=3)
    one, two = list(stacked_rounds(runs, settings))[:2]
    with pytest.raises(InputError, match=r"have done \[1, 2\] rounds"):
        next(stacked_rounds(runs, settings, resumed=[one[0], two[1], two[2]]))


def test_a_stack_is_of_one_configuration() -> None:
    """The engine takes the model, the method and the loss of the first run for all of them."""
    task = ragged("chain")
    noisy = methods.FLoRAL(task.model, 3, rank=1, router={"noise": 1.0, "temperature": 0.5})
    runs = [Run(task, noisy, 0), Run(task, methods.FLoRAL(task.model, 3, rank=1, precondition=False), 1)]
    with pytest.raises(InputError, match=r"of different configurations \(precondition, router\)"):
        list(stacked_rounds(runs, task.settings))
    # nor does it know which layers have adaptors
    runs = [Run(task, methods.FLoRAL(task.model, 3, rank=1), seed) for seed in (0, 1)]
    runs[1].method.plan.popitem()  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="of different configurations"):
        list(stacked_rounds(runs, task.settings))
    # of which a configuration knows the same name
    losses = (lambda outputs, targets, share=share: share * outputs.mean() for share in (1, 2))
    others = [replace(task, loss=loss) for loss in losses]
    crops = [replace(task, augment=FlipAndCrop(padding)) for padding in (1, 2)]
    # of which it knows the layers only
    frozen = replace(task, model=copy.deepcopy(task.model))
    frozen.model[0].requires_grad_(False)
    for pair in (others, crops, [task, frozen]):
        runs = [Run(other, methods.FedAvg(other.model), seed) for seed, other in enumerate(pair)]
        with pytest.raises(InputError, match=r"of different configurations \((loss or augm|train)"):
            list(stacked_rounds(runs, task.settings))


def test_each_run_of_a_stack_took_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = ragged_runs("chain", "fedavg")
    monkeypatch.setattr(rounds, "time", SimpleNamespace(perf_counter=iter([4.0, 10.0]).__next__))
    federations = train_runs(runs, runs[0].task.settings.with_changes(rounds=1))
    assert [federation.history.rounds[0].seconds for federation in federations] == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("record", [None, replayed])
@pytest.mark.parametrize("name", ["chain", "batch norm"])
def test_stacked_seeds_keep_their_own_frozen_layers(
    name: str, record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where steps are recorded, as on a GPU: another run's step has its frozen layers in it."""
    monkeypatch.setattr(two_engines, "Steps", lambda _, beside: Steps(record, beside))
    runs = ragged_runs(name, "fedavg")
    for run in runs:
        run.task.model[0].requires_grad_(False)
    runs = [run._replace(method=methods.FedAvg(run.task.model)) for run in runs]
    for federation, run in zip(train_runs(runs, runs[0].task.settings), runs, strict=True):
        agree(federation, alone(run))


@pytest.mark.parametrize("method", ["floral", "ensemble", "local adaptor"])
@pytest.mark.parametrize("name", ["chain", "batch norm", "words"])
def test_chunks_of_any_size_make_the_same_round(
    name: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From client by client to all at once."""
    runs = ragged_runs(name, method, participation=1.0, rounds=2)[:2]
    task, settings = runs[0].task, runs[0].task.settings
    memory, member = Memory(10**12, torch.device("cpu")), member_of(task, runs[0].method)
    a_client = 10**12 // memory.clients_at_once(member, settings)
    stacks = watch_stacks(monkeypatch, lambda job: job.member)
    whole = train_runs(runs, settings, max_memory=10**9)
    for max_memory, largest in ((1, 1), (int(3.5 * a_client), 3)):
        stacks.clear()
        chunked = train_runs(runs, settings, max_memory=max_memory)
        assert max(map(len, stacks)) == largest
        for one, other in zip(chunked, whole, strict=True):
            agree(one, other)


@pytest.mark.parametrize("max_memory", [1, 20_000, None])
@pytest.mark.parametrize("name", ["chain", "batch norm", "words"])
def test_the_same_seed_twice_is_the_same_bit_for_bit(name: str, max_memory: int | None) -> None:
    runs = ragged_runs(name, "floral")
    first, again = (train_runs(runs, runs[0].task.settings, max_memory=max_memory) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        identical(one, other)


class Slower(methods.FedAvg):
    """FedAvg at a share of the learning rate, which its options do not tell."""

    def __init__(self, model: nn.Module, share: float, kept: Callable[[float], Any] = float) -> None:
        super().__init__(model)
        self.slowed = kept(share)

    def precondition(self, client: Roles, gradients: Roles) -> Roles:
        return gradients.map(lambda slope: float(torch.as_tensor(self.slowed).sum()) * slope)


class SlowlyTuned(methods.FineTuned):
    """FineTuned at a share of the learning rate."""

    def __init__(self, model: nn.Module, share: float) -> None:
        super().__init__(model)
        self.adaptation = Slower(model, share)


class Scaled(nn.Linear):
    """A layer that its printed form does not tell."""

    def __init__(self, scale: float) -> None:
        super().__init__(4, 3)
        self.scale = scale

    def forward(self, inputs: Tensor) -> Tensor:
        return self.scale * super().forward(inputs)


KEPT: dict[str, Callable[[float], Any]] = {
    "a number": float,
    "a tensor": torch.tensor,
    "a tuple": lambda share: (share / 2, share / 2),
    "an array": lambda share: np.full(2, share / 2),
}
OTHERS: dict[str, Callable[[nn.Module, float], Method]] = {
    "FineTuned": SlowlyTuned,
    **{name: lambda model, share, kept=kept: Slower(model, share, kept) for name, kept in KEPT.items()},
}


@pytest.mark.parametrize("name", OTHERS)
def test_methods_of_other_numbers_do_not_share_a_stack(name: str) -> None:
    """The engine takes the method of the first run for all of a stack."""
    task = ragged("chain")
    runs = [Run(task, OTHERS[name](task.model, share), seed) for seed, share in enumerate((1.0, 0.1))]
    for federation, run in zip(train_runs(runs, task.settings), runs, strict=True):
        agree(federation, alone(run))


class Hidden(Scaled):
    """Keeps the number under a name that begins with an underscore."""

    def __init__(self, scale: float) -> None:
        super().__init__(1.0)
        self._scale = scale

    def forward(self, inputs: Tensor) -> Tensor:
        return self._scale * super().forward(inputs)


class Shifted(Scaled):
    """A buffer that is called like a batch norm's, and is none."""

    def __init__(self, scale: float) -> None:
        super().__init__(1.0)
        self.register_buffer("running_mean", torch.tensor(scale))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs - self.get_buffer("running_mean"))


class Less(Scaled):
    """Takes a part of the batch's mean away, or nothing."""

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.Linear.forward(self, inputs - (self.scale - 0.1) * inputs.mean(dim=0))


def hooked(scale: float) -> nn.Module:
    layer = nn.Linear(4, 3)
    layer.register_forward_hook(lambda _, __, outputs: scale * outputs)
    return layer


@pytest.mark.parametrize("build", [Scaled, Hidden, Shifted, Less, hooked])
@pytest.mark.parametrize("scales", [(1.0, 0.1), (0.1, 1.0)])
def test_networks_of_other_numbers_do_not_share_a_stack(
    build: Callable[[float], nn.Module], scales: tuple[float, float]
) -> None:
    runs = []
    for seed, scale in enumerate(scales):
        task = make_task(partial(build, scale), normal(4))
        runs.append(Run(task, methods.FedAvg(task.model), seed))
    for federation, run in zip(train_runs(runs, runs[0].task.settings), runs, strict=True):
        agree(federation, alone(run))


class Powered(Router):
    """A rule with a number beside its fields."""

    def __init__(self, power: float) -> None:
        super().__init__()
        object.__setattr__(self, "power", power)

    def mixture(self, router_logits: Tensor, draws: Tensor | None = None) -> Tensor:
        return (self.power * router_logits).softmax(dim=-1)


def test_routers_of_other_numbers_do_not_share_a_stack() -> None:
    task = ragged("chain")
    runs = [
        Run(task, methods.FLoRAL(task.model, 3, rank=1, router=Powered(power)), seed)
        for seed, power in enumerate((1.0, 4.0))
    ]
    for federation, run in zip(train_runs(runs, task.settings), runs, strict=True):
        agree(federation, alone(run))


class Bytes(nn.Linear):
    """Reads pixels as parts of 255, and leaves numbers alone."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(as_float(inputs).to(self.weight))


def bent(bend: Callable[[Tensor], Tensor]) -> nn.Module:
    """A layer of a class that is called like its neighbour's, as when a notebook's cell is run again."""

    class Bent(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return bend(super().forward(inputs))

    return Bent(4, 3)


def pooled() -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4, 3))


def pixels(num: int, generator: torch.Generator) -> Tensor:
    return torch.randint(256, (num, 4), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize(
    "pair",
    [
        lambda: [make_task(lambda: Bytes(4, 3), inputs) for inputs in (normal(4), pixels)],
        lambda: [make_task(pooled, normal(1, size, size)) for size in (6, 8)],
        lambda: [make_task(partial(bent, bend), normal(4)) for bend in (torch.relu, torch.tanh)],
    ],
    ids=["types", "shapes", "classes"],
)
def test_runs_that_see_other_data_or_compute_otherwise_do_not_share_a_stack(
    pair: Callable[[], list[Task]],
) -> None:
    runs = [Run(task, methods.FedAvg(task.model), seed) for seed, task in enumerate(pair())]
    together = train_runs(runs, runs[0].task.settings)
    for one, run in zip(together, runs, strict=True):
        agree(one, train(run.task, run.method, engine="loop", seed=run.seed))


@pytest.mark.parametrize("network", ["chain", "batch norm", "words"])
@pytest.mark.parametrize("name", methods.METHODS)
def test_seeds_of_one_method_share_a_stack(name: str, network: str) -> None:
    runs = []
    for seed in SEEDS:
        task = ragged(network)
        task = replace(task, model=seeded(partial(reset, task.model), seed))
        with suppress(InputError):  # FedBN without norms
            runs.append(Run(task, methods.make(name, task.model), seed))
    assert not runs or stacks_of(runs) == [slice(None)]
