"""What travels between server and clients, and what a message has to pass before it counts."""

import io
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from textwrap import shorten
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from ..roles import Roles

# The one record of each kind in a message.
ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"

# Flower shows what its own logger is told, on the server as in `flwr log`.
logger = logging.getLogger("flwr")

Read = TypeVar("Read")


class BadMessage(ValueError):
    """A message does not count; this says why."""


def check(condition: bool, message: str) -> None:
    """Raise BadMessage with `message` unless `condition` holds."""
    if not condition:
        raise BadMessage(message)


def by_path(state: Roles) -> dict[str, Tensor]:
    """What is sent of a state, by "role/name": everything but the private tensors."""
    return {
        f"{role}/{name}": tensor
        for role in ("shared", "clustered")
        for name, tensor in getattr(state, role).items()
    }


def to_arrays(state: Roles) -> ArrayRecord:
    """The shared and clustered tensors as Flower sends them; private ones never come here."""
    return ArrayRecord(
        {path: Array(tensor.detach().cpu().contiguous().numpy()) for path, tensor in by_path(state).items()}
    )


def from_arrays(arrays: Mapping[str, Array], like: Roles) -> Roles:
    """The same tensors again, after a check of all names, shapes, types and values.

    Args:
        arrays: what has come.
        like: a state with the names, shapes and types that are allowed.

    Returns:
        Shared and clustered tensors, in the order of `like`; nothing private.

    Raises:
        BadMessage: a name is missing or too many, or a tensor has another shape or type, is cut
            off, or is not finite.
    """
    wanted = by_path(like)
    differing = sorted(wanted.keys() ^ set(arrays))
    check(
        not differing,
        f"{len(differing)} names are missing or not known, the first is {differing[:1]}: server and client "
        "need the same method and model",
    )
    tensors = (read_array(path, arrays[path], tensor) for path, tensor in wanted.items())
    return like._replace(private={}).with_tensors(tensors)


def read_array(path: str, array: Array, like: Tensor) -> Tensor:
    """One tensor, which has to be like another. Its size is checked before memory is taken for it."""
    wanted = np.dtype(str(like.dtype).removeprefix("torch.")), tuple(like.shape)
    check(array.stype == "numpy.ndarray", f"{path} is of kind {array.stype!r}; it must be 'numpy.ndarray'")
    stream = io.BytesIO(array.data)
    try:
        version = np.lib.format.read_magic(stream)
        shape, in_columns, dtype = np.lib.format.read_array_header_1_0(stream)
    except Exception as error:  # whatever the parser raises on such bytes
        raise BadMessage(f"{path} does not begin as an array: {error}") from None
    check(
        (version, dtype, shape) == ((1, 0), *wanted) and (array.dtype, array.shape) == (str(dtype), shape),
        f"{path} is {dtype} of shape {shape}; it must be {wanted[0]} of shape {wanted[1]}",
    )
    start, size = stream.tell(), like.nbytes
    check(
        len(array.data) - start == size and not in_columns,
        f"{path} has {len(array.data) - start} bytes of numbers; it must have {size}, row by row",
    )
    numbers = np.frombuffer(array.data, dtype, offset=start).reshape(shape)
    check(bool(np.isfinite(numbers).all()), f"{path} has numbers that are not finite")
    return torch.from_numpy(numbers.copy())


def read_number(metrics: MetricRecord, key: str) -> float:
    """A finite number of a reply.

    Raises:
        BadMessage: it is missing, a list, or not finite.
    """
    value = metrics.get(key)
    if not isinstance(value, (int, float)):
        raise BadMessage(f"{key} is {value!r}; it must be a number")
    check(math.isfinite(value), f"{key} is {value}; it must be finite")
    return value


def read_num_samples(metrics: MetricRecord, max_samples: float) -> float:
    """N^k, or the size of a test shard, as a client says it.

    Raises:
        BadMessage: it is below 1, or larger than is believed.
    """
    num_samples = read_number(metrics, "num-examples")
    check(
        1 <= num_samples <= max_samples,
        f"num-examples is {num_samples}; it must be at least 1 and at most {max_samples:g}, the server's "
        "max_samples",
    )
    return num_samples


class Trained(NamedTuple):
    """What a client sends after its local training.

    Attributes:
        parameters: shared and clustered; multiplied by N^k and pi_c^k N^k in the pre-weighted form.
        num_samples: N^k.
        weights: pi_c^k N^k, shape (C,), float64.
        loss: of the training, mean over its steps.
    """

    parameters: Roles
    num_samples: float
    weights: Tensor
    loss: float


def read_trained(
    content: RecordDict, like: Roles, num_clusters: int, max_samples: float, weighted: bool
) -> Trained:
    """A client's trained parameters and weights, after every check that can be made of them.

    Args:
        content: of the reply.
        like: the state that was sent.
        num_clusters: C.
        max_samples: the largest N^k that is believed.
        weighted: whether parameters come multiplied by their weights.

    Raises:
        BadMessage: something is wrong.
    """
    metrics = content.metric_records[METRICS]
    check(
        bool(read_number(metrics, "weighted")) == weighted,
        f"the client is started with weighted={not weighted}, the server with weighted={weighted}",
    )
    num_samples = read_num_samples(metrics, max_samples)
    listed = metrics.get("weights")
    check(isinstance(listed, list), f"weights is {listed!r}; it must be a list")
    weights = torch.tensor(listed, dtype=torch.float64)
    # pi^k is on the simplex: pi_c^k N^k >= 0, and they sum to N^k but for rounding; NaN is in no range
    check(
        weights.shape == (num_clusters,)
        and bool((weights >= 0).all())
        and abs(float(weights.sum()) - num_samples) <= 1e-4 * num_samples,
        f"weights are {listed}; they must be {num_clusters} numbers >= 0 with sum {num_samples}",
    )
    loss = read_number(metrics, "train-loss")
    parameters = from_arrays(content.array_records[ARRAYS], like)
    for name, tensor in parameters.shared.items():
        check(
            not name.endswith("running_var") or bool((tensor >= 0).all()),
            f"{name} has numbers below 0, and is a variance; where noise is added, use statistics='local'",
        )
    return Trained(parameters, num_samples, weights, loss)


def admitted(
    replies: Iterable[Message],
    asked: Mapping[int, int],
    round_number: int,
    read: Callable[[RecordDict], Read],
) -> dict[int, Read]:
    """The good replies of a round, in the order of the clients; a bad one is dropped, and the log says why.

    Args:
        replies: whatever has come.
        asked: the number of each client that was asked, by its node.
        round_number: 1, 2, ...
        read: makes something of a reply's content, or raises BadMessage.
    """
    good: dict[int, Read] = {}
    for message in replies:
        node = message.metadata.src_node_id
        try:
            # first: for a client that is gone the SuperLink answers, in its own name
            if message.has_error():
                raise BadMessage(str(message.error.reason))
            check(node in asked, "it was not asked in this round")
            check(asked[node] not in good, "it has answered already")
            content = message.content
            kinds = [list(content.array_records), list(content.metric_records), list(content.config_records)]
            check(
                kinds[0] in ([], [ARRAYS]) and kinds[1:] == [[METRICS], []],
                f"it has the records {kinds}; it must have {METRICS!r}, and {ARRAYS!r} but of a test",
            )
            told = read_number(content.metric_records[METRICS], "round")
            check(told == round_number, f"it is the reply of round {told}")
            good[asked[node]] = read(content)
        except Exception as error:  # nothing that a reply has in it may end the run
            reason = str(error) if isinstance(error, BadMessage) else repr(error)
            who = f"client {asked[node]}" if node in asked else f"node {node}"
            # no reply may fill the log
            short = shorten(reason, 500)
            logger.warning("round %d: the reply of %s is dropped: %s", round_number, who, short)
    without = sorted(set(asked.values()) - good.keys())
    if without:
        logger.info("round %d: it goes on without clients %s", round_number, without)
    return dict(sorted(good.items()))
