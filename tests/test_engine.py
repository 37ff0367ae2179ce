"""The contract of the fast engine: whatever is trained, it comes to what the readable loop comes to."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from floral_lite import Federation, InputError, Settings, Shard, Task, methods, tasks, train
from floral_lite.adaptors import KINDS, Convolution, VectorAdaptor
from floral_lite.data import FlipAndCrop
from floral_lite.factored import AdaptedParameter, Blend
from floral_lite.federation import engine, evaluation, memory, two_engines
from floral_lite.federation.batch import MEANS
from floral_lite.federation.cuda_graphs import Steps
from floral_lite.federation.layers import chain
from floral_lite.federation.memory import Memory
from floral_lite.methods import ROUTER, Method, Part
from floral_lite.models import Normalise
from floral_lite.roles import Roles

from .federations import (
    Draw,
    Jitter,
    agree,
    first_state,
    make_task,
    normal,
    numbers,
    replayed,
    single,
    standing,
    watch_stacks,
    words,
)


class Attention(nn.Module):
    """Words, attention, a layer norm, dropout called as functions, and a parameter that is one number."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, words: Tensor) -> Tensor:
        hidden = functional.dropout1d(self.words(words), 0.2, self.training)
        hidden = self.norm(hidden + self.attention(hidden, hidden, hidden)[0])
        hidden = hidden + self.attention(hidden, hidden, hidden, need_weights=False)[0]  # another way
        return self.scale * self.last(functional.dropout(hidden.mean(dim=1), 0.2, self.training))


class Images(nn.Module):
    """Convolutions in one, two and three dimensions, and a transposed one, on both sides of the cost rule."""

    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Conv2d(2, 16, 2)
        self.large = nn.ConvTranspose2d(16, 16, 2, stride=2)
        self.norm = nn.GroupNorm(4, 16)
        self.line = nn.Conv1d(16, 8, 2, groups=2)
        self.cube = nn.Conv3d(1, 4, 3, padding="same")
        self.last = nn.Linear(32, 3)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.norm(self.large(self.small(images))).tanh()  # (16, 4, 4)
        hidden = functional.dropout2d(hidden, 0.2, self.training)
        hidden = self.line(hidden.flatten(2)[..., ::8]).tanh()  # (8, 1)
        return self.last(self.cube(hidden.view(-1, 1, 2, 2, 2)).flatten(1))


def partly_frozen() -> nn.Module:
    model = nn.Sequential(
        nn.Linear(4, 8), nn.ELU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
    )
    model[0].requires_grad_(False)
    model[2].weight.requires_grad_(False)
    model[4].bias.requires_grad_(False)
    return model


class Network(NamedTuple):
    """A network, what it is trained on, and whether the engine should know it as a chain of layers."""

    build: Callable[[], nn.Module]
    inputs: Draw
    is_chain: bool


NETWORKS = {
    "mlp": Network(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3)),
        normal(2, 2),
        True,
    ),
    "without biases": Network(
        lambda: nn.Sequential(
            nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh()), nn.Linear(6, 3, bias=False)
        ),
        normal(4),
        True,
    ),
    # 40 x 40 is large enough for factors, 4 x 40 and 40 x 3 are not; what drops nothing uses up no mask
    "wide": Network(
        lambda: nn.Sequential(
            nn.Linear(4, 40), nn.LeakyReLU(), nn.Dropout(0), nn.Dropout(0.2), nn.Linear(40, 40), nn.GELU(),
            nn.Linear(40, 3),
        ),
        normal(4),
        True,
    ),
    "on sequences": Network(
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Flatten(1, 2), nn.Linear(40, 3)),
        normal(5, 4),
        True,
    ),
    "partly frozen": Network(partly_frozen, normal(4), True),
    "cnn": Network(
        lambda: nn.Sequential(
            Normalise([0.1, 0.2], [1.0, 2.0]),
            nn.Conv2d(2, 4, 3, padding="same", groups=2), nn.ReLU(), nn.MaxPool2d(2, 1, padding=1),
            nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), bias=False), nn.SiLU(),
            nn.AvgPool2d(2, 1), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Identity(),
            nn.Linear(24, 3),
        ),
        normal(2, 6, 6),
        True,
    ),
    "attention": Network(Attention, words(40, 5), False),
    "images": Network(Images, normal(2, 3, 3), False),
    "batch norm 1d": Network(
        lambda: nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)),
        normal(4),
        False,
    ),
    "batch norm 2d": Network(
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.2),
            nn.Conv2d(4, 4, 2, bias=False), nn.BatchNorm2d(4, track_running_stats=False),
            nn.Flatten(), nn.Linear(36, 3),
        ),
        normal(2, 6, 6),
        False,
    ),
}  # fmt: skip
NOISY = {"temperature": 0.5, "floor": 0.05, "noise": 1.0, "entropy": 0.1}
METHODS: dict[str, Callable[[nn.Module], Method]] = {
    "fedavg": methods.FedAvg,
    "learned": lambda model: methods.FLoRAL(model, 3, rank=1),
    "optimal": lambda model: methods.FLoRAL(model, 3, rank=2, routing="optimal", init="authors"),
    "noisy": lambda model: methods.FLoRAL(model, 3, rank=2, router=NOISY, precondition=False),
    "ensemble": lambda model: methods.Ensemble(model, 3, router=NOISY),
    "optimal ensemble": lambda model: methods.Ensemble(model, 3, routing="optimal"),
    "local adaptor": lambda model: methods.LocalAdaptor(model, rank=2),
}
# Those that do more than mix parameters: several networks, something at the start or the end of a round.
HOOKED: dict[str, Callable[[nn.Module], Method]] = {
    "ensemble of outputs": lambda model: methods.Ensemble(model, 3, router=NOISY, mix="outputs"),
    "mfl": lambda model: methods.MFL(model, 3, router=NOISY),
    "mfl-ws": lambda model: methods.MFLWS(model, 3, rank=1),
    "fine-tuned": methods.FineTuned,
    "fedprox": lambda model: methods.FedProx(model, proximal=1.0),
    "ditto": lambda model: methods.Ditto(model, proximal=1.0),
    "per-fedavg": methods.PerFedAvg,
    "ifca": lambda model: methods.IFCA(model, 3),
    "fedem": lambda model: methods.FedEM(model, 3),
    "federated clustering": lambda model: methods.FederatedClustering(model, 3),
}
# Those that set their routers.
CHOOSES = (methods.IFCA, methods.FederatedClustering)
SETTINGS: list[dict[str, Any]] = [
    {},
    {"local_epochs": 2, "momentum": 0.9},
    {"local_epochs": 2, "shuffle": False, "clip_norm": 0.2},
    {"momentum": 0.5, "weight_decay": 0.1, "clip_norm": 1.0},
    {"server_momentum": 0.5, "server_learning_rate": 0.7},
    {"server_optimizer": "adam", "server_learning_rate": 0.01},
    {"stateful": False, "weight_decay": 0.1},
    {"statistics": "averaged", "participation": 0.4, "rounds": 4},
    {"batch_size": 10**9},
]
# Those that federated clustering does not take.
REFUSED = {"stateful", "server_optimizer", "server_momentum", "server_learning_rate"}
# An update that is nothing but a rounding error of 1e-16 becomes one of 1e-8 when Adam divides it by
# its own length plus 1e-8; the server's learning rate is 1e-2.
ADAM_TOLERANCE = 1e-8


def task_of(name: str, **changes: Any) -> Task:
    return make_task(NETWORKS[name].build, NETWORKS[name].inputs, **changes)


def floral(task: Task, **options: Any) -> Method:
    return methods.FLoRAL(task.model, **{"num_clusters": 3, "rank": 1} | options)


@pytest.fixture(autouse=True)
def all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One stack of all clients, as on a GPU; a CPU may train those of a convolution one by one."""
    monkeypatch.setattr(Memory, "clients_at_once", lambda *_: 10**9)


def compare(task: Task, method: Method, stands: Sequence[str] = ()) -> Federation:
    """Train on both engines; they agree, and every tensor has moved but for those that must stand still."""
    fast, loop = (train(task, method, engine=which, seed=1) for which in ("fast", "loop"))
    agree(fast, loop, ADAM_TOLERANCE if task.settings.server_optimizer == "adam" else 1e-10)
    # optimal routers do not learn
    fixed = [ROUTER] if getattr(method, "routing", None) == "optimal" else []
    stood = standing(task, method, fast, seed=1)
    # nor do routers that are set need to change
    may_stand = {ROUTER} if isinstance(method, CHOOSES) else set()
    assert stood - may_stand == {*stands, *fixed}
    return fast


@pytest.mark.parametrize("name", NETWORKS)
def test_the_engine_knows_chains_of_layers(name: str) -> None:
    assert (chain(NETWORKS[name].build()) is not None) == NETWORKS[name].is_chain


@pytest.mark.parametrize("number", range(len(SETTINGS)), ids=lambda number: str(SETTINGS[number]))
@pytest.mark.parametrize("name", NETWORKS)
def test_every_setting_on_every_network(name: str, number: int) -> None:
    """The methods take turns, so that each meets every network, and every setting."""
    task = task_of(name, **SETTINGS[number])
    method = list(METHODS.values())[(number + list(NETWORKS).index(name)) % len(METHODS)]
    compare(task, method(task.model))


@pytest.mark.parametrize(
    ("which", "number"),
    [
        pytest.param(which, number, id=f"{which}-{settings}")
        for which in HOOKED
        for number, settings in enumerate(SETTINGS)
        if which != "federated clustering" or not settings.keys() & REFUSED
    ],
)
def test_every_setting_on_every_method_that_does_more(which: str, number: int) -> None:
    """The networks take turns, so that each method meets every network."""
    name = list(NETWORKS)[(number + list(HOOKED).index(which)) % len(NETWORKS)]
    task = task_of(name, **SETTINGS[number])
    compare(task, HOOKED[which](task.model))


class Standardised(nn.Module):
    """Changes the inputs that it is given, if it works in place."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.in_place:
            return self.layer(inputs.sub_(0.5).div_(0.5))
        return self.layer((inputs - 0.5) / 0.5)


@pytest.mark.parametrize(
    "build",
    [
        Standardised,
        lambda in_place: nn.Sequential(nn.LeakyReLU(0.1, inplace=in_place), nn.Linear(4, 3)),
    ],
    ids=["module", "chain"],
)
@pytest.mark.parametrize("which", METHODS | HOOKED)
def test_a_network_that_works_in_place_sees_its_inputs_as_they_are(build: Any, which: str) -> None:
    plain, in_place = (make_task(lambda is_so=is_so: build(is_so), normal(4)) for is_so in (False, True))
    make = (METHODS | HOOKED)[which]
    expected = train(plain, make(plain.model), seed=1)
    method = make(in_place.model)
    for engine_name in ("fast", "loop"):
        agree(train(in_place, method, engine=engine_name, seed=1), expected, 1e-10)


@pytest.mark.parametrize(
    ("name", "kind"),
    [*(("cnn", kind) for kind in get_args(Convolution)), ("batch norm 2d", "filter"), ("images", "channel")],
)
def test_every_kind_of_convolution_adaptor(name: str, kind: str) -> None:
    task = task_of(name)
    compare(task, floral(task, convolution=kind))


@pytest.mark.parametrize("name", ["mlp", "batch norm 1d"])
@pytest.mark.parametrize(
    "options",
    [
        {"rank": 2, "biases": False},
        {"rank": 2, "norms": "none"},
        {"rank": None, "budget": 0.5, "router": {"noise": 0.5, "entropy": -0.1}},
        {"rank": 1, "num_clusters": 1},
        {"rank": 1, "num_clusters": 8},
        {"rank": 3, "precondition": False},
    ],
    ids=str,
)
def test_every_other_option(name: str, options: dict[str, Any]) -> None:
    """Among them more adaptors than clients, and a single one, whose routers have nothing to choose."""
    task = task_of(name, local_epochs=2, weight_decay=0.1)
    compare(task, floral(task, **options), stands=[ROUTER] if options.get("num_clusters") == 1 else [])


@pytest.mark.parametrize(
    ("name", "make", "settings"),
    [
        ("batch norm 1d", methods.FLoRAL, {}),
        ("batch norm 1d", methods.LocalAdaptor, {"weight_decay": 0.1}),
        ("batch norm 2d", methods.FLoRAL, {"statistics": "averaged", "momentum": 0.9}),
        ("batch norm 2d", methods.LocalAdaptor, {}),
    ],
)
def test_batch_nora_keeps_its_own_statistics(name: str, make: Any, settings: dict[str, Any]) -> None:
    network = NETWORKS[name]

    def build() -> nn.Module:
        model = network.build()
        if name == "batch norm 2d":  # Batch-NorA needs the statistics of every batch norm
            model[5] = nn.BatchNorm2d(4)
        return model

    task = make_task(build, network.inputs, **settings)
    method = make(task.model, rank=1, norms="batch_nora")
    assert any(layer.endswith("local_mean") for layer in first_state(task, method).private)
    compare(task, method)


@pytest.mark.parametrize(
    ("name", "loss"), [*(("mlp", loss) for loss in MEANS), ("attention", functional.mse_loss)]
)
def test_every_loss_that_is_a_plain_mean(name: str, loss: Any) -> None:
    """Losses of labels, of real numbers, and of probabilities, each of the outputs that it takes."""
    last = {functional.nll_loss: nn.LogSoftmax(1), functional.binary_cross_entropy: nn.Sigmoid()}.get(loss)
    labels = loss in (functional.cross_entropy, functional.nll_loss)

    def build() -> nn.Module:
        model = NETWORKS[name].build()
        return model if last is None else nn.Sequential(model, last)

    task = make_task(build, NETWORKS[name].inputs, loss=loss, outputs=None if labels else 3)
    federation = compare(task, floral(task))
    assert (federation.history.rounds[-1].test_accuracy is not None) == labels


def test_a_single_number_is_regressed_by_clients_that_nobody_mixes() -> None:
    task = make_task(lambda: nn.Linear(4, 1), normal(4), loss=functional.mse_loss, outputs=1)
    for client, shard in enumerate(task.train):
        shard.targets.add_(10 * client)
    compare(task, methods.Local(task.model))


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """A mean that the engine does not know to be one."""
    return (outputs - targets).square().mean()


def of_the_batch(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that is no mean over samples at all."""
    return (outputs - targets).square().sum().sqrt()


@pytest.mark.parametrize("name", ["mlp", "wide", "attention", "batch norm 2d"])
@pytest.mark.parametrize("loss", [squared, of_the_batch, "weighted"])
def test_any_other_loss_is_trained_in_stacks_of_clients_of_one_size(
    name: str, loss: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs: int | None = 3
    if loss == "weighted":
        loss, outputs = nn.CrossEntropyLoss(torch.tensor([0.2, 0.3, 0.5]).double()), None
    task = task_of(name, loss=loss, outputs=outputs)
    stacks = watch_stacks(monkeypatch, lambda job: job.num_samples)
    compare(task, floral(task))
    assert all(len(set(sizes)) == 1 for sizes in stacks)
    assert max(map(len, stacks)) > 1


@pytest.mark.parametrize("name", ["mlp", "cnn", "attention"])
def test_clients_of_all_sizes_are_trained_in_one_stack(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stacks = watch_stacks(monkeypatch, lambda job: job.num_samples)
    task = task_of(name, participation=1.0)
    train(task, floral(task))
    assert stacks == [[10, 7, 7, 3, 3]] * 3


def test_weights_are_merged_or_run_as_factors_whichever_costs_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere the comparison would be of one route only."""
    merged, factored = set(), set()

    def merged_of_stack(self: AdaptedParameter) -> Tensor:
        if self.mixture.dim() == 2:
            merged.add(self.adaptor.shape)
        return original_merged(self)

    def stacked(self: AdaptedParameter) -> tuple[Tensor, Tensor]:
        factored.add(self.adaptor.shape)
        return original_stacked(self)

    original_merged, original_stacked = AdaptedParameter.merged, AdaptedParameter.stacked
    monkeypatch.setattr(AdaptedParameter, "merged", merged_of_stack)
    monkeypatch.setattr(AdaptedParameter, "stacked", stacked)
    # counting the memory of a test goes through the layers with more rows than anyone has here
    monkeypatch.setattr(Memory, "clients_tested", lambda *_: 10**9)
    task = task_of("wide")
    train(task, floral(task))
    # B (m + n) multiply-adds against m n, with batches of up to 4
    weights = {shape for shape in merged if len(shape) == 2}
    assert weights == {(40, 4), (3, 40)}
    for name, shape in (("attention", (40, 8)), ("images", (16, 16, 2, 2))):
        task = task_of(name)
        train(task, floral(task))
        assert shape in factored


@pytest.mark.parametrize(
    ("router", "width"), [({}, 1), ({"entropy": 0.1}, 1), ({"floor": 0.05}, 3), ({"noise": 1.0}, 3)], ids=str
)
@pytest.mark.parametrize("make", [methods.FLoRAL, methods.Ensemble])
def test_a_client_with_a_fixed_route_trains_its_only_cluster(
    make: Any, router: dict[str, float], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where noise or a floor give the others weight, all are trained."""
    widths = set()

    def watched(method: Method, client: Roles) -> Roles:
        narrowed = original(method, client)
        widths.update(tensor.shape[1] for tensor in narrowed.clustered.values())
        return narrowed

    original = engine.narrow
    monkeypatch.setattr(engine, "narrow", watched)
    for name in ("mlp", "images"):
        task = task_of(name, weight_decay=0.1)
        compare(task, make(task.model, 3, routing="optimal", router=router))
    assert widths == {width}


@pytest.mark.parametrize("name", ["mlp", "batch norm 1d"])
def test_a_fixed_route_among_networks_whose_outputs_are_mixed(name: str) -> None:
    task = task_of(name)
    compare(task, methods.Ensemble(task.model, 3, routing="optimal", mix="outputs"))


@pytest.mark.parametrize("name", ["cnn", "batch norm 2d", "images"])
def test_convolutions_client_by_client(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a CPU trains and tests them where there is much to convolve."""
    monkeypatch.undo()
    monkeypatch.setattr(memory, "ALONE_BYTES", 0)
    stacks = watch_stacks(monkeypatch, lambda job: job.num_samples)
    task = task_of(name, participation=0.6)
    compare(task, floral(task))
    assert {len(sizes) for sizes in stacks} == {1}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("wide", {"local_epochs": 2}),
        ("attention", {}),
        ("batch norm 1d", {"momentum": 0.9, "weight_decay": 0.1}),
    ],
)
def test_steps_that_are_recorded_once_and_replayed(
    name: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stacks of other lengths, short batches and later rounds find the step, the batch and themselves."""
    monkeypatch.setattr(two_engines, "Steps", lambda _, beside: Steps(replayed, beside))
    for limit in (2, 10**9):
        monkeypatch.setattr(Memory, "clients_at_once", lambda *_, limit=limit: limit)
        task = task_of(name, participation=1.0, **changes)
        compare(task, methods.FLoRAL(task.model, 3, rank=1, router=NOISY))


@pytest.mark.parametrize("name", METHODS | HOOKED)
def test_every_methods_steps_can_be_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The networks take turns; in a replayed step Python decides nothing."""
    monkeypatch.setattr(two_engines, "Steps", lambda _, beside: Steps(replayed, beside))
    network = list(NETWORKS)[list(METHODS | HOOKED).index(name) % len(NETWORKS)]
    task = task_of(network)
    compare(task, (METHODS | HOOKED)[name](task.model))


@pytest.mark.parametrize("which", ["fedprox", "fine-tuned"])
@pytest.mark.parametrize("limit", [2, 10**9])
def test_recorded_steps_find_what_their_method_remembers_and_leave_what_is_tested(
    limit: int, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two_engines, "Steps", lambda _, beside: Steps(replayed, beside))
    monkeypatch.setattr(Memory, "clients_at_once", lambda *_: limit)
    task = task_of("wide", participation=1.0, momentum=0.9)
    compare(task, HOOKED[which](task.model))


class Noise:
    """Augmentation whose draws are real numbers."""

    def draws(self, num_samples: int, generator: torch.Generator) -> Tensor:
        return torch.rand(num_samples, 2, 1, 1, generator=generator, dtype=torch.float64)

    def __call__(self, inputs: Tensor, draws: Tensor) -> Tensor:
        return inputs + draws


@pytest.mark.parametrize("augment", [FlipAndCrop(padding=1), Noise()], ids=["crop", "noise"])
@pytest.mark.parametrize("name", ["cnn", "batch norm 2d"])
def test_augmented_inputs(name: str, augment: Any) -> None:
    plain, task = task_of(name), task_of(name, augment=augment, local_epochs=2)
    augmented = compare(task, floral(task))
    without = train(plain, floral(plain), local_epochs=2, seed=1)
    assert not torch.equal(
        *(f.state.shared["1.weight" if name == "cnn" else "0.weight"] for f in (augmented, without))
    )


@pytest.mark.parametrize("name", ["mlp", "attention"])
def test_test_shards_of_many_rows(name: str) -> None:
    """Shards are tested some rows at a time; the sizes are around that number, and far from it."""
    rows = evaluation.TEST_ROWS
    task = task_of(name, test_sizes=(2 * rows + 3, 1, rows + 1, rows, rows - 1))
    compare(task, floral(task))


def test_an_accuracy_is_a_count_over_a_count_and_never_above_one() -> None:
    """In single precision ten times a tenth is more than 1."""
    sizes = (10, 11, 14, 41, 300)
    shards = [Shard(torch.ones(number, 4), torch.zeros(number, dtype=torch.long)) for number in sizes]
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([1.0, 0.0, 0.0]))  # right every time
    task = Task(
        "zeros", model, functional.cross_entropy, shards, shards, torch.zeros(5).long(), Settings(), {}
    )
    history = train(task, methods.FedAvg(model), rounds=1).history
    assert history.last_evaluated.client_accuracy == [1.0] * 5


def test_dropout_of_everything_leaves_the_bias_behind_it() -> None:
    task = make_task(lambda: nn.Sequential(nn.Linear(4, 5), nn.Dropout(1.0), nn.Linear(5, 3)), normal(4))
    first, after = (
        first_state(task, methods.FedAvg(task.model)),
        compare(task, methods.FedAvg(task.model)).state,
    )
    # the average of the same is the same to rounding
    torch.testing.assert_close(after.shared["2.weight"], first.shared["2.weight"])
    assert (after.shared["2.bias"] - first.shared["2.bias"]).abs().min() > 1e-3


def test_a_model_that_is_a_single_layer() -> None:
    task = make_task(lambda: nn.Linear(4, 3), normal(4))
    assert chain(task.model) is not None
    for method in (METHODS | HOOKED).values():
        compare(task, method(task.model))


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    model.register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
    return model


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return model


def hooked_backward() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    model[2].register_full_backward_pre_hook(lambda module, gradients: (3 * gradients[0],))
    return model


def forward_of_its_own() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    first = model[0]
    first.forward = lambda inputs: 3 * functional.linear(inputs, first.weight, first.bias)
    return model


def hooked_after_backward() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    model[2].register_full_backward_hook(lambda module, gradients, _: (3 * gradients[0],))
    return model


def hooked_before() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    model[2].register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],))
    return model


NO_CHAIN = {
    "hooked backward": hooked_backward,
    "hooked after backward": hooked_after_backward,
    "hooked before": hooked_before,
    "forward of its own": forward_of_its_own,
    "around the edges": lambda: nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"),
    "the batch, too": lambda: nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)),
}


@pytest.mark.parametrize("name", NO_CHAIN)
def test_a_chain_is_of_layers_that_are_as_their_classes(name: str) -> None:
    assert chain(NO_CHAIN[name]()) is None


@pytest.mark.parametrize("build", [hooked, tied])
def test_what_a_chain_of_layers_does_not_show(build: Callable[[], nn.Module]) -> None:
    """A hook on the whole model, and two layers that share a weight."""
    task = make_task(build, normal(4))
    assert chain(task.model) is None
    compare(task, methods.FedAvg(task.model))


class Centred(nn.Module):
    """A layer of a user's own in which the samples of a batch meet, as they do in a batch norm."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs - inputs.mean(dim=0)


def test_samples_that_meet_in_a_users_own_layer() -> None:
    """Rows that only fill up a short batch must not be among them."""
    task = make_task(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), Centred(), nn.Linear(6, 3)), normal(4))
    compare(task, floral(task))


def test_samples_that_meet_in_statistics_alone() -> None:
    """An instance norm's outputs are of one sample each, but its statistics are a mean over the batch."""
    norm = partial(nn.InstanceNorm1d, 1, affine=True, track_running_stats=True)
    task = make_task(lambda: nn.Sequential(norm(), nn.Flatten(), nn.Linear(4, 3)), normal(1, 4))
    compare(task, methods.FedAvg(task.model))


def test_losses_of_many_steps_are_summed_in_single_precision() -> None:
    """In bfloat16 the sum would stop growing at a few hundred."""
    task = make_task(lambda: nn.Linear(4, 3), normal(4), sizes=[1000] * 5, batch_size=1, rounds=1)
    task = single(task, torch.bfloat16)
    method = methods.FedAvg(task.model)
    fast, loop = (train(task, method, engine=each, learning_rate=1e-3).history for each in ("fast", "loop"))
    assert fast.rounds[0].train_loss == pytest.approx(loop.rounds[0].train_loss, rel=0.02)


def test_the_shares_of_a_test_shard_sum_to_1_in_half_precision() -> None:
    """Thirteen times 1/13, each rounded to bfloat16, is 1.003, and would make the next number of the loss."""
    model = nn.Linear(1, 1, bias=False).bfloat16()
    nn.init.zeros_(model.weight)
    shards = [Shard(*(torch.full((13, 1), value).bfloat16() for value in (1.0, 3.0)))]
    clusters, settings = torch.tensor([0]), Settings(rounds=1, learning_rate=1e-30)
    task = Task("half", model, functional.l1_loss, shards, shards, clusters, settings, {})
    (entry,) = train(task, methods.FedAvg(model)).history.rounds
    assert entry.test_loss == pytest.approx(3)


def test_inputs_may_be_another_models_features() -> None:
    """Which know where they came from, as long as nobody tells them to forget."""
    task = make_task(lambda: nn.Linear(4, 3), normal(4))
    train_shards = [Shard(shard.inputs.requires_grad_(), shard.targets) for shard in task.train]
    compare(replace(task, train=train_shards), methods.FedAvg(task.model))


class ScaleV(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.V = nn.Parameter(torch.tensor(1.3))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.V * inputs


def test_a_parameter_may_be_called_like_a_factor() -> None:
    task = make_task(lambda: nn.Sequential(nn.Linear(4, 3), ScaleV()), normal(4))
    compare(task, methods.Ensemble(task.model, 2))


def test_layers_that_draw_draw_for_each_client_of_a_stack_apart() -> None:
    task = make_task(lambda: nn.Sequential(Jitter(), nn.Linear(4, 3)), normal(4), participation=1.0)
    task = replace(task, train=[task.train[0]] * 5)
    state = train(task, methods.Local(task.model), rounds=1, batch_size=99, shuffle=False).state
    assert len(state.private["1.weight"].unique(dim=0)) == 5


class Residual(nn.Module):
    """A branch that adds nothing at first, as deep networks start: there the samples meet unseen."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6)
        nn.init.zeros_(self.norm.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.norm(self.inner(inputs)).tanh()


class Several(methods.LocalAdaptor):
    """Three adaptors of a client's own, added up."""

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        """Each of them as the only one would be."""
        first = super().initialise(clusters, seed)
        private = {name: tensor.repeat_interleave(3, dim=1) for name, tensor in first.private.items()}
        return first._replace(private=private)


def test_adaptors_that_lie_in_memory_as_a_method_likes_learn() -> None:
    task = task_of("wide")
    compare(task, Several(task.model, rank=2))


def test_samples_that_meet_where_nothing_is_seen_of_it_at_first() -> None:
    task = make_task(lambda: nn.Sequential(nn.Linear(4, 6), Residual(), nn.Linear(6, 3)), normal(4))
    compare(task, floral(task))


@pytest.mark.parametrize("name", ["mlp", "wide", "cnn", "attention", "batch norm 1d"])
def test_in_single_precision_over_twenty_rounds(name: str) -> None:
    """The engines stay together although each rounds in its own way.

    Single precision rounds at 6e-8, and each step also enlarges the differences of those before. After
    some hundred steps they were up to 6e-5 of the way that a tensor had gone from its first value;
    allowed is a thousandth. (A batch norm over two or three samples may divide by next to nothing,
    and enlarges more: it gets larger batches.)
    """
    batch_size = 10 if name == "batch norm 1d" else 4
    changes = {"rounds": 20, "learning_rate": 0.03, "router_learning_rate": 0.3, "evaluate_every": 20}
    task = single(task_of(name, batch_size=batch_size, **changes))
    method = floral(task)
    first = first_state(task, method, seed=1)
    fast, loop = (train(task, method, engine=which, seed=1) for which in ("fast", "loop"))
    for before, one, other in zip(first.tensors(), fast.state.tensors(), loop.state.tensors(), strict=True):
        assert (one - other).norm() <= 1e-3 * (other - before).norm()
    for number, values in numbers(fast).items():
        if "accuracy" not in number:  # a sample may lie on the border between two labels
            assert values == pytest.approx(numbers(loop)[number], rel=1e-3, abs=1e-4), number


@pytest.mark.parametrize("which", ["fast", "loop"])
@pytest.mark.parametrize("make", [methods.FLoRAL, methods.Ensemble])
@pytest.mark.parametrize("name", ["mlp", "wide", "cnn", "attention"])
def test_rounder_products_leave_parameters_and_averages_their_precision(
    name: str, make: Any, which: Any
) -> None:
    """Clients that do not move average to what they were, and bfloat16 would round that at 4e-3."""
    slow = {"learning_rate": 1e-12, "router_learning_rate": 0.0}
    task = single(task_of(name, precision="bfloat16", **slow))
    method = make(task.model, num_clusters=3)
    first, after = first_state(task, method), train(task, method, engine=which)
    for role, before in zip(after.state, first, strict=True):
        for parameter, tensor in role.items():
            assert tensor.dtype == torch.float32
            torch.testing.assert_close(tensor, before[parameter], rtol=1e-6, atol=1e-6)
    # but rounder they are
    exact = train(task, method, engine=which, rounds=1, precision="float32").history.rounds[0].train_loss
    assert 0 < abs(after.history.rounds[0].train_loss - exact) < 0.05 * exact


@pytest.mark.parametrize("which", ["fast", "loop"])
@pytest.mark.parametrize("make", [methods.FLoRAL, methods.Ensemble, methods.MFL, methods.FedEM])
@pytest.mark.parametrize("name", ["mlp", "wide"])
def test_routers_of_a_model_in_half_precision_learn_in_single(name: str, make: Any, which: Any) -> None:
    """Steps of 1e-3 on logits near 1 are lost in bfloat16, and its mixtures sum to 0.998."""
    task = single(task_of(name, participation=1.0), torch.bfloat16)
    method = make(task.model, num_clusters=3)
    run = train(task, method, engine=which, rounds=2)
    logits = run.state.private[ROUTER]
    assert logits.dtype == torch.float32
    assert (logits != logits.bfloat16()).any(dim=1).all()
    assert {tensor.dtype for tensor in run.state.clustered.values()} == {torch.bfloat16}
    for mixture in run.history.rounds[-1].mixture:
        assert sum(mixture) == pytest.approx(1, abs=1e-6)


def test_batch_norms_are_not_computed_in_bfloat16() -> None:
    task = single(task_of("batch norm 1d", precision="bfloat16"))
    with pytest.raises(InputError, match=r"precision is 'bfloat16', but the model has batch norms"):
        train(task, floral(task))


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_rounder_products_are_refused_where_they_would_be_the_same(precision: str) -> None:
    task = task_of("mlp", precision=precision)
    with pytest.raises(InputError, match=rf"precision is '{precision}', but the model is in double"):
        train(task, floral(task))


class Turns(nn.Linear):
    """Decides by the sum of its inputs."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs if inputs.sum() > 0 else -inputs)


def test_a_network_that_looks_at_its_inputs_takes_the_loop() -> None:
    task = make_task(lambda: Turns(4, 3), normal(4))
    with pytest.raises(
        InputError, match=r"Turns, or a method of your own, looks at the numbers in its inputs.*engine='loop'"
    ):
        train(task, methods.FedAvg(task.model))
    assert len(train(task, methods.FedAvg(task.model), engine="loop").history.rounds) == 3


class Sentences(nn.Module):
    """A transformer as in torch's tutorials: in evaluation its padding makes nested tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 1), nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        mixed = self.encoder(self.words(words), src_key_padding_mask=words == 0)
        return torch.as_tensor(self.head(mixed[:, 0]))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # which the loop uses
def test_a_transformer_with_padding_is_tested_on_both_engines() -> None:
    words = torch.tensor([[1, 2, 3, 0], [4, 5, 0, 0], [6, 7, 8, 1], [2, 2, 0, 0]])
    shards = {"a": (words, words[:, 0] % 3), "b": (words.flip(0), words[:, 1] % 3)}
    task = tasks.from_clients(shards, shards, model=Sentences().double())
    fast, loop = (
        train(task, methods.FedAvg(task.model), rounds=2, engine=engine) for engine in ("fast", "loop")
    )
    agree(fast, loop)


def test_samples_of_several_shapes_take_the_loop() -> None:
    """Photographs, say; torch would write them past their places, with a warning."""
    task = make_task(
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4, 3)),
        normal(1, 4, 4),
        participation=1.0,
    )
    narrower = Shard(task.train[1].inputs[..., 1:], task.train[1].targets)
    task = replace(task, train=[task.train[0], narrower, *task.train[2:]])
    with pytest.raises(InputError, match=r"\(1, 4, 3\), \(1, 4, 4\).*engine='loop'"):
        train(task, methods.FedAvg(task.model))
    assert len(train(task, methods.FedAvg(task.model), engine="loop").history.rounds) == 3


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("wrong", [torch.float32, torch.uint8])
def test_floats_of_several_types_are_refused_at_once(split: str, wrong: torch.dtype) -> None:
    """Else a layer would stop in the middle of a run, in the loop too."""
    task = make_task(lambda: nn.Linear(4, 3), normal(4))
    shards = list(getattr(task, split))
    shards[2] = Shard(shards[2].inputs.to(wrong), shards[2].targets)
    with pytest.raises(
        InputError, match=rf"client 2 has {split} inputs of {wrong}, .*\.to\(torch\.float64\)"
    ):
        replace(task, **{split: shards})


def test_samples_of_several_types_take_the_loop() -> None:
    task = make_task(lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 3)), words(9, 2))
    shorter = Shard(task.train[1].inputs.int(), task.train[1].targets)
    other = replace(task, train=[task.train[0], shorter, *task.train[2:]])
    with pytest.raises(
        InputError, match=r"torch\.int32.*give all clients' one shape and type, or use engine"
    ):
        train(other, methods.FedAvg(task.model), participation=1.0)
    agree(
        train(other, methods.FedAvg(task.model), participation=1.0, engine="loop"),
        train(task, methods.FedAvg(task.model), participation=1.0, engine="loop"),
    )


class Scale(nn.Module):
    """A layer that the registry does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.scale


def test_a_layer_of_ones_own_with_an_entry_in_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), Scale(), nn.Linear(6, 3))

    task = make_task(build, normal(4))
    assert "1.scale" not in methods.FLoRAL(task.model, rank=1).plan
    entry = {"scale": lambda layer, name, options: VectorAdaptor("scale", (6,))}
    monkeypatch.setitem(KINDS, Scale, {"scale": lambda layer, name, options: VectorAdaptor("scale", (4,))})
    with pytest.raises(
        InputError, match=r"of 1\.scale is one for the shape \(4,\), and .* has \(6,\).*Scale"
    ):
        methods.FLoRAL(task.model, rank=1)
    monkeypatch.setitem(KINDS, Scale, entry)
    method = methods.FLoRAL(task.model, rank=1)
    federation = train(task, method)
    agree(federation, train(task, method, engine="loop"))
    assert federation.state.clustered["1.scale.L"].any(dim=1).all()


class ClusteredHead(Method):
    """A method of one's own: a shared body, C heads that a private router mixes."""

    name = "clustered-head"

    def __init__(self, model: nn.Module, head: str) -> None:
        self.model, self.head = model, head

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        named = dict(self.model.named_parameters())
        heads = {name: torch.stack([tensor] * 2) for name, tensor in named.items() if self.head in name}
        body = {name: tensor for name, tensor in named.items() if name not in heads}
        return Roles(body, heads, {ROUTER: torch.eye(2, dtype=torch.float64)[clusters % 2]})

    def parts(self, client: Roles, draws: Tensor | None = None) -> dict[str, Part]:
        mixture = self.mixture(client.private)
        heads: dict[str, Part] = {name: Blend(t, mixture) for name, t in client.clustered.items()}
        return {**client.shared, **heads}

    def mixture(self, private: dict[str, Tensor]) -> Tensor:
        return private[ROUTER].softmax(dim=-1)


@pytest.mark.parametrize("norm", [nn.Identity, lambda: nn.LayerNorm(6)], ids=["chain", "vmapped"])
def test_a_method_of_ones_own_with_all_three_roles(norm: Callable[[], nn.Module]) -> None:
    task = make_task(lambda: nn.Sequential(nn.Linear(4, 6), norm(), nn.Tanh(), nn.Linear(6, 3)), normal(4))
    method = ClusteredHead(task.model, "3.")
    federation = train(task, method)
    agree(federation, train(task, method, engine="loop"))
    assert not standing(task, method, federation)
