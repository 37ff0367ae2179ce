"""A client's outputs: its own parameters and statistics in the model, and nothing left behind there."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from floral_lite import methods
from floral_lite.federation.forward import run, running_statistics, under_vmap
from floral_lite.methods import Method
from floral_lite.mixing import Route
from floral_lite.roles import Roles

from .federations import first_state, make_task, normal


class Net(nn.Module):
    """A batch norm, dropout, and buffers of a user's own, one of them called like a statistic."""

    running_mean: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6, bias=False)
        self.norm = nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.5)
        self.last = nn.Linear(6, 3)
        self.register_buffer("running_mean", torch.full((6,), 0.5))
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(self.first(inputs)) - self.running_mean
        return self.scale * self.last(self.dropout(hidden))


def a_client(method: Method, task: Any, client: int = 1) -> Roles:
    """Parameters away from their first values, so that each of them shows."""
    generator = torch.Generator().manual_seed(7)

    def moved(tensor: Tensor) -> Tensor:
        return tensor + 0.1 * torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype)

    return first_state(task, method).of_client(client).map(moved)


def forward(
    task: Any,
    method: Method,
    client: Roles,
    inputs: Tensor,
    noise: Tensor | None = None,
    key: int | None = None,
    route: Route = "merged",
) -> tuple[Tensor, Roles]:
    """The outputs of the client's network, and the client's statistics as they move."""
    tensor = None if key is None else torch.tensor(key)
    (outputs,), moved = run(task.model, method, client, method.networks(client, noise), inputs, tensor, route)
    return outputs, moved


def plain_copy(task: Any, method: Method, client: Roles) -> nn.Module:
    """A model of its own with the client's parameters and statistics written into it."""
    model = copy.deepcopy(task.model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(method.personalise(client)[name])
        for name, buffer in model.named_buffers():
            for role in client:
                if name in role:
                    buffer.copy_(role[name])
    return model


MAKE: dict[str, Any] = {
    "fedavg": methods.FedAvg,
    "floral": lambda model: methods.FLoRAL(model, 3, rank=2),
    "ensemble": lambda model: methods.Ensemble(model, 3),
    "local adaptor": lambda model: methods.LocalAdaptor(model, rank=2),
}


def test_only_batch_norms_have_running_statistics() -> None:
    """Not the user's own buffer that is called like one, nor the count of batches."""
    assert set(running_statistics(Net())) == {"norm.running_mean", "norm.running_var"}
    assert running_statistics(nn.Linear(2, 2)) == {}
    assert set(running_statistics(nn.BatchNorm1d(2))) == {"running_mean", "running_var"}


@pytest.mark.parametrize("statistics", ["local", "averaged"])
@pytest.mark.parametrize("route", ["merged", "auto", "factored"])
@pytest.mark.parametrize("make", MAKE)
def test_outputs_and_statistics_are_those_of_a_model_of_its_own(
    make: str, route: Any, statistics: Any
) -> None:
    task = make_task(Net, normal(4), statistics=statistics)
    method = MAKE[make](task.model)
    client = a_client(method, task)
    inputs = torch.randn(5, 4, dtype=torch.float64)
    own = plain_copy(task, method, client)
    task.model.eval()
    outputs, _ = forward(task, method, client, inputs, route=route)
    torch.testing.assert_close(outputs, own.eval()(inputs))

    task.model.train()
    task.model.dropout.eval()
    own.train()
    own.dropout.eval()
    outputs, moved = forward(task, method, client, inputs, route=route)
    torch.testing.assert_close(outputs, own(inputs))
    after = {name: tensor for role in moved for name, tensor in role.items()}
    assert after.keys() == {"norm.running_mean", "norm.running_var"}
    for name, tensor in after.items():
        torch.testing.assert_close(tensor, own.get_buffer(name))


@pytest.mark.parametrize("make", MAKE)
def test_model_and_client_are_left_alone(make: str) -> None:
    task = make_task(Net, normal(4))
    method = MAKE[make](task.model.train())
    client = a_client(method, task)
    kept = copy.deepcopy(task.model.state_dict()), client.map(Tensor.clone)
    inputs = torch.randn(5, 4, dtype=torch.float64)
    generator = torch.get_rng_state()
    forward(task, method, client, inputs, key=3)
    assert all(torch.equal(tensor, kept[0][name]) for name, tensor in task.model.state_dict().items())
    assert int(task.model.norm.num_batches_tracked) == 0
    assert all(torch.equal(*pair) for pair in zip(client.tensors(), kept[1].tensors(), strict=True))
    assert torch.equal(torch.get_rng_state(), generator)


def test_the_key_decides_what_is_dropped_and_without_one_torch_does() -> None:
    task = make_task(Net, normal(4))
    method = methods.FedAvg(task.model.train())
    client, inputs = a_client(method, task), torch.randn(5, 4, dtype=torch.float64)

    def outputs(key: int | None) -> Tensor:
        return forward(task, method, client, inputs, key=key)[0]

    before = torch.get_rng_state()
    assert torch.equal(outputs(1), outputs(1))
    assert not torch.equal(outputs(1), outputs(2))
    assert torch.equal(torch.get_rng_state(), before)
    outputs(None)
    assert not torch.equal(torch.get_rng_state(), before)


def test_what_is_not_vmaps_fault_is_raised_as_it_is() -> None:
    """A round that does not fit into memory is then tried in smaller stacks."""
    with pytest.raises(torch.cuda.OutOfMemoryError), under_vmap(nn.Linear(1, 1)):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")


def test_noise_changes_the_mixture() -> None:
    task = make_task(lambda: nn.Linear(4, 3), normal(4))
    method = methods.FLoRAL(task.model, 3, rank=2, router={"noise": 2.0})
    client, inputs = a_client(method, task), torch.randn(5, 4, dtype=torch.float64)
    noise = torch.tensor([1.0, 0.0, 0.5])
    outputs, _ = forward(task, method, client, inputs, noise)
    louder = client._replace(private={name: tensor + 2 * noise for name, tensor in client.private.items()})
    torch.testing.assert_close(outputs, forward(task, method, louder, inputs)[0])
    assert not torch.allclose(outputs, forward(task, method, client, inputs)[0])


def test_gradients_reach_every_parameter_and_no_statistic() -> None:
    task = make_task(Net, normal(4))
    method = methods.FLoRAL(task.model.train(), 3, rank=2, norms="none")
    client = a_client(method, task).map(lambda tensor: tensor.requires_grad_())
    outputs, moved = forward(task, method, client, torch.randn(5, 4, dtype=torch.float64), key=3)
    functional.cross_entropy(outputs, torch.tensor([0, 1, 2, 0, 1])).backward()
    without = {
        name
        for role in client
        for name, tensor in role.items()
        if tensor.grad is None or not tensor.grad.any()
    }
    assert without == {"norm.running_mean", "norm.running_var"}
    assert not any(moved.private[name].requires_grad for name in without)
