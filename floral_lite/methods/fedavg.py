"""FedAvg: one model for everyone."""

from torch import Tensor, nn

from ..roles import Roles
from .base import Method, Part, some_trainable


class FedAvg(Method):
    """Everything is shared: the global model is the average of the clients' models.

    Args:
        model: the model that all clients train; its parameters are the first state.

    Source: McMahan et al., 2017; section 'Federated Learning', objective (FL).
    """

    name = "fedavg"

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        """All of the model's trainable parameters are shared."""
        return Roles(shared=some_trainable(self.model), clustered={}, private={})

    def parts(self, client: Roles, draws: Tensor | None = None) -> dict[str, Part]:
        """Every client uses the shared model: w^k = u."""
        return dict(client.shared)
