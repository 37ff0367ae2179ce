"""What FLoRAL and Local Adaptor have in common: a base, and adaptors on some of its parameters."""

from collections.abc import Mapping
from dataclasses import asdict

from torch import Tensor, nn

from .. import adaptors
from ..adaptors import Convolution, Initialisation, Norms, Options, Statistics
from ..errors import require
from ..factored import AdaptedParameter
from ..precondition import precondition as preconditioned_gradients
from ..roles import Roles, joined
from ..seeds import stream
from .base import Method, Part


class Adapted(Method):
    """A method whose models are a shared base with mixtures of adaptors.

    The arguments are FLoRAL's; that class says what each is.

    Raises:
        InputError: an argument is out of range, or the model has nothing to adapt.
    """

    def __init__(
        self,
        model: nn.Module,
        rank: int | None,
        budget: float | None,
        init: Initialisation,
        convolution: Convolution,
        biases: bool,
        norms: Norms,
        precondition: bool,
    ) -> None:
        if rank is None and budget is None:
            budget = 0.01
        require(isinstance(precondition, bool), f"precondition is {precondition!r}; it is True or False")
        self.model = model
        self.preconditioned = precondition
        self.adaptor_options = Options(rank, budget, init, convolution, biases, norms)
        self.plan = adaptors.plan(model, self.adaptor_options)

    def first_adaptors(self, num_clusters: int, seed: int) -> dict[str, Tensor]:
        """C adaptors that add nothing, each in the precision of its parameter and where that is."""
        fresh = adaptors.initialise(self.plan, num_clusters, stream(seed, "adaptors"))
        return {
            name: tensor.to(self.model.get_parameter(name.rpartition(".")[0]))
            for name, tensor in fresh.items()
        }

    def first_statistics(self, num_clients: int) -> dict[str, Tensor]:
        """The first local statistics of each batch norm under Batch-NorA, for every client, each (K, d)."""
        return {
            joined(layer, own): self.model.get_buffer(joined(layer, running)).expand(num_clients, -1)
            for layer in adaptors.batch_nora_layers(self.plan)
            for own, running in (("local_mean", "running_mean"), ("local_variance", "running_var"))
        }

    def local_statistics(self, client: Roles) -> dict[str, Statistics]:
        """The client's own statistics of each batch norm under Batch-NorA."""
        return {
            joined(layer, "weight"): Statistics(
                client.private[joined(layer, "local_mean")], client.private[joined(layer, "local_variance")]
            )
            for layer in adaptors.batch_nora_layers(self.plan)
        }

    def adapted(self, client: Roles, factors: Mapping[str, Tensor], mixture: Tensor) -> dict[str, Part]:
        """The base with a mixture of adaptors on the parameters of the plan: u + sum_c pi_c a_c.

        Args:
            client: its parameters, or those of a stack.
            factors: the adaptors' tensors by name ("0.weight.U"), each (..., C, *S).
            mixture: pi, shape (..., C).
        """

        def base(name: str) -> Tensor:
            """The client's parameter, or where it is frozen the model's own."""
            if name in client.shared:
                return client.shared[name]
            own = self.model.get_parameter(name)
            return own.expand(*mixture.shape[:-1], *own.shape)

        mixtures: dict[str, Part] = {
            name: AdaptedParameter(base(name), adaptor, adaptors.factors_of(name, adaptor, factors), mixture)
            for name, adaptor in self.plan.items()
        }
        return {**client.shared, **mixtures}

    def precondition(self, client: Roles, gradients: Roles) -> Roles:
        """The adaptors' gradients preconditioned, be the adaptors clustered or private."""
        if not self.preconditioned:
            return gradients
        own = client.clustered | client.private
        return Roles(
            gradients.shared,
            preconditioned_gradients(self.plan, own, gradients.clustered),
            preconditioned_gradients(self.plan, own, gradients.private),
        )

    def options(self) -> dict[str, object]:
        """What the constructor keeps, and the choices about adaptors."""
        return super().options() | asdict(self.adaptor_options) | {"precondition": self.preconditioned}
