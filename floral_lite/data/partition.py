"""Who gets which samples, and how many of them are kept."""

import torch
from torch import Tensor

from ..decimals import as_written
from ..errors import real_number, require

# However small the share that is kept, a client trains on this many samples (if it has them).
MIN_SAMPLES = 10


def diagonal_clusters(num_clients: int, num_clusters: int) -> Tensor:
    """The paper's 'diagonal' assignment: client k is in cluster k mod C, shape (K,).

    Args:
        num_clients: K.
        num_clusters: C >= 1.

    Source: section 'Synthetic Linear'.
    """
    return torch.arange(num_clients) % num_clusters


def split_evenly(num_samples: int, num_clients: int, generator: torch.Generator) -> list[Tensor]:
    """The row numbers of each client's samples: all samples, dealt at random, sizes differ by at most 1.

    Args:
        num_samples: N, of all clients together.
        num_clients: K.
        generator: deals.

    Raises:
        InputError: there are more clients than samples, or none.
    """
    require(num_clients >= 1, f"num_clients is {num_clients}; samples are dealt to at least 1")
    require(
        num_samples >= num_clients,
        f"num_clients is {num_clients}, but there are only {num_samples} samples to deal: use fewer clients",
    )
    return list(torch.randperm(num_samples, generator=generator).tensor_split(num_clients))


def split_by_label(
    labels: Tensor, clusters: Tensor, num_clusters: int, generator: torch.Generator, num_labels: int
) -> list[Tensor]:
    """The row numbers of each client's samples, if each cluster has a group of labels to itself.

    The labels are cut into C groups in their order; a group's samples are dealt over its cluster's
    clients at random, so that in a cluster sizes differ by at most 1.

    Args:
        labels: integers in [0, num_labels), shape (N,).
        clusters: each client's cluster, in [0, C), shape (K,).
        num_clusters: C, at most num_labels.
        generator: deals.
        num_labels: how many labels there are.

    Raises:
        InputError: there are more clusters than labels, or a label is out of range, or a cluster has no
            clients, or more than samples.

    Source: section 'Experiments', 'CIFAR-100'.
    """
    require(
        num_clusters <= num_labels,
        f"num_clusters is {num_clusters}, but there are only {num_labels} labels to cut: use fewer clusters",
    )
    labels = labels.long()  # in uint8 the product would overflow
    outside = labels[(labels < 0) | (labels >= num_labels)]
    require(
        len(outside) == 0,
        f"labels has {outside[:3].tolist()}, which no cluster would get; all must be in [0, {num_labels}): "
        "number them from 0 on, or give another num_labels",
    )
    groups = labels * num_clusters // num_labels
    rows_of: dict[int, Tensor] = {}
    for cluster in range(num_clusters):
        clients = (clusters == cluster).nonzero().flatten().tolist()
        require(
            len(clients) > 0,
            f"clusters has no client in cluster {cluster}, and its labels would go to nobody: put one "
            "there, or use fewer clusters",
        )
        rows = (groups == cluster).nonzero().flatten()
        require(
            len(rows) >= len(clients),
            f"cluster {cluster} has {len(clients)} clients, and there are {len(rows)} samples of its labels: "
            "give more samples of these, number the labels from 0 on without gaps, or use fewer clients",
        )
        shares = split_evenly(len(rows), len(clients), generator)
        rows_of.update((client, rows[share]) for client, share in zip(clients, shares, strict=True))
    return [rows_of[client] for client in range(len(clusters))]


def num_kept(num_samples: int, data_fraction: float) -> int:
    """How many of a client's training samples a reduced task keeps: a share, but at least 10 if there are 10.

    Args:
        num_samples: N^k.
        data_fraction: the share in (0, 1]; the paper's 'reduced' tasks keep 0.05.

    Raises:
        InputError: data_fraction is out of range.

    Example:
        >>> num_kept(2500, 0.05), num_kept(100, 0.05), num_kept(7, 0.05)
        (125, 10, 7)
    """
    check_data_fraction(data_fraction)
    return min(num_samples, max(MIN_SAMPLES, int(as_written(data_fraction) * num_samples)))


def check_data_fraction(data_fraction: float) -> None:
    """Raise InputError unless it is a share that leaves something."""
    require(
        0 < real_number("data_fraction", data_fraction) <= 1,
        f"data_fraction is {data_fraction}; it is the share of training data kept, in (0, 1]: try 0.05",
    )
