"""Local Adaptor: a shared base, and an adaptor of each client's own that is never sent."""

from torch import Tensor, nn

from ..adaptors import Convolution, Initialisation, Norms
from ..roles import Roles
from .adapted import Adapted
from .base import Part, trainable


class LocalAdaptor(Adapted):
    """The base is shared, the adaptors are private: FLoRAL without collaboration on the adaptors.

    Args:
        model: the base model u.
        rank: of every low-rank adaptor; give this or the budget.
        budget: rho in (0, 1]; 0.01 if neither is given.
        init, convolution, biases, norms: what the adaptors are, see Options.
        precondition: precondition the adaptors' gradients, with epsilon = 1e-5.

    Raises:
        InputError: an argument is out of range, or the model has nothing to adapt.

    Source: section 'Experiments', 'Local Adaptor'; objective (PFL).
    """

    name = "local-adaptor"

    def __init__(
        self,
        model: nn.Module,
        rank: int | None = None,
        budget: float | None = None,
        init: Initialisation = "paper",
        convolution: Convolution = "balanced",
        biases: bool = True,
        norms: Norms = "affine",
        precondition: bool = True,
    ) -> None:
        super().__init__(model, rank, budget, init, convolution, biases, norms, precondition)

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        """The base as it is, and for each client an adaptor that adds nothing."""
        own = self.first_adaptors(1, seed)
        private = {name: tensor.expand(len(clusters), *tensor.shape) for name, tensor in own.items()}
        return Roles(trainable(self.model), {}, private | self.first_statistics(len(clusters)))

    def parts(self, client: Roles, draws: Tensor | None = None) -> dict[str, Part]:
        """w^k = u + a^k: a mixture of one."""
        (name, adaptor), *_ = self.plan.items()
        (factor, shape), *_ = adaptor.shapes.items()
        first = client.private[f"{name}.{factor}"]  # (..., 1, *shape)
        mixture = first.new_ones(first.shape[: first.dim() - len(shape)])
        return self.adapted(client, client.private, mixture)
