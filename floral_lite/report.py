"""What a finished run amounts to, in a few numbers."""

from collections.abc import Sequence
from statistics import fmean, stdev

import numpy as np
import pandas as pd
from torch import Tensor

from .errors import require
from .federation.history import History
from .given import tensor_of
from .router import check_simplex, entropy


def recovered(mixture: list[list[float]], clusters: list[int]) -> float:
    """How well the clients' strongest adaptors tell the true clusters apart.

    The adjusted Rand index of the two groupings: 1 where they are the same, near 0 for chance, below 0
    where worse than that. How strong the strongest adaptor is does not count; in History's mismatch it does.

    Args:
        mixture: pi, K lists of C numbers.
        clusters: the true cluster of each client, K integers.

    Example:
        >>> recovered([[0.1, 0.9], [0.8, 0.2], [0.2, 0.8]], clusters=[0, 1, 0])
        1.0
    """
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(clusters, np.argmax(mixture, axis=1)))


def effective_number(mixtures: Tensor | list[list[float]]) -> Tensor:
    """How many adaptors a federation tells apart: exp(H(mean of pi^k) - mean of H(pi^k)).

    exp(H) of a mixture counts the adaptors that it uses: n if it uses n of them alike. That of the mean
    mixture is C where each client uses its own adaptor, but also where all clients are undecided; so the
    spread of the clients' own mixtures is divided out.

    Args:
        mixtures: pi^k, shape (..., K, C), or K lists of C numbers.

    Returns:
        From 1, all mixtures alike, to min(K, C), one-hot and evenly spread; shape (...).

    Raises:
        InputError: mixtures are not on the simplex.

    Source: Jost, 2007: the effective number of distinct communities, of order 1, all weighted alike.

    Example:
        >>> import torch
        >>> undecided, decided = torch.full((4, 4), 0.25), torch.eye(4)
        >>> effective_number(undecided), effective_number(decided)
        (tensor(1.), tensor(4.))
    """
    mixtures = tensor_of("mixtures", mixtures)
    require(
        mixtures.dim() >= 2,
        f"mixtures has the shape {tuple(mixtures.shape)}; it must be (..., K, C), a row a client",
    )
    check_simplex("mixtures", mixtures)
    mixtures = mixtures + 0.0  # integers too
    return (entropy(mixtures.mean(dim=-2)) - entropy(mixtures).mean(dim=-1)).exp()


def summary(history: History) -> pd.Series:
    """The numbers of the last evaluated round, and what the run cost.

    Returns:
        Accuracy in per cent (mean over clients, weighted by test samples), test loss, parameters, bytes and
        seconds. Where there are two clusters or more also the plain mean over each cluster's clients, and
        how well the mixtures recover the clusters.

    Raises:
        InputError: it is no History, or no round was evaluated yet.
    """
    check_history("history", history)
    last = history.last_evaluated
    rows: dict[str, object] = {"rounds": last.round}
    # all in one cluster: either nobody has said who is alike, or there is nothing to tell apart
    known = len(set(history.clusters)) > 1
    if last.test_accuracy is not None:
        rows["accuracy (%)"] = f"{100 * last.test_accuracy:.1f}"
    if last.test_accuracy is not None and known:
        for cluster, clients in history.clients().groupby("cluster"):
            rows[f"  of cluster {cluster} (%)"] = f"{100 * clients['accuracy'].mean():.1f}"
    rows["test loss"] = f"{last.test_loss:.4f}"
    if known and last.mixture is not None and len(last.mixture[0]) > 1:
        rows["clusters recovered (adjusted Rand index)"] = f"{recovered(last.mixture, history.clusters):.2f}"
        rows["mismatch of the mixtures (0 to 2)"] = f"{last.mismatch:.2f}"
    base, added = history.parameters["base"], history.parameters["added"]
    rows["parameters of the base"] = f"{base:,}"
    rows["parameters added"] = f"{added:,} ({100 * added / base:.1f}%)"
    rows["bytes a client sends a round"] = f"{history.bytes_up:,}"
    rows["seconds of training"] = f"{sum(entry.seconds for entry in history.rounds):.1f}"
    return pd.Series(rows)


def over_seeds(histories: Sequence[History]) -> str:
    """The scores of the last evaluated rounds of several runs, in words: mean and standard deviation.

    Args:
        histories: two or more runs of one task, each evaluated.

    Returns:
        Test accuracies in per cent, or test losses where the task has no labels.

    Raises:
        InputError: there are fewer than two runs, or one is no History, or was not evaluated yet.
    """
    require(
        len(histories) > 1,
        f"histories holds {len(histories)}; a deviation needs two: train with more seeds",
    )
    for place, history in enumerate(histories):
        check_history(f"histories[{place}]", history)
    lasts = [history.last_evaluated for history in histories]
    accuracies = [last.test_accuracy for last in lasts if last.test_accuracy is not None]
    if not accuracies:
        losses = [last.test_loss for last in lasts if last.test_loss is not None]
        return f"test loss {fmean(losses):.4f} +- {stdev(losses):.4f}"
    return f"accuracy {100 * fmean(accuracies):.1f} +- {100 * stdev(accuracies):.1f} %"


def check_history(name: str, given: object) -> None:
    """Raise InputError unless it is a History, and not the Federation that `train` returns."""
    require(
        isinstance(given, History),
        f"{name} is of type {type(given).__name__}; give the .history of what train returned",
    )
