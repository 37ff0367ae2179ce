"""What networks of a stack of clients make of the clients' shards."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ..devices import send
from ..methods import Part
from ..roles import Roles
from .forward import run, under_vmap
from .layers import Layers, stacked_forward
from .plan import Job, Member, fetch


def outputs_together(
    members: Sequence[Member],
    jobs: Sequence[Job],
    split: str,
    layers: Layers | None,
    client: Roles,
    networks: Callable[[Roles], Sequence[Mapping[str, Part]]],
    num_rows: int,
) -> Iterator[tuple[list[Tensor], Tensor, Tensor]]:
    """What networks of a stack of clients make of their shards, some rows at a time.

    Args:
        members: the runs of the stack.
        jobs: the k clients, each of one of these runs.
        split: "train" or "test".
        layers: of a model that is a chain of known ones; None: torch's vmap runs the model.
        client: the clients' parameters, each with a first axis k.
        networks: the networks that a method makes of a client's parameters.
        num_rows: samples of each client at a time.

    Yields:
        The outputs of each network (k, B, ...), the targets (k, B, ...), and each sample's share of its
        client's whole shard (k, B).
    """
    task, method = members[0].task, members[0].method
    sizes = torch.tensor([job.num_samples for job in jobs])
    described = [] if layers is None else networks(client)
    for rows in torch.split(torch.arange(int(sizes.max())), num_rows):
        there = rows < sizes[:, None]
        inputs, targets = fetch(members, jobs, split, torch.where(there, rows, 0))
        if layers is None:
            with under_vmap(task.model):
                outputs = torch.vmap(
                    lambda own, x: run(task.model, method, own, networks(own), x, route="auto")[0]
                )(client, inputs)
        else:
            outputs = [stacked_forward(layers, parts, inputs) for parts in described]
        # in bfloat16 N times 1 / N is not 1
        precision = torch.promote_types(outputs[0].dtype, torch.float32)
        share = (there.double() / sizes[:, None]).to(precision)
        yield outputs, targets, send(share, outputs[0].device)
