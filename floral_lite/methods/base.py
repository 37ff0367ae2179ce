"""What a method is: a choice of roles, and how a client's own model comes out of them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..adaptors import Adaptor, Statistics, batch_nora_layers
from ..factored import Blend, Mixture
from ..roles import Roles

# What a method makes of one of the model's parameters: a tensor, or what is still to be added up.
Part = Tensor | Mixture | Blend

# The private parameter that holds theta; it is trained with the router's own learning rate.
ROUTER = "router_logits"


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that a federation trains; frozen ones stay where they are, in the model."""
    return {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}


def own_statistics(model: nn.Module, plan: Mapping[str, Adaptor], num_clients: int) -> dict[str, Tensor]:
    """For each batch norm under Batch-NorA the statistics that every client starts with, each (K, d)."""
    return {
        f"{layer}.{own}".lstrip("."): model.get_buffer(f"{layer}.{running}".lstrip(".")).expand(
            num_clients, -1
        )
        for layer in batch_nora_layers(plan)
        for own, running in (("local_mean", "running_mean"), ("local_variance", "running_var"))
    }


def local_statistics(plan: Mapping[str, Adaptor], client: Roles) -> dict[str, Statistics]:
    """Those of one client, by the name of each layer's gamma."""
    names = [f"{layer}.".lstrip(".") for layer in batch_nora_layers(plan)]
    return {
        f"{layer}weight": Statistics(
            client.private[f"{layer}local_mean"], client.private[f"{layer}local_variance"]
        )
        for layer in names
    }


class Method(ABC):
    """Everything that the federated loop knows about a method."""

    name: ClassVar[str]
    # Whether an own `precondition` changes the gradients of shared parameters. Where it does not, the fast
    # engine may take their steps while it computes the gradients.
    preconditions_shared: ClassVar[bool] = True

    @abstractmethod
    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        """The federation's first state.

        Args:
            clusters: true cluster of each client, shape (K,). Only optimal routing may look at it.
            seed: for whatever starts at random.
        """

    @abstractmethod
    def parts(self, client: Roles, draws: Tensor | None = None) -> dict[str, Part]:
        """What each of the model's parameters is for a client: a tensor, or a mixture not yet added up.

        It only arranges the client's tensors, so that it also serves a stack of clients, whose
        tensors all have one more axis in front.

        Args:
            client: its shared, clustered and private parameters.
            draws: what `draw` drew for this step, in training.
        """

    def personalise(self, client: Roles) -> dict[str, Tensor]:
        """One client's parameters of the base model, by name, all added up."""
        return {
            name: part if isinstance(part, Tensor) else part.merged()
            for name, part in self.parts(client).items()
        }

    def local_statistics(self, client: Roles) -> dict[str, Statistics]:
        """For each batch norm under Batch-NorA, by the name of its gamma: the statistics of its adaptor."""
        return {}

    def draw(self, num_steps: int, generator: torch.Generator) -> Tensor | None:
        """Whatever the method needs at random in training, a row a step; None if nothing."""
        return None

    def penalty(self, private: dict[str, Tensor]) -> Tensor | float:
        """What the method adds to the client's training loss; it may depend on private parameters only.

        It also serves a stack of clients, whose penalties it sums.
        """
        return 0.0

    def precondition(self, client: Roles, gradients: Roles) -> Roles:
        """The gradients that a local step takes, made from those of the loss.

        Like `parts` it also serves a stack of clients.
        """
        return gradients

    def mixture(self, private: dict[str, Tensor]) -> Tensor:
        """pi, shape (C,), from one client's private parameters; a method that mixes nothing has C = 1.

        It also serves a stack of clients: (k, C) from their private parameters.
        """
        return torch.ones(1)

    def only_cluster(self, private: dict[str, Tensor]) -> Tensor | None:
        """The one cluster that each client of a stack uses, (k,), if its weights of all others stay 0.

        The fast engine then leaves the others out. None where weights are soft, or may change.
        """
        return None

    def mixtures(self, private: dict[str, Tensor], num_clients: int) -> Tensor:
        """The same of a stack of clients: shape (num_clients, C)."""
        return self.mixture(private).expand(num_clients, -1)

    def options(self) -> dict[str, object]:
        """The method's own settings, for the record of a run."""
        return {}
