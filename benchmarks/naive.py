"""The simplest federated rounds that one would write: a deep copy a client, torch's SGD, then averages.

The engines are compared with these rounds: their speed in rounds.py, and their numbers in the tests, which
must be equal. A round changes the server's model in place, and takes its batches (row numbers) from outside.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from floral_lite import Floral, Settings, Shard, Task, preconditioner

Batches = Iterable[Tensor]
ROUTER = "router_logits"


class Ensemble(nn.Module):
    """C whole models; a client uses the mixture of their weights: f(sum_c pi_c w_c)."""

    def __init__(self, model: nn.Module, num_clusters: int) -> None:
        super().__init__()
        self.models = nn.ModuleList(copy.deepcopy(model) for _ in range(num_clusters))
        self.router_logits = nn.Parameter(torch.zeros(num_clusters))

    def forward(self, inputs: Tensor) -> Tensor:
        """The mixed model's outputs."""
        mixture = torch.softmax(self.router_logits, dim=0)
        named = [dict(model.named_parameters()) for model in self.models]
        mixed = {name: sum(pi * w[name] for pi, w in zip(mixture, named, strict=True)) for name in named[0]}
        return functional_call(self.models[0], mixed, (inputs,))  # type: ignore[no-any-return]


def local_sgd(model: nn.Module, shard: Shard, batches: Batches, task: Task, settings: Settings) -> None:
    """A client's steps, in place; the router has a learning rate of its own."""
    named = dict(model.named_parameters())
    router = [named.pop(ROUTER)] if ROUTER in named else []
    groups: list[dict[str, Any]] = [
        {"params": list(named.values())},
        {"params": router, "lr": settings.router_learning_rate},
    ]
    optimizer = torch.optim.SGD(groups, lr=settings.learning_rate)
    if isinstance(model, Floral):
        optimizer.register_step_pre_hook(preconditioner(model))
    for rows in batches:
        optimizer.zero_grad()
        task.loss(model(shard.inputs[rows]), shard.targets[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def average(tensors: Sequence[Tensor], weights: Sequence[Tensor] | Tensor) -> Tensor:
    """sum_k w^k x^k / sum_k w^k."""
    total: Tensor = sum(w * x for w, x in zip(weights, tensors, strict=True)) / sum(weights)
    return total


def fedavg_round(
    model: nn.Module, task: Task, settings: Settings, sampled: Sequence[int], batches: Sequence[Batches]
) -> None:
    """Every sampled client trains a copy; all parameters are averaged with N^k."""
    states = []
    for client, rows in zip(sampled, batches, strict=True):
        local = copy.deepcopy(model)
        local_sgd(local, task.train[client], rows, task, settings)
        states.append(local.state_dict())
    sizes = torch.tensor([len(task.train[client]) for client in sampled])
    model.load_state_dict({name: average([state[name] for state in states], sizes) for name in states[0]})


def mixture_round(
    model: Floral | Ensemble,
    routers: Tensor,
    task: Task,
    settings: Settings,
    sampled: Sequence[int],
    batches: Sequence[Batches],
) -> None:
    """As above, but clustered parameters are averaged with pi_c^k N^k; routers (K, C) stay with clients."""
    states = []
    for client, rows in zip(sampled, batches, strict=True):
        local = copy.deepcopy(model)
        local.router_logits.data.copy_(routers[client])
        local_sgd(local, task.train[client], rows, task, settings)
        routers[client] = local.router_logits.detach()
        states.append(local.state_dict())
    sizes = torch.tensor([len(task.train[client]) for client in sampled])
    weights = torch.softmax(routers[list(sampled)], dim=-1) * sizes[:, None]  # (clients, C)

    averaged = {ROUTER: model.router_logits.detach()}
    for name in states[0].keys() - averaged.keys():
        tensors = [state[name] for state in states]
        if name.startswith("adaptors."):  # (C, ...): a slice a cluster
            slices = zip(*tensors, strict=True)
            averaged[name] = torch.stack([average(c, w) for c, w in zip(slices, weights.T, strict=True)])
        elif name.startswith("models."):  # the whole model of cluster c
            averaged[name] = average(tensors, weights[:, int(name.split(".")[1])])
        else:
            averaged[name] = average(tensors, sizes)
    model.load_state_dict(averaged)


def naive_rounds(task: Task, build: Callable[[nn.Module], nn.Module]) -> Iterator[nn.Module]:
    """Rounds without end: `build` makes the server's model from the task's; it is handed out after each."""
    settings, generator = task.settings, torch.Generator().manual_seed(0)
    model = build(copy.deepcopy(task.model))
    num_sampled = max(1, round(settings.participation * task.num_clients))
    if isinstance(model, (Floral, Ensemble)):
        routers = model.router_logits.detach().repeat(task.num_clients, 1)
        one_round = partial(mixture_round, model, routers)
    else:
        one_round = partial(fedavg_round, model)
    while True:
        sampled = torch.randperm(task.num_clients, generator=generator)[:num_sampled].tolist()
        orders = [torch.randperm(len(task.train[client]), generator=generator) for client in sampled]
        batches = [torch.split(order, settings.batch_size) for order in orders]
        one_round(task, settings, sampled, batches)
        yield model
