"""FLoRAL: a shared base model, C adaptors a layer, and a private router."""

from typing import Literal

from torch import Tensor, nn

from .. import adaptors, router
from ..adaptors import Initialisation
from ..errors import require
from ..roles import Roles
from ..seeds import stream
from .base import ROUTER, Method, trainable

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
        init: how the adaptors start, "paper" or "authors".

    Raises:
        InputError: an argument is out of range, or the model has nothing to adapt.

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
    ) -> None:
        """Plan the adaptors on the model."""
        require(routing in ("learned", "optimal"), f"routing is {routing!r}; it is 'learned' or 'optimal'")
        if rank is None and budget is None:
            budget = 0.01
        adaptors.check_num_clusters(num_clusters)
        self.model = model
        self.num_clusters = num_clusters
        self.routing = routing
        self.plan = adaptors.plan(model, rank, budget, init)
        self.settings = {"num_clusters": num_clusters, "rank": rank, "budget": budget, "init": init}

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        """The base as it is, adaptors that add nothing, routers uniform or one-hot."""
        clustered = adaptors.initialise(self.plan, self.num_clusters, stream(seed, "adaptors"))
        if self.routing == "optimal":
            logits = router.one_hot_logits(clusters, self.num_clusters)
        else:
            logits = router.uniform_logits(len(clusters), self.num_clusters)
        roles = Roles(trainable(self.model), clustered, {ROUTER: logits})
        return roles.map(lambda tensor: tensor.to(next(self.model.parameters()).dtype))

    def personalise(self, client: Roles) -> dict[str, Tensor]:
        """w^k = u + sum_c pi_c^k a_c."""
        mixture = router.mixture(client.private[ROUTER])
        return adaptors.personalise(self.plan, client.shared, client.clustered, mixture)

    def mixture(self, private: dict[str, Tensor]) -> Tensor:
        """pi^k = softmax(theta^k)."""
        return router.mixture(private[ROUTER])

    def options(self) -> dict[str, object]:
        """C, rank or budget, routing and initialisation."""
        return {**self.settings, "routing": self.routing}
