"""Over Flower, what a server asks before it trains: every client's first gradient, where the method asks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from torch import Tensor, nn

from ..clustering import find_clusters
from ..copies import copied
from ..errors import require
from ..federation.asking import LEANING, asked_rounds, asked_weights, first_gradient
from ..federation.clients import size
from ..federation.precision import arithmetic
from ..federation.runs import Run
from ..methods import ROUTER
from ..methods.base import trainable
from ..methods.routed import Routed
from ..roles import Roles
from ..router import leaning_logits
from .messages import (
    ARRAYS,
    CONFIG,
    METRICS,
    check,
    from_arrays,
    logger,
    read_num_samples,
    read_number,
    to_arrays,
)

# The message that asks, and what it tells a client in later rounds.
ASK, CLUSTER = "train.ask", "cluster"
# The longest gradient that is believed: its squares can still be summed over many clients.
LONGEST = 1e12


class Answer(NamedTuple):
    """What a client answers.

    Attributes:
        gradients: a tensor a weight.
        num_samples: N^k.
        loss: at the first model.
    """

    gradients: list[Tensor]
    num_samples: float
    loss: float


class Asking:
    """The server's half: whom to ask, who has answered, and which clusters the answers make.

    A client that does not answer is asked again in each of these rounds; one that never does starts with a
    uniform router. A client that answers with anything but its gradient can spoil the clusters of all. (The
    engines know all clusters before round 1. Here the tests before the last round of asking have uniform
    routers, which only an ensemble's scores show.)

    Args:
        run: of the federation.
        num_clusters: C.
        max_samples: the largest N^k that is believed.

    Raises:
        InputError: no round is left for training, or all of the base's weights are frozen.

    Attributes:
        rounds: how many rounds go to asking; 0 where the method does not ask.
    """

    def __init__(self, run: Run, num_clusters: int, max_samples: float) -> None:
        """Nobody has answered yet."""
        self.run, self.num_clusters, self.max_samples = run, num_clusters, max_samples
        self.rounds = asked_rounds(run.task, run.method, run.task.settings)
        self.weights = Roles(dict(asked_weights(run.task.model)), {}, {})
        self.answers: dict[int, Answer] = {}

    @property
    def arrays(self) -> ArrayRecord:
        """The model at which clients take their gradients."""
        return to_arrays(as_shared(self.run.task.model))

    def whom(self, round_number: int) -> list[int]:
        """The clients to ask in a round: those whose turn it is, and those who have not answered yet."""
        clients = range(self.run.task.num_clients)
        return [k for k in clients if k % self.rounds < round_number and k not in self.answers]

    def read(self, content: RecordDict) -> Answer:
        """A client's answer, after every check that can be made of it.

        Raises:
            BadMessage: something is wrong.
        """
        metrics = content.metric_records[METRICS]
        num_samples, loss = read_num_samples(metrics, self.max_samples), read_number(metrics, "train-loss")
        gradients = from_arrays(content.array_records[ARRAYS], self.weights).tensors()
        length = float(sum(gradient.double().square().sum() for gradient in gradients)) ** 0.5
        check(length <= LONGEST, f"its gradient has the norm {length:g}; it must be at most {LONGEST:g}")
        return Answer(gradients, num_samples, loss)

    def clusters(self) -> list[int] | None:
        """Each client's cluster, -1 for one that has not answered; None if no clusters stand out.

        The answers are forgotten: no other number tells as much of a client.

        Raises:
            InputError: no clusters stand out, and all adaptors are alike.
        """
        order = sorted(self.answers)
        rows = zip(*(self.answers[client].gradients for client in order), strict=True)
        gradients = [torch.stack(row) for row in rows]
        self.answers.clear()
        found = find_clusters(gradients, self.num_clusters, self.run.seed) if gradients else None
        if found is None or not found.stands_out:
            logger.info("of %d clients that have answered no clusters stand out", len(order))
            method = self.run.method
            if isinstance(method, Routed):
                method.check_apart(method.initialise(torch.tensor([0]), self.run.seed).clustered)
            return None
        logger.info("clusters stand out among %d clients, with effect %.1f", len(order), found.effect)
        of_client = dict(zip(order, found.clusters.tolist(), strict=True))
        return [of_client.get(client, -1) for client in range(self.run.task.num_clients)]


def as_shared(model: nn.Module) -> Roles:
    """What a model trains as something shared, in the model's own memory; what is frozen never travels."""
    return Roles({name: parameter.detach() for name, parameter in trainable(model).items()}, {}, {})


def answer(run: Run, client: int, message: Message, weighted: bool, mods: Sequence[Any]) -> RecordDict:
    """The client's half: its gradient at the model that was sent, the loss there, and N^k.

    Args:
        run: task, method and seed.
        client: the client's number k in [0, K).
        message: that of the server.
        weighted: whether the client sends products with weights only.
        mods: Flower's modifiers of the client's training.

    Raises:
        InputError: there are modifiers, which change what training sends and would not see this; or the
            client sends products only.
        BadMessage: the method does not ask, or the message has other tensors than the task's model.
    """
    check(
        run.method.asks_first,
        "the server asks for a gradient, which only routing='clustered' does: this client answers no such "
        "question",
    )
    require(
        not weighted,
        "weighted is True, and the server asks for a single client's gradient: use routing='learned'",
    )
    require(
        not mods,
        f"mods has {len(mods)} modifiers of the training, and routing is 'clustered': the gradient that it "
        "asks for would be sent past them; leave mods out, or use routing='learned'",
    )
    task = replace(run.task, model=copied(run.task.model))
    parameters = as_shared(task.model)
    parameters.copy_(from_arrays(message.content.array_records[ARRAYS], parameters))
    with arithmetic("float32"):
        gradients, loss = first_gradient(task, task.train[client])
    named = dict(zip(asked_weights(task.model), gradients, strict=True))
    metrics = MetricRecord(
        {
            "round": int(message.content.config_records[CONFIG]["round"]),  # type: ignore[arg-type]
            "num-examples": size(task.train, client),
            "train-loss": float(loss),
        }
    )
    return RecordDict({ARRAYS: to_arrays(Roles(named, {}, {})), METRICS: metrics})


def told_router(private: dict[str, Tensor], cluster: int) -> dict[str, Tensor]:
    """The private tensors that a client begins with when the server has told it its cluster.

    Raises:
        BadMessage: there is no such cluster.
    """
    check(ROUTER in private, "the server speaks of clusters, and this method has no router")
    logits = private[ROUTER]
    check(0 <= cluster < len(logits), f"the server speaks of cluster {cluster}; there are {len(logits)}")
    (leaning,) = leaning_logits(torch.tensor([cluster]), len(logits), LEANING).to(logits)
    return private | {ROUTER: leaning}
