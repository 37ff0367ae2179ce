"""FedBN: everything is shared but the norms."""

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from ..errors import require
from ..roles import joined
from .base import some_trainable
from .partly_private import PartlyPrivate

# _NormBase is what batch and instance norms are
NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


class FedBN(PartlyPrivate):
    """Each norm's gamma and beta are private, and so are its statistics; the rest is shared.

    The paper speaks of batch norms; other norms, which have no running statistics, are private here
    likewise. It is FedBN with `statistics='local'`, which is the default; with 'averaged' only gamma and
    beta stay with the clients. With `stateful=False` norms begin every round anew.

    Args:
        model: its first parameters are every client's.

    Raises:
        InputError: the model has no norm with parameters to train, or nothing else.

    Source: Li et al., 2021, 'FedBN: Federated Learning on Non-IID Features via Local Batch
    Normalization'; appendix 'Normalization Layers', which compares Batch-NorA with it.
    """

    name = "fedbn"

    def __init__(self, model: nn.Module) -> None:
        parameters = some_trainable(model)
        private = {
            joined(layer, own)
            for layer, module in model.named_modules()
            if isinstance(module, NORMS)
            for own, _ in module.named_parameters()
        } & parameters.keys()
        require(
            0 < len(private) < len(parameters),
            f"the model has {len(private)} parameters of norms to train among its {len(parameters)}; FedBN "
            "keeps norms with the clients and shares the rest: give a model that has both, such as one with "
            "nn.BatchNorm1d, or use method 'fedavg' or 'local'",
        )
        super().__init__(model, private)
