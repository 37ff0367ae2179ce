"""Methods that only say what is private: local training, FedPer, FedBN."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from floral_lite import Federation, InputError, Settings, Shard, Task, methods, train
from floral_lite.federation import Engine
from floral_lite.methods import METHODS, Method
from floral_lite.seeds import stream

from .federations import agree, identical, make_task, normal, standing

SEED = 5
# whether a tensor of `network()` stays with the client, statistics included
PRIVATE: dict[str, Callable[[str], bool]] = {
    "local": lambda name: True,
    "fedper": lambda name: name.startswith("3."),
    "fedbn": lambda name: name.startswith("1."),
}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4), nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(36, 3)
    )


def a_task(**settings: Any) -> Task:
    return make_task(network, normal(4), **settings)


@pytest.mark.parametrize(
    ("name", "private"),
    [
        ("local", ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]),
        ("fedper", ["3.weight", "3.bias"]),
        ("fedbn", ["1.weight", "1.bias"]),
    ],
)
def test_roles(name: str, private: list[str]) -> None:
    model = network()
    method = methods.make(name, model)
    assert type(method) is METHODS[name]
    state = method.initialise(torch.tensor([0, 1, 2, 0, 1]), seed=0)
    parameters = dict(model.named_parameters())
    assert list(state.private) == private
    assert list(state.shared) == [other for other in parameters if other not in private]
    assert state.clustered == {}
    for parameter in private:
        assert state.private[parameter].shape == (5, *parameters[parameter].shape)
    for client in (0, 4):
        personal = method.personalise(state.of_client(client))
        assert personal.keys() == parameters.keys()
        assert all(torch.equal(personal[parameter], parameters[parameter]) for parameter in parameters)
    assert torch.equal(method.mixture(state.of_client(1).private), torch.ones(1))


def test_a_client_uses_its_own_parameters_and_no_others() -> None:
    method = methods.FedPer(network())
    state = method.initialise(torch.zeros(3), seed=0)
    state = state.map(lambda tensor: torch.randn(tensor.shape))
    personal = method.personalise(state.of_client(2))
    assert torch.equal(personal["3.weight"], state.private["3.weight"][2])
    assert torch.equal(personal["0.weight"], state.shared["0.weight"])


class Product(nn.Module):
    """y = a b x, with a and b each a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.a.weight, 2.0)
        nn.init.constant_(self.b.weight, 3.0)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.b(self.a(inputs))


def two_clients(model: nn.Module, *shards: Shard) -> Task:
    settings = Settings(rounds=1, batch_size=99, learning_rate=0.1)
    clusters = torch.tensor([0, 1])
    return Task("two", model, functional.mse_loss, list(shards), list(shards), clusters, settings, {})


def constant(value: float, num_samples: int) -> Shard:
    """Samples that are all x = 1 and y = value."""
    return Shard(torch.ones(num_samples, 1), torch.full((num_samples, 1), value))


def test_one_round_of_local_training_and_fedper_by_hand(engine: Engine) -> None:
    """Loss (a b - y)^2 at a = 2, b = 3, eta = 0.1, with one sample y = 4 and three samples y = 7.

    Client 0: error 2, da = 2 * 2 * 3 = 12, db = 2 * 2 * 2 = 8; client 1: error -1, da = -6, db = -4.
    """
    task = two_clients(Product(), constant(4.0, 1), constant(7.0, 3))
    alone = train(task, methods.Local(task.model), engine=engine).state
    torch.testing.assert_close(alone.private["a.weight"].flatten(), torch.tensor([0.8, 2.6]))
    torch.testing.assert_close(alone.private["b.weight"].flatten(), torch.tensor([2.2, 3.4]))
    together = train(task, methods.FedPer(task.model), engine=engine).state
    # (1 * 0.8 + 3 * 2.6) / 4
    torch.testing.assert_close(together.shared["a.weight"], torch.tensor([[2.15]]))
    torch.testing.assert_close(together.private["b.weight"].flatten(), torch.tensor([2.2, 3.4]))
    first = train(task, methods.FedPer(task.model, head="a"), engine=engine).state
    # (1 * 2.2 + 3 * 3.4) / 4
    torch.testing.assert_close(first.shared["b.weight"], torch.tensor([[3.1]]))
    torch.testing.assert_close(first.private["a.weight"].flatten(), torch.tensor([0.8, 2.6]))


def test_one_round_of_fedbn_by_hand(engine: Engine) -> None:
    """Outputs b (g x + s) of normalised x = -1 or 1, at g = 1, s = 0, b = 2.

    Client 0, twice, y = 4 x: error -2 x, db = -4, dg = -8, ds = 0.
    Client 1, six times, y = x + 1: error x - 1, db = 2, dg = 4, ds = -4.
    """
    model = nn.Sequential(nn.BatchNorm1d(1, eps=1e-12), nn.Linear(1, 1, bias=False))
    nn.init.constant_(model[1].weight, 2.0)
    signs = torch.tensor([[-1.0], [1.0]])
    task = two_clients(model, Shard(signs, 4 * signs), Shard(signs.repeat(3, 1), signs.repeat(3, 1) + 1))
    state = train(task, methods.FedBN(model), engine=engine).state
    # (2 * 2.4 + 6 * 1.8) / 8
    torch.testing.assert_close(state.shared["1.weight"], torch.tensor([[1.95]]))
    torch.testing.assert_close(state.private["0.weight"], torch.tensor([[1.8], [0.6]]))
    torch.testing.assert_close(state.private["0.bias"], torch.tensor([[0.0], [0.4]]))
    # 0.9 + 0.1 n / (n - 1): each client's own
    torch.testing.assert_close(state.private["0.running_var"], torch.tensor([[1.1], [1.02]]))


def by_hand(task: Task, is_private: Callable[[str], bool]) -> list[nn.Module]:
    """Every client's model: trained with torch's own SGD, then averaged but for what is private."""
    settings = task.settings
    clients = [copy.deepcopy(task.model).train() for _ in range(task.num_clients)]
    for number in range(1, settings.rounds + 1):
        count = round(settings.participation * task.num_clients)
        order = torch.randperm(task.num_clients, generator=stream(SEED, "clients", number))
        sampled = order[:count].tolist()
        for k in sampled:
            optimizer = torch.optim.SGD(clients[k].parameters(), lr=settings.learning_rate)
            shard = task.train[k]
            rows = torch.randperm(len(shard), generator=stream(SEED, "batches", number, k))
            for batch in rows.split(settings.batch_size):
                optimizer.zero_grad()
                functional.cross_entropy(clients[k](shard.inputs[batch]), shard.targets[batch]).backward()
                optimizer.step()
        states = [model.state_dict() for model in clients]
        total = sum(len(task.train[k]) for k in sampled)
        for name in states[0]:
            if not is_private(name) and states[0][name].is_floating_point():
                mean = sum(len(task.train[k]) / total * states[k][name] for k in sampled)
                for state in states:
                    state[name].copy_(mean)
    return clients


@pytest.mark.parametrize("name", PRIVATE)
def test_a_few_lines_of_torch_come_to_the_same(name: str, engine: Engine) -> None:
    task = a_task()
    expected = by_hand(task, lambda tensor: PRIVATE[name](tensor) or "running" in tensor)
    method = methods.make(name, task.model)
    federation = train(task, method, seed=SEED, engine=engine)
    assert not standing(task, method, federation, SEED)
    for k, model in enumerate(expected):
        client = federation.state.of_client(k)
        tensors = {**method.personalise(client), **client.private}
        wanted = {key: tensor for key, tensor in model.state_dict().items() if tensor.is_floating_point()}
        assert tensors.keys() == wanted.keys()
        for key, tensor in tensors.items():
            torch.testing.assert_close(tensor, wanted[key].detach(), rtol=1e-10, atol=1e-12)
    # and what is not private is the same for everyone, as the few lines have it too
    shared = (
        next(key for key in expected[0].state_dict() if not PRIVATE[name](key)) if name != "local" else ""
    )
    if shared:
        assert all(torch.equal(m.state_dict()[shared], expected[0].state_dict()[shared]) for m in expected)


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"stateful": False},
        {"statistics": "averaged"},
        {"server_optimizer": "adam", "server_learning_rate": 0.01},
        {"momentum": 0.9, "weight_decay": 0.01, "clip_norm": 0.5, "local_epochs": 2},
    ],
    ids=["plain", "stateless", "averaged-statistics", "adam", "momentum"],
)
@pytest.mark.parametrize(("build", "shape"), [(network, (4,)), (images, (2, 4, 4))], ids=["linear", "conv"])
def test_the_fast_engine_does_as_the_loop(
    name: str, settings: dict[str, Any], build: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    task = make_task(build, normal(*shape), **settings)
    method = methods.make(name, task.model)
    fast, loop = (train(task, method, seed=SEED, engine=engine) for engine in ("fast", "loop"))
    # before a batch norm a bias has no gradient but its rounding, which the server's Adam leaves
    still = {"0.bias"} if task.settings.server_optimizer == "adam" else set()
    assert standing(task, method, fast, SEED) <= still
    agree(fast, loop)


def test_what_is_private_is_not_sent(engine: Engine) -> None:
    task = a_task()
    history = train(task, methods.FedBN(task.model), engine=engine).history
    # float64: gamma and beta of 6 stay with the clients, 4 * 6 + 6 + 6 * 3 + 3 numbers travel, and N^k
    assert (history.bytes_up, history.bytes_down) == (51 * 8 + 4, 51 * 8)
    # the head's 6 * 3 + 3 stay
    assert train(task, methods.FedPer(task.model), engine=engine).history.bytes_down == 42 * 8
    # one that receives nothing has nothing to weigh either
    history = train(task, methods.Local(task.model), engine=engine).history
    assert (history.bytes_up, history.bytes_down) == (0, 0)
    # none of the methods holds more than the model
    assert history.parameters["added"] == 0


def test_a_client_that_trains_alone_hears_of_nobody(engine: Engine) -> None:
    """Whatever another client's data are, its model is the same."""
    task = a_task(participation=1.0)
    other = [
        Shard(7 * shard.inputs, shard.targets) if k == 2 else shard for k, shard in enumerate(task.train)
    ]
    changed = replace(task, train=other)
    one, two = (train(t, methods.Local(t.model), engine=engine).state.private for t in (task, changed))
    for name in one:
        same = [torch.equal(one[name][k], two[name][k]) for k in range(5)]
        assert same == [k != 2 for k in range(5)], name


def test_a_client_that_is_not_sampled_keeps_what_is_private(engine: Engine) -> None:
    task = a_task(rounds=1, participation=0.4)
    method = methods.FedPer(task.model)
    state = train(task, method, seed=SEED, engine=engine).state
    sampled = torch.randperm(5, generator=stream(SEED, "clients", 1))[:2].tolist()
    first = task.model.get_parameter("3.weight")
    assert [torch.equal(state.private["3.weight"][k], first) for k in range(5)] == [
        k not in sampled for k in range(5)
    ]


def test_stateless_local_training_begins_every_round_anew(engine: Engine) -> None:
    """With the same batches each round, any number of rounds is one round."""
    task = a_task(participation=1.0, batch_size=99, stateful=False, statistics="averaged")
    one, three = (
        train(task, methods.Local(task.model), engine=engine, rounds=rounds).state.private
        for rounds in (1, 3)
    )
    for name in task.model.state_dict():
        if name in one:
            torch.testing.assert_close(one[name], three[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", PRIVATE)
def test_an_interrupted_run_goes_on(name: str, tmp_path: Path, engine: Engine) -> None:
    task = a_task(rounds=4)
    whole = train(task, methods.make(name, task.model), engine=engine)

    def stop(federation: Federation) -> None:
        if len(federation.history.rounds) == 3:
            raise KeyboardInterrupt

    usual: dict[str, Any] = {"engine": engine, "checkpoints": tmp_path, "checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt):
        train(task, methods.make(name, task.model), on_round=stop, **usual)
    again = train(task, methods.make(name, task.model), **usual)
    identical(whole, again)


def test_options_make_the_method_again() -> None:
    model = network()
    assert methods.Local(model).options() == methods.FedBN(model).options() == {}
    assert methods.FedPer(model).options() == {"head": ["3"]}
    assert methods.FedPer(model, head=0).options() == {"head": ["0"]}
    options = json.loads(json.dumps(methods.FedPer(model, head=["0", "3"]).options()))
    again: Method = methods.make("fedper", model, **options)
    assert list(again.initialise(torch.zeros(2), 0).private) == ["0.weight", "0.bias", "3.weight", "3.bias"]


def test_a_head_may_be_a_module_of_layers_and_frozen_parameters_belong_to_nobody() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))
    state = methods.FedPer(model, head="1").initialise(torch.zeros(2), 0)
    assert list(state.private) == ["1.0.weight", "1.0.bias", "1.2.weight", "1.2.bias"]
    for parameter in model[1][2].parameters():
        parameter.requires_grad_(False)
    assert methods.FedPer(model).head == ["1.0"]
    # "1" is not the beginning of "10"
    deep = nn.Sequential(*(nn.Linear(2, 2) for _ in range(11)))
    assert list(methods.FedPer(deep, head="1").initialise(torch.zeros(2), 0).private) == [
        "1.weight",
        "1.bias",
    ]


@pytest.mark.parametrize(
    ("model", "head", "message"),
    [
        (network(), "fc", r"head names 'fc'.*0, 1, 3"),
        (network(), ["3", "2"], r"head names '2', which is no layer with parameters.*0, 1, 3"),
        (network(), ["0", "1", "3"], r"head is \['0', '1', '3'\], all of the model's.*'local'"),
        (nn.Linear(4, 2), None, r"head is \[''\], all of the model's.*'local' to share nothing"),
        (network(), [], r"head is \[\], nothing of the model's.*'fedavg'"),
    ],
)
def test_heads_that_leave_nothing_to_share_or_to_keep_are_refused(
    model: nn.Module, head: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        methods.FedPer(model, head=head)


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(6),
        nn.LayerNorm(6),
        nn.GroupNorm(2, 6),
        nn.RMSNorm(6),
        nn.InstanceNorm1d(6, affine=True),
    ],
)
def test_fedbn_keeps_norms_of_any_kind(norm: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 6), norm, nn.Linear(6, 3))
    assert list(methods.FedBN(model).initialise(torch.zeros(2), 0).private) == [
        f"1.{name}" for name, _ in norm.named_parameters()
    ]


def test_fedbn_keeps_of_a_norm_what_is_trained() -> None:
    model = network()
    model.get_parameter("1.bias").requires_grad_(False)
    assert list(methods.FedBN(model).initialise(torch.zeros(2), 0).private) == ["1.weight"]


@pytest.mark.parametrize(
    ("model", "numbers"),
    [
        (nn.Sequential(nn.Linear(4, 3)), "0 parameters of norms to train among its 2"),
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False)), "0 parameters of norms.*its 2"),
        (nn.Sequential(nn.BatchNorm1d(3)), "2 parameters of norms to train among its 2"),
    ],
)
def test_fedbn_needs_norms_and_something_else(model: nn.Module, numbers: str) -> None:
    with pytest.raises(InputError, match=rf"{numbers}.*nn.BatchNorm1d.*'fedavg'"):
        methods.FedBN(model)
