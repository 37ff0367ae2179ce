"""IFCA: C whole models, of which each client trains the one that fits it best."""

import torch
from torch import Tensor, nn

from ..roles import Roles
from ..router import one_hot_logits
from .base import ROUTER, Part
from .ensemble import Ensemble


class IFCA(Ensemble):
    """The whole model is clustered; at a round's start a client chooses that with the least training loss.

    Its router is one-hot at the choice, so that each model is averaged over those who chose it. A client is
    tested with the model that it chose last; the first one, if it has not been sampled yet. It receives all C
    models, and needs to send the one that it trained. The losses are taken on the whole training shard, in
    evaluation mode (batch norms with the client's own statistics).

    Which clusters are found depends on the first models: where one of them is at first the best for clients
    of two clusters, it stays so. The paper tries several first models; here that is another seed.

    Args:
        model: the first of the C models; the others have first parameters of their own.
        num_clusters: C >= 1.

    Raises:
        InputError: an argument is out of range.

    Source: Ghosh et al., 2020, 'An Efficient Framework for Clustered Federated Learning'; of its two
    versions the one that averages models.
    """

    name = "ifca"
    sends_one_cluster = True

    def __init__(self, model: nn.Module, num_clusters: int = 4) -> None:
        super().__init__(model, num_clusters)

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        """C models; nobody has chosen yet."""
        return self.begin(super().initialise(clusters, seed), torch.zeros(len(clusters), self.num_clusters))

    def candidates(self, client: Roles) -> list[dict[str, Part]]:
        """The C models."""
        return self.models(client)

    def begin(self, client: Roles, losses: Tensor | None) -> Roles:
        """argmin_c f^k(w_c)."""
        assert losses is not None
        logits = one_hot_logits(losses.argmin(dim=-1), self.num_clusters)
        return client._replace(private=client.private | {ROUTER: logits.to(client.private[ROUTER])})

    def only_cluster(self, private: dict[str, Tensor]) -> Tensor | None:
        """The one that was chosen."""
        return private[ROUTER].argmax(dim=-1)
