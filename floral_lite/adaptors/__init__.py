"""Adaptors: what is added to a parameter of the base model, one file a kind."""

from .adaptor import Adaptor
from .budget import largest_rank
from .low_rank import LowRankAdaptor
from .norm import Statistics, batch_nora, batch_statistics
from .options import Convolution, Initialisation, Norms, Options
from .registry import (
    KINDS,
    batch_nora_layers,
    check_num_clusters,
    factors_of,
    initialise,
    num_parameters,
    personalise,
    plan,
)
from .vector import VectorAdaptor

__all__ = [
    "KINDS",
    "Adaptor",
    "Convolution",
    "Initialisation",
    "LowRankAdaptor",
    "Norms",
    "Options",
    "Statistics",
    "VectorAdaptor",
    "batch_nora",
    "batch_nora_layers",
    "batch_statistics",
    "check_num_clusters",
    "factors_of",
    "initialise",
    "largest_rank",
    "num_parameters",
    "personalise",
    "plan",
]
