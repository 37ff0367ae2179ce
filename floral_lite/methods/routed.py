"""What FLoRAL and Ensemble share: a private router over C clusters, and the ways to come by it."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from ..adaptors import check_num_clusters
from ..errors import check_choice, check_names, require
from ..given import precise
from ..roles import Roles
from ..router import Router, check_rule, one_hot_logits, uniform_logits
from .base import ROUTER, Method, Part

Routing = Literal["learned", "closed-form", "clustered", "optimal"]


class Routed(Method):
    """A method whose clients mix C clusters, client k with pi^k = softmax(theta^k).

    Args:
        model: the base model.
        num_clusters: C >= 1.
        routing: how a client comes by theta^k.
            "learned": from uniform by gradient, as in the paper.
            "closed-form": -f^k(w_c) when a round begins; with a router of temperature 1 / eta and a
            router_learning_rate of 0 this is the paper's closed form.
            "clustered" (ours): learned, but it starts leaning on the cluster that the server finds in the
            clients' first gradients, see `federation/asking.py`; uniform where it finds none. Clients that
            keep nothing (`stateful=False`) begin each round there.
            "optimal": the one-hot of the true cluster, modulo C.
        router: temperature, floor, noise and entropy of the routers, as a Router or by name; the
            paper's if None. A rule of your own is a subclass of Router with another `mixture`.

    Raises:
        InputError: an argument is out of range.
    """

    def __init__(
        self,
        model: nn.Module,
        num_clusters: int,
        routing: Routing,
        router: Router | Mapping[str, float] | None,
    ) -> None:
        check_choice("routing", routing, Routing)
        self.model = model
        self.num_clusters = check_num_clusters(num_clusters)
        self.routing = routing
        self.asks_first = routing == "clustered"
        if isinstance(router, Mapping):
            check_names("choice of a router", router, Router.__dataclass_fields__)
            router = Router(**router)
        self.router = Router() if router is None else router
        require(
            isinstance(self.router, Router),
            f"router is {router!r}; give a Router, or its choices by name: {{'floor': 0.01}}",
        )
        check_rule(self.router, self.num_clusters)

    @abstractmethod
    def models(self, client: Roles) -> list[dict[str, Part]]:
        """The models of the C clusters, each by itself."""

    def first_routers(self, clusters: Tensor, clustered: dict[str, Tensor]) -> Tensor:
        """The routers (K, C) of a federation that has not begun: one-hot or uniform.

        They lie where the clustered parameters do, of the same type, but in single precision at least: in
        half a logit soon stops growing, and mixtures do not sum to 1.
        """
        if self.routing == "optimal":
            logits = one_hot_logits(clusters, self.num_clusters)
        else:
            logits = uniform_logits(len(clusters), self.num_clusters)
        return precise(logits.to(next(iter(clustered.values()))))

    def check_apart(self, clustered: dict[str, Tensor]) -> None:
        """Raise InputError if the clusters are alike at first, and uniform routers would keep them so."""

    def draw(self, num_steps: int, generator: torch.Generator) -> Tensor | None:
        """The router's noise."""
        if not self.router.noise:
            return None
        # of another type, such as a user's default one, other numbers would be drawn
        return torch.rand(num_steps, self.num_clusters, generator=generator, dtype=torch.float32)

    def penalty(self, client: Roles, start: Roles) -> Tensor:
        """-lambda H(pi^k)."""
        return self.router.penalty(client.private[ROUTER])

    def candidates(self, client: Roles) -> list[dict[str, Part]]:
        """The C models, if the router is made of their losses."""
        return self.models(client) if self.routing == "closed-form" else []

    def begin(self, client: Roles, losses: Tensor | None) -> Roles:
        """theta_c^k = -f^k(w_c)."""
        if losses is None:
            return client
        return client._replace(private=client.private | {ROUTER: -losses.to(client.private[ROUTER])})

    def only_cluster(self, private: dict[str, Tensor]) -> Tensor | None:
        """The cluster of each router that is one-hot and stays so.

        Noise, a floor, or a user's own rule may give the other clusters weight.
        """
        router = self.router
        soft = self.routing != "optimal" or router.floor or router.noise or type(router) is not Router
        return None if soft else private[ROUTER].argmax(dim=-1)

    def options(self) -> dict[str, object]:
        """What the constructor keeps, and in place of the router its own choices."""
        kept = super().options().items()
        return {name: self.router.options() if name == "router" else own for name, own in kept}

    def mixture(self, private: dict[str, Tensor]) -> Tensor:
        """pi^k = softmax(theta^k)."""
        return self.router.mixture(private[ROUTER])
