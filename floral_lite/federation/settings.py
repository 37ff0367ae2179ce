"""How a task is trained."""

from dataclasses import dataclass, replace
from typing import Any

from ..errors import require, unknown


@dataclass(frozen=True)
class Settings:
    """How a task is trained.

    Args:
        rounds: communication rounds, >= 1.
        participation: share of the clients sampled in a round, in (0, 1].
        local_epochs: passes over a client's samples in a round, >= 1.
        batch_size: samples a local step, >= 1; the last, shorter batch of an epoch is used.
        learning_rate: eta of the base and the adaptors, > 0.
        router_learning_rate: eta of the routers, >= 0.
        stateful: clients keep their private parameters between rounds; if False they
            start every round from the first ones (the router from uniform), and what they
            learned last is used for evaluation only.
        evaluate_every: rounds between two evaluations of all test shards, >= 1.

    Raises:
        InputError: a value is out of its range.

    Source: section 'Algorithm'; stateless clients in section 'Practical Implementation'.
    """

    rounds: int = 50
    participation: float = 1.0
    local_epochs: int = 1
    batch_size: int = 32
    learning_rate: float = 0.1
    router_learning_rate: float = 0.1
    stateful: bool = True
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        """Check every range once, so that no run starts with a wrong one."""
        for name, smallest in (
            ("rounds", 1),
            ("local_epochs", 1),
            ("batch_size", 1),
            ("evaluate_every", 1),
        ):
            value = getattr(self, name)
            require(value >= smallest, f"{name} is {value}; it must be at least {smallest}")
        require(
            self.learning_rate > 0, f"learning_rate is {self.learning_rate}; it must be positive: try 0.1"
        )
        require(
            self.router_learning_rate >= 0,
            f"router_learning_rate is {self.router_learning_rate}; it must be at least 0: try 0.1",
        )
        require(
            0 < self.participation <= 1,
            f"participation is {self.participation}; it is the share of clients sampled a round, in (0, 1]",
        )

    def with_changes(self, **changes: Any) -> "Settings":
        """The same settings with some replaced.

        Raises:
            InputError: there is no such setting, or its value is out of range.
        """
        for name in changes:
            if name not in self.__dataclass_fields__:
                raise unknown("setting", name, self.__dataclass_fields__)
        return replace(self, **changes)
