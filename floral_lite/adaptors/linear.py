"""The linear LoRA: L_c = U_c V_c^T beside the weight of a linear layer."""

from torch import nn

from .low_rank import LowRankAdaptor, fit_rank
from .options import Options


def fit_linear(layer: nn.Module, name: str, options: Options) -> LowRankAdaptor:
    """The adaptor of a weight (m, n): U (m, r), V (n, r), (m + n) r parameters, rank r.

    The projections of nn.MultiheadAttention are such weights too: query, key and value are
    stacked in one of shape (3 E, E), which gets one adaptor, unless they differ in size.

    Source: section 'Parameter-Efficient Adaptors', 'Linear layer'.
    """
    out_features, in_features = layer.get_parameter(name).shape
    rank = fit_rank(options, out_features, in_features)
    return LowRankAdaptor("linear", (out_features, in_features), (0,), (1,), rank, options.init)
