"""Local steps on a GPU: recorded once as a CUDA graph, then replayed.

A step of a small network is some hundred short kernels, and launching them from Python takes longer
than running them. A CUDA graph launches all of them at once. It always reads and writes the same
memory, so the clients' parameters and the batch stay where they are, and new values are copied there.
"""

import logging
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..roles import Roles
from .batch import Batch

logger = logging.getLogger(__name__)

# How many kinds of steps are recorded, at most: each has memory of its own, and clients of many sizes make
# many kinds.
MOST = 32

# step(client, velocity, batch, start): a local step in place, which returns the losses
Step = Callable[[Roles, Roles, Batch, Roles], Tensor]


class Recorded(NamedTuple):
    """A step that can be replayed: where it reads its batch, how to run it, where it leaves the losses."""

    batch: Batch
    replay: Callable[[], Any]
    losses: Tensor


class Steps:
    """Runs local steps; each kind of step is recorded when it comes first, where that is possible.

    Args:
        record: makes a step replayable, see `record_on_cuda`; None to run every step as it comes.
        beside: all that share the GPU's memory; this one joins them.
    """

    def __init__(
        self,
        record: Callable[[Step, Roles, Roles, Batch, Roles], Recorded] | None,
        beside: "list[Steps] | None" = None,
    ) -> None:
        self.record = record
        self.beside = [] if beside is None else beside
        self.beside.append(self)
        self._fixed: dict[tuple[Any, ...], tuple[Roles, Roles, Roles]] = {}
        self._recorded: dict[tuple[Any, ...], Recorded] = {}

    def fixed(self, client: Roles, velocity: Roles, start: Roles) -> tuple[Roles, Roles, Roles]:
        """The same values in the memory that recorded steps read: the first rows of the largest stack's."""
        if self.record is None:
            return client, velocity, start
        given = client, velocity, start.map(torch.clone)
        tensors = [tensor for roles in given for tensor in roles.tensors()]
        num_clients, kind = len(tensors[0]), _shapes([tensor[0] for tensor in tensors])
        if kind not in self._fixed or len(self._fixed[kind][0].tensors()[0]) < num_clients:
            if kind in self._fixed:
                self._recorded.clear()  # or they would keep the memory of the smaller stack
            self._fixed[kind] = given
        client, velocity, start = (roles.at(slice(num_clients)) for roles in self._fixed[kind])
        for roles, values in zip((client, velocity, start), given, strict=True):
            roles.copy_(values)
        return client, velocity, start

    def forget(self) -> None:
        """Free the memory of all that is recorded, here and beside."""
        for steps in self.beside:
            steps._fixed.clear()
            steps._recorded.clear()

    def run(self, step: Step, client: Roles, velocity: Roles, batch: Batch, start: Roles) -> Tensor:
        """A local step of a stack of clients that `fixed` returned, or of the first ones of it."""
        if self.record is None:
            return step(client, velocity, batch, start)
        key = (
            client.tensors()[0].data_ptr(),
            *_shapes([*client.tensors(), *(tensor for tensor in batch if tensor is not None)]),
        )
        if key not in self._recorded and len(self._recorded) < MOST:
            try:
                self._recorded[key] = self.record(step, client, velocity, batch, start)
            except RuntimeError as error:
                logger.warning(
                    "local steps are not recorded as a CUDA graph, they run one by one: %s", str(error)
                )
                self.record = None
            if self.record is None:  # only now, without the exception, are the failed try's tensors free
                self.forget()
        if key not in self._recorded:
            return step(client, velocity, batch, start)
        recorded = self._recorded[key]
        for fixed, given in zip(recorded.batch, batch, strict=True):
            if fixed is not None and given is not None:
                fixed.copy_(given)
        recorded.replay()
        return recorded.losses


def record_on_cuda(step: Step, client: Roles, velocity: Roles, batch: Batch, start: Roles) -> Recorded:
    """Record a step as a CUDA graph; parameters and random generators are as before afterwards."""
    given = {name: tensor for name, tensor in batch._asdict().items() if tensor is not None}
    fixed = batch._replace(**{name: tensor.clone() for name, tensor in given.items()})
    before = client.map(torch.clone), velocity.map(torch.clone)
    # libraries set themselves up on first use, which cannot be recorded
    here, aside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    generator = torch.cuda.default_generators[here.device.index]
    unused = generator.clone_state()
    drawn = python_draws()
    # else a round would draw other random numbers if its steps were not yet recorded, as after a resumption
    with torch.random.fork_rng(devices=[here.device]):
        try:
            aside.wait_stream(here)
            with torch.cuda.stream(aside):
                for _ in range(3):
                    step(client, velocity, fixed, start)
            here.wait_stream(aside)
            if str(python_draws()) != str(drawn):  # NumPy's state has an array, which compares by element
                raise RuntimeError("they draw from Python's or NumPy's generator, which no graph asks again")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                losses = step(client, velocity, fixed, start)
        except BaseException:
            generator.graphsafe_set_state(unused)  # the one recorded with would refuse to draw from now on
            raise
        finally:
            random.setstate(drawn[0])
            np.random.set_state(drawn[1])  # noqa: NPY002
            torch.cuda.set_stream(here)  # a recording that failed leaves its own stream current
            here.wait_stream(aside)  # a step that failed may still be writing
            for parameters, values in zip((client, velocity), before, strict=True):
                parameters.copy_(values)
    return Recorded(fixed, graph.replay, losses)


def python_draws() -> tuple[Any, Any]:
    """The states of the generators that a user's own layers may draw from: Python's and NumPy's."""
    return random.getstate(), np.random.get_state()  # noqa: NPY002


def _shapes(tensors: list[Tensor]) -> tuple[Any, ...]:
    return tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
