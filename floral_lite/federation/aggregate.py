"""The server's half of Algorithm 1: averages over clients, and the weights they use."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..devices import send
from ..errors import require
from ..given import precise
from ..roles import Roles, along_first
from .precision import arithmetic

# Weights below this count as none: products with them leave the range of float32.
NOTHING = 1e-30


def joint_probability(mixture: Tensor, num_samples: Tensor) -> Tensor:
    """p(k, c): how much of the federation's data is client k's in cluster c.

    Args:
        mixture: pi, shape (K, C), rows on the simplex.
        num_samples: N^k >= 0, not all 0, shape (K,).

    Returns:
        Shape (K, C), sums to 1.

    Raises:
        InputError: the two are not of as many clients.

    Source: section 'Analysis', the equation of p(k, c), p(c) and p(k | c).
    """
    check_same_clients(mixture, num_samples)
    # p(k, c) = N^k / N pi_c^k
    return mixture * (num_samples / num_samples.sum())[:, None]


def cluster_probability(mixture: Tensor, num_samples: Tensor) -> Tensor:
    """p(c): how much of the federation's data each cluster holds, shape (C,).

    Args, errors and source: as for joint_probability.
    """
    # p(c) = sum_k N^k / N pi_c^k
    return joint_probability(mixture, num_samples).sum(dim=0)


def client_given_cluster(mixture: Tensor, num_samples: Tensor) -> Tensor:
    """p(k | c): the weight of client k in cluster c's average, shape (K, C), columns sum to 1.

    A cluster in which nobody has weight gets a column of zeros.
    Args, errors and source: as for joint_probability.

    Example:
        >>> mixture = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
        >>> client_given_cluster(mixture, num_samples=torch.tensor([10.0, 20.0]))
        tensor([[0.5000, 0.0000],
                [0.5000, 1.0000]])
    """
    check_same_clients(mixture, num_samples)
    # p(k | c) = pi_c^k N^k / sum_k' pi_c^k' N^k'
    weights = mixture.masked_fill(mixture < NOTHING, 0) * num_samples[:, None]
    total = weights.sum(dim=0)
    return torch.where(total > 0, weights / total, 0.0)


def check_same_clients(mixture: Tensor, num_samples: Tensor) -> None:
    """Raise InputError unless both are of as many clients: one number alone would be broadcast to all."""
    require(
        mixture.dim() == 2 and num_samples.shape == mixture.shape[:1],
        f"mixture has shape {tuple(mixture.shape)} and num_samples {tuple(num_samples.shape)}; they "
        "must be (K, C) and (K,): give a row of weights and a number for every client",
    )


def mismatch(mixture: Tensor, clusters: Tensor, num_samples: Tensor) -> float:
    """The aggregation mismatch ||delta_c||_1, averaged over the true clusters.

    delta_c compares the weights in an adaptor's average with those in the true
    cluster's. Adaptors have no names, so each cluster is compared with the adaptor
    that fits it best.

    Args:
        mixture: learned pi, shape (K, C).
        clusters: true cluster of each client, integers >= 0, shape (K,).
        num_samples: N^k, shape (K,).

    Returns:
        0 (every cluster has an adaptor of its own) to 2.

    Raises:
        InputError: the three are not of as many clients.

    Source: section 'Analysis', the total variation distance ||delta_c||_1.
    """
    require(
        len(mixture) == len(clusters) == len(num_samples),
        f"mixture is of {len(mixture)} clients, clusters of {len(clusters)} and num_samples of "
        f"{len(num_samples)}: give one of each for every client",
    )
    # a cluster in which nobody is has no weights to compare
    present = torch.unique(clusters, return_inverse=True)[1]
    truth = torch.nn.functional.one_hot(present).to(mixture)
    learned = client_given_cluster(mixture, num_samples)
    wanted = client_given_cluster(truth, num_samples)
    # ||delta_c||_1 = sum_k |p_hat(k | c) - p(k | c)|
    distance = (learned[:, :, None] - wanted[:, None, :]).abs().sum(dim=0)
    distance[learned.sum(dim=0) == 0] = torch.inf  # an adaptor that nobody uses fits no cluster
    return float(distance.min(dim=0).values.mean())


def aggregate(
    state: Roles,
    sampled: Sequence[int],
    trained: Sequence[Roles],
    num_samples: Tensor,
    mixture: Tensor,
    as_updates: bool = False,
) -> Roles:
    """The federation's next state, from what the sampled clients send back.

    Args:
        state: the federation before the round.
        sampled: the clients S of the round.
        trained: their parameters after local training, in the order of `sampled`.
        num_samples: N^k of the sampled clients, shape (|S|,).
        mixture: their pi after local training, shape (|S|, C).
        as_updates: average what the clients have changed, and add it to the state: what nobody has
            changed then stays as it is to the last bit, where the average of equal numbers rounds.

    Returns:
        Shared tensors averaged with N^k, slice c of the clustered ones with pi_c^k N^k,
        private ones written back. A cluster in which no sampled client has weight keeps its slice.

    Raises:
        InputError: sampled, trained, num_samples and mixture are not of as many clients.

    Source: section 'Algorithm', 'Simple FLoRAL Averaging', the two synchronisation lines.
    """
    require(
        len(sampled) == len(trained) == len(num_samples),
        f"sampled has {len(sampled)} clients, trained {len(trained)} and num_samples {len(num_samples)}: "
        "give one of each for every client of the round",
    )
    like = precise(state.tensors()[0])
    num_samples, mixture = num_samples.to(like), mixture.to(like)

    # u <- sum_k N^k u^k / sum_k N^k
    share = num_samples / num_samples.sum()
    shared = {}
    for name, before in state.shared.items():
        origin = before if as_updates else torch.zeros_like(before)
        stacked = torch.stack([client.shared[name] for client in trained]) - origin
        shared[name] = (origin + weighted("k,k...->...", share, stacked)).to(before.dtype)

    # a_c <- sum_k pi_c^k N^k a_c^k / sum_k pi_c^k N^k
    weights = client_given_cluster(mixture, num_samples)
    empty = weights.sum(dim=0) == 0
    clustered = {}
    for name, before in state.clustered.items():
        origin = before if as_updates else torch.zeros_like(before)
        stacked = torch.stack([client.clustered[name] for client in trained]) - origin
        average = (origin + weighted("kc,kc...->c...", weights, stacked)).to(before.dtype)
        clustered[name] = torch.where(along_first(empty, before), before, average)

    private = {name: tensor.clone() for name, tensor in state.private.items()}
    for client, parameters in zip(sampled, trained, strict=True):
        for name, tensor in parameters.private.items():
            private[name][client] = tensor
    return Roles(shared, clustered, private)


def weighted(equation: str, weights: Tensor, tensors: Tensor) -> Tensor:
    """The einsum of both, in single precision at least: in bfloat16 and TF32 weights would not sum to 1."""
    tensors = precise(tensors)
    with arithmetic("float32"):
        return torch.einsum(equation, weights.to(tensors.dtype), tensors)


class Sums:
    """The same average, of clients that come in stacks, one after the other.

    Args:
        state: the federation before the round.
        num_samples: of all clients that will come, > 0.
        as_updates: see `aggregate`.
    """

    def __init__(self, state: Roles, num_samples: int, as_updates: bool = False) -> None:
        """Begin with nothing."""
        self.state, self.num_samples, self.as_updates = state, num_samples, as_updates
        self.sums = state._replace(private={}).map(lambda tensor: precise(torch.zeros_like(tensor)))
        self.private = {name: tensor.clone() for name, tensor in state.private.items()}
        self.weights = torch.zeros(())

    def add(self, clients: Sequence[int], trained: Roles, num_samples: Tensor, mixture: Tensor) -> None:
        """Take in a stack of clients.

        Args:
            clients: their numbers.
            trained: their parameters, each with an axis of clients in front; the clustered ones
                may be those of a client's only cluster, (k, 1, ...).
            num_samples: N^k, shape (k,).
            mixture: pi, shape (k, C).
        """
        like = trained.tensors()[0]
        precision = torch.promote_types(like.dtype, torch.float32)
        share = send(num_samples.to(precision), like.device) / self.num_samples
        # p(k, c) = pi_c^k N^k / N
        mixture = send(mixture.contiguous(), like.device).to(precision)
        joint = mixture.masked_fill(mixture < NOTHING, 0) * share[:, None]
        self.weights = self.weights + joint.sum(dim=0)
        for name, tensor in trained.shared.items():
            moved = tensor - self.state.shared[name] if self.as_updates else tensor
            self.sums.shared[name] += weighted("k,k...->...", share, moved)
        for name, tensor in trained.clustered.items():
            moved = tensor
            if self.as_updates:
                before = self.state.clustered[name]
                # a client's only cluster, (k, 1, ...), began as that slice of the state
                alone = tensor.shape[1] < len(before)
                moved = tensor - (before[joint.argmax(dim=1)][:, None] if alone else before)
            every = moved.expand(-1, joint.shape[1], *tensor.shape[2:])  # other clusters have weight 0
            self.sums.clustered[name] += weighted("kc,kc...->c...", joint, every)
        places = send(torch.tensor(clients), like.device)
        for name, tensor in trained.private.items():
            self.private[name][places] = tensor

    def average(self) -> Roles:
        """What `aggregate` makes of all of them."""
        shared, clustered = {}, {}
        for name, before in self.state.shared.items():
            average = self.sums.shared[name]
            shared[name] = (before + average if self.as_updates else average).to(before.dtype)
        for name, before in self.state.clustered.items():
            sums = self.sums.clustered[name]
            weights = along_first(self.weights, before)
            average = before + sums / weights if self.as_updates else sums / weights
            clustered[name] = torch.where(weights > 0, average.to(before.dtype), before)
        return Roles(shared, clustered, self.private)
