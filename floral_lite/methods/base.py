"""What a method is: a choice of roles, and how a client's own model comes out of them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from inspect import signature
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..adaptors import Statistics
from ..errors import check_module, require
from ..factored import AdaptedParameter, Blend
from ..roles import Roles

# What a method makes of one of the model's parameters: a tensor, or what is still to be added up.
Part = Tensor | AdaptedParameter | Blend

# The task's loss of outputs (..., B, *), for every sample: (..., B).
SampleLoss = Callable[[Tensor], Tensor]

# The private parameter that holds theta; it is trained with the router's own learning rate.
ROUTER = "router_logits"


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that a federation trains; frozen ones stay where they are, in the model."""
    check_module(model)
    return {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}


def some_trainable(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that a federation trains, for a method that trains nothing else.

    Raises:
        InputError: there are none.
    """
    parameters = trainable(model)
    require(
        len(parameters) > 0,
        "the model has no parameters to train, all of them are frozen: unfreeze some, or use method 'floral' "
        "or 'local-adaptor', which train adaptors beside frozen ones",
    )
    return parameters


def added_up(part: Part) -> Tensor:
    """The parameter itself, also where a method gives base and adaptors apart."""
    return part if isinstance(part, Tensor) else part.merged()


class Method(ABC):
    """Everything that the federated loop knows about a method.

    One of your own needs a `name`, `initialise` and `parts`, with clustered tensors `mixture` too. Keep each
    argument as an attribute of its name: a resumed run is refused if one differs. What a client keeps from
    round to round is private; `finish` may write it. A tensor that no network uses has gradient zero:
    `precondition` may move it, `momentum` lets it roll on, and `weight_decay` shrinks it.

    The fast engine asks about many clients at once: each tensor then has an axis of clients in front. Count
    axes from the last one, and combine a client's number `a` with a tensor of n axes as
    `a.reshape(a.shape + (1,) * n)`. One that answers otherwise for a stack is refused: use `engine="loop"`.

    The server only averages, and applies the optimizer of `Settings`: a method cannot add a step to it. For a
    learning rate that falls `finish` counts rounds in a shared tensor; `precondition` reads its `.round()`.

    Attributes:
        preconditioned: whether the gradients of low-rank factors are preconditioned, see `precondition.py`.
        asks_first: whether the server asks every client for one gradient before it trains, and starts the
            routers at the clusters that it finds in them; see `federation/asking.py`.
        remembers_start: whether `penalty` or `finish` look at what the client started the round from.
        sends_one_cluster: whether a client is always in one cluster, by the method's own rule.
            `History.bytes_up` then counts that one's tensors, N^k and its number; over Flower all C go.
        needs: settings that the method needs, by name, with their values; a run with others is refused.
        inner_learning_rate: alpha; if positive, a local step takes its gradient g at w - alpha g(w).
        adaptation: how each client trains on for one more round, which nobody keeps, before its model is
            tested: a method with the same roles; None if models are tested as they are.

    Example:
        >>> class HalfBack(Method):
        ...     name = "half-back"  # sends the middle of where it began and where it came to
        ...     remembers_start = True
        ...
        ...     def __init__(self, model):
        ...         self.model = model
        ...
        ...     def initialise(self, clusters, seed):
        ...         return Roles(trainable(self.model), {}, {})  # without what is frozen
        ...
        ...     def parts(self, client, draws=None):
        ...         return dict(client.shared)
        ...
        ...     def finish(self, client, start):
        ...         half = {name: (w + start.shared[name]) / 2 for name, w in client.shared.items()}
        ...         return client._replace(shared=half)
        >>> from floral_lite import tasks, train
        >>> task = tasks.load("digits-rotate", num_clients=4)
        >>> run = lambda by: train(task, HalfBack(task.model), engine=by, rounds=2).state.tensors()
        >>> all(torch.allclose(*pair, atol=1e-5) for pair in zip(run("fast"), run("loop")))
        True
    """

    name: ClassVar[str]
    preconditioned: bool = False
    asks_first: bool = False
    remembers_start: ClassVar[bool] = False
    sends_one_cluster: ClassVar[bool] = False
    needs: ClassVar[Mapping[str, object]] = {}
    inner_learning_rate: float = 0.0
    adaptation: "Method | None" = None

    def __repr__(self) -> str:
        """In a line: its class and its options."""
        options = ", ".join(f"{name}={value!r}" for name, value in self.options().items())
        return f"{type(self).__name__}({options})"

    @abstractmethod
    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        """The federation's first state.

        Args:
            clusters: true cluster of each client, shape (K,). Only optimal routing may look at it.
            seed: for whatever starts at random; the same one gives the same state.

        Raises:
            InputError: the method cannot train this model: all of it is frozen, say.
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

    def networks(self, client: Roles, draws: Tensor | None = None) -> list[dict[str, Part]]:
        """The networks that the client trains, each as `parts` describes one; the same number for everyone.

        A dropout layer has the same mask in all of them; a batch norm has its own statistics in each.
        """
        return [self.parts(client, draws)]

    def losses(
        self, client: Roles, outputs: list[Tensor], sample_loss: SampleLoss, draws: Tensor | None = None
    ) -> Tensor:
        """The training loss of every sample, made of what the networks say about it.

        Args:
            client: its parameters.
            outputs: of each of the networks, shape (..., B, *), with an axis of clients in front for a stack.
            sample_loss: the task's loss of outputs, shape (..., B). A loss that is no plain mean over the
                samples has one number for the whole batch, shape (..., 1).
            draws: as for `parts`.
        """
        return sample_loss(outputs[0])

    def predict(self, client: Roles, outputs: list[Tensor], classifies: bool) -> Tensor:
        """The outputs that are tested; `personal_model` refuses a rule of one's own.

        Args:
            client: its parameters.
            outputs: of each of the networks, as in `losses`.
            classifies: whether they are logits of labels, on the last axis.
        """
        return outputs[0]

    def personalise(self, client: Roles) -> dict[str, Tensor]:
        """One client's parameters of the base model, by name, all added up."""
        return {name: added_up(part) for name, part in self.parts(client).items()}

    def local_statistics(self, client: Roles) -> dict[str, Statistics]:
        """Of a client's statistics those of each Batch-NorA adaptor, by the name of its norm's gamma."""
        return {}

    def draw(self, num_steps: int, generator: torch.Generator) -> Tensor | None:
        """Whatever the method needs at random in training, a row a step; None if nothing.

        A row may also say what a step trains: with it `parts` can detach the rest, head and body in turns.
        """
        return None

    def penalty(self, client: Roles, start: Roles) -> Tensor | float:
        """What the method adds to the client's training loss; for a stack of clients, the sum of theirs.

        Args:
            client: its parameters, of all roles.
            start: the same at the beginning of the round if `remembers_start`, else nothing.
        """
        return 0.0

    def precondition(self, client: Roles, gradients: Roles) -> Roles:
        """The gradients that a local step takes, made from those of the loss.

        Like `parts` it also serves a stack of clients.
        """
        return gradients

    def candidates(self, client: Roles) -> list[dict[str, Part]]:
        """The networks among which a client chooses when a round begins; none if it does not."""
        return []

    def begin(self, client: Roles, losses: Tensor | None) -> Roles:
        """What a client, or a stack of them, does before its local steps; only private tensors may change.

        Args:
            client: its parameters.
            losses: of each candidate, on the client's whole training shard, (..., C); None if there are none.
        """
        return client

    def finish(self, client: Roles, start: Roles) -> Roles:
        """What a client does after its local steps, before it sends anything.

        Like `parts` it also serves a stack of clients.

        Args:
            client: its trained parameters.
            start: those before its local steps if `remembers_start`, else nothing.
        """
        return client

    def mixture(self, private: dict[str, Tensor]) -> Tensor:
        """pi, (C,), of one client's private parameters, (k, C) of a stack's; C = 1 if nothing is mixed."""
        return torch.ones(1)

    def mixtures(self, private: dict[str, Tensor], num_clients: int) -> Tensor:
        """The mixtures of a stack of clients, shape (num_clients, C), also where it keeps nothing private."""
        return self.mixture(private).expand(num_clients, -1)

    def only_cluster(self, private: dict[str, Tensor]) -> Tensor | None:
        """The one cluster that each client of a stack uses, (k,), if its weights of all others stay 0.

        The fast engine then leaves the others out. None where weights are soft, or may change. A class of
        your own is asked only if it defines this itself: what it inherits may not hold for it.
        """
        return None

    def options(self) -> dict[str, object]:
        """The settings of a run's record, which resumed runs must have: its arguments, as attributes."""
        # a user's class may hand arguments on to its parents, up to the first one of this package
        kinds = type(self).__mro__
        first = [kind.__module__.startswith("floral_lite.") for kind in kinds].index(True)
        taken = [name for kind in kinds[: first + 1] for name in signature(kind).parameters]
        kept = {name: vars(self)[name] for name in taken if name in vars(self)}
        return {name: value for name, value in kept.items() if not isinstance(value, nn.Module)}
