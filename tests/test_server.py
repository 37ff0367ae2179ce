"""The server's step against torch's own optimizers, which follow the averaged update as a gradient."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from floral_lite import Settings, methods, train
from floral_lite.federation import Engine, Shard
from floral_lite.federation.server import first_moments, server_step
from floral_lite.methods import ROUTER
from floral_lite.roles import Roles

from .federations import first_state, make_task, normal

NUM_CLUSTERS = 3

OPTIMIZERS: dict[str, tuple[Settings, Any]] = {
    "sgd": (Settings(server_learning_rate=0.3), lambda p: torch.optim.SGD(p, lr=0.3)),
    "momentum": (Settings(server_momentum=0.9), lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9)),
    "slow momentum": (
        Settings(server_momentum=0.5, server_learning_rate=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5),
    ),
    "adam": (
        Settings(server_optimizer="adam", server_learning_rate=0.01),
        lambda p: torch.optim.Adam(p, lr=0.01),
    ),
}


def a_state(generator: torch.Generator) -> Roles:
    """Two layers, their adaptors, running statistics, routers of four clients; double precision."""

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return Roles(
        {
            "0.weight": drawn(4, 5),
            "0.bias": drawn(4),
            "1.running_mean": drawn(4),
            "1.running_var": drawn(4) ** 2,
        },
        {
            "0.weight.U": drawn(NUM_CLUSTERS, 4, 2),
            "0.bias.L": drawn(NUM_CLUSTERS, 4),
        },
        {ROUTER: drawn(4, NUM_CLUSTERS)},
    )


STATISTICS = ("1.running_mean", "1.running_var")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_five_steps_are_those_of_torch(name: str) -> None:
    settings, make = OPTIMIZERS[name]
    generator = torch.Generator().manual_seed(1)
    state = a_state(generator)
    moments = first_moments(state, settings)
    trained = {n: t for role in state[:2] for n, t in role.items() if n not in STATISTICS}
    parameters = {n: nn.Parameter(t.clone()) for n, t in trained.items()}
    optimizer = make(parameters.values())
    for number in range(1, 6):
        average = a_state(generator)
        for n, parameter in parameters.items():
            # the gradient is the averaged update, old minus new
            parameter.grad = parameter.detach() - (average.shared | average.clustered)[n]
        optimizer.step()
        state, moments = server_step(state, average, moments, settings, number)
        for n, parameter in parameters.items():
            torch.testing.assert_close(
                (state.shared | state.clustered)[n], parameter.detach(), rtol=1e-12, atol=1e-12
            )
        # private parameters and statistics are taken as they come
        assert torch.equal(state.private[ROUTER], average.private[ROUTER])
        for n in STATISTICS:
            torch.testing.assert_close(state.shared[n], average.shared[n], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_nothing_is_changed_in_place(name: str) -> None:
    settings, _ = OPTIMIZERS[name]
    generator = torch.Generator().manual_seed(1)
    state, average = a_state(generator), a_state(generator)
    moments = first_moments(state, settings)
    given = [state, average, *moments.values()]
    copies = [roles.map(Tensor.clone) for roles in given]
    server_step(state, average, moments, settings, 1)
    for roles, copy in zip(given, copies, strict=True):
        assert all(torch.equal(*pair) for pair in zip(roles.tensors(), copy.tensors(), strict=True))


@pytest.mark.parametrize(
    ("name", "moment", "kept"), [("momentum", "velocity", 0.9), ("adam", "square", 0.999)]
)
def test_moments_of_parameters_in_half_precision_decay_as_others(name: str, moment: str, kept: float) -> None:
    """In bfloat16 0.999 v rounds to v: what one round has moved far would stand still ever after."""
    settings, _ = OPTIMIZERS[name]
    generator = torch.Generator().manual_seed(1)
    before, average = (a_state(generator).map(Tensor.bfloat16) for _ in range(2))
    after, moments = server_step(before, average, first_moments(before, settings), settings, 1)
    assert {tensor.dtype for tensor in after.tensors()} == {torch.bfloat16}
    _, later = server_step(after, after, moments, settings, 2)
    for old, new in zip(moments[moment].tensors(), later[moment].tensors(), strict=True):
        torch.testing.assert_close(new, (kept * old.double()).float())


def test_plain_averaging_takes_the_average_itself() -> None:
    generator = torch.Generator().manual_seed(1)
    state, average = a_state(generator), a_state(generator)
    assert first_moments(state, Settings()) == {}
    after, moments = server_step(state, average, {}, Settings(), 1)
    assert after is average
    assert moments == {}
    # Adam does not, and the usual eta of 1 is no exception
    assert not Settings(server_optimizer="adam").averages_plainly


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_cluster_without_clients_stands_still_although_the_others_move_on(name: str) -> None:
    """Also where the momentum of an earlier round would have carried it on."""
    settings, _ = OPTIMIZERS[name]
    generator = torch.Generator().manual_seed(1)
    before = a_state(generator)
    moments = first_moments(before, settings)
    state, moments = server_step(before, a_state(generator), moments, settings, 1)
    average = a_state(generator)
    for n, tensor in average.clustered.items():
        tensor[1] = state.clustered[n][1]
        tensor[0, 0] = state.clustered[n][0, 0]  # a part of a slice may stand still, and the rest moves
    after, _ = server_step(state, average, moments, settings, 2)
    for n, tensor in after.clustered.items():
        assert torch.equal(tensor[1], state.clustered[n][1])
        moved = tensor != state.clustered[n]
        assert moved[0, 1:].all()
        assert moved[2].all()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_that_are_single_numbers(name: str) -> None:
    """Of an Ensemble's models: a temperature, say."""
    settings, _ = OPTIMIZERS[name]
    before = Roles({}, {"scale": torch.tensor([1.0, 2.0, 3.0])}, {})
    average = Roles({}, {"scale": torch.tensor([2.0, 2.0, 5.0])}, {})
    after, _ = server_step(before, average, first_moments(before, settings), settings, 1)
    assert (after.clustered["scale"] > before.clustered["scale"]).tolist() == [True, False, True]


def test_a_run_with_momentum_is_its_averages_followed_by_torch() -> None:
    """From a real federation: only the first round's average is that of plain averaging."""
    task = make_task(lambda: nn.Linear(4, 3), normal(4), rounds=1)
    method = methods.FLoRAL(task.model, 2, rank=1)
    first = first_state(task, method)
    average = train(task, method).state
    slow = train(task, method, server_learning_rate=0.25, server_momentum=0.9)
    for n, tensor in first.shared.items():
        torch.testing.assert_close(slow.state.shared[n], tensor + (average.shared[n] - tensor) / 4)
    assert torch.equal(slow.state.private[ROUTER], average.private[ROUTER])
    # what is remembered has the shapes of what is averaged
    assert slow.moments.keys() == {"velocity"}
    assert slow.moments["velocity"].map(Tensor.size) == first._replace(private={}).map(Tensor.size)
    adam = train(task, method, server_optimizer="adam", server_learning_rate=0.01)
    assert adam.moments.keys() == {"mean", "square"}


def test_averaged_statistics_are_the_clients_plain_average(engine: Engine) -> None:
    """Whatever the server's optimizer, which is for what is trained."""
    runs = {}
    for name, changes in (
        ("plain", {}),
        ("adam", {"server_optimizer": "adam", "server_learning_rate": 0.01}),
    ):
        task = make_task(
            lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), normal(4), rounds=1,
            statistics="averaged", participation=1.0, **changes,
        )  # fmt: skip
        runs[name] = train(task, methods.FedAvg(task.model), engine=engine).state
    for n in ("0.running_mean", "0.running_var"):
        torch.testing.assert_close(runs["adam"].shared[n], runs["plain"].shared[n], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(runs["adam"].shared["0.weight"], runs["plain"].shared["0.weight"])
    # the first norm's statistics do not depend on what is trained: by hand, with momentum 0.1 and N^k
    task = make_task(
        lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), normal(4), batch_size=99, participation=1.0
    )
    means = torch.stack([shard.inputs.mean(dim=0) for shard in task.train])
    state = train(task, methods.FedAvg(task.model), engine=engine, rounds=1, statistics="averaged").state
    weights = torch.tensor([float(len(shard)) for shard in task.train], dtype=torch.float64)
    expected = 0.1 * (weights / weights.sum()) @ means
    torch.testing.assert_close(state.shared["0.running_mean"], expected)


def test_adam_leaves_a_weight_that_no_client_moves(engine: Engine) -> None:
    """Where an input is always 0 its weights have no gradient, and in single precision an average rounds."""
    task = make_task(lambda: nn.Linear(4, 3), normal(4), rounds=3, participation=1.0)
    shards = [
        Shard((shard.inputs * torch.tensor([0.0, 1, 1, 1])).float(), shard.targets) for shard in task.train
    ]
    task = replace(task, model=task.model.float(), train=shards, test=shards)
    settings = {"server_optimizer": "adam", "server_learning_rate": 0.1}
    before = task.model.weight.detach().clone()
    after = train(task, methods.FedAvg(task.model), engine=engine, **settings).state.shared["weight"]
    assert torch.equal(after[:, 0], before[:, 0])
    assert (after[:, 1:] - before[:, 1:]).abs().min() > 0
