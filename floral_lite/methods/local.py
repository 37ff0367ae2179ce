"""Local training: every client for itself."""

from torch import nn

from .base import trainable
from .partly_private import PartlyPrivate


class Local(PartlyPrivate):
    """Everything is private: each client trains a model of its own, and nothing is sent or averaged.

    One of the two ends between which personalisation lies; the other is FedAvg. The federation holds K
    models, so that memory grows with the clients, and a client that is not sampled does not train.
    Clients must remember their models: with `stateful=False` every round would begin with the first
    model again, and what is evaluated is one round of training.

    Args:
        model: the model that every client starts from.

    Source: section 'Federated Learning', objective (PFL) with nothing shared.
    """

    name = "local"

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, private=trainable(model))
