"""MFL: C losses a step, mixed by a private router; of whole models, or of one base with C adaptors."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..errors import require
from ..roles import Roles, along_first
from ..router import Router
from .base import ROUTER, Part, SampleLoss
from .ensemble import Ensemble, mixed_outputs
from .floral import FLoRAL
from .routed import Routed, Routing


class MixedLosses(Routed):
    """What (MFL) and (MFL-WS) share: the mixture of C networks' losses, and of their predictions."""

    def networks(self, client: Roles, draws: Tensor | None = None) -> list[dict[str, Part]]:
        """The C models, each by itself."""
        return self.models(client)

    def losses(
        self, client: Roles, outputs: list[Tensor], sample_loss: SampleLoss, draws: Tensor | None = None
    ) -> Tensor:
        """sum_c pi_c^k l(g(w_c, x))."""
        mixture = self.router.mixture(client.private[ROUTER], draws)
        return mixed_outputs(mixture, [sample_loss(output) for output in outputs])

    def predict(self, client: Roles, outputs: list[Tensor], classifies: bool) -> Tensor:
        """sum_c pi_c^k g_c, or of logits log sum_c pi_c^k softmax(g_c), which are logits again."""
        mixture = self.mixture(client.private)
        if not classifies:
            return mixed_outputs(mixture, outputs)
        weighted = [
            along_first(pi.log(), output) + output.log_softmax(dim=-1)
            for pi, output in zip(mixture.unbind(-1), outputs, strict=True)
        ]
        return torch.stack(weighted).logsumexp(dim=0)


class MFL(MixedLosses, Ensemble):
    """Whole models as in the ensemble, trained on the mixture of their losses, sum_c pi_c^k f^k(w_c).

    The paper's (MFL) as it is written: each step runs all C models. What is tested is the mixture of the
    models' predicted probabilities (of their outputs, for real targets), as one would predict with a
    model drawn from pi^k. Like everything clustered a model is averaged with the weights pi_c^k N^k.

    Args:
        model: the first of the C models; the others have first parameters of their own.
        num_clusters: C >= 1.
        routing: "learned", "closed-form", "clustered" or "optimal", see Routed.
        router: a Router, or its choices by name, see Routed; the paper's if None.

    Raises:
        InputError: an argument is out of range.

    Source: section 'Federated Learning', objective (MFL).
    """

    name = "mfl"

    def __init__(
        self,
        model: nn.Module,
        num_clusters: int = 4,
        routing: Routing = "learned",
        router: Router | Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(model, num_clusters, routing, router)


class MFLWS(MixedLosses, FLoRAL):
    """A shared base with C adaptors as in FLoRAL, trained on the mixture of losses, sum_c pi_c^k f^k(u, a_c).

    The paper's (MFL-WS) as it is written: each step runs the base with each of its C adaptors. What is tested
    is the mixture of their predictions, as for MFL.

    Args:
        model: see FLoRAL, as for the others.
        num_clusters: C >= 1.
        rank: of every low-rank adaptor; give this or the budget.
        budget: rho in (0, 1]; 0.01 if neither is given.
        routing: "learned", "closed-form", "clustered" or "optimal".
        init, convolution, biases: what the adaptors are.
        norms: "affine" or "none"; under Batch-NorA a norm has statistics of the client's one network.
        router: a Router, or its choices by name, see Routed; the paper's if None.
        precondition: precondition the adaptors' gradients.

    Raises:
        InputError: an argument is out of range, or the model has nothing to adapt; when training begins,
            norms is "batch_nora".

    Source: section 'Federated Learning', objective (MFL-WS).
    """

    name = "mfl-ws"

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        """As FLoRAL's."""
        norms = self.adaptor_options.norms
        require(norms != "batch_nora", "norms is 'batch_nora', which mfl-ws does not have: use 'affine'")
        return super().initialise(clusters, seed)
