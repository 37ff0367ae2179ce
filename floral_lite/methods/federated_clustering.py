"""Federated clustering: C whole models; a client trains with those whose updates look like its own."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..adaptors import check_num_clusters
from ..errors import real_number, require
from ..factored import Blend
from ..roles import Roles, along_first
from ..router import Router, one_hot_logits
from ..seeds import stream
from .base import ROUTER, Method, Part, some_trainable

# Before the names of momenta: private m^k, and clustered their centres. No layer is called so.
MOMENTUM = "momentum of "


class FederatedClustering(Method):
    """Models and centres of momenta are clustered; each client keeps a momentum of its own updates.

    At a round's start a client goes to the nearest centre, argmin_c ||m^k - v_c||, and trains that cluster's
    model from w_0 to w^k. Then m^k <- beta m^k + (1 - beta) (w_0 - w^k); and v_c becomes the average of its
    members' momenta, as w_c that of their models. So a client receives all C models and centres, and needs to
    send one model and one momentum.

    Simplified: the paper's momenta are of gradients, one for each step of its models, and its centres are
    means that leave out far outliers, which makes them robust to faulty clients; here they are plain means
    of updates. A client that has no momentum yet is in a cluster that was drawn at random. The models start
    alike, since updates at different models cannot be compared: only the first clusters' members tell them
    apart. As in k-means true clusters that begin nearest to the same centre may stay together; another
    seed draws other first clusters.

    Clients must be stateful, since they remember momenta; and the server has to average plainly, since
    centres are averages. A run with other settings is refused.

    Args:
        model: all C models at first.
        num_clusters: C >= 1.
        update_momentum: beta in [0, 1). Where models have converged updates are noise, and clients would
            scatter: it has to remember the rounds before.

    Raises:
        InputError: an argument is out of range.

    Source: Werner et al., 2023, 'Provably Personalized and Robust Federated Learning', momentum clustering.
    """

    name = "federated-clustering"
    remembers_start = True
    sends_one_cluster = True
    needs: ClassVar[Mapping[str, object]] = {
        "stateful": True,
        "server_optimizer": "sgd",
        "server_learning_rate": 1.0,
        "server_momentum": 0.0,
    }

    def __init__(self, model: nn.Module, num_clusters: int = 4, update_momentum: float = 0.99) -> None:
        require(
            0 <= real_number("update_momentum", update_momentum) < 1,
            f"update_momentum is {update_momentum}; it is beta, in [0, 1): try 0.99",
        )
        self.model = model
        self.num_clusters = check_num_clusters(num_clusters)
        self.update_momentum = update_momentum

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        """C times the same model, momenta of zero, and clusters at random."""
        model = some_trainable(self.model)
        copies = {name: torch.stack([tensor.detach()] * self.num_clusters) for name, tensor in model.items()}
        centres = {MOMENTUM + name: torch.zeros_like(tensor) for name, tensor in copies.items()}
        own = {
            MOMENTUM + name: tensor.new_zeros(()).expand(len(clusters), *tensor.shape)
            for name, tensor in model.items()
        }
        chosen = torch.randint(self.num_clusters, (len(clusters),), generator=stream(seed, "first clusters"))
        logits = one_hot_logits(chosen, self.num_clusters).to(next(iter(model.values())))
        return Roles({}, copies | centres, {ROUTER: logits} | own)

    def parts(self, client: Roles, draws: Tensor | None = None) -> dict[str, Part]:
        """The model of the client's cluster, w^k = sum_c pi_c^k w_c with a one-hot pi^k."""
        mixture = self.mixture(client.private)
        return {
            name: Blend(models, mixture)
            for name, models in client.clustered.items()
            if not name.startswith(MOMENTUM)
        }

    def begin(self, client: Roles, losses: Tensor | None) -> Roles:
        """argmin_c ||m^k - v_c||; a client without momentum stays where it is."""
        logits = client.private[ROUTER]
        own = as_vectors(client.private, logits.dim() - 1)
        centres = as_vectors(client.clustered, logits.dim())
        nearest = (own.unsqueeze(-2) - centres).square().sum(dim=-1).argmin(dim=-1)
        chosen = torch.where((own == 0).all(dim=-1), logits.argmax(dim=-1), nearest)
        logits = one_hot_logits(chosen, self.num_clusters).to(logits)
        return client._replace(private=client.private | {ROUTER: logits})

    def finish(self, client: Roles, start: Roles) -> Roles:
        """m^k <- beta m^k + (1 - beta) (w_0 - w^k); the first is the update itself."""
        axes = client.private[ROUTER].dim() - 1
        fresh = (as_vectors(start.private, axes) == 0).all(dim=-1)
        before, after = self.personalise(start), self.personalise(client)
        momenta, centres = {}, {}
        for name, model in before.items():
            update = model - after[name]
            name = MOMENTUM + name
            smoothed = self.update_momentum * start.private[name] + (1 - self.update_momentum) * update
            momenta[name] = torch.where(along_first(fresh, update), update, smoothed)
            # for all C centres: only that of the client's own cluster has weight in the average
            centres[name] = momenta[name].unsqueeze(axes).expand_as(client.clustered[name])
        return Roles(client.shared, client.clustered | centres, client.private | momenta)

    def mixture(self, private: dict[str, Tensor]) -> Tensor:
        """One-hot at the client's cluster."""
        return Router().mixture(private[ROUTER])

    def only_cluster(self, private: dict[str, Tensor]) -> Tensor | None:
        """The one whose centre was the nearest."""
        return private[ROUTER].argmax(dim=-1)


def as_vectors(named: dict[str, Tensor], axes: int) -> Tensor:
    """All momenta, or all of their centres, as vectors (..., D), with so many axes in front."""
    momenta = [tensor for name, tensor in named.items() if name.startswith(MOMENTUM)]
    return torch.cat([tensor.reshape(*tensor.shape[:axes], -1) for tensor in momenta], dim=-1)
