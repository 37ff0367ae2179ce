"""Which of Flower's nodes is which client."""

import time
from collections.abc import Collection
from textwrap import shorten

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from .messages import METRICS, logger, read_number

# Seconds that a node has, from its connection on, for saying which client it is, since a process has to start
# there; then rounds go on without it.
ANSWER = 600.0


class Nodes:
    """Asks each node which client it is, and remembers the answer while the node is connected.

    Nothing waits for an answer: it is read when it comes, however slow the node's machine is. A node that
    comes back is asked again, as is one that says a number that is taken: it may have another by then.

    Args:
        num_clients: K.
    """

    def __init__(self, num_clients: int) -> None:
        """Nobody is known yet."""
        self.num_clients = num_clients
        self.client_of: dict[int, int] = {}
        # message -> node
        self.asked: dict[str, int] = {}
        # node -> when it was asked first
        self.since: dict[int, float] = {}
        # node -> why it was last refused
        self.refused: dict[int, str] = {}

    def present(self, grid: Grid) -> dict[int, int]:
        """The node of each connected client; the older one where two say that they are the same client."""
        connected = set(grid.get_node_ids())
        for node in self.since.keys() - connected:
            del self.since[node]
            self.client_of.pop(node, None)
            self.refused.pop(node, None)
        self._ask(grid, sorted(connected - self.client_of.keys() - set(self.asked.values())))
        self._listen(grid)
        node_of: dict[int, int] = {}
        for node, client in list(self.client_of.items()):
            if node_of.setdefault(client, node) != node:
                same = f"it says that it is client {client}, as does node {node_of[client]}"
                self._refuse(node, f"{same}, and has to wait until that is gone")
                del self.client_of[node]
        return node_of

    def wait(
        self, grid: Grid, clients: Collection[int], least: int, patience: float, of_all: bool = False
    ) -> dict[int, int]:
        """The nodes of some clients, as soon as all of them are connected.

        Args:
            grid: Flower's.
            clients: their numbers.
            least: wait for so many of them, however long it takes.
            patience: seconds to wait for the others to connect; for who is connected but has not said which
                client it is, as long as `ANSWER` allows.
            of_all: count all clients that are connected towards `least`, not only these.

        Returns:
            client -> node, sorted by client.
        """
        deadline = time.monotonic() + patience
        told: set[int] = set()
        while True:
            present = self.present(grid)
            there = {client: present[client] for client in sorted(clients) if client in present}
            missing = set(clients) - there.keys()
            slow = [self.since[node] + ANSWER for node in self.asked.values() if node in self.since]
            late = time.monotonic() > max([deadline, *slow])
            if not missing or (len(present if of_all else there) >= least and late):
                return there
            if missing != told:
                logger.info("waiting for clients %s", sorted(missing))
                told = missing
            time.sleep(min(1.0, patience))

    def _ask(self, grid: Grid, nodes: list[int]) -> None:
        """Ask nodes which client they are."""
        for node in nodes:
            self.since.setdefault(node, time.monotonic())
            for message in grid.push_messages([Message(RecordDict(), node, MessageType.QUERY, ttl=ANSWER)]):
                self.asked[message] = node

    def _listen(self, grid: Grid) -> None:
        """Take in the answers that have come; a node that gave none, or a wrong one, is asked again."""
        for reply in grid.pull_messages(list(self.asked)) if self.asked else ():
            node = self.asked.pop(reply.metadata.reply_to_message_id, None)
            if node is None or node not in self.since:
                continue  # it is gone
            try:
                client = read_number(reply.content.metric_records[METRICS], "client")
                if client not in range(self.num_clients):
                    raise ValueError(f"it says that it is client {client:g} of {self.num_clients}")
                self.client_of[node] = int(client)
            except Exception as error:  # nothing that a node says may end the run, or fill the log
                self._refuse(node, str(reply.error if reply.has_error() else error))

    def _refuse(self, node: int, reason: str) -> None:
        """Tell why a node takes no part, once: it is asked, and may say the same, every second of a wait."""
        if self.refused.get(node) != reason:
            self.refused[node] = reason
            logger.warning("node %d takes no part: %s", node, shorten(reason, 500))
