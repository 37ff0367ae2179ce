"""The federation: local training, aggregation, and the loop of Algorithm 1."""

from .aggregate import aggregate, client_given_cluster, cluster_probability, joint_probability, mismatch
from .history import History, Round
from .local import evaluate, local_training
from .loop import Federation, federated_rounds, train
from .task import Settings, Shard, Task

__all__ = [
    "Federation",
    "History",
    "Round",
    "Settings",
    "Shard",
    "Task",
    "aggregate",
    "client_given_cluster",
    "cluster_probability",
    "evaluate",
    "federated_rounds",
    "joint_probability",
    "local_training",
    "mismatch",
    "train",
]
