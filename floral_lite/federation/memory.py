"""How many clients fit side by side: memory is counted before it is taken.

And whether a short batch may be filled up, which decides who may stand beside whom.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd

from ..errors import InputError
from ..methods import Method
from ..roles import Roles, is_statistic, num_bytes
from .batch import MEANS
from .checks import tested_outputs
from .cuda_graphs import Steps
from .forward import run
from .layers import chain, stacked_forward
from .own_method import ours
from .plan import STEPS_FETCHED, Member, narrow
from .precision import arithmetic
from .settings import Settings
from .task import Task

# On a CPU more clients at once save calls, until they only wait for memory. This much takes the thirty of
# a round of MNIST with FLoRAL at 10%.
CPU_BYTES = 192 * 2**20
# With convolutions a client whose batch leaves more than this for its backward pass is trained and tested
# alone on a CPU: it keeps the cores busy, and a convolution of many groups takes up to six times as long.
ALONE_BYTES = 2**20
# Of a GPU's memory; the rest is for the data, and for what the counting leaves out.
GPU_SHARE = 1 / 3


class Memory:
    """Counts what a client takes, and from that how many may be trained at once.

    Args:
        max_memory: bytes for the clients of a stack, > 0; None for what suits the device. However little
            it is, one client is trained at a time.
        device: where they are trained.
    """

    def __init__(self, max_memory: int | None, device: torch.device) -> None:
        """Fix the bytes."""
        if max_memory is None:
            max_memory = CPU_BYTES
            if device.type == "cuda":
                max_memory = int(GPU_SHARE * torch.cuda.get_device_properties(device).total_memory)
        self.max_memory, self.device = max_memory, device
        # into how many parts a stack is cut that was counted to fit, see `in_halves`
        self.parts = 1
        self._fillable: dict[tuple[bool, type[Method]], bool] = {}
        self._trained: dict[int, int] = {}
        self._tested: int | None = None

    def fillable(self, member: Member) -> bool:
        """Whether a short batch may be filled up with rows that do not count; tried out once in each mode."""
        # a method may adapt its models by another one
        key = member.task.model.training, type(member.method)
        if key not in self._fillable:
            meet = member.task.loss not in MEANS or samples_meet(member)
            self._fillable[key] = not meet and not answers_meet(member)
        return self._fillable[key]

    def clients_at_once(self, member: Member, settings: Settings) -> int:
        """How many clients may be trained side by side, at least 1; counted once for each batch size."""
        if settings.batch_size not in self._trained:
            # the parameters, their gradients, and what is made on the way; a momentum if there is one
            copies = 4 if settings.momentum else 3
            # what the round began with, and the place ahead at which gradients are taken
            copies += member.method.remembers_start + bool(member.method.inner_learning_rate)
            inputs = repeated(member.task.train[0].inputs, settings.batch_size)
            fetched = 2 * STEPS_FETCHED * inputs.nbytes
            kept = activation_bytes(member, inputs)
            needed = copies * client_bytes(member) + fetched + 2 * kept
            self._trained[settings.batch_size] = self._fitting(member.task, kept, needed)
        return self._trained[settings.batch_size]

    def clients_tested(self, member: Member, rows: int) -> int:
        """How many clients may be tested side by side, that many rows at a time, at least 1; counted once."""
        if self._tested is None:
            inputs = repeated(member.task.test[0].inputs, rows)
            kept = activation_bytes(member, inputs)
            needed = client_bytes(member) + 2 * inputs.nbytes + kept
            self._tested = self._fitting(member.task, kept, needed)
        return self._tested

    def _fitting(self, task: Task, kept: int, needed: int) -> int:
        """How many clients fit, if one keeps and needs so many bytes."""
        convolves = any(isinstance(layer, _ConvNd) for layer in task.model.modules())
        if convolves and kept > ALONE_BYTES and self.device.type == "cpu":
            return 1
        return max(1, self.max_memory // needed)


Result = TypeVar("Result")
Work = Callable[[Sequence[Member], Settings, int, Memory, Steps], Result]


def in_halves(work: Work[Result]) -> Work[Result]:
    """The same work on several runs; where a GPU's memory is not enough, once more in stacks half as large.

    The work begins anew, so that nothing counts twice. Later rounds keep to the smaller stacks.

    Raises:
        InputError: it is not enough then either.
    """

    @wraps(work)
    def tried(
        members: Sequence[Member], settings: Settings, number: int, memory: Memory, steps: Steps
    ) -> Result:
        with suppress(torch.cuda.OutOfMemoryError):
            return work(members, settings, number, memory, steps)
        # the first try's tensors are freed only now that its exception is gone
        memory.parts *= 2
        steps.forget()
        torch.cuda.empty_cache()
        try:
            return work(members, settings, number, memory, steps)
        except torch.cuda.OutOfMemoryError as error:
            raise InputError(
                f"round {number} does not fit into the memory of {memory.device}, nor with half as many "
                f"clients side by side: make max_memory smaller (now {memory.max_memory / 10**9:.3g} GB) or "
                "batches, end what else is running there, or take another device "
                f"({str(error).splitlines()[0]})"
            ) from None

    return tried


def samples_meet(member: Member) -> bool:
    """Whether a sample's outputs, or a norm's statistics, depend on the rest of its batch.

    They do under a batch norm in training, and may under a user's own layer. It is tried out in the model's
    mode: a few samples alone, and with two more in the batch, at parameters a little away from the state's,
    since a branch that adds nothing at first would hide it.
    """
    task, method, state, *_ = member
    generator = torch.Generator().manual_seed(0)

    def away(name: str, tensor: Tensor) -> Tensor:
        noise = 0.1 * torch.randn(tensor.shape, generator=generator).to(tensor)
        return tensor if is_statistic(name) else tensor + noise

    some = [task.train[client].inputs[:2] for client in range(min(4, task.num_clients))]
    inputs = torch.cat([samples for samples in some if samples.shape[1:] == some[0].shape[1:]])
    client = state.of_client(0)
    client = Roles(*({name: away(name, tensor) for name, tensor in role.items()} for role in client))
    key = torch.zeros((), dtype=torch.long, device=inputs.device)
    # else layers that draw by themselves would get other numbers in the round that follows
    own_numbers = torch.random.fork_rng(devices=[inputs.device] if inputs.is_cuda else [])
    with torch.no_grad(), own_numbers, arithmetic("float32"):
        # in both orders: what a layer takes from its batch, such as the largest number, may come first
        for given in (inputs, inputs.flip(0)):
            fewer, more = given[: max(1, len(given) // 2)], torch.cat([given, given[:1], given[:1]])
            try:
                parts = [method.parts(client)]
                (alone,), kept = run(task.model, method, client, parts, fewer, key)
                (filled,), moved = run(task.model, method, client, parts, more, key)
            except (RuntimeError, ValueError):  # the model takes batches of one size only
                return True
            # a batch of another length rounds differently, by far less than another sample changes
            apart: Tensor = (filled[: len(alone)] - alone).abs().max()
            if not bool(apart <= 1e-4 * alone.abs().max()):
                return True
    # an instance norm's outputs are a sample's own, but not its statistics
    return any(
        not torch.allclose(tensor, after[name])
        for before, after in zip(kept, moved, strict=True)
        for name, tensor in before.items()
    )


def answers_meet(member: Member) -> bool:
    """Whether a user's own `losses`, or in evaluation `predict`, looks at more than one sample at a time."""
    task, method, state, *_ = member
    training = task.model.training
    verb = method.losses if training else method.predict
    if ours(verb):
        return False
    client, generator = state.of_client(0), torch.Generator().manual_seed(0)
    like, draws = client.tensors()[0], method.draw(1, generator)
    draws = None if draws is None else draws[0].to(like.device)
    # two more samples, one smaller and one larger than the first three
    sizes = torch.tensor([2.0, 3.0, 4.0, 1.0, 9.0])[:, None]
    num_labels = tested_outputs(task, 1, "train").shape[-1]
    networks = method.networks(client)
    outputs = [(sizes * torch.rand(num_labels, generator=generator)).to(like) for _ in networks]

    def made(count: int) -> Tensor:
        some = [one[:count] for one in outputs]
        if training:
            return method.losses(client, some, lambda one: one.square().mean(dim=-1), draws)
        return method.predict(client, some, True)

    few, many = made(3), made(5)
    return len(few) < 3 or not torch.allclose(few, many[:3])


def repeated(inputs: Tensor, batch_size: int) -> Tensor:
    """A batch of that size, of however few samples."""
    return inputs[torch.arange(batch_size, device=inputs.device) % len(inputs)]


def client_bytes(member: Member) -> int:
    """The bytes of what one client works with."""
    stack_of_one = member.state.of_client(0).map(lambda tensor: tensor[None])
    return sum(map(num_bytes, narrow(member.method, stack_of_one)))


def activation_bytes(member: Member, inputs: Tensor) -> int:
    """What autograd keeps of a forward pass, in bytes, each storage counted once, parameters left out."""
    task, method, state, *_ = member
    client = state.of_client(0).map(lambda tensor: tensor.detach().requires_grad_())
    parameters = {tensor.untyped_storage().data_ptr() for tensor in client.tensors()}
    # the storages, not their bytes: a freed one could give its address to a later one
    kept: dict[int, torch.UntypedStorage] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage
        # the graph keeps what a hook returns; were that its own output, each would keep the other alive
        return tensor.detach()

    was_training = task.model.training
    task.model.eval()
    layers = chain(task.model)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor), torch.enable_grad():
        if layers is None:
            run(task.model, method, client, method.networks(client), inputs)
        else:
            for parts in method.networks(client.map(lambda tensor: tensor[None])):
                stacked_forward(layers, parts, inputs[None])
    task.model.train(was_training)
    return sum(storage.nbytes() for storage in kept.values())
