"""What one seed of a configuration trains, and the state that it starts from."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ..copies import copied
from ..errors import InputError, require
from ..methods import Method
from ..methods.base import trainable
from ..roles import Roles
from ..router import Router
from ..signatures import check_signatures
from .clients import known, size
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
    moments: Moments

    def tensors(self) -> dict[str, Roles]:
        """State and moments, by name."""
        return {"state": self.state, **self.moments}

    def __repr__(self) -> str:
        """In a line: its tensors would fill pages."""
        return f"Federation({self.history!r}, {len(self.state.tensors())} named tensors)"


def check_run(run: Run) -> None:
    """Raise InputError unless it is a Run of a Task and of a Method that was made on the task's model."""
    require(isinstance(run, Run), f"a run is {run!r}; each must be a Run(task, method, seed)")
    task, method, _ = run
    require(
        isinstance(task, Task),
        f"the task is {task!r}; it must be a Task, such as tasks.load('digits-rotate') gives",
    )
    require(
        isinstance(method, Method),
        f"the method is {method!r}; it must be one that was made on the task's model, such as "
        "methods.FLoRAL(task.model) or methods.make('floral', task.model)",
    )
    check_signatures(method, Method)
    require(
        isinstance(getattr(method, "name", None), str),
        f"{type(method).__name__} has no name, by which a history calls it: write name = "
        f"'{type(method).__name__.lower()}' into the class",
    )
    require(
        getattr(method, "model", task.model) is task.model,
        f"the method of seed {run.seed} was made on another model than the task's: make it on that, "
        f"such as methods.{type(method).__name__}(task.model)",
    )


def initial_state(run: Run, settings: Settings, device: torch.device, clients: slice = slice(None)) -> Roles:
    """The federation before its first round: the method's parameters, and the model's running statistics.

    With `clients` only these clients' private tensors, so that one alone need not hold everybody's. Raises
    InputError where method, settings and model do not go together.
    """
    for name, needed in run.method.needs.items():
        value = getattr(settings, name)
        require(
            value == needed,
            f"{name} is {value!r}, with which {run.method.name} does not work: leave it {needed!r}",
        )
    state = run.method.initialise(run.task.clusters, run.seed)
    check_roles(run.method, state, run.task)
    statistics = running_statistics(run.task.model)
    num_networks = len(run.method.networks(state.of_client(0)))
    if num_networks > 1:  # each has its own
        statistics = {name: tensor.expand(num_networks, -1) for name, tensor in statistics.items()}
    require(
        settings.precision != "bfloat16" or not statistics,
        "precision is 'bfloat16', but the model has batch norms, which torch does not compute in it for many "
        "clients at once: use 'tf32' or 'float32'",
    )
    require(
        settings.precision == "float32" or all(tensor.dtype != torch.float64 for tensor in state.tensors()),
        f"precision is {settings.precision!r}, but the model is in double precision, whose products torch "
        "rounds no further: use a model and data in torch.float32, or leave it 'float32'",
    )
    if settings.statistics == "averaged":
        state = state._replace(shared=state.shared | statistics)
    else:
        own = {name: each.expand(run.task.num_clients, *each.shape) for name, each in statistics.items()}
        state = state._replace(private=state.private | own)
    state = state._replace(private={name: tensor[clients] for name, tensor in state.private.items()})
    # in rows, as a checkpoint keeps them: products of other layouts are rounded otherwise
    rows = torch.contiguous_format
    return state.map(lambda tensor: tensor.detach().to(device).clone(memory_format=rows))


def check_batches(task: Task, batch_size: int) -> None:
    """Refuse a batch of one sample where a batch norm would take the mean over it.

    Args:
        task: its model and training shards.
        batch_size: samples a batch; the last batch of an epoch has what is left.

    Raises:
        InputError: the model's batch norms cannot normalise the last batch of a client.
    """
    model = copied(task.model).train()  # a model's own train() may leave its norms in evaluation
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.training]
    model.eval()
    for norm in norms:
        norm.train()
    for client in known(task.train) if norms else ():
        num_samples = size(task.train, client)
        if (num_samples - 1) % batch_size == 0:
            try:
                with torch.no_grad():
                    model(task.train[client].inputs[:1].clone())
            except ValueError as error:  # an image has many pixels a channel, and raises nothing
                raise InputError(
                    f"batch_size is {batch_size}, and client {client} has {num_samples} training "
                    "samples: its last batch has one, over which a batch norm has no variance; choose "
                    "another batch_size"
                ) from error
            return


def check_roles(method: Method, state: Roles, task: Task) -> None:
    """What `initialise` and `parts` give fits the task's clients and model, and `mixture` the clusters.

    Raises:
        InputError: it does not.
    """
    kind = type(method).__name__
    require(
        isinstance(state, Roles),
        f"{kind}.initialise returns a {type(state).__name__}; it must return Roles(shared, clustered, "
        "private), three dictionaries of named tensors",
    )
    for name, tensor in (pair for role in state for pair in role.items()):
        require(
            tensor.is_floating_point(),
            f"{kind}.initialise gives {name} the type {tensor.dtype}, but clients take gradients of all "
            "tensors: give tensor.float()",
        )
    for name, tensor in state.private.items():
        require(
            tensor.shape[:1] == (task.num_clients,),
            f"{kind}.initialise gives the private {name} the shape {tuple(tensor.shape)}; it needs an axis "
            f"of the {task.num_clients} clients in front, such as "
            f"tensor.expand({task.num_clients}, *tensor.shape)",
        )
    client = state.of_client(0)
    require(
        isinstance(method.parts(client), Mapping),
        f"{kind}.parts returns a {type(method.parts(client)).__name__}; it must return a dictionary, the "
        "parameters of the model by their names",
    )
    made = {name: tuple(tensor.shape) for name, tensor in method.personalise(client).items()}
    wanted = {name: tuple(tensor.shape) for name, tensor in task.model.named_parameters()}
    otherwise = "; or was the method made on another model than the task's?"
    for name in trainable(task.model):
        require(
            name in made,
            f"{kind}.parts leaves out {name}: it must give every parameter that the model trains{otherwise}",
        )
    for name, shape in made.items():
        require(
            name in wanted,
            f"{kind}.parts gives {name}, which is no parameter of the model: leave it out{otherwise}",
        )
        require(
            shape == wanted[name],
            f"{kind}.parts gives {name} the shape {shape} for one client; the model's has "
            f"{wanted[name]}{otherwise}",
        )
    num_clusters = len(method.mixture(client.private))
    for name, tensor in state.clustered.items():
        require(
            tensor.shape[:1] == (num_clusters,),
            f"{kind}.initialise gives the clustered {name} the shape {tuple(tensor.shape)}, and "
            f"{kind}.mixture has length {num_clusters}: each cluster needs a slice, in front, and a weight",
        )


def stacks_of(runs: Sequence[Run]) -> list[slice]:
    """Which runs may share a stack: all if they are equal but for what is trained, else each alone."""

    def fixed(run: Run) -> list[object]:
        """What is not trained: frozen tensors, layers' attributes, hooks and code, kinds of data, method."""
        model = run.task.model
        statistics = running_statistics(model)
        frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
        buffers = [buffer for name, buffer in model.named_buffers() if name not in statistics]
        own = [{k: v for k, v in vars(layer).items() if is_own(k)} for layer in model.modules()]
        # two classes may have one name, as when a notebook's cell is run again
        code = [getattr(type(layer), "forward", None) for layer in model.modules()]
        data = [(t.shape[1:], t.dtype) for shards in (run.task.train, run.task.test) for t in shards[0]]
        return [frozen, buffers, own, code, data, run.method]

    alike = all(equal(fixed(run), fixed(runs[0])) for run in runs[1:])
    return [slice(None)] if alike else [slice(index, index + 1) for index in range(len(runs))]


def is_own(attribute: str) -> bool:
    """Whether what a module keeps there may change its forward pass, as hooks do, and is no tensor."""
    return attribute not in ("_parameters", "_buffers", "_modules") and "state_dict" not in attribute


def equal(one: Any, other: Any) -> bool:
    """Whether two values are the same, methods but for their models; what cannot be compared is not."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Method | Router):  # a rule of a user's own may hold more than its fields
        one, other = ({k: v for k, v in vars(each).items() if k != "model"} for each in (one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    try:
        return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)
    except (RuntimeError, ValueError):  # tensors of two devices, or NumPy's arrays
        return False
