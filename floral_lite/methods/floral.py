"""FLoRAL: a shared base model, C adaptors a layer, and a private router."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..adaptors import Convolution, Initialisation, Norms
from ..errors import require
from ..roles import Roles
from ..router import Router
from .adapted import Adapted
from .base import ROUTER, Part, trainable
from .routed import Routed, Routing


class FLoRAL(Adapted, Routed):
    """The base is shared, the adaptors are clustered, the router is private.

    Of a model whose parameters are all frozen the base stays as it is: adaptors alone are trained and sent.

    Args:
        model: the base model u.
        num_clusters: C >= 1, adaptors a layer.
        rank: of every low-rank adaptor; give this or the budget.
        budget: rho in (0, 1]; 0.01 if neither is given.
        routing: "learned", as the paper does; "closed-form", "clustered" or "optimal", see Routed.
        init, convolution, biases, norms: what the adaptors are, see Options.
        router: a Router, or its choices by name, see Routed; the paper's if None.
        precondition: precondition the adaptors' gradients, with epsilon = 1e-5.

    Raises:
        InputError: an argument is out of range, or the model has nothing to adapt; when training begins, all
            adaptors are alike, and nothing would ever tell them apart.

    Source: section 'Practical Implementation', objective (FML) with weight sharing.
    """

    name = "floral"

    def __init__(
        self,
        model: nn.Module,
        num_clusters: int = 4,
        rank: int | None = None,
        budget: float | None = None,
        routing: Routing = "learned",
        init: Initialisation = "paper",
        convolution: Convolution = "balanced",
        biases: bool = True,
        norms: Norms = "affine",
        router: Router | Mapping[str, float] | None = None,
        precondition: bool = True,
    ) -> None:
        Routed.__init__(self, model, num_clusters, routing, router)
        Adapted.__init__(self, model, rank, budget, init, convolution, biases, norms, precondition)

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        """The base as it is, adaptors that add nothing, routers uniform or one-hot."""
        clustered = self.first_adaptors(self.num_clusters, seed)
        if self.routing in ("learned", "closed-form"):
            self.check_apart(clustered)
        private = {ROUTER: self.first_routers(clusters, clustered)} | self.first_statistics(len(clusters))
        return Roles(trainable(self.model), clustered, private)

    def check_apart(self, clustered: dict[str, Tensor]) -> None:
        """As vectors, which all start at zero: uniform routers give each of them the same gradient."""
        alike = all(torch.equal(tensor[0], tensor[-1]) for tensor in clustered.values())
        plain = type(self.router) is Router and not self.router.noise
        require(
            not (self.num_clusters > 1 and alike and plain),
            "all adaptors start alike, and would stay alike, as those of biases and norms do: unfreeze a "
            "weight that is a matrix, draw one tensor of an adaptor of your own, or use routing='optimal' or "
            "router={'noise': 1}",
        )

    def parts(self, client: Roles, draws: Tensor | None = None) -> dict[str, Part]:
        """w^k = u + sum_c pi_c^k a_c."""
        mixture = self.router.mixture(client.private[ROUTER], draws)
        return self.adapted(client, client.clustered, mixture)

    def models(self, client: Roles) -> list[dict[str, Part]]:
        """The models u + a_c, one a cluster."""
        axis = client.private[ROUTER].dim() - 1
        whole = torch.ones_like(client.private[ROUTER].narrow(axis, 0, 1))
        models = []
        for c in range(self.num_clusters):
            own = {name: tensor.narrow(axis, c, 1) for name, tensor in client.clustered.items()}
            models.append(self.adapted(client, own, whole))
        return models
