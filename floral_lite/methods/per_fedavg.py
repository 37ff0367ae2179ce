"""Per-FedAvg: a model for everyone that is good after each client has trained it a little further."""

import math

from torch import nn

from ..errors import real_number, require
from .fedavg import FedAvg


class PerFedAvg(FedAvg):
    """Everything is shared; a client minimises the loss after a step of its own, f^k(w - alpha grad f^k(w)).

    First order: a local step is w <- w - eta grad f^k(w - alpha grad f^k(w)), without second derivatives.
    Simplified: both gradients are taken on the same batch, where the paper draws two.

    Also simplified: a model is tested after another adaptation than the one that it was trained for. Training
    looks one step of rate alpha ahead, and so the paper tests after one such step; here a client takes one
    round's local steps of plain SGD at the run's own learning rate eta, as fine-tuned FedAvg does. On digits
    alpha is 0.01 and eta 0.3.

    Args:
        model: the model that all clients train.
        inner_learning_rate: alpha > 0, of the step ahead in training; 0.01 is the paper's.

    Raises:
        InputError: the inner learning rate is not positive, or not finite.

    Source: Fallah, Mokhtari and Ozdaglar, 2020, 'Personalized Federated Learning with Theoretical Guarantees:
    A Model-Agnostic Meta-Learning Approach', 'Per-FedAvg (FO)'.
    """

    name = "per-fedavg"

    def __init__(self, model: nn.Module, inner_learning_rate: float = 0.01) -> None:
        require(
            0 < real_number("inner_learning_rate", inner_learning_rate) < math.inf,
            f"inner_learning_rate is {inner_learning_rate}; it must be positive, and finite: try 0.01",
        )
        super().__init__(model)
        self.inner_learning_rate = inner_learning_rate
        self.adaptation = FedAvg(model)
