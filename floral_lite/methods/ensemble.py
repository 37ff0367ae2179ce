"""Ensemble: C whole models, and a private router that mixes their weights or their outputs."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from ..adaptors.vector import mixed
from ..errors import check_choice, require
from ..factored import Blend
from ..models import reinitialised
from ..roles import Roles
from ..router import Router
from .base import ROUTER, Part, SampleLoss, some_trainable
from .routed import Routed, Routing

Mix = Literal["weights", "outputs"]


class Ensemble(Routed):
    """The whole model is clustered, the router is private; nothing is shared.

    The paper's (FML) mixes the models' weights: one network, f^k(sum_c pi_c w_c). The authors' code mixes
    what the models say: C networks a step, and the loss of sum_c pi_c g(w_c, x), where g are their outputs.

    Args:
        model: the first of the C models; the others have the same layers and first parameters of
            their own, since models that start alike stay alike.
        num_clusters: C >= 1.
        routing: "learned", "closed-form", "clustered" or "optimal", see Routed.
        router: a Router, or its choices by name, see Routed; the paper's if None.
        mix: "weights" or "outputs".

    Raises:
        InputError: an argument is out of range; when training begins, all C models are alike.

    Source: section 'Experiments', 'Ensemble'; objective (FML).
    """

    name = "ensemble"

    def __init__(
        self,
        model: nn.Module,
        num_clusters: int = 4,
        routing: Routing = "learned",
        router: Router | Mapping[str, float] | None = None,
        mix: Mix = "weights",
    ) -> None:
        check_choice("mix", mix, Mix)
        super().__init__(model, num_clusters, routing, router)
        self.mix = mix

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        """C models, and routers uniform or one-hot."""
        models = [self.model, *(reinitialised(self.model, seed, c) for c in range(1, self.num_clusters))]
        copies = [some_trainable(model) for model in models]
        clustered = {name: torch.stack([copy[name].detach() for copy in copies]) for name in copies[0]}
        require(
            self.num_clusters == 1 or any(not torch.equal(w[0], w[1]) for w in clustered.values()),
            "all models of the ensemble start alike, and would stay alike: give the model's layers a method "
            "reset_parameters(), which draws their parameters anew",
        )
        return Roles({}, clustered, {ROUTER: self.first_routers(clusters, clustered)})

    def parts(self, client: Roles, draws: Tensor | None = None) -> dict[str, Part]:
        """w^k = sum_c pi_c^k w_c."""
        mixture = self.router.mixture(client.private[ROUTER], draws)
        return {name: Blend(models, mixture) for name, models in client.clustered.items()}

    def models(self, client: Roles) -> list[dict[str, Part]]:
        """The C models by themselves."""
        axis = client.private[ROUTER].dim() - 1
        each = {name: models.unbind(axis) for name, models in client.clustered.items()}
        return [{name: models[c] for name, models in each.items()} for c in range(self.num_clusters)]

    def networks(self, client: Roles, draws: Tensor | None = None) -> list[dict[str, Part]]:
        """The network with the mixed weights, or the C models."""
        return [self.parts(client, draws)] if self.mix == "weights" else self.models(client)

    def losses(
        self, client: Roles, outputs: list[Tensor], sample_loss: SampleLoss, draws: Tensor | None = None
    ) -> Tensor:
        """l(g(w^k, x)), or l(sum_c pi_c^k g(w_c, x))."""
        if self.mix == "weights":
            return sample_loss(outputs[0])
        mixture = self.router.mixture(client.private[ROUTER], draws)
        return sample_loss(mixed_outputs(mixture, outputs))

    def predict(self, client: Roles, outputs: list[Tensor], classifies: bool) -> Tensor:
        """g(w^k, x), or sum_c pi_c^k g(w_c, x)."""
        if self.mix == "weights":
            return outputs[0]
        return mixed_outputs(self.mixture(client.private), outputs)


def mixed_outputs(mixture: Tensor, outputs: list[Tensor]) -> Tensor:
    """sum_c pi_c g_c, shape (..., B, *), of pi, (..., C), and what C networks say, or lose, each (..., B, *).

    Example:
        >>> mixed_outputs(torch.tensor([0.25, 0.75]), [torch.tensor([4.0, 0.0]), torch.tensor([0.0, 4.0])])
        tensor([1., 3.])
    """
    return mixed(mixture, torch.stack(outputs, dim=mixture.dim() - 1))
