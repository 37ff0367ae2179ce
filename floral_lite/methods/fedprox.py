"""FedProx: FedAvg with clients that are held near the model that the round began with."""

import math

from torch import Tensor, nn

from ..errors import real_number, require
from ..roles import Roles, squared_distance
from .fedavg import FedAvg


class FedProx(FedAvg):
    """Everything is shared, and a client minimises f^k(w) + mu / 2 ||w - w_0||^2 from the round's w_0.

    Simplified: clients solve this inexactly by the same number of local epochs each; the paper also
    lets slow clients do fewer.

    Args:
        model: the model that all clients train.
        proximal: mu >= 0; with 0 this is FedAvg.

    Raises:
        InputError: proximal is negative, or not finite.

    Source: Li et al., 2020, 'Federated Optimization in Heterogeneous Networks'.
    """

    name = "fedprox"
    remembers_start = True

    def __init__(self, model: nn.Module, proximal: float = 0.1) -> None:
        require(
            0 <= real_number("proximal", proximal) < math.inf,
            f"proximal is {proximal}; it is mu, at least 0, and finite: try 0.1",
        )
        super().__init__(model)
        self.proximal = proximal

    def penalty(self, client: Roles, start: Roles) -> Tensor | float:
        """Mu / 2 ||w - w_0||^2."""
        return self.proximal / 2 * squared_distance(client.shared, start.shared)
