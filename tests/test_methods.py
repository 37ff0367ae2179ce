"""Methods: which parameter has which role, and the client's own model."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from floral_lite import InputError, Task, methods
from floral_lite.methods import METHODS, ROUTER

CLUSTERS = torch.tensor([0, 1, 2, 0, 1])


def shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def test_fedavg_shares_everything() -> None:
    model = nn.Linear(4, 2)
    method = methods.FedAvg(model)
    state = method.initialise(CLUSTERS, seed=0)
    assert shapes(state.shared) == {"weight": (2, 4), "bias": (2,)}
    assert state.clustered == {}
    assert state.private == {}
    personal = method.personalise(state.of_client(3))
    assert all(torch.equal(personal[name], parameter) for name, parameter in model.named_parameters())
    assert torch.equal(method.mixture(state.of_client(3).private), torch.ones(1))


def test_floral_shares_the_base_clusters_the_adaptors_and_keeps_the_router_private() -> None:
    model = nn.Linear(4, 2)
    state = methods.FLoRAL(model, num_clusters=3, rank=1).initialise(CLUSTERS, seed=0)
    assert shapes(state.shared) == {"weight": (2, 4), "bias": (2,)}
    assert shapes(state.clustered) == {"weight.U": (3, 2, 1), "weight.V": (3, 4, 1), "bias.L": (3, 2)}
    assert shapes(state.private) == {ROUTER: (5, 3)}


@pytest.mark.parametrize("init", ["paper", "authors"])
@pytest.mark.parametrize("routing", ["learned", "optimal"])
def test_every_client_of_floral_starts_from_the_base(init: Any, routing: Any) -> None:
    model = nn.Linear(4, 2)
    method = methods.FLoRAL(model, num_clusters=3, rank=2, routing=routing, init=init)
    state = method.initialise(CLUSTERS, seed=0)
    for client in range(len(CLUSTERS)):
        personal = method.personalise(state.of_client(client))
        assert all(torch.equal(personal[name], parameter) for name, parameter in model.named_parameters())


def test_learned_routing_starts_uniform_and_never_sees_the_clusters() -> None:
    method = methods.FLoRAL(nn.Linear(4, 2), num_clusters=4, rank=1)
    first, second = (method.initialise(clusters, seed=0) for clusters in (CLUSTERS, 0 * CLUSTERS))
    assert torch.equal(method.mixture(first.of_client(2).private), torch.full((4,), 0.25))
    assert all(torch.equal(a, b) for a, b in zip(first.tensors(), second.tensors(), strict=True))


@pytest.mark.parametrize("num_clusters", [2, 3, 5])
def test_optimal_routing_is_one_hot_at_the_true_cluster(num_clusters: int) -> None:
    method = methods.FLoRAL(nn.Linear(4, 2), num_clusters=num_clusters, rank=1, routing="optimal")
    state = method.initialise(CLUSTERS, seed=0)
    for client, cluster in enumerate(CLUSTERS.tolist()):
        expected = torch.eye(num_clusters)[cluster % num_clusters]
        assert torch.equal(method.mixture(state.of_client(client).private), expected)


def test_the_seed_decides_the_adaptors() -> None:
    method = methods.FLoRAL(nn.Linear(4, 2), rank=1)
    first, again, other = (method.initialise(CLUSTERS, seed).clustered["weight.U"] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_state_has_the_models_precision(ragged_task: Task) -> None:
    state = methods.FLoRAL(ragged_task.model, rank=1).initialise(CLUSTERS, seed=0)
    assert {tensor.dtype for tensor in state.tensors()} == {torch.float64}


def test_the_budget_is_one_percent_unless_told() -> None:
    model = nn.Linear(784, 200)
    assert methods.FLoRAL(model).plan == methods.FLoRAL(model, budget=0.01).plan
    assert methods.FLoRAL(model).plan != methods.FLoRAL(model, budget=0.1).plan


def test_options_say_how_to_make_the_method_again() -> None:
    model = nn.Linear(4, 2)
    method = methods.FLoRAL(model, num_clusters=2, rank=3, routing="optimal", init="authors")
    options = method.options()
    assert options == {
        "num_clusters": 2, "rank": 3, "budget": None, "init": "authors", "routing": "optimal"
    }  # fmt: skip
    assert methods.make("floral", model, **options).options() == options
    assert methods.make("floral", model).options()["budget"] == 0.01
    assert methods.FedAvg(model).options() == {}


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_made_by_name(name: str) -> None:
    method = methods.make(name, nn.Linear(4, 2))
    assert type(method) is METHODS[name]
    assert method.name == name


@pytest.mark.parametrize(("typo", "nearest"), [("flora", "floral"), ("fedavgg", "fedavg"), ("FLORAL", "")])
def test_an_unknown_method_is_refused_with_the_nearest_name(typo: str, nearest: str) -> None:
    with pytest.raises(
        InputError, match=f"no method is called '{typo}'.*did you mean '{nearest}.*fedavg, floral"
    ):
        methods.make(typo, nn.Linear(4, 2))


def test_an_option_that_the_method_lacks_is_refused() -> None:
    with pytest.raises(InputError, match=r"fedavg has no option num_clusters.*4"):
        methods.make("fedavg", nn.Linear(4, 2), num_clusters=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"routing": "best"}, "routing is 'best'.*'learned' or 'optimal'"),
        ({"init": "zeros"}, "init is 'zeros'"),
        ({"rank": 2, "budget": 0.1}, "rank is 2 and budget is 0.1"),
        ({"rank": 0}, "rank is 0"),
        ({"budget": 0.0}, r"budget is 0\.0"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        methods.FLoRAL(nn.Linear(4, 2), **options)


@pytest.mark.parametrize("num_clusters", [0, -3])
def test_fewer_than_one_cluster_is_refused(num_clusters: int) -> None:
    with pytest.raises(InputError, match=f"num_clusters is {num_clusters}"):
        methods.FLoRAL(nn.Linear(4, 2), num_clusters=num_clusters, rank=1).initialise(CLUSTERS, seed=0)
