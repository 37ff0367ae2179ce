"""What a method is: a choice of roles, and how a client's own model comes out of them."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..roles import Roles

# The private parameter that holds theta; it is trained with the router's own learning rate.
ROUTER = "router_logits"


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that a federation trains; frozen ones stay where they are, in the model."""
    return {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}


class Method(ABC):
    """Everything that the federated loop knows about a method."""

    name: ClassVar[str]

    @abstractmethod
    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        """The federation's first state.

        Args:
            clusters: true cluster of each client, shape (K,). Only optimal routing may look at it.
            seed: for whatever starts at random.
        """

    @abstractmethod
    def personalise(self, client: Roles, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """One client's parameters of the base model, by name.

        Args:
            client: its shared, clustered and private parameters.
            generator: given in training only, for a method that draws something there.
        """

    def penalty(self, client: Roles) -> Tensor | float:
        """What the method adds to the client's training loss."""
        return 0.0

    def precondition(self, client: Roles, gradients: Roles) -> Roles:
        """The gradients that a local step takes, made from those of the loss."""
        return gradients

    def mixture(self, private: dict[str, Tensor]) -> Tensor:
        """pi, shape (C,), from one client's private parameters; a method that mixes nothing has C = 1."""
        return torch.ones(1)

    def options(self) -> dict[str, object]:
        """The method's own settings, for the record of a run."""
        return {}
