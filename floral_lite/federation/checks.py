"""What a task's data and its model must be, so that training neither fails later nor means nothing."""

from __future__ import annotations

import math
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from ..copies import copied
from ..errors import InputError, require
from ..methods import ROUTER
from ..roles import is_statistic
from .clients import known, size
from .pool import Pool
from .shards import NO_LABEL, Shard

if TYPE_CHECKING:
    from .task import Task

RECOMPUTES = (
    "the model computes activations anew in the backward pass, as with torch.utils.checkpoint, but the "
    "client's parameters are out of it by then: switch checkpointing off"
)


def check_clients(task: Task) -> None:
    """Every client has samples, as many targets, and a cluster."""
    clusters: object = task.clusters
    require(
        isinstance(clusters, Tensor)
        and clusters.dim() == 1
        and not clusters.is_floating_point()
        and bool((clusters >= 0).all()),
        f"clusters are {shorten(repr(clusters), 60)}; give a tensor of each client's, integers from 0 on, 0 "
        "for all if they are not known",
    )
    sizes = {"train": len(task.train), "test": len(task.test), "clusters": len(task.clusters)}
    require(
        len(set(sizes.values())) == 1 and len(task.train) > 0,
        f"train, test and clusters have {sizes} entries; each needs one per client",
    )
    for split, shards in (("train", task.train), ("test", task.test)):
        for client in known(shards):
            if not isinstance(shards, Pool):  # a pool has checked its own
                shard: Any = shards[client]
                require(
                    isinstance(shard, Shard) and all(isinstance(tensor, Tensor) for tensor in shard),
                    f"client {client}'s {split} data are a {type(shard).__name__}; they must be a Shard of "
                    "two tensors, Shard(inputs, targets)",
                )
                require(
                    len(shard.targets) == len(shard),
                    f"client {client} has {len(shard)} {split} inputs and {len(shard.targets)} targets; each "
                    "input needs one",
                )
            require(
                size(shards, client) > 0,
                f"client {client} has no {split} data; give every client at least one sample, "
                "or use fewer clients",
            )


def check_finite(task: Task) -> None:
    """A sample that is no number would end training, and look as if it had diverged."""
    for split, shards in (("train", task.train), ("test", task.test)):
        # of a pool the stored samples, once: they are all that its clients see
        held = (
            {"a client": shards}
            if isinstance(shards, Pool)
            else {f"client {client}": shards[client] for client in known(shards)}
        )
        for client, samples in held.items():
            for what, tensor in (("inputs", samples.inputs), ("targets", samples.targets)):
                require(
                    not tensor.is_floating_point() or bool(tensor.isfinite().all()),
                    f"{client} has {split} {what} that are NaN or infinite: fill in what is missing, or "
                    "leave those samples out",
                )


def check_layers(task: Task) -> None:
    """Each layer has one name and a shape, works for many clients, and trains no statistic."""
    names: dict[nn.Module, str] = {}
    for name, module in task.model.named_modules(remove_duplicate=False):
        first = names.setdefault(module, name)
        require(
            first == name or not list(module.parameters()),
            f"the model has one layer under two names, {first} and {name}; register it once, "
            "and call it twice",
        )
        require(
            not (isinstance(module, _NormBase) and module.track_running_stats and module.momentum is None),
            f"the batch norm {name} has momentum=None, a mean over all batches, which means nothing once "
            "it is averaged or reset: give it a momentum, such as 0.1",
        )
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            # frequencies would be those of all clients' words, torch.vmap has no sparse gradients, and
            # max_norm rescales in place the weight from which all clients begin
            for option, without in (("scale_grad_by_freq", False), ("sparse", False), ("max_norm", None)):
                value = getattr(module, option)
                require(
                    value == without,
                    f"the embedding {name} has {option}={value}, which means something else where clients "
                    f"are trained side by side: use {option}={without}",
                )
    for name, buffer in task.model.named_buffers():
        require(
            buffer.layout == torch.strided,
            f"the model's buffer {name} is sparse, and engines copy dense ones only: register its to_dense()",
        )
    for name, parameter in task.model.named_parameters():
        require(
            not is_lazy(parameter),
            f"{name} has no shape yet, its layer is lazy: run the model on one batch first",
        )
        if parameter.requires_grad:
            require(
                not is_statistic(name) and name != ROUTER,
                f"the model has a parameter {name}, which is what the statistics of norms or the routers of "
                "clients are called, and these are not trained like others: give it another name",
            )
            require(
                not parameter.is_complex(),
                f"{name} is of {parameter.dtype}, and a federation trains real numbers: keep it as "
                "torch.view_as_real has it, and use torch.view_as_complex in forward",
            )


def check_training(task: Task) -> None:
    """In training a model returns a tensor, moves no buffers but norms' statistics, recomputes nothing."""
    model, inputs = copied(task.model).train(), task.train[0].inputs[:2].clone()
    norms = {name for name, layer in model.named_modules() if isinstance(layer, _NormBase)}
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    own_numbers = torch.random.fork_rng(devices=[inputs.device] if inputs.is_cuda else [])
    try:
        with torch.enable_grad(), own_numbers, disable_saved_tensors_hooks(RECOMPUTES):
            outputs = model(inputs)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        # a model that cannot run says so when it is trained
        require(str(error) != RECOMPUTES, RECOMPUTES)
    else:
        check_outputs(outputs)
    for name, buffer in model.named_buffers():
        require(
            name.rpartition(".")[0] in norms or name not in before or torch.equal(buffer, before[name]),
            f"the model's forward pass changes its buffer {name}, and a federation keeps only the "
            "statistics of torch's own norms: use one of these, or a layer that keeps nothing",
        )


def tested_outputs(task: Task, num_samples: int, split: str) -> Tensor:
    """What the model makes of the first client's first samples in evaluation; InputError if it cannot."""
    inputs = getattr(task, split)[0].inputs[:num_samples]
    try:
        with torch.no_grad():
            outputs: Tensor = copied(task.model).eval()(inputs.clone())
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise InputError(
            f"the model cannot be run on {split} inputs of shape {tuple(inputs.shape)} and {inputs.dtype} "
            f"({shorten(str(error), 200)}): give inputs or a model that fit each other"
        ) from error
    check_outputs(outputs)
    return outputs


def check_outputs(outputs: object) -> None:
    """A model returns one tensor, in training as in evaluation."""
    require(
        isinstance(outputs, Tensor),
        f"the model returns a {type(outputs).__name__}, and a task needs one tensor, the logits, in training "
        "too: put it into a module whose forward returns that part alone",
    )


def check_targets(task: Task, of_labels: bool, numbers: bool) -> None:
    """Labels must be among the model's outputs; numbers must be as many as the outputs.

    Args:
        task: whose targets.
        of_labels: whether its loss is known to compare each sample's outputs with one label.
        numbers: whether its loss is known to compare each output with a number.
    """
    outputs = tested_outputs(task, 1, "train")
    require(
        not of_labels or outputs.dim() == 2,
        f"the model's outputs have shape {tuple(outputs.shape)}, and this loss is of one label for each "
        "sample: give a model with outputs (N, labels), or a loss of your own, of (N, ..., labels)",
    )
    require(
        outputs.dim() > 0,
        "the model's outputs for one sample have no axis, as after .squeeze(): use .squeeze(-1), so that "
        "N samples have N outputs",
    )
    wanted = outputs.shape[1:] if numbers else outputs.shape[1:-1]
    for split, shards in (("train", task.train), ("test", task.test)):
        for client in known(shards):
            targets = shards[client].targets
            told = f"client {client} has {split} targets"
            require(
                targets.shape[1:] == wanted,  # else a loss compares each sample with the targets of all
                f"{told} of shape {tuple(targets.shape)}, and the model's outputs have shape "
                f"{(len(targets), *outputs.shape[1:])}: give targets of shape "
                f"{(len(targets), *wanted)}, such as targets[:, None] for one output, targets[:, 0] for "
                "labels; many labels a sample need outputs (N, ..., labels), and 0 or 1 an output floats",
            )
            require(
                not numbers or targets.is_floating_point(),
                f"{told} of {targets.dtype}, but this loss is of numbers: give targets.to({outputs.dtype})",
            )
            low, high, num_labels = targets.min().item(), targets.max().item(), outputs.shape[-1]
            labels = targets if of_labels else targets[targets.long() != NO_LABEL]
            require(
                numbers or (len(labels) > 0 and int(labels.min()) >= 0 and high < num_labels),
                f"{told} from {low} to {high}; the model has {num_labels} outputs, and integers are read "
                f"as labels, so they must be 0 to {num_labels - 1}, and some {NO_LABEL} with a loss of your "
                "own that leaves these out; give numbers as floats",
            )


def check_loss(task: Task) -> None:
    """A loss is one number for a batch, and no sum: what it returns for the first client's first samples."""
    for split in ("train", "test"):
        outputs, targets = tested_outputs(task, 2, split), getattr(task, split)[0].targets[:2]
        try:
            with torch.enable_grad():
                loss: Any = task.loss(outputs.requires_grad_().clone(), targets)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise InputError(
                f"loss is {task.loss!r}, and cannot be computed of outputs {tuple(outputs.shape)}, {split} "
                f"targets {tuple(targets.shape)} ({shorten(str(error), 200)}): give one that can, such as "
                "torch.nn.functional.cross_entropy"
            ) from error
        require(
            isinstance(loss, Tensor) and loss.dim() == 0 and loss.requires_grad,
            f"the loss of {len(targets)} samples is {shorten(repr(loss), 90)}; it must be one number, as "
            "with reduction='mean', in a tensor that torch alone makes of the outputs, for its gradient",
        )
        once, twice = loss.item(), task.loss(torch.cat([outputs] * 2), torch.cat([targets] * 2)).item()
        require(
            once == 0 or not math.isclose(twice - once, once, rel_tol=1e-3),
            f"the loss of {len(targets)} samples is twice as large if they are given twice; it must be their "
            "mean, as with reduction='mean', and no sum",
        )
