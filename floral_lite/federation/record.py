"""What a run writes down: the configuration at its start, the numbers of each round."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from .._version import __version__
from ..devices import device_name
from ..errors import DivergenceError, require
from ..methods import ROUTER, Method
from ..methods.base import trainable
from ..roles import Roles, is_statistic, num_bytes
from .aggregate import mismatch
from .clients import size
from .history import History, Round
from .local import Score
from .runs import Federation, Run
from .settings import Settings
from .task import Task


def train_loss(task: Task, losses: Mapping[int, float], settings: Settings, number: int) -> float:
    """The mean of the sampled clients' losses, weighted by N^k; DivergenceError where one is not finite."""
    for client, loss in losses.items():
        require_finite(f"the training loss of client {client} is {loss} in round {number}", loss, settings)
    weights = [size(task.train, client) for client in losses]
    return float(np.average(list(losses.values()), weights=weights))


def add_scores(entry: Round, task: Task, mixture: Tensor, scores: list[Score], settings: Settings) -> None:
    """Fill in the evaluated fields of a round from every client's mixture, (K, C), and score."""
    clients = range(task.num_clients)
    num_test = [size(task.test, client) for client in clients]
    num_train = torch.tensor([float(size(task.train, client)) for client in clients])
    accuracy = [score.accuracy for score in scores if score.accuracy is not None]
    entry.client_loss = [score.loss for score in scores]
    entry.test_loss = float(np.average(entry.client_loss, weights=num_test))
    told = f"the test loss is {entry.test_loss} in round {entry.round}"
    require_finite(told, entry.test_loss, settings)
    entry.test_accuracy = float(np.average(accuracy, weights=num_test)) if accuracy else None
    entry.client_accuracy = accuracy or None
    mixture = mixture.cpu()
    client = int(mixture.amin(dim=1).argmin())
    require(
        bool((mixture >= 0).all()),  # else the averages would leave it out
        f"the method's mixture of client {client} is {mixture[client].tolist()} in round {entry.round}; the "
        "weights of clusters must be at least 0, and sum to 1: end mixture with .softmax(dim=-1), say",
    )
    entry.mixture = mixture.tolist()
    entry.mismatch = mismatch(mixture, task.clusters.cpu(), num_train)


def require_finite(told: str, loss: float, settings: Settings) -> None:
    """Raise DivergenceError, with what is told and the learning rates, unless the loss is a finite number."""
    if not math.isfinite(loss):
        ignored = "; a batch whose labels are all left out by the loss, such as -100, gives nan too"
        raise DivergenceError(
            f"{told}, with learning_rate={settings.learning_rate} and "
            f"router_learning_rate={settings.router_learning_rate}: try a tenth of them"
            f"{ignored if math.isnan(loss) else ''}"
        )


def check_same_run(old: Federation, new: Federation) -> None:
    """Raise InputError unless a run can go on from another's rounds: its length and device may differ."""
    may_change = {"rounds", "device", "version"}
    was, is_now = old.history.config, new.history.config
    # in the new one's order, but the seed first: another seed makes other data too
    keys = [key for key in {**is_now, **was} if key not in may_change]
    for key in sorted(keys, key=lambda key: key != "seed"):
        require(
            was.get(key) == is_now.get(key),
            f"{key} is {is_now.get(key)!r}, but the run that is to be resumed has {was.get(key)!r}: "
            "give the same, or start a new run",
        )
    shapes = [
        {
            key: [{name: (t.shape, t.dtype) for name, t in role.items()} for role in roles]
            for key, roles in federation.tensors().items()
            if roles.tensors()  # a method that averages nothing leaves the server without moments
        }
        for federation in (old, new)
    ]
    require(shapes[0] == shapes[1], "the run that is to be resumed has another model: give the same one")


def check_one_configuration(runs: Sequence[Run], begun: Sequence[Federation]) -> None:
    """Raise InputError unless the runs of a stack, at their first states, differ in seeds and data only."""
    configs = [
        (
            {**federation.history.config, "seed": None, "task_seed": None},
            (run.task.loss, run.task.augment),  # of which the configuration has the names
            [
                {name: tensor.shape for name, tensor in role.items()}
                for role in (federation.state.shared, federation.state.clustered)
            ],
        )
        for run, federation in zip(runs, begun, strict=True)
    ]
    for config in configs[1:]:
        one, other = configs[0][0], config[0]
        differ = [key for key in one.keys() | other.keys() if one.get(key) != other.get(key)]
        what = ", ".join(sorted(differ)) or "loss or augmentation, which must be one object, or shapes"
        require(
            config == configs[0],
            f"the runs are of different configurations ({what}); runs that are trained together differ in "
            "their seeds and data only: train the others apart",
        )


def bytes_up(method: Method, first: Roles, engine: str) -> int:
    """What one client has to send in a round, see `History`.

    Args:
        method: who shares what.
        first: the federation's first state.
        engine: what trains; "flower" sends all clusters.
    """
    shared, clustered = num_bytes(first.shared), num_bytes(first.clustered)
    if not shared + clustered:
        return 0
    num_clusters = len(method.mixture(first.of_client(0).private))
    if method.sends_one_cluster and engine != "flower":
        return shared + clustered // num_clusters + 4 * 2  # N^k and c
    return shared + clustered + 4 * num_clusters  # pi_c^k N^k for each c, whose sum is N^k


def name_of(function: object) -> str:
    """A function's name, or that of an object's class."""
    return str(getattr(function, "__name__", type(function).__name__))


def printed(value: object) -> str:
    """An object as it prints, without its address in memory: a run that is resumed has another one."""
    return re.sub(r" at 0x[0-9A-Fa-f]+", "", repr(value))


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as its file keeps it: arrays and their numbers as Python's, others by their repr."""
    return {name: readable(value) for name, value in config.items()}


def readable(value: object) -> object:
    """A value as JSON gives it back."""

    def other(value: Any) -> object:
        if isinstance(value, set | frozenset):  # words in a set have another order in every process
            return sorted(value, key=repr)
        return value.tolist() if hasattr(value, "tolist") else printed(value)

    try:
        return json.loads(json.dumps(value, default=other))
    except TypeError:  # a dictionary's keys are no words
        return printed(value)


def called(method: Method) -> str:
    """The method's name, and of a class that only inherits one its own too: it is another method."""
    kind = type(method)
    return method.name if "name" in vars(kind) else f"{method.name}-{kind.__name__}"


def network_of(task: Task) -> str:
    """The task's network: its class, and a checksum of its layers, since two may have the same shapes."""
    return f"{type(task.model).__name__}-{crc32(printed(task.model).encode()):08x}"


def new_history(run: Run, first: Roles, settings: Settings, device: torch.device, engine: str) -> History:
    """The history of a run that has not begun.

    Raises:
        InputError: the method's options or the task's details have a name that the configuration has itself.
    """
    task, method, seed = run
    num_base = sum(parameter.numel() for parameter in task.model.parameters())
    trained = sum(parameter.numel() for parameter in trainable(task.model).values())
    client = first.of_client(0)
    held = sum(
        tensor.numel()
        for role in client
        for name, tensor in role.items()
        if name != ROUTER and not is_statistic(name)
    )
    config: dict[str, object] = {
        "task": task.name,
        "network": network_of(task),
        "loss": name_of(task.loss),
        "augment": None if task.augment is None else name_of(task.augment),
        "method": called(method),
        **asdict(settings),
        "seed": seed,
        "engine": engine,
        "device": device_name(device),
        "version": __version__,
    }
    options = f"{type(method).__name__}.options"
    for where, more, prefix in ((options, method.options(), method.name), ("details", task.details, "task")):
        for name in more:
            require(
                name not in config,
                f"{where} has {name!r}, which a history says of the run itself: call it "
                f"'{prefix}_{name}', say",
            )
        config |= more
    return History(
        config=plain(config),
        clusters=task.clusters.tolist(),
        bytes_up=bytes_up(method, first, engine),
        bytes_down=num_bytes(first.shared) + num_bytes(first.clustered),
        parameters={"base": num_base, "added": held - trained},
    )
