"""Which clients are alike: clusters found in one gradient of each."""

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .errors import require
from .given import precise
from .seeds import check_seed

# Tried one after the other: how many directions of the gradients k-means looks at.
DIRECTIONS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# How far clusters must stand out. On our tasks the effect was 0.1 to 1 without clusters, and 1.39 to 18 where
# k-means found them all; 0.5 to 2.1 where few samples or soft clusters let it find a part of them only, and
# up to 5.8 with another C than the true one.
STANDS_OUT = 1.4
# Random federations that the clients are compared with, for each number of directions.
NUM_NOISE = 100


class Found(NamedTuple):
    """Clusters of clients.

    Attributes:
        clusters: of each client, integers in [0, C), shape (K,).
        effect: how far they stand out from what k-means finds in noise; see `find_clusters`.
    """

    clusters: Tensor
    effect: float

    @property
    def stands_out(self) -> bool:
        """Whether these are clusters rather than noise."""
        return self.effect > STANDS_OUT


def find_clusters(gradients: Sequence[Tensor], num_clusters: int, seed: int = 0) -> Found | None:
    """Cluster clients by their gradients, without knowing how large the clusters are.

    Gradients differ more by the clients' samples than by their clusters. But samples spread clients like
    noise, about equally far in many directions. So all directions are scaled alike, and k-means looks at the
    first d of them, for several d. True clusters leave a smaller share u of the squares unexplained than
    k-means leaves in Gaussian noise. The effect is by how much, in standard deviations of the noise, over
    sqrt(K) to make federations of different sizes comparable:

        (mean of log u_noise - log u) / (deviation of log u_noise * sqrt(K)).

    Args:
        gradients: a tensor a layer, each (K, ...), all at the same model.
        num_clusters: C, how many to look for.
        seed: of k-means and of the noise, >= 0.

    Returns:
        The clusters of the d with the largest effect; None where there is nothing to find: C is 1, there are
        fewer than 2 C clients, all are alike, or a client has one or two numbers: its direction is then a
        sign, or a place on a circle, and k-means finds clusters in any of these.

    Raises:
        InputError: the gradients are of different numbers of clients or not all finite, or the seed is out
            of range.

    Source: ours, of known parts: Sattler et al., 2021, and Duan et al., 2020 (FedGroup), cluster clients by
    the directions of their updates; the numerator is the gap statistic of Tibshirani et al., 2001.

    Example:
        >>> kinds = torch.eye(2, 5).repeat(10, 1)  # 20 clients of two kinds
        >>> noise = 0.1 * torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
        >>> found = find_clusters([kinds + noise], num_clusters=2)
        >>> found.clusters.tolist()[:6], found.stands_out
        ([0, 1, 0, 1, 0, 1], True)
    """
    sizes = {len(gradient) for gradient in gradients}
    require(len(sizes) == 1, f"gradients are of {sorted(sizes)} clients; each layer needs one a client")
    check_seed(seed)
    require(
        all(bool(gradient.isfinite().all()) for gradient in gradients),
        "gradients are not all finite numbers: leave out the clients whose gradients have NaN or infinity",
    )
    num_clients = sizes.pop()
    num_numbers = sum(gradient[0].numel() for gradient in gradients)
    if not 2 <= num_clusters <= num_clients // 2 or num_numbers < 3:
        return None
    places = directions(gradients).numpy()
    random = np.random.default_rng(seed)
    tried = []
    for d in (d for d in DIRECTIONS if d <= min(num_clients // 2, places.shape[1])):
        log_share, clusters = unexplained(places[:, :d], num_clusters, seed, starts=10)
        noise = [
            unexplained(white(random.standard_normal((num_clients, d))), num_clusters, seed, starts=1)[0]
            for _ in range(NUM_NOISE)
        ]
        # (mean of log u_noise - log u) / (deviation of log u_noise * sqrt(K))
        effect = float((np.mean(noise) - log_share) / (np.std(noise) * math.sqrt(num_clients)))
        tried.append(Found(torch.from_numpy(clusters).long(), effect))
    return max(tried, key=lambda found: found.effect, default=None)


def directions(gradients: Sequence[Tensor]) -> Tensor:
    """The clients' places along the principal directions of their gradients, all scaled alike.

    Args:
        gradients: a tensor a layer, each (K, ...).

    Returns:
        Orthonormal columns, those along which the clients differ most first, shape (K, at most K - 1),
        float64; no columns if all are alike.
    """
    total = torch.zeros(len(gradients[0]), len(gradients[0]), dtype=torch.float64)
    for gradient in gradients:
        gradient = precise(gradient.detach())  # in half the squares may overflow
        # what all clients have in common tells nothing
        apart = (gradient - gradient.mean(dim=0)).reshape(len(gradient), -1)
        # a power of two, which rounds nothing: squares of large gradients overflow, of small ones vanish
        apart = torch.ldexp(apart, -apart.abs().max().frexp().exponent.clamp(min=-100))
        gram = (apart @ apart.T).cpu().double()
        # every layer counts alike
        if gram.trace() > 0:
            total += gram / gram.trace()
    # every client counts alike; with little data a gradient is long
    length = total.diagonal().clamp(min=1e-12).sqrt()
    cosines = total / length / length[:, None]
    # places along the eigenvectors of centred products
    cosines = cosines - cosines.mean(dim=0)
    variances, columns = torch.linalg.eigh(cosines - cosines.mean(dim=1, keepdim=True))
    seen = variances > 1e-9 * variances.max().clamp(min=1e-9)
    by_variance: Tensor = columns[:, seen].flip(1)
    return by_variance


def white(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """The places, centred, with orthonormal columns like those of `directions`."""
    orthonormal: NDArray[np.float64] = np.linalg.qr(places - places.mean(axis=0))[0]
    return orthonormal


def unexplained(
    places: NDArray[np.float64], num_clusters: int, seed: int, starts: int
) -> tuple[float, NDArray[np.int32]]:
    """What k-means leaves unexplained of centred places, and how it groups them.

    Args:
        places: a row a client, shape (K, D), centred.
        num_clusters: C, at most K.
        seed: of k-means.
        starts: how often k-means starts anew; the best counts.

    Returns:
        log u, where u in (0, 1] is the share of squares within clusters, and the clusters, shape (K,).
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():  # fewer different clients than clusters
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = KMeans(num_clusters, n_init=starts, random_state=seed % 2**32).fit(places)
    share = fitted.inertia_ / np.square(places).sum()
    return math.log(max(share, 1e-12)), fitted.labels_
