"""Ditto: a global model, and beside it a model of each client's own that is held near it."""

import math

from torch import Tensor, nn

from ..errors import real_number, require
from ..roles import Roles, is_statistic, squared_distance
from .base import Method, Part, SampleLoss, some_trainable

# Before the names of a client's own parameters.
OWN = "own."


class Ditto(Method):
    """A shared model w as in FedAvg, and a private one v^k that minimises f^k(v) + lambda / 2 ||v - w_0||^2.

    w_0 is the global model at the beginning of the round; the private model is the one that is tested.
    Simplified: both models take their steps on the same batches, with the same learning rate; the
    paper's solver may give v^k steps of its own. The training loss that is reported is the sum of both, and
    the setting `clip_norm` bounds the gradients of both together.

    Args:
        model: the global model, from which the private ones start too.
        proximal: lambda >= 0; with 0 this is FedAvg beside local training.

    Raises:
        InputError: proximal is negative, or not finite.

    Source: Li et al., 2021, 'Ditto: Fair and Robust Federated Learning Through Personalization'.
    """

    name = "ditto"
    remembers_start = True

    def __init__(self, model: nn.Module, proximal: float = 0.1) -> None:
        require(
            0 <= real_number("proximal", proximal) < math.inf,
            f"proximal is {proximal}; it is lambda, at least 0, and finite: try 0.1",
        )
        self.model = model
        self.proximal = proximal

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        """The model for all, and the same one for each."""
        shared = some_trainable(self.model)
        own = {OWN + name: tensor.expand(len(clusters), *tensor.shape) for name, tensor in shared.items()}
        return Roles(shared, {}, own)

    def own(self, client: Roles) -> dict[str, Tensor]:
        """v^k by the names of the model's parameters."""
        return {
            name.removeprefix(OWN): tensor
            for name, tensor in client.private.items()
            if name.startswith(OWN) and not is_statistic(name)  # of a layer that is called so
        }

    def parts(self, client: Roles, draws: Tensor | None = None) -> dict[str, Part]:
        """v^k."""
        return dict(self.own(client))

    def networks(self, client: Roles, draws: Tensor | None = None) -> list[dict[str, Part]]:
        """v^k, which is the one that is tested, and w."""
        return [self.parts(client), dict(client.shared)]

    def losses(
        self, client: Roles, outputs: list[Tensor], sample_loss: SampleLoss, draws: Tensor | None = None
    ) -> Tensor:
        """f^k(v) + f^k(w): neither's gradient sees the other."""
        own, shared = outputs
        return sample_loss(own) + sample_loss(shared)

    def penalty(self, client: Roles, start: Roles) -> Tensor | float:
        """Lambda / 2 ||v - w_0||^2."""
        return self.proximal / 2 * squared_distance(self.own(client), start.shared)
