"""FLoRAL: a shared base model, C adaptors a layer, and a private router."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Literal

import torch
from torch import Tensor, nn

from .. import adaptors
from ..adaptors import Convolution, Initialisation, Norms, Options, Statistics
from ..errors import require
from ..factored import Mixture
from ..precondition import precondition
from ..roles import Roles
from ..router import Router, one_hot_logits, uniform_logits
from ..seeds import stream
from .base import ROUTER, Method, Part, local_statistics, own_statistics, trainable

Routing = Literal["learned", "optimal"]


class FLoRAL(Method):
    """The base is shared, the adaptors are clustered, the router is private.

    Args:
        model: the base model u.
        num_clusters: C >= 1, adaptors a layer.
        rank: of every low-rank adaptor; give this or the budget.
        budget: rho in (0, 1]; 0.01 if neither is given.
        routing: "learned" trains theta from uniform by gradient; "optimal" fixes it at
            the one-hot of the client's true cluster, modulo C.
        init, convolution, biases, norms: what the adaptors are, see Options.
        router: temperature, floor, noise and entropy of the routers, as a Router or by name;
            the paper's if None.
        precondition: precondition the adaptors' gradients, with epsilon = 1e-5.

    Raises:
        InputError: an argument is out of range, or the model has nothing to adapt.

    Source: section 'Practical Implementation', objective (FML) with weight sharing.
    """

    name = "floral"
    preconditions_shared = False

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
        """Plan the adaptors on the model."""
        require(routing in ("learned", "optimal"), f"routing is {routing!r}; it is 'learned' or 'optimal'")
        if rank is None and budget is None:
            budget = 0.01
        adaptors.check_num_clusters(num_clusters)
        self.model = model
        self.num_clusters = num_clusters
        self.routing = routing
        self.router = Router(**router) if isinstance(router, Mapping) else router or Router()
        self.preconditioned = precondition
        self.adaptor_options = Options(rank, budget, init, convolution, biases, norms)
        self.plan = adaptors.plan(model, self.adaptor_options)

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        """The base as it is, adaptors that add nothing, routers uniform or one-hot."""
        clustered = adaptors.initialise(self.plan, self.num_clusters, stream(seed, "adaptors"))
        if self.routing == "optimal":
            logits = one_hot_logits(clusters, self.num_clusters)
        else:
            logits = uniform_logits(len(clusters), self.num_clusters)
        private = {ROUTER: logits} | own_statistics(self.model, self.plan, len(clusters))
        roles = Roles(trainable(self.model), clustered, private)
        return roles.map(lambda tensor: tensor.to(next(self.model.parameters())))

    def parts(self, client: Roles, draws: Tensor | None = None) -> dict[str, Part]:
        """w^k = u + sum_c pi_c^k a_c."""
        mixture = self.router.mixture(client.private[ROUTER], draws)
        mixtures: dict[str, Part] = {
            name: Mixture(
                client.shared[name], adaptor, adaptors.factors_of(name, adaptor, client.clustered), mixture
            )
            for name, adaptor in self.plan.items()
        }
        return {**client.shared, **mixtures}

    def local_statistics(self, client: Roles) -> dict[str, Statistics]:
        """Those that the client keeps for its Batch-NorA adaptors."""
        return local_statistics(self.plan, client)

    def draw(self, num_steps: int, generator: torch.Generator) -> Tensor | None:
        """The router's noise."""
        return torch.rand(num_steps, self.num_clusters, generator=generator) if self.router.noise else None

    def penalty(self, client: Roles, start: Roles) -> Tensor:
        """-lambda H(pi^k)."""
        return self.router.penalty(client.private[ROUTER])

    def precondition(self, client: Roles, gradients: Roles) -> Roles:
        """Those of the adaptors preconditioned."""
        if not self.preconditioned:
            return gradients
        return gradients._replace(clustered=precondition(self.plan, client.clustered, gradients.clustered))

    def only_cluster(self, private: dict[str, Tensor]) -> Tensor | None:
        """The true cluster with optimal routing."""
        return self.router.only_cluster(private[ROUTER]) if self.routing == "optimal" else None

    def mixture(self, private: dict[str, Tensor]) -> Tensor:
        """pi^k = softmax(theta^k)."""
        return self.router.mixture(private[ROUTER])

    def options(self) -> dict[str, object]:
        """C, the choices about adaptors, routing, and the router's own."""
        return {
            "num_clusters": self.num_clusters,
            **asdict(self.adaptor_options),
            "routing": self.routing,
            "router": asdict(self.router),
            "precondition": self.preconditioned,
        }
