"""The server's half over Flower: a strategy that knows the three roles, and nothing of a method."""

# the book's pages are built without Flower: what stands in for it knows no |
from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from ..errors import real_number, require, whole_number
from ..federation.checkpoint import save_checkpoint
from ..federation.history import Round
from ..federation.loop import num_sampled, sample_clients
from ..federation.runs import Federation, Run, check_run, initial_state
from ..federation.server import server_step
from ..seeds import stream
from .asking import ASK, CLUSTER, Answer, Asking
from .averages import Averaging
from .messages import (
    ARRAYS,
    CONFIG,
    BadMessage,
    Trained,
    admitted,
    check,
    from_arrays,
    logger,
    read_trained,
    to_arrays,
)
from .nodes import Nodes
from .resume import NAME, TOLD, begin
from .scores import add_tested, read_tested


class RolesStrategy(Strategy):
    """Samples clients as the engines do, checks what they send, and averages it by role.

    Args:
        run: task, method and seed. Of the task only the model, the number of clients and the settings are
            looked at, never the data.
        folder: gets a checkpoint after each round; the run goes on from one that is there.
        min_replies: with fewer good replies a round of training changes nothing here; from 1 to the number of
            clients that are sampled.
        patience: seconds, > 0, that a round waits for more of its clients once `min_replies` are connected.
        max_samples: the largest size that a client's training or test shard is believed to have, >= 1.
        clip_norm: the largest norm of a client's update, running statistics aside, > 0; None for no limit.
        trim: the share of the weight that is left out at either end of each coordinate, in [0, 0.5]; 0.5
            gives the median.
        weighted: clients send parameters multiplied by their weights.

    Raises:
        InputError: the run's method shares nothing, or parameters in half precision, or is one of a user's
            own that the engines refuse; an argument is out of range or asks of sums what needs single
            replies; or the checkpoint is of another run.

    Attributes:
        history: every round's numbers; rounds without enough good replies have the training loss NaN.
        state: shared and clustered tensors.
        probability: p(c) of the last round's clients, shape (C,), for centering adaptors; None at first.
    """

    def __init__(
        self,
        run: Run,
        folder: Path | str,
        *,
        min_replies: int = 1,
        patience: float = 60.0,
        max_samples: float = 1e9,
        clip_norm: float | None = None,
        trim: float = 0.0,
        weighted: bool = False,
    ) -> None:
        """Check the choices."""
        check_run(run)
        min_replies = whole_number("min_replies", min_replies)
        num_clients = run.task.num_clients
        sampled = num_sampled(num_clients, run.task.settings.participation)
        require(
            1 <= min_replies <= sampled,
            f"min_replies is {min_replies}; of the {num_clients} clients {sampled} are sampled a round: "
            f"it must be 1 to {sampled}",
        )
        require(real_number("patience", patience) > 0, f"patience is {patience} s; it must be positive")
        require(
            real_number("max_samples", max_samples) >= 1,
            f"max_samples is {max_samples}; with less than 1 no reply counts: leave it out",
        )
        self.averaging = Averaging(clip_norm, trim, weighted)
        require(
            not (weighted and run.method.asks_first),
            "weighted is True, and routing is 'clustered', which needs single clients' gradients: of sums "
            "there are none; use routing='learned'",
        )
        self.run, self.settings, self.folder = run, run.task.settings, folder
        first = initial_state(run, self.settings, torch.device("cpu"), slice(1))
        self.history, self.state, self.moments = begin(run, first, folder)
        self.num_clusters = len(run.method.mixture(first.of_client(0).private))
        self.asking = Asking(run, self.num_clusters, max_samples)
        self.min_replies, self.patience, self.max_samples = min_replies, patience, max_samples
        self.nodes = Nodes(run.task.num_clients)
        self.begun = 0.0  # when the round under way began; 0 between rounds
        self.asked: dict[int, int] = {}  # node -> client, of the last messages
        self.probability: torch.Tensor | None = None

    @property
    def number(self) -> int:
        """The round that is next, or under way: 1, 2, ...; it goes on where an interrupted run ended."""
        return len(self.history.rounds) + 1

    @property
    def asks(self) -> bool:
        """Whether that round asks for gradients, and nothing is trained."""
        return self.number <= self.asking.rounds

    @property
    def remaining(self) -> int:
        """Rounds that are still to do."""
        return self.settings.rounds - len(self.history.rounds)

    @property
    def arrays(self) -> ArrayRecord:
        """The state as Flower sends it."""
        return to_arrays(self.state)

    def summary(self) -> None:
        """Log what this is."""
        name, task = self.run.method.name, self.run.task
        logger.info("%s on %s, %d clients, from round %d on", name, task.name, task.num_clients, self.number)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the clients whom the engines would sample, as far as they are connected."""
        self.state = from_arrays(arrays, self.state)
        generator = stream(self.run.seed, "clients", self.number)
        sampled = sample_clients(self.run.task.num_clients, self.settings.participation, generator)
        kind = MessageType.TRAIN
        if self.asks:
            kind, sampled, arrays = ASK, self.asking.whom(self.number), self.asking.arrays
        there = self.nodes.wait(grid, sampled, self.min_replies, self.patience, of_all=self.asks)
        logger.info("round %d: clients %s of %s", self.number, list(there), sampled)
        self.begun = time.perf_counter()
        return self._messages(kind, self.number, there, arrays, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the good replies; with too few of them the state stays what it is."""
        read: Callable[[RecordDict], Any] = self.asking.read if self.asks else self._read
        good = admitted(replies, self.asked, self.number, read)
        loss, changed = math.nan, None
        try:
            if self.asks:
                self._listen(good)
            else:
                self._step(list(good.values()))
                changed = to_arrays(self.state)
            num_samples = [reply.num_samples for reply in good.values()]
            loss = float(np.average([reply.loss for reply in good.values()], weights=num_samples))
        except BadMessage as error:
            logger.warning("round %d changes nothing: %s", self.number, error)
        self.history.rounds.append(Round(self.number, loss, time.perf_counter() - self.begun))
        self.begun = 0.0
        return changed, MetricRecord({"train-loss": loss, "replies": len(good)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask every client that is known to be there for its test score, in the rounds that are evaluated."""
        # a wrapper, such as one for differential privacy, may have dropped the round, or changed the average
        if self.begun:
            self.aggregate_train(server_round, [])
        self.state = from_arrays(arrays, self.state)
        done, every = len(self.history.rounds), self.settings.evaluate_every
        there = self.nodes.present(grid) if every and (done % every == 0 or self.remaining == 0) else {}
        return self._messages(MessageType.EVALUATE, done, there, arrays, config)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Write the scores down, and keep a checkpoint: the round is over."""
        entry = self.history.rounds[-1]
        good = admitted(
            replies, self.asked, entry.round, lambda content: read_tested(content, self.max_samples)
        )
        metrics = add_tested(entry, good, self.run.task.num_clients)
        if not self.asks:  # a checkpoint would not keep the answers that the next round needs
            save_checkpoint([Federation(self.history, self.state, self.moments)], self.folder)
        return metrics

    def _messages(
        self, kind: str, number: int, node_of: dict[int, int], arrays: ArrayRecord, config: ConfigRecord
    ) -> list[Message]:
        """The same message to some clients, each with its own cluster where one was found."""
        self.asked = {node: client for client, node in node_of.items()}
        told: dict[str, Any] = {"round": number, NAME: self.history.config[NAME]}
        clusters = self.history.config.get(TOLD)
        messages = []
        for node, client in self.asked.items():
            own = {CLUSTER: clusters[client]} if clusters and clusters[client] >= 0 else {}
            content = RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord({**config, **told, **own})})
            messages.append(Message(content, node, kind, group_id=str(number)))
        return messages

    def _read(self, content: RecordDict) -> Trained:
        """A reply's content, checked."""
        return read_trained(content, self.state, self.num_clusters, self.max_samples, self.averaging.weighted)

    def _listen(self, answers: dict[int, Answer]) -> None:
        """Keep what clients have answered; when all were asked, find the clusters.

        Raises:
            BadMessage: nobody has answered.
        """
        self.asking.answers |= answers
        if self.number == self.asking.rounds:
            self.history.config[TOLD] = self.asking.clusters()
        check(len(answers) > 0, "nobody has answered")

    def _step(self, trained: list[Trained]) -> None:
        """Average the good replies, and take the server's step.

        Raises:
            BadMessage: they are too few, or together too large. The state is as it was.
        """
        check(
            len(trained) >= self.min_replies,
            f"{len(trained)} good replies have come, and min_replies is {self.min_replies}",
        )
        # as in the engines, the optimizer counts the steps that it takes
        of_training = self.history.rounds[self.asking.rounds :]
        number = 1 + sum(not math.isnan(entry.train_loss) for entry in of_training)
        averaged = self.averaging.of(self.state, trained, not self.settings.averages_plainly)
        state, moments = server_step(self.state, averaged, self.moments, self.settings, number)
        tensors = [tensor for roles in (state, *moments.values()) for tensor in roles.tensors()]
        check(
            all(bool(tensor.isfinite().all()) for tensor in tensors),
            "of finite replies the average is not finite; clip_norm=1.0 bounds what a client can do",
        )
        self.state, self.moments = state, moments
        weights = torch.stack([reply.weights for reply in trained]).sum(dim=0)
        self.probability = weights / weights.sum()
