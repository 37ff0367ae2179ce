"""What one seed of a configuration trains, and the state that it starts from."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from ..errors import require
from ..methods import Method
from ..methods.base import trainable
from ..roles import Roles, is_statistic
from .checks import check_batches
from .forward import running_statistics
from .history import History
from .server import Moments
from .settings import Settings
from .task import Task


class Run(NamedTuple):
    """What one seed of a configuration trains.

    Attributes:
        task: the clients' data, the model and the loss.
        method: who shares what, made on the task's model.
        seed: of the adaptors, the sampled clients and the batches.
    """

    task: Task
    method: Method
    seed: int = 0


class Federation(NamedTuple):
    """A run after some of its rounds: its history, and the parameters that it has come to.

    Attributes:
        history: every round's numbers.
        state: the parameters.
        moments: what the server's optimizer remembers.
    """

    history: History
    state: Roles
    moments: Moments = {}  # noqa: RUF012

    def tensors(self) -> dict[str, Roles]:
        """State and moments, by name."""
        return {"state": self.state, **self.moments}

    def __repr__(self) -> str:
        """In a line: its tensors would fill pages."""
        return f"Federation({self.history!r}, {len(self.state.tensors())} named tensors)"


def check_run(run: Run) -> None:
    """Raise InputError where a name, or a class, stands for a task or a method, or they are of two models."""
    task, method = run.task, run.method
    require(
        isinstance(task, Task),
        f"the task is {task!r}; it must be a Task, such as tasks.load('digits-rotate') gives",
    )
    require(
        isinstance(method, Method),
        f"the method is {method!r}; it must be one that was made on the task's model, such as "
        "methods.FLoRAL(task.model) or methods.make('floral', task.model)",
    )
    require(
        getattr(method, "model", task.model) is task.model,
        f"the method of seed {run.seed} was made on another model than the task's: make it on that, "
        f"such as methods.{type(method).__name__}(task.model)",
    )


def initial_state(run: Run, settings: Settings, device: torch.device) -> Roles:
    """The federation before its first round: the method's parameters, and the model's running statistics."""
    check_batches(run.task, settings.batch_size)
    for name, needed in run.method.needs.items():
        value = getattr(settings, name)
        require(
            value == needed,
            f"{name} is {value!r}, with which {run.method.name} does not work: leave it {needed!r}",
        )
    state = run.method.initialise(run.task.clusters, run.seed)
    made = {name: tensor.shape for name, tensor in run.method.personalise(state.of_client(0)).items()}
    known = {name: tensor.shape for name, tensor in run.task.model.named_parameters()}
    require(
        made.items() <= known.items() and trainable(run.task.model).keys() <= made.keys(),
        "the method was made on another model than the task's: make it on that, "
        f"such as methods.{type(run.method).__name__}(task.model)",
    )
    statistics = running_statistics(run.task.model)
    num_networks = len(run.method.networks(state.of_client(0)))
    if num_networks > 1:  # each has its own
        statistics = {name: tensor.expand(num_networks, -1) for name, tensor in statistics.items()}
    require(
        settings.precision != "bfloat16" or not statistics,
        "precision is 'bfloat16', but the model has batch norms, which torch does not compute in it for many "
        "clients at once: use 'tf32' or 'float32'",
    )
    if settings.statistics == "averaged":
        state = state._replace(shared=state.shared | statistics)
    else:
        num_clients = run.task.num_clients
        own = {name: tensor.expand(num_clients, *tensor.shape) for name, tensor in statistics.items()}
        state = state._replace(private=state.private | own)
    return state.map(lambda tensor: tensor.detach().to(device).clone())


def stacks_of(runs: Sequence[Run]) -> list[slice]:
    """Which runs may share a stack: all, or each alone where what is not trained in their models differs."""

    def fixed(model: nn.Module) -> list[torch.Tensor]:
        frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
        return frozen + [buffer for name, buffer in model.named_buffers() if not is_statistic(name)]

    first = fixed(runs[0].task.model)
    others = [fixed(run.task.model) for run in runs[1:]]
    alike = all(torch.equal(*pair) for other in others for pair in zip(first, other, strict=True))
    return [slice(None)] if alike else [slice(index, index + 1) for index in range(len(runs))]
