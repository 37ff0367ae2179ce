"""Methods: which parameter has which role, and the client's own model."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from floral_lite import InputError, Settings, Task, methods, train
from floral_lite.adaptors import Statistics
from floral_lite.federation.begin import on_model
from floral_lite.methods import METHODS, ROUTER, Method, Part
from floral_lite.methods.base import added_up
from floral_lite.precondition import precondition
from floral_lite.roles import Roles
from floral_lite.router import Router, closed_form, one_hot_logits

from .federations import stack

CLUSTERS = torch.tensor([0, 1, 2, 0, 1])
ADAPTED = ["floral", "mfl-ws", "local-adaptor"]


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


@pytest.mark.parametrize("name", ["floral", "local-adaptor"])
def test_the_clients_own_statistics_start_as_the_layers(name: str) -> None:
    layer = nn.BatchNorm1d(4)
    layer(3 + 2 * torch.randn(8, 4))
    method = methods.make(name, nn.Sequential(layer, nn.Linear(4, 2)), norms="batch_nora")
    (own,) = method.local_statistics(method.initialise(CLUSTERS, seed=0).of_client(2)).values()
    torch.testing.assert_close(
        own, Statistics(layer.get_buffer("running_mean"), layer.get_buffer("running_var"))
    )


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


@pytest.mark.parametrize("name", ADAPTED)
def test_the_seed_decides_the_adaptors(name: str) -> None:
    method = methods.make(name, nn.Linear(4, 2), rank=1)
    states = [method.initialise(CLUSTERS, seed) for seed in (0, 0, 1)]
    first, again, other = ((state.clustered | state.private)["weight.U"] for state in states)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_seed_decides_the_models_of_an_ensemble_but_the_first() -> None:
    method = methods.Ensemble(nn.Linear(4, 2), num_clusters=3)
    first, again, other = (method.initialise(CLUSTERS, seed).clustered["weight"] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert (first == other).flatten(1).all(dim=1).tolist() == [True, False, False]


def test_an_ensembles_noise_mixes_its_weights() -> None:
    method = methods.Ensemble(nn.Linear(4, 2), num_clusters=3, router={"noise": 1.0})
    client, draws = trained_client(method), torch.tensor([0.0, 0.5, 1.0])
    pi = (client.private[ROUTER] + draws).softmax(dim=0)
    expected = torch.einsum("c,c...->...", pi, client.clustered["weight"])
    torch.testing.assert_close(merged(method.parts(client, draws))["weight"], expected)


def test_the_state_has_the_models_precision(ragged_task: Task) -> None:
    for method in (methods.FLoRAL(ragged_task.model, rank=1), methods.Ensemble(ragged_task.model)):
        state = method.initialise(CLUSTERS, seed=0)
        assert {tensor.dtype for tensor in state.tensors()} == {torch.float64}


def test_the_budget_is_one_percent_unless_told() -> None:
    model = nn.Linear(784, 200)
    assert methods.FLoRAL(model).plan == methods.FLoRAL(model, budget=0.01).plan
    assert methods.FLoRAL(model).plan != methods.FLoRAL(model, budget=0.1).plan


def test_options_say_how_to_make_the_method_again() -> None:
    model = nn.Linear(4, 2)
    adaptors = {
        "rank": 3,
        "budget": None,
        "init": "authors",
        "convolution": "filter",
        "biases": False,
        "norms": "none",
    }
    router = {"temperature": 0.5, "floor": 0.01, "noise": 1.0, "entropy": -0.2}
    rest = {"num_clusters": 2, "routing": "optimal", "precondition": False}
    options = methods.FLoRAL(model, **adaptors, **rest, router=Router(**router)).options()
    assert options == {**adaptors, **rest, "router": router}
    # also after they were kept as JSON, as a history does
    assert methods.make("floral", model, **json.loads(json.dumps(options))).options() == options
    assert methods.make("floral", model).options()["budget"] == 0.01
    assert methods.make("floral", model).options()["router"] == asdict(Router())
    assert methods.FedAvg(model).options() == {}


@pytest.mark.parametrize("name", ADAPTED)
def test_the_options_of_adaptors_reach_the_plan(name: str) -> None:
    make: Any = partial(methods.make, name, nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)), rank=1)
    assert list(make().plan) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert list(make(biases=False, norms="none").plan) == ["0.weight"]
    assert make(norms="batch_nora").plan["1.bias"].kind == "batch_nora"
    for kind in ("balanced", "channel", "channel_in", "channel_out", "filter", "reshaped"):
        assert make(convolution=kind).plan["0.weight"].kind == kind
    assert make(init="authors").plan["0.weight"].init == "authors"
    assert make(precondition=False).options()["precondition"] is False


def trained_client(method: Method) -> Roles:
    """One client of a method, with everything away from zero."""
    client = method.initialise(CLUSTERS, seed=0).of_client(0)
    return client.map(lambda tensor: torch.randn(tensor.shape, dtype=tensor.dtype))


def merged(parts: Mapping[str, Part]) -> dict[str, torch.Tensor]:
    return {name: added_up(part) for name, part in parts.items()}


def test_noise_is_what_was_drawn_in_training_and_absent_elsewhere() -> None:
    method = methods.FLoRAL(nn.Linear(4, 2), num_clusters=3, rank=1, router=Router(noise=0.5))
    client, draws = trained_client(method), torch.tensor([0.75, 0.0, 0.25])
    theta = client.private[ROUTER]
    pi = torch.softmax(theta + 0.5 * draws, 0)
    expected = client.shared["bias"] + sum(pi[c] * client.clustered["bias.L"][c] for c in range(3))
    torch.testing.assert_close(merged(method.parts(client, draws))["bias"], expected)
    quiet = methods.FLoRAL(method.model, num_clusters=3, rank=1).personalise(client)
    for name, parameter in method.personalise(client).items():
        assert torch.equal(parameter, quiet[name])
        assert torch.equal(merged(method.parts(client))[name], parameter)
    # nor has the mixture that weighs the client in the averages
    assert torch.equal(method.mixture(client.private), torch.softmax(theta, 0))


@pytest.mark.parametrize(
    ("name", "options"),
    [("ensemble", {"mix": "outputs"}), ("mfl", {}), ("mfl-ws", {"rank": 1}), ("fedem", {})],
)
def test_noise_reaches_the_losses_of_methods_that_mix_what_their_networks_say(
    name: str, options: dict[str, Any]
) -> None:
    method = methods.make(name, nn.Linear(4, 2), num_clusters=3, router={"noise": 0.5}, **options)
    client, draws = trained_client(method), torch.tensor([0.75, 0.0, 0.25])
    moved = client._replace(private=client.private | {ROUTER: client.private[ROUTER] + 0.5 * draws})
    outputs = list(torch.randn(3, 5, 2))
    noisy, expected, quiet = (
        method.losses(one, outputs, lambda output: output.square().sum(dim=-1), drawn)
        for one, drawn in ((client, draws), (moved, None), (client, None))
    )
    torch.testing.assert_close(noisy, expected)
    assert not torch.allclose(noisy, quiet)


def test_noise_is_drawn_from_the_generator_that_is_given_a_row_a_step() -> None:
    noisy = methods.FLoRAL(nn.Linear(4, 2), num_clusters=3, rank=1, router=Router(noise=1.0))
    before = torch.get_rng_state()
    first, again, other = (noisy.draw(1000, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert first is not None
    assert again is not None
    assert other is not None
    assert first.shape == (1000, 3)
    assert torch.equal(first, again)
    assert not (first == other).all(dim=1).any()
    # uniform in [0, 1), another one each step
    assert 0 <= float(first.min()) < 0.01 < 0.99 < float(first.max()) < 1
    assert len(first.unique()) > 2990
    assert torch.equal(torch.get_rng_state(), before)
    # without noise nothing is drawn, so the batches of a seed stay what they are
    generator = torch.Generator().manual_seed(0)
    for method in (methods.FLoRAL(noisy.model, 3, rank=1), methods.FedAvg(noisy.model)):
        assert method.draw(5, generator) is None
    assert torch.equal(generator.get_state(), torch.Generator().manual_seed(0).get_state())


@pytest.mark.parametrize("name", METHODS)
def test_a_stack_of_clients_is_every_client_by_itself(name: str) -> None:
    """What a fast engine relies on: tensors with an axis of clients in front."""
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 2)).double()
    method = methods.make(name, model)
    state = method.initialise(CLUSTERS, seed=0)
    state = state.map(lambda tensor: torch.randn(tensor.shape, dtype=tensor.dtype))
    clients = [state.of_client(k).map(lambda tensor, k=k: tensor + 0.1 * k) for k in range(len(CLUSTERS))]
    stacked = stack(clients)
    draws = torch.rand(len(clients), 4)
    together = merged(method.parts(stacked, draws))
    mixtures = method.mixtures(stacked.private, len(clients))
    stepped = method.precondition(stacked, stacked)
    assert len(mixtures) == len(clients)
    for k, client in enumerate(clients):
        for parameter, tensor in merged(method.parts(client, draws[k])).items():
            torch.testing.assert_close(together[parameter][k], tensor)
        torch.testing.assert_close(mixtures[k], method.mixture(client.private))
        own = method.precondition(client, client)
        for one, other in zip(stepped.at(k).tensors(), own.tensors(), strict=True):
            torch.testing.assert_close(one, other)


def test_the_mixture_that_clients_report_is_the_one_they_use() -> None:
    """With temperature and floor: the clusters are averaged with the weights of the personal models."""
    router = Router(temperature=0.5, floor=0.05)
    method = methods.FLoRAL(nn.Linear(4, 2), num_clusters=3, rank=1, router=router)
    client = trained_client(method)
    pi = 0.05 + 0.85 * torch.softmax(client.private[ROUTER] / 0.5, 0)
    torch.testing.assert_close(method.mixture(client.private), pi)
    expected = client.shared["bias"] + sum(pi[c] * client.clustered["bias.L"][c] for c in range(3))
    torch.testing.assert_close(method.personalise(client)["bias"], expected)


@pytest.mark.parametrize("name", ["floral", "ensemble"])
def test_closed_form_routing_is_the_papers_update(name: str) -> None:
    """pi_c prop exp(-eta f^k(w_c)), whatever the router was before, at a temperature of 1 / eta."""
    model = nn.Linear(4, 2)
    method = methods.make(name, model, num_clusters=3, routing="closed-form", router={"temperature": 0.5})
    client = trained_client(method)
    losses = torch.tensor([0.3, 0.1, 0.7])
    own = method.begin(client, losses).private
    torch.testing.assert_close(method.mixture(own), closed_form(losses, learning_rate=2.0))
    # of a model in another precision the losses are in that, and the router stays as it is
    assert method.begin(client, losses.double()).private[ROUTER].dtype == torch.float32
    # the candidates are the C models, in their order
    for c, candidate in enumerate(method.candidates(client)):
        alone = client._replace(private={ROUTER: one_hot_logits(torch.tensor(c), 3)})
        torch.testing.assert_close(merged(candidate), merged(method.parts(alone)))
    assert len(method.candidates(client)) == 3


def test_the_penalty_is_the_negative_entropy_of_the_mixture() -> None:
    method = methods.FLoRAL(nn.Linear(4, 2), num_clusters=4, rank=1, router=Router(entropy=0.3))
    state = method.initialise(CLUSTERS, seed=0)
    uniform = state.of_client(0)
    assert float(method.penalty(uniform, uniform)) == pytest.approx(-0.3 * math.log(4))
    # of a stack of clients it is the sum, so that each one's gradient is its own
    assert float(method.penalty(state, state)) == pytest.approx(-0.3 * math.log(4) * len(CLUSTERS))
    assert methods.FLoRAL(nn.Linear(4, 2), rank=1).penalty(uniform, uniform) == 0
    assert methods.FedAvg(nn.Linear(4, 2)).penalty(uniform, uniform) == 0


@pytest.mark.parametrize("name", ["floral", "local-adaptor"])
def test_adaptors_have_the_precision_of_what_they_are_added_to(name: str) -> None:
    body = nn.Linear(4, 4).half().requires_grad_(False)
    head = nn.Linear(4, 2)
    state = methods.make(name, nn.Sequential(body, head), rank=1).initialise(torch.arange(3), 0)
    assert {tensor.dtype for tensor in state.tensors()} == {torch.float32}


def test_preconditioning_changes_the_gradients_of_factors_only() -> None:
    model = nn.Linear(4, 2)
    method = methods.FLoRAL(model, num_clusters=3, rank=2, precondition=True)
    client, gradients = trained_client(method), trained_client(method)
    step = method.precondition(client, gradients)
    assert step.shared is gradients.shared
    assert step.private[ROUTER] is gradients.private[ROUTER]
    assert torch.equal(step.clustered["bias.L"], gradients.clustered["bias.L"])
    v = client.clustered["weight.V"]
    # G_U (V^T V + eps I)^-1
    inverse = (v.mT @ v + 1e-5 * torch.eye(2)).inverse()
    expected = gradients.clustered["weight.U"] @ inverse
    torch.testing.assert_close(step.clustered["weight.U"], expected, rtol=1e-3, atol=1e-3)
    off = methods.FLoRAL(model, num_clusters=3, rank=2, precondition=False)
    assert off.precondition(client, gradients) is gradients
    assert methods.FedAvg(model).precondition(client, gradients) is gradients


def test_preconditioning_is_the_same_for_an_adaptor_of_the_clients_own() -> None:
    method = methods.LocalAdaptor(nn.Linear(4, 2), rank=2)
    client, gradients = trained_client(method), trained_client(method)
    step = method.precondition(client, gradients)
    expected = precondition(method.plan, client.private, gradients.private)
    assert all(torch.equal(step.private[name], tensor) for name, tensor in expected.items())
    assert not torch.equal(step.private["weight.U"], gradients.private["weight.U"])


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_made_by_name(name: str) -> None:
    method = methods.make(name, nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)))
    assert type(method) is METHODS[name]
    assert method.name == name


@pytest.mark.parametrize("name", METHODS)
def test_what_is_no_network_is_refused(name: str, ragged_task: Task) -> None:
    for model in (ragged_task, nn.Linear):
        with pytest.raises(
            InputError, match=r"model is .*; give an nn\.Module|made on another model .* make it"
        ):
            train(ragged_task, methods.make(name, model))  # type: ignore[arg-type]


@pytest.mark.parametrize(("typo", "nearest"), [("flora", "floral"), ("fedavgg", "fedavg"), ("FLORAL", "")])
def test_an_unknown_method_is_refused_with_the_nearest_name(typo: str, nearest: str) -> None:
    with pytest.raises(
        InputError, match=f"no method is called '{typo}'.*did you mean '{nearest}.*fedavg.*floral"
    ):
        methods.make(typo, nn.Linear(4, 2))


def test_numpys_numbers_are_taken_and_recorded_as_pythons() -> None:
    for name in ("floral", "ensemble", "federated-clustering"):
        options = methods.make(name, nn.Linear(4, 2), num_clusters=np.int64(3)).options()
        assert type(options["num_clusters"]) is int
    for name, number in {"rank": np.int64(1), "budget": np.float32(0.5)}.items():
        kept = methods.make("floral", nn.Linear(4, 2), **{name: number}).options()[name]
        assert type(kept) is type(number.item())


def test_a_method_is_told_in_a_line() -> None:
    assert repr(methods.FedAvg(nn.Linear(4, 2))) == "FedAvg()"
    told = repr(methods.FLoRAL(nn.Linear(4, 2), num_clusters=3, rank=1))
    assert told.startswith("FLoRAL(num_clusters=3, routing='learned', router={'temperature': 1.0, ")
    assert "\n" not in told


@pytest.mark.parametrize("name", methods.METHODS)
def test_no_option_has_the_name_of_a_setting(name: str) -> None:
    """A history holds both side by side."""
    assert not set(methods.option_names(name)) & {field.name for field in fields(Settings)}


def test_options_that_are_handed_on_are_a_method_s_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(methods.FLoRAL):
        def __init__(self, model: nn.Module, strength: float = 1.0, **options: Any) -> None:
            super().__init__(model, **options)

    monkeypatch.setitem(METHODS, "mine", Mine)
    assert methods.option_names("mine") == ["strength", *methods.option_names("floral")]
    assert methods.make("mine", nn.Linear(4, 3), num_clusters=3, rank=1)
    with pytest.raises(InputError, match="mine has no option centre"):
        methods.make("mine", nn.Linear(4, 3), centre=1)


def test_an_option_that_the_method_lacks_is_refused() -> None:
    with pytest.raises(InputError, match=r"fedavg has no option num_clusters.*4"):
        methods.make("fedavg", nn.Linear(4, 2), num_clusters=4)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("value", ["x", 2.5, True, [1], {"a": 1}, {1: 2}, object(), math.nan])
def test_whatever_is_given_for_an_option_is_taken_or_named(name: str, value: object) -> None:
    network, known = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), methods.option_names(name)
    for option in known:
        size = {} if option in ("rank", "budget") or "rank" not in known else {"rank": 1}
        message = option
        try:
            methods.make(name, network, **{option: value}, **size)
        except InputError as error:
            message = str(error)
        assert re.search(rf"\b{option}\b|choice of a router", message), message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"routing": "best"}, "routing is 'best'.*'learned'.*'optimal'"),
        ({"init": "zeros"}, "init is 'zeros'"),
        ({"rank": 2, "budget": 0.1}, "rank is 2 and budget is 0.1"),
        ({"rank": 0}, "rank is 0"),
        ({"rank": "2"}, "rank is '2'; it must be a whole number"),
        ({"num_clusters": 2.0}, r"num_clusters is 2\.0; it must be a whole number"),
        ({"budget": 0.0}, r"budget is 0\.0"),
        ({"convolution": "best"}, "convolution is 'best'.*'balanced'"),
        ({"norms": "batch"}, "norms is 'batch'.*'batch_nora'"),
        ({"router": {"temperature": 0.0}}, r"temperature is 0\.0"),
        ({"router": {"floor": "x"}}, "floor is 'x'; it must be a number"),
        ({"router": 3}, "router is 3; give a Router"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        methods.FLoRAL(nn.Linear(4, 2), **options)


@pytest.mark.parametrize("num_clusters", [0, -3])
def test_fewer_than_one_cluster_is_refused(num_clusters: int) -> None:
    with pytest.raises(InputError, match=f"num_clusters is {num_clusters}"):
        methods.FLoRAL(nn.Linear(4, 2), num_clusters=num_clusters, rank=1).initialise(CLUSTERS, seed=0)


def test_a_method_and_what_it_adapts_with_go_where_the_model_goes() -> None:
    """Only they: the method that was given keeps its own."""
    here, there = nn.Linear(4, 2), nn.Linear(4, 2)
    method = methods.FineTuned(here)
    moved = on_model(method, there)
    assert isinstance(method.adaptation, methods.FedAvg)
    assert isinstance(moved.adaptation, methods.FedAvg)
    assert moved.adaptation.model is there
    assert method.adaptation.model is here


@pytest.mark.parametrize("frozen_at_first", [False, True])
@pytest.mark.parametrize("name", ["local", "fedper", "fedbn"])
def test_what_is_frozen_may_not_change_after_it_was_said_what_is_private(
    name: str, frozen_at_first: bool
) -> None:
    """What was thawed would be shared, without a word."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    model[0].requires_grad_(not frozen_at_first)
    method = methods.make(name, model)
    model[0].requires_grad_(frozen_at_first)
    with pytest.raises(InputError, match=r"\['0\.bias', '0\.weight'\] were frozen .* make the method anew"):
        method.initialise(torch.zeros(2, dtype=torch.int64), 0)
