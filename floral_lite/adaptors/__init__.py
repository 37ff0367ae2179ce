"""Adaptors: what is added to a parameter of the base model, one file a kind."""

from .bias import BiasAdaptor
from .budget import linear_rank
from .linear import Initialisation, LinearAdaptor
from .registry import KINDS, Adaptor, check_num_clusters, initialise, num_parameters, personalise, plan

__all__ = [
    "KINDS",
    "Adaptor",
    "BiasAdaptor",
    "Initialisation",
    "LinearAdaptor",
    "check_num_clusters",
    "initialise",
    "linear_rank",
    "num_parameters",
    "personalise",
    "plan",
]
