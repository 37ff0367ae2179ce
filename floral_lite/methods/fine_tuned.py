"""FedAvg, fine-tuned: one model for everyone, which each client trains a little further before it is used."""

from torch import nn

from .fedavg import FedAvg


class FineTuned(FedAvg):
    """FedAvg, whose model each client trains for one round's local steps on its own data before it is tested.

    The clients send what they send in FedAvg; the tuned models are used for the test and then forgotten.

    Args:
        model: the model that all clients train.

    Source: Yu, Bagdasaryan and Shmatikov, 2020, 'Salvaging Federated Learning by Local Adaptation'; of its
    kinds of adaptation the plain one, of all parameters with the federation's own settings.
    """

    name = "fine-tuned"

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.adaptation = FedAvg(model)
