"""How many clients fit side by side: memory is counted before it is taken."""

import torch
from torch import Tensor, nn

from ..errors import require
from ..methods import Method
from ..roles import Roles
from .forward import forward
from .plan import STEPS_FETCHED
from .settings import Settings
from .task import Task

# On a CPU more clients at once save calls, until they only wait for memory.
CPU_BYTES = 128 * 2**20
# Of a GPU's memory; the rest is for the data, and for what the counting leaves out.
GPU_SHARE = 1 / 3


class Memory:
    """Counts what a client takes, and from that how many may be trained at once.

    Args:
        max_memory: bytes for the clients of a stack; None for what suits the device. However little
            it is, one client is trained at a time.
        device: where they are trained.

    Raises:
        InputError: max_memory is not positive.
    """

    def __init__(self, max_memory: int | None, device: torch.device) -> None:
        """Fix the bytes."""
        require(
            max_memory is None or max_memory > 0,
            f"max_memory is {max_memory}; it is the bytes that clients in training may take: try 2**30",
        )
        if max_memory is None:
            max_memory = CPU_BYTES
            if device.type == "cuda":
                max_memory = int(GPU_SHARE * torch.cuda.get_device_properties(device).total_memory)
        self.max_memory, self.device = max_memory, device
        self._activations: dict[int, int] = {}

    def clients_at_once(self, task: Task, method: Method, state: Roles, settings: Settings) -> int:
        """How many clients may be trained side by side, at least 1."""
        convolves = any(isinstance(layer, nn.Conv2d) for layer in task.model.modules())
        if convolves and self.device.type == "cpu":
            return 1  # a batch of one client keeps a CPU busy, and a grouped convolution is slower there
        sample = task.train[0].inputs[:1]
        # the parameters, their gradients, and what is made on the way; a momentum if there is one
        copies = 4 if settings.momentum else 3
        fetched = 2 * STEPS_FETCHED * settings.batch_size * sample.numel() * sample.element_size()
        activations = self._of_a_batch(task, method, state, settings.batch_size)
        return self._fit(copies * client_bytes(state) + fetched + 2 * activations)

    def clients_tested(self, task: Task, method: Method, state: Roles, rows: int) -> int:
        """How many clients may be tested side by side, that many rows at a time, at least 1."""
        sample = task.test[0].inputs[:1]
        fetched = 2 * rows * sample.numel() * sample.element_size()
        return self._fit(client_bytes(state) + fetched + self._of_a_batch(task, method, state, rows))

    def _fit(self, bytes_of_a_client: int) -> int:
        return max(1, self.max_memory // bytes_of_a_client)

    def _of_a_batch(self, task: Task, method: Method, state: Roles, batch_size: int) -> int:
        """Bytes that a backward pass needs of a client's forward pass, counted once."""
        if batch_size not in self._activations:
            inputs = task.train[0].inputs
            inputs = inputs[torch.arange(batch_size, device=inputs.device) % len(inputs)]
            self._activations[batch_size] = activation_bytes(task, method, state, inputs)
        return self._activations[batch_size]


def client_bytes(state: Roles) -> int:
    """The bytes of what one client works with."""
    one = state.of_client(0)
    return sum(tensor.numel() * tensor.element_size() for tensor in one.tensors())


def activation_bytes(task: Task, method: Method, state: Roles, inputs: Tensor) -> int:
    """What autograd keeps of a forward pass, in bytes, each storage counted once, parameters left out."""
    client = state.of_client(0).map(lambda tensor: tensor.detach().requires_grad_())
    parameters = {tensor.untyped_storage().data_ptr() for tensor in client.tensors()}
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    was_training = task.model.training
    task.model.eval()
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor), torch.enable_grad():
        outputs, _ = forward(task.model, method, client, inputs)
    task.model.train(was_training)
    del outputs
    return sum(kept.values())
