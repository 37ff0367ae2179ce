"""The embedding LoRA: a linear LoRA on one-hot words."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import require
from .low_rank import LowRankAdaptor, fit_rank
from .options import Options


@dataclass(frozen=True)
class EmbeddingAdaptor(LowRankAdaptor):
    """Adds sum_c pi_c V_c U_c^T to an embedding's weight (words, features).

    Looking a word up is a linear layer on its one-hot vector, with the transposed weight. So U
    (features, r) belongs to the outputs, and V (words, r) holds r coefficients a word.

    Args:
        padding: the word whose vector stays as it is, if there is one.

    Source: section 'Parameter-Efficient Adaptors', 'Linear layer'.
    """

    padding: int | None = None

    def initialise(self, num_clusters: int, generator: torch.Generator) -> dict[str, Tensor]:
        """C fresh adaptors; the padding's coefficients are zero, and torch gives them no gradient."""
        factors = super().initialise(num_clusters, generator)
        if self.padding is not None:
            factors["V"][:, self.padding] = 0
        return factors


def fit_embedding(layer: nn.Module, name: str, options: Options) -> EmbeddingAdaptor:
    """The adaptor of an embedding's weight: (words + features) r parameters, rank r.

    Raises:
        InputError: the embedding rescales its weight or its gradients, or has sparse ones.
    """
    assert isinstance(layer, nn.Embedding)
    require(
        layer.max_norm is None,
        f"the embedding has max_norm={layer.max_norm}, which rescales its weight in place, and an adaptor "
        "cannot follow: use max_norm=None",
    )
    require(
        not layer.sparse, "the embedding has sparse gradients, its adaptor has dense ones: use sparse=False"
    )
    require(
        not layer.scale_grad_by_freq,
        "the embedding divides gradients by how often a word occurs, and factors cannot follow: "
        "use scale_grad_by_freq=False",
    )
    words, features = layer.weight.shape
    rank = fit_rank(options, features, words)
    return EmbeddingAdaptor(
        "embedding", (words, features), (1,), (0,), rank, options.init, padding=layer.padding_idx
    )
