"""A stand-in for Flower's network: client apps in this process, with nodes that can be absent or lie."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'flwr>=1.41'")

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

# Without them no message can be made.
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

# What `flwr run` gives to all.
RUN_CONFIG = {"words": "the app's"}

# What happens to a client's reply on its way: client number, message that was sent, the reply.
Meddle = Callable[[int, Message, Message], list[Message]]


class LocalGrid(Grid):
    """Nodes 100, 101, ... are clients 0, 1, ...; everything is written out and read again on its way.

    Args:
        app: of the clients.
        num_clients: K.
        meddle: changes replies.
        absent: clients that are not connected.
        node_config: what every SuperNode is started with, beside its client's number.
    """

    def __init__(
        self,
        app: ClientApp,
        num_clients: int,
        meddle: Meddle | None = None,
        absent: Iterable[int] = (),
        **node_config: Any,
    ) -> None:
        self.app, self.meddle = app, meddle
        self.node_of = {client: 100 + client for client in range(num_clients) if client not in absent}
        self.node_config = node_config
        self.waiting: list[Message] = []
        self.at_once = 2  # answers come one after the other
        self.sent: list[tuple[int, Message, Message]] = []

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.node_of.values())

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            self.waiting += self.deliver(message)
            yield message.metadata.message_id

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        asked = set(message_ids)
        come, self.waiting = self.waiting[: self.at_once], self.waiting[self.at_once :]
        assert all(reply.metadata.reply_to_message_id in asked for reply in come)
        return come

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return [reply for message in messages for reply in self.deliver(message)]

    def deliver(self, message: Message) -> Iterator[Message]:
        """The replies of the node that the message is for."""
        message.metadata.__dict__["_message_id"] = str(uuid4())
        client = message.metadata.dst_node_id - 100
        context = Context(
            run_id=1,
            node_id=100 + client,
            node_config={"partition-id": client, **self.node_config},
            state=RecordDict(),  # a new one each time: a SuperNode that restarts has lost it
            run_config=RUN_CONFIG,
        )
        try:
            reply = self.app(message, context)
        except Exception as error:  # as Flower does
            reply = Message(Error(code=3, reason=str(error)), reply_to=message)
        self.sent.append((client, message, reply))
        if self.meddle is None or message.metadata.message_type == "query":
            yield reply
        else:
            yield from self.meddle(client, message, reply)
