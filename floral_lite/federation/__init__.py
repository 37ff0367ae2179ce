"""The federation: local training, aggregation, and the loop of Algorithm 1."""

from .aggregate import aggregate, client_given_cluster, cluster_probability, joint_probability, mismatch
from .checkpoint import checkpointed_rounds, load_checkpoint, save_checkpoint
from .history import History, Round
from .local import evaluate, local_training
from .pool import Pool
from .rounds import Engine, federated_rounds, stacked_rounds
from .runs import Federation, Run
from .settings import Settings
from .shards import Population, Shard
from .task import Task
from .train import train, train_runs

__all__ = [
    "Engine",
    "Federation",
    "History",
    "Pool",
    "Population",
    "Round",
    "Run",
    "Settings",
    "Shard",
    "Task",
    "aggregate",
    "checkpointed_rounds",
    "client_given_cluster",
    "cluster_probability",
    "evaluate",
    "federated_rounds",
    "joint_probability",
    "load_checkpoint",
    "local_training",
    "mismatch",
    "save_checkpoint",
    "stacked_rounds",
    "train",
    "train_runs",
]
