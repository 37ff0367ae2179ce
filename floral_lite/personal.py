"""One client's own model, taken out of a trained federation."""

from dataclasses import asdict

import torch
from torch import Tensor, nn

from .copies import copied
from .errors import InputError, require, whole_number
from .federation import Federation, Run, Task
from .federation.forward import running_statistics
from .federation.own_method import ours
from .federation.record import called, network_of, plain
from .federation.runs import check_run
from .floral import Floral
from .methods import ROUTER, FLoRAL, Method
from .methods.base import added_up
from .methods.mfl import MFLWS
from .roles import Roles, is_statistic, joined


@torch.no_grad()
def personal_model(task: Task, method: Method, state: Roles | Federation, client: int) -> nn.Module:
    """A client's model as a plain network: a copy of the task's, with the client's own parameters.

    Batch norms get the client's running statistics. The network is in evaluation mode, and its
    `state_dict()` fits the network that the task was made of. Where a method trains on before it is
    tested ("fine-tuned", "per-fedavg"), this is the model before that.

    Args:
        task: what was trained on.
        method: who shares what.
        state: what `train(task, method)` gave, or its state alone.
        client: k, in [0, K).

    Raises:
        InputError: there is no such client, the state lacks what is the client's own, another task or method
            was trained (of a state alone that cannot be checked), or the client answers with something else
            than one network's outputs.

    Example:
        >>> from floral_lite import methods, tasks, train
        >>> task = tasks.load("digits-rotate")
        >>> method = methods.FLoRAL(task.model, budget=0.1)
        >>> network = personal_model(task, method, train(task, method, rounds=1), client=3)
        >>> network(task.test[3].inputs).shape
        torch.Size([18, 10])
    """
    own = _of_client(task, method, state, client)
    tested = _tested(method, own, client)
    model = copied(task.model).eval()
    for name, tensor in tested.items():
        model.get_parameter(name).copy_(tensor)
    _copy_statistics(model, own)
    return model


@torch.no_grad()
def personal_floral(task: Task, method: Method, state: Roles | Federation, client: int) -> Floral:
    """A client's model with its adaptors apart: the base, all C adaptors, and the client's own router.

    `merge` makes of it what `personal_model` gives; `export_peft` and `save` take it as it is.

    Args:
        task: what was trained on.
        method: a FLoRAL, but no MFLWS, which runs C networks. (A Local Adaptor has no router.)
        state: what `train(task, method)` gave, or its state alone.
        client: k, in [0, K).

    Raises:
        InputError: there is no such client, the method is of another class, the state lacks what is the
            client's own, another task or method was trained (of a state alone that cannot be checked), or
            the client is tested with another network than FLoRAL's, or not with its outputs.
    """
    own = _of_client(task, method, state, client)
    if not isinstance(method, FLoRAL) or isinstance(method, MFLWS):
        raise InputError(
            f"the method is {method.name}, which has no router that mixes adaptors into one network: take "
            "methods.FLoRAL, or personal_model, which gives a plain network"
        )
    tested = _tested(method, own, client)
    options = asdict(method.adaptor_options)
    base = copied(task.model)
    model = Floral(base, num_clusters=method.num_clusters, router=method.router, **options).eval()
    require(
        {n: a.shapes for n, a in model.plan.items()} == {n: a.shapes for n, a in method.plan.items()},
        "other parameters of the task's model are frozen than when the method was made, so that others would "
        "have adaptors: freeze those again, or take personal_model",
    )
    for name, parameter in base.named_parameters():
        if name in own.shared:
            parameter.copy_(own.shared[name])
    for name, tensor in model.clustered().items():
        tensor.copy_(own.clustered[name])
    for name, tensor in model.statistics.named_buffers():
        layer, _, which = name.rpartition(".")
        tensor.copy_(own.private[joined(layer, f"local_{which}")])
    model.router_logits.copy_(own.private[ROUTER])
    _copy_statistics(base, own)
    mixed = model.personal_parameters()
    for name, tensor in tested.items():
        require(
            torch.allclose(mixed[name], tensor, rtol=1e-3, atol=1e-5),
            f"{type(method).__name__} makes {name} otherwise than FLoRAL does: take personal_model",
        )
    return model


def _tested(method: Method, own: Roles, client: int) -> dict[str, Tensor]:
    """The parameters of the network that a client is tested with.

    Raises:
        InputError: it is tested with something else than one network's outputs.
    """
    networks = method.networks(own)
    predict = type(method).predict
    require(
        predict is Method.predict or (len(networks) == 1 and ours(predict)),
        f"client {client} of {method.name} answers what its predict makes of {len(networks)} network(s), "
        "and no single network says the same: take a method that mixes parameters, such as methods.FLoRAL",
    )
    return {name: added_up(part) for name, part in networks[0].items() if not is_statistic(name)}


def _of_client(task: Task, method: Method, state: Roles | Federation, client: int) -> Roles:
    """The client's parameters, on the device of the task's model.

    Raises:
        InputError: there is no such client, or another task or method was trained.
    """
    check_run(Run(task, method))
    last = task.num_clients - 1
    require(
        0 <= whole_number("client", client) <= last,
        f"client is {client}; the task has the clients 0 to {last}",
    )
    require(
        isinstance(state, Federation | Roles),
        f"state is of type {type(state).__name__}; give what train returned, or its state",
    )
    if isinstance(state, Federation):
        given = {"task": task.name, **task.details, "network": network_of(task)}
        given |= {"method": called(method), **method.options()}
        for name, value in plain(given).items():
            trained = state.history.config.get(name)
            require(
                trained == value,
                f"{name} is {value!r}, but what was trained has {trained!r}: give the task and the method "
                "that were trained",
            )
        state = state.state
    first = method.initialise(task.clusters[:1], seed=0)
    unknown = {name for name in state.private.keys() - first.private.keys() if not is_statistic(name)}
    other = sorted(unknown | (state.clustered.keys() ^ first.clustered.keys()))
    require(
        not other,
        f"{other[:1]} is in what was trained or in what the method trains, and not in both: freeze those "
        "parameters of the task's model that were frozen in training, and make the method then",
    )
    own = first.private.keys() | running_statistics(task.model).keys()
    missing = sorted(own - state.shared.keys() - state.private.keys())
    require(
        not missing,
        f"the state has no {missing[:1]}, which is client {client}'s own: over Flower it is in that client's "
        "file alone, so put it into state.private, with an axis of clients in front; and if it was frozen in "
        "training, freeze it again, and make the method then",
    )
    device = next(task.model.parameters()).device
    return state.of_client(client).map(lambda tensor: tensor.to(device))


def _copy_statistics(model: nn.Module, own: Roles) -> None:
    """The client's running statistics into a model's batch norms: those of the network that is tested."""
    kept = own.shared | own.private
    for name, buffer in running_statistics(model).items():
        one = kept[name].shape == buffer.shape  # or an axis of several networks in front
        buffer.copy_(kept[name] if one else kept[name][0])
