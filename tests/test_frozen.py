"""A base that is frozen, such as a pretrained one: adaptors alone are trained and sent."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from floral_lite import Floral, InputError, Router, Task, methods, train, train_runs
from floral_lite.adaptors import num_parameters
from floral_lite.federation import Run
from floral_lite.models import seeded
from floral_lite.personal import personal_floral, personal_model
from floral_lite.roles import num_bytes

from .federations import agree, make_task, normal


def mlp() -> nn.Module:
    """A chain of known layers; the first is so large that its adaptors run as factors."""
    return nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 3)).requires_grad_(False)


def convolutions() -> nn.Module:
    """A convolution and a linear layer."""
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3)).requires_grad_(
        False
    )


def norms() -> nn.Module:
    """No chain of known layers: the engine runs it through torch.func."""
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).requires_grad_(False)


TASKS: dict[str, Callable[..., Task]] = {
    "mlp": lambda **settings: make_task(mlp, normal(40), **settings),
    "convolutions": lambda **settings: make_task(convolutions, normal(1, 6, 6), **settings),
    "norms": lambda **settings: make_task(norms, normal(5), sizes=(8, 4, 10, 8, 6), **settings),
}


@pytest.mark.parametrize("network", TASKS)
@pytest.mark.parametrize(
    ("name", "options"),
    [("floral", {}), ("floral", {"routing": "closed-form"}), ("local-adaptor", {}), ("mfl-ws", {})],
)
def test_adaptors_alone_are_trained(network: str, name: str, options: dict[str, Any]) -> None:
    task = TASKS[network]()
    before = {key: tensor.clone() for key, tensor in task.model.named_parameters()}
    method = methods.make(name, task.model, rank=2, **options)
    fast, loop = (train(task, method, engine=engine) for engine in ("fast", "loop"))
    agree(fast, loop)
    assert all(torch.equal(tensor, before[key]) for key, tensor in task.model.named_parameters())
    assert not any(key in fast.state.shared for key in before)
    moved = fast.state.private if name == "local-adaptor" else fast.state.clustered
    assert moved["0.weight.U"].any()
    assert fast.history.bytes_down == num_bytes(fast.state.clustered)
    copies = 1 if name == "local-adaptor" else 4
    assert fast.history.parameters["added"] == copies * num_parameters(method.plan)  # type: ignore[attr-defined]


def test_a_personal_model_has_the_adapted_weights() -> None:
    task = TASKS["mlp"]()
    method = methods.FLoRAL(task.model, rank=2)
    federation = train(task, method)
    inputs = task.test[1].inputs
    with torch.no_grad():
        apart = personal_floral(task, method, federation.state, 1)
        torch.testing.assert_close(personal_model(task, method, federation.state, 1)(inputs), apart(inputs))
        assert not torch.allclose(apart(inputs), task.model(inputs))


def test_seeds_with_frozen_bases_of_their_own_stand_side_by_side() -> None:
    several = []
    for seed in range(2):
        task = TASKS["mlp"]()
        drawn = seeded(mlp, seed).double()
        task.model.load_state_dict(drawn.state_dict())
        several.append(Run(task, methods.FLoRAL(task.model, rank=2), seed))
    for federation, run in zip(train_runs(several, several[0].task.settings), several, strict=True):
        agree(federation, train(run.task, run.method, seed=run.seed))


def test_a_wrapped_frozen_model_learns_through_its_adaptors() -> None:
    model = Floral(seeded(mlp, 0), rank=2)
    assert {name.partition(".")[0] for name, p in model.named_parameters() if p.requires_grad} == {
        "adaptors",
        "router_logits",
    }


@pytest.mark.parametrize(
    "name",
    [
        *("fedavg", "ensemble", "mfl", "local", "fine-tuned", "ditto", "ifca", "federated-clustering"),
        *("fedper", "fedbn"),
    ],
)
def test_a_method_without_adaptors_has_nothing_to_train(name: str) -> None:
    task = TASKS["mlp"]()
    with pytest.raises(InputError, match=r"no parameters to train, all of them are frozen.*method 'floral'"):
        train(task, methods.make(name, task.model))


def test_clusters_cannot_be_found_in_gradients_that_are_not_taken() -> None:
    task = TASKS["mlp"](rounds=5)
    for _ in range(2):
        with pytest.raises(InputError, match="all of them are frozen: use routing='learned'"):
            train(task, methods.FLoRAL(task.model, rank=2, routing="clustered"))
        task.model[0].bias.requires_grad_(True)  # nobody asks for a bias's


class Uneven(Router):
    """A rule of one's own, which is uneven where routers are uniform."""

    def mixture(self, router_logits: Tensor, draws: Tensor | None = None) -> Tensor:
        return super().mixture(router_logits + torch.arange(router_logits.shape[-1]), draws)


@pytest.mark.parametrize("name", ["floral", "mfl-ws"])
def test_vectors_that_would_stay_alike_are_refused(name: str) -> None:
    task = TASKS["mlp"]()
    for layer in (task.model[0], task.model[2]):
        layer.bias.requires_grad_(True)
    for routing in ("learned", "closed-form"):
        with pytest.raises(InputError, match=r"all adaptors start alike.*routing='optimal' or router="):
            train(task, methods.make(name, task.model, routing=routing))
    for options in ({"routing": "optimal"}, {"router": {"noise": 1}}, {"router": Uneven()}):
        state = train(task, methods.make(name, task.model, **options)).state
        assert not torch.equal(*state.clustered["2.bias.L"][:2])
    train(task, methods.make(name, task.model, num_clusters=1))
