"""FedEM: each sample comes from one of C models, and it is learned from which."""

import torch
from torch import Tensor

from ..roles import Roles
from .base import ROUTER, SampleLoss
from .mfl import MFL


class FedEM(MFL):
    """Whole models and routers, trained on the likelihood of a mixture, -log sum_c pi_c^k exp(-l_c).

    The gradient in w_c is q_c grad l_c, where q_c = pi_c exp(-l_c) / sum_c' pi_c' exp(-l_c') is what EM's
    E-step gives the sample: how likely it came from model c. The gradient in theta is pi_c - q_c: a step of
    it moves pi towards the mean of q, which FedEM's M-step sets it to.

    Simplified: q is computed at every step instead of once a round; theta takes gradient steps, with the
    router's learning rate; and like everything clustered a model is averaged with pi_c^k N^k, where
    FedEM weighs with N^k. What is tested is the mixture of the predictions, as in the paper.

    Args:
        model: the first of the C models; the others have first parameters of their own.
        num_clusters: C >= 1.
        routing: "learned", "closed-form", "clustered" or "optimal", see Routed.
        router: a Router, or its choices by name, see Routed; the paper's if None.

    Raises:
        InputError: an argument is out of range.

    Source: Marfoq et al., 2021, 'Federated Multi-Task Learning under a Mixture of Distributions'.
    """

    name = "fedem"

    def losses(
        self, client: Roles, outputs: list[Tensor], sample_loss: SampleLoss, draws: Tensor | None = None
    ) -> Tensor:
        """-log sum_c pi_c exp(-l_c)."""
        mixture = self.router.mixture(client.private[ROUTER], draws)
        each = torch.stack([sample_loss(output) for output in outputs], dim=-2)  # l_c, (..., C, B)
        weights = mixture[..., None]
        # log pi_c - l_c, and -inf where pi_c = 0; log 0 itself would have an infinite slope
        weighted = weights.masked_fill(weights == 0, 1).log() - each
        return -torch.logsumexp(weighted.masked_fill(weights == 0, -torch.inf), dim=-2)
