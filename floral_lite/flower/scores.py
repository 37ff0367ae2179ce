"""Test scores as they come over Flower: loss and accuracy of each client, and nothing of its router."""

# the book's pages are built without Flower: what stands in for it knows no |
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from flwr.app import MetricRecord, RecordDict

from ..federation.history import Round
from .messages import METRICS, check, read_num_samples, read_number


class Tested(NamedTuple):
    """A personal model on its client's test shard; accuracy is None for a regression task."""

    num_samples: float
    loss: float
    accuracy: float | None


def read_tested(content: RecordDict, max_samples: float) -> Tested:
    """A client's score; its test shard is believed to have at most `max_samples`.

    Raises:
        BadMessage: a number is missing or out of range.
    """
    metrics = content.metric_records[METRICS]
    num_samples = read_num_samples(metrics, max_samples)
    accuracy = read_number(metrics, "accuracy") if "accuracy" in metrics else None
    check(accuracy is None or 0 <= accuracy <= 1, f"accuracy is {accuracy}; it must be in [0, 1]")
    return Tested(num_samples, read_number(metrics, "loss"), accuracy)


def add_tested(entry: Round, tested: dict[int, Tested], num_clients: int) -> MetricRecord | None:
    """Fill in the evaluated fields of a round, as the engines do; mixtures stay with the clients.

    Args:
        entry: the round.
        tested: the clients' scores. What is a list of all clients stays None where one is missing.
        num_clients: K.

    Returns:
        The means, for Flower's own log; None if nobody was tested.
    """
    if not tested:
        return None
    weights = [score.num_samples for score in tested.values()]
    losses = [score.loss for score in tested.values()]
    accuracies = [score.accuracy for score in tested.values() if score.accuracy is not None]
    entry.test_loss = float(np.average(losses, weights=weights))
    means: dict[str, Any] = {"test-loss": entry.test_loss, "tested": len(tested)}
    if len(accuracies) == len(tested):
        means["test-accuracy"] = entry.test_accuracy = float(np.average(accuracies, weights=weights))
    if len(tested) == num_clients:
        entry.client_loss = losses
        entry.client_accuracy = accuracies if entry.test_accuracy is not None else None
    return MetricRecord(means)
