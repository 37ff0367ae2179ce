"""One client's model, taken out of a federation: it answers as the federation was tested."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from floral_lite import (
    Federation,
    InputError,
    Router,
    Task,
    export_peft,
    load,
    methods,
    personal_floral,
    personal_model,
    save,
    tasks,
    train,
)
from floral_lite.methods import ROUTER, Part
from floral_lite.roles import Roles

from .federations import make_task, normal


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


class Mine(Router):
    """A rule of one's own."""


def trained(name: str, **settings: Any) -> tuple[Task, methods.Method, Federation]:
    task = make_task(network, normal(4), sizes=(7, 6, 10, 7, 6), **settings)
    options = {"budget": 0.5} if name in ("floral", "local-adaptor", "mfl-ws") else {}
    method = methods.make(name, task.model, **options)
    return task, method, train(task, method)


def loss_of(model: nn.Module, task: Task, client: int) -> float:
    with torch.no_grad():
        return float(functional.cross_entropy(model(task.test[client].inputs), task.test[client].targets))


# these answer with several networks, or train on before they are tested
OTHERS = {"mfl", "mfl-ws", "fedem", "fine-tuned", "per-fedavg"}


@pytest.mark.parametrize("statistics", ["local", "averaged"])
@pytest.mark.parametrize("name", sorted(methods.METHODS.keys() - OTHERS))
def test_it_has_the_loss_that_the_history_tells(name: str, statistics: str) -> None:
    task, method, federation = trained(name, statistics=statistics)
    told = federation.history.evaluated[-1].client_loss
    assert told is not None
    assert len(set(told)) == 5
    for client in range(task.num_clients):
        model = personal_model(task, method, federation.state, client)
        assert loss_of(model, task, client) == pytest.approx(told[client], rel=1e-10)
        # the plain network takes it
        plain = network().double().eval()
        plain.load_state_dict(model.state_dict())
        assert loss_of(plain, task, client) == pytest.approx(told[client], rel=1e-10)


def test_a_federation_carries_its_state() -> None:
    task, method, federation = trained("floral")
    for take in (personal_model, personal_floral):
        whole, state = (take(task, method, given, 3).state_dict() for given in (federation, federation.state))
        assert all(torch.equal(whole[name], tensor) for name, tensor in state.items())
        with pytest.raises(InputError, match="state is of type History; give what train returned"):
            take(task, method, federation.history, 3)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"budget is 0\.4, but what was trained has 0\.5"):
            take(task, methods.FLoRAL(task.model, budget=0.4), federation, 3)
        with pytest.raises(InputError, match=r"router is .*'rule': 'Mine'}, but what was trained has"):
            take(task, methods.FLoRAL(task.model, budget=0.5, router=Mine()), federation, 3)
    for change, says in (
        ({"name": "other"}, "task is 'other'"),
        ({"details": {"task_seed": 5}}, "task_seed is 5"),
    ):
        with pytest.raises(
            InputError, match=f"{says}, but what was trained has .* give the task and the method"
        ):
            personal_model(replace(task, **change), method, federation, 3)
    with pytest.raises(InputError, match="method is 'fedavg', but what was trained has 'floral'"):
        personal_model(task, methods.FedAvg(task.model), federation, 3)
    other = replace(task, model=nn.Sequential(task.model, nn.Identity()))
    with pytest.raises(InputError, match=r"network is 'Sequential-.*, but what was trained has"):
        personal_model(other, methods.FLoRAL(other.model, budget=0.5), federation, 3)


@pytest.mark.parametrize("name", ["mfl", "mfl-ws", "fedem"])
def test_a_mixture_of_outputs_is_no_single_network(name: str) -> None:
    task, method, federation = trained(name)
    with pytest.raises(InputError, match=f"client 2 of {name} answers what its predict makes of . network"):
        personal_model(task, method, federation.state, 2)


@pytest.mark.parametrize("norms", ["affine", "batch_nora", "none"])
@pytest.mark.parametrize("routing", ["learned", "optimal"])
def test_a_floral_of_a_client_answers_as_its_merged_model(norms: str, routing: str, tmp_path: Any) -> None:
    task = make_task(network, normal(4), sizes=(7, 6, 10, 7, 6))
    options: dict[str, Any] = {"norms": norms, "routing": routing, "router": {"temperature": 0.5}}
    method = methods.FLoRAL(task.model, num_clusters=3, rank=2, **options)
    state = train(task, method).state
    for client in (0, 3):
        inputs = task.test[client].inputs
        model = personal_floral(task, method, state, client)
        with torch.no_grad():
            outputs = personal_model(task, method, state, client)(inputs)
            torch.testing.assert_close(model(inputs), outputs)
            torch.testing.assert_close(model.merge()(inputs), outputs)
            assert not torch.allclose(model.base(inputs), outputs)
        torch.testing.assert_close(model.mixture(), method.mixture(state.of_client(client).private))
        for name, buffer in model.statistics.named_buffers():
            layer, _, which = name.rpartition(".")
            assert torch.equal(buffer, state.private[f"{layer}.local_{which}"][client])
        save(model, tmp_path / f"{client}.safetensors")
        again = load(tmp_path / f"{client}.safetensors", network().double()).eval()
        with torch.no_grad():
            torch.testing.assert_close(again(inputs), outputs)
        if norms == "none":
            export_peft(model, tmp_path / str(client))
    # the task's own network is not the client's
    assert not torch.equal(task.model.get_parameter("0.weight"), model.base.get_parameter("0.weight"))


def test_a_floral_of_a_client_has_the_statistics_that_are_averaged() -> None:
    task, method, federation = trained("floral", statistics="averaged")
    inputs = task.test[2].inputs
    with torch.no_grad():
        outputs = personal_model(task, method, federation, 2)(inputs)
        torch.testing.assert_close(personal_floral(task, method, federation, 2)(inputs), outputs)


class Counting(methods.FLoRAL):
    """A shared tensor counts the rounds."""

    strength = 1.0

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        first = super().initialise(clusters, seed)
        return first._replace(shared=first.shared | {"rounds": torch.zeros(())})

    def parts(self, client: Roles, draws: Tensor | None = None) -> dict[str, Part]:
        mixture = self.strength * self.router.mixture(client.private[ROUTER], draws)
        weights = client._replace(shared={k: v for k, v in client.shared.items() if k != "rounds"})
        return self.adapted(weights, client.clustered, mixture)


class Weaker(Counting):
    strength = 0.5


class Calibrated(methods.FLoRAL):
    def predict(self, client: Roles, outputs: Sequence[Tensor], classifies: bool) -> Tensor:
        return 2 * outputs[0]


class SharedFirst(methods.Ditto):
    """Tested with the shared model, where `parts` is the private one."""

    def networks(self, client: Roles, draws: Tensor | None = None) -> list[dict[str, Part]]:
        return [dict(client.shared), self.parts(client)]


class FirstAlone(methods.FLoRAL):
    """Tested with the first adaptor, where `parts` mixes them."""

    def networks(self, client: Roles, draws: Tensor | None = None) -> list[dict[str, Part]]:
        return [self.models(client)[0]]


def test_a_client_has_the_network_that_was_tested_also_where_parts_is_another() -> None:
    task = tasks.load("digits-rotate", num_clients=4)
    inputs, labels = task.test[1]
    for method in (SharedFirst(task.model), FirstAlone(task.model, rank=2)):
        done = train(task, method, rounds=3)
        found = functional.cross_entropy(personal_model(task, method, done, 1)(inputs), labels)
        assert found.item() == pytest.approx(done.history.rounds[-1].client_loss[1], rel=1e-5)
    with pytest.raises(InputError, match=r"FirstAlone makes .* otherwise than FLoRAL does"):
        personal_floral(task, method, done, 1)


def test_a_client_of_ones_own_method_answers_as_it_was_tested_or_is_refused() -> None:
    task = tasks.load("digits-rotate", num_clients=4)
    inputs = task.test[1].inputs
    method = Counting(task.model, rank=2)
    done = train(task, method, rounds=3)
    whole, parts = (make(task, method, done, 1) for make in (personal_model, personal_floral))
    torch.testing.assert_close(whole(inputs), parts(inputs))
    weaker = Weaker(task.model, rank=2)
    with pytest.raises(InputError, match=r"Weaker makes .* otherwise than FLoRAL does"):
        personal_floral(task, weaker, train(task, weaker, rounds=3), 1)
    calibrated = Calibrated(task.model)
    for make in (personal_model, personal_floral):
        with pytest.raises(InputError, match="what its predict makes of 1 network"):
            make(task, calibrated, train(task, calibrated, rounds=1), 1)


def test_frozen_parameters_stay_what_they_are() -> None:
    def frozen() -> nn.Module:
        model = network()
        model[0].requires_grad_(False)  # type: ignore[index]
        return model

    task = make_task(frozen, normal(4), sizes=(7, 6, 10, 7, 6))
    method = methods.FLoRAL(task.model, rank=1)
    state = train(task, method).state
    for model in (personal_model(task, method, state, 1), personal_floral(task, method, state, 1).base):
        assert torch.equal(model.get_parameter("0.weight"), task.model.get_parameter("0.weight"))
        assert not torch.equal(model.get_parameter("3.weight"), task.model.get_parameter("3.weight"))


def test_what_is_no_client_and_no_floral_is_refused() -> None:
    task, method, federation = trained("fedavg")
    for client in (-1, 5):
        with pytest.raises(InputError, match=rf"client is {client}; the task has the clients 0 to 4"):
            personal_model(task, method, federation.state, client)
    with pytest.raises(InputError, match=r"client is 2\.0; it must be a whole number"):
        personal_model(task, method, federation.state, 2.0)  # type: ignore[arg-type]
    for take in (personal_model, personal_floral):
        with pytest.raises(InputError, match=r"the task is FedAvg\(\); it must be a Task"):
            take(method, task, federation, 0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the method is fedavg"):
        personal_floral(task, method, federation.state, 0)
    task, method, federation = trained("mfl-ws")
    with pytest.raises(InputError, match="the method is mfl-ws"):
        personal_floral(task, method, federation.state, 0)


@pytest.mark.parametrize("name", ["floral", "ensemble", "local-adaptor", "ditto"])
def test_a_state_without_what_is_the_clients_is_told(name: str) -> None:
    """Over Flower the server's checkpoint is one."""
    task, method, federation = trained(name)
    shared = federation.state._replace(private={})
    for ask in (personal_model, personal_floral)[: 2 if name == "floral" else 1]:
        with pytest.raises(InputError, match=r"no \['.*'\], which is client 1's own: over Flower"):
            ask(task, method, shared, 1)


def test_a_personal_model_can_be_exported() -> None:
    task, method, federation = trained("floral")
    model, inputs = personal_model(task, method, federation.state, 2), task.test[2].inputs
    program = torch.export.export(model, (inputs,))
    torch.testing.assert_close(program.module()(inputs), model(inputs))


@pytest.mark.parametrize("frozen_at_first", [False, True])
@pytest.mark.parametrize("name", ["local", "floral", "local-adaptor", "ensemble"])
def test_parameters_that_were_not_frozen_in_training_are_told(name: str, frozen_at_first: bool) -> None:
    """What a later method does not know would be left out without a word."""
    task = make_task(network, normal(4), sizes=(7, 6, 10, 7, 6))
    task.model[0].requires_grad_(not frozen_at_first)
    federation = train(task, methods.make(name, task.model))
    task.model[0].requires_grad_(frozen_at_first)
    with pytest.raises(InputError, match=r"\['0\..*freeze .* make the method then"):
        personal_model(task, methods.make(name, task.model), federation, 1)


@pytest.mark.parametrize("frozen_at_first", [False, True])
def test_a_floral_of_a_client_has_the_adaptors_that_were_trained(frozen_at_first: bool) -> None:
    task = make_task(network, normal(4), sizes=(7, 6, 10, 7, 6))
    task.model[0].requires_grad_(not frozen_at_first)
    method = methods.FLoRAL(task.model, 3, rank=1)
    federation = train(task, method)
    task.model[0].requires_grad_(frozen_at_first)
    with pytest.raises(InputError, match="frozen than when the method was made"):
        personal_floral(task, method, federation, 1)
