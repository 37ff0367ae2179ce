"""Which of Flower's nodes is which client."""

import time
from collections.abc import Collection

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from .messages import METRICS, logger, number

# Seconds that a node has for saying which client it is; it then is asked again.
QUERY_TIMEOUT = 60.0


class Nodes:
    """Asks each node once which client it is, and knows it from then on.

    Args:
        num_clients: K.
    """

    def __init__(self, num_clients: int) -> None:
        """Nobody is known yet."""
        self.num_clients = num_clients
        self.client_of: dict[int, int] = {}

    def present(self, grid: Grid) -> dict[int, int]:
        """The node of each client that is connected; of two that are the same client the older one."""
        connected = set(grid.get_node_ids())
        self._ask(grid, sorted(connected - self.client_of.keys()))
        node_of: dict[int, int] = {}
        for node, client in self.client_of.items():
            if node in connected and node_of.setdefault(client, node) != node:
                logger.warning(
                    "node %d says that it is client %d, as does node %d: it has to wait until that is gone",
                    *(node, client, node_of[client]),
                )
        return node_of

    def wait(self, grid: Grid, clients: Collection[int], least: int, patience: float) -> dict[int, int]:
        """The nodes of some clients, as soon as all of them are connected.

        Args:
            grid: Flower's.
            clients: their numbers.
            least: so many have to be there, however long it takes.
            patience: seconds to wait for the others.

        Returns:
            client -> node, sorted by client.
        """
        deadline = time.monotonic() + patience
        told: set[int] = set()
        while True:
            present = self.present(grid)
            there = {client: present[client] for client in sorted(clients) if client in present}
            missing = set(clients) - there.keys()
            if not missing or (len(there) >= least and time.monotonic() > deadline):
                return there
            if missing != told:
                logger.info("waiting for clients %s", sorted(missing))
                told = missing
            time.sleep(min(1.0, patience))

    def _ask(self, grid: Grid, nodes: list[int]) -> None:
        """Ask nodes that are new."""
        if not nodes:
            return
        questions = [Message(RecordDict(), node, MessageType.QUERY) for node in nodes]
        for reply in grid.send_and_receive(questions, timeout=QUERY_TIMEOUT):
            node = reply.metadata.src_node_id
            try:
                client = number(reply.content.metric_records[METRICS], "client")
                if node not in nodes or client not in range(self.num_clients):
                    raise ValueError(f"it says that it is client {client:g} of {self.num_clients}")
                self.client_of[node] = int(client)
            except Exception as error:  # nothing that a node says may end the run
                logger.warning("node %d takes no part: %s", node, reply.error if reply.has_error() else error)
