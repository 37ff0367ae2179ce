"""How a task is trained."""

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from ..errors import check_choice, check_names, real_number, require, whole_number

ServerOptimizer = Literal["sgd", "adam"]
KeptStatistics = Literal["local", "averaged"]
Precision = Literal["float32", "tf32", "bfloat16"]


@dataclass(frozen=True)
class Settings:
    """How a task is trained.

    Args:
        rounds: communication rounds, >= 1.
        participation: share of the clients sampled in a round, in (0, 1]; at least one is.
        local_epochs: passes over a client's samples in a round, >= 1.
        batch_size: samples a local step, >= 1; the last, shorter batch of an epoch is used.
        shuffle: each epoch takes a client's samples in a new random order; if False, as they lie.
        learning_rate: eta of the base and the adaptors, > 0, the same in every round; for one that falls
            see `Method`.
        router_learning_rate: eta of the routers, >= 0.
        momentum: of the clients' SGD, in [0, 1); it starts anew every round.
        weight_decay: of the clients' SGD, >= 0; the router has none.
        clip_norm: largest norm of a client's gradient, all tensors together, > 0; None for no limit.
        server_optimizer: how the server follows the averaged update: "sgd" or "adam".
        server_learning_rate: its eta, > 0; SGD with 1.0 is plain averaging.
        server_momentum: of the server's SGD, in [0, 1).
        statistics: batch norms' running statistics stay with each client ("local") or are averaged
            like shared parameters ("averaged").
        precision: of products and convolutions in training: "float32" is the model's own; "tf32" (on
            newer NVIDIA GPUs, and nothing elsewhere) and "bfloat16" are faster and rounder. A run refuses
            both for a model in float64, and "bfloat16" for one with batch norms.
        stateful: clients keep their private parameters between rounds; if False they
            start every round from the first ones (the router from uniform), and what they
            learned last is used for evaluation only.
        evaluate_every: rounds between two evaluations of all test shards; the last round is always
            evaluated. 0 evaluates never.

    Raises:
        InputError: a value is out of its range.

    Source: section 'Algorithm'; stateless clients in section 'Practical Implementation'; server
    optimizers are those of Reddi et al., 2021.
    """

    rounds: int = 50
    participation: float = 1.0
    local_epochs: int = 1
    batch_size: int = 32
    shuffle: bool = True
    learning_rate: float = 0.1
    router_learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float | None = None
    server_optimizer: ServerOptimizer = "sgd"
    server_learning_rate: float = 1.0
    server_momentum: float = 0.0
    statistics: KeptStatistics = "local"
    precision: Precision = "float32"
    stateful: bool = True
    evaluate_every: int = 10

    def __post_init__(self) -> None:
        """Check every value once, so that no run starts with a wrong one."""
        for field in fields(self):
            name, value, usual = field.name, getattr(self, field.name), field.default
            if isinstance(usual, bool):
                require(isinstance(value, bool), f"{name} is {value!r}; it is True or False")
            elif isinstance(usual, int):
                object.__setattr__(self, name, whole_number(name, value))
            elif not isinstance(usual, str) and value is not usual:
                object.__setattr__(self, name, real_number(name, value))  # torch takes no int beyond 64 bits
        for name, smallest in (
            ("rounds", 1),
            ("local_epochs", 1),
            ("batch_size", 1),
            ("evaluate_every", 0),
            ("router_learning_rate", 0),
            ("weight_decay", 0),
        ):
            value = getattr(self, name)
            require(
                smallest <= value < math.inf, f"{name} is {value}; it must be at least {smallest}, and finite"
            )
        for name in ("learning_rate", "server_learning_rate", "clip_norm"):
            value = getattr(self, name)
            require(
                value is None or 0 < value < math.inf,
                f"{name} is {value}; it must be positive, and finite: try 0.1",
            )
        for name in ("momentum", "server_momentum"):
            value = getattr(self, name)
            require(0 <= value < 1, f"{name} is {value}; it must be in [0, 1): try 0.9")
        for name, choices in (
            ("server_optimizer", ServerOptimizer),
            ("statistics", KeptStatistics),
            ("precision", Precision),
        ):
            check_choice(name, getattr(self, name), choices)
        require(
            self.server_optimizer == "sgd" or not self.server_momentum,
            f"server_momentum is {self.server_momentum}, but server_optimizer is 'adam', which has its "
            "own: leave it at 0",
        )
        require(
            0 < self.participation <= 1,
            f"participation is {self.participation}; it is the share of clients sampled a round, in (0, 1]",
        )

    @property
    def averages_plainly(self) -> bool:
        """Whether the server takes the clients' average as it is."""
        return self.server_optimizer == "sgd" and self.server_learning_rate == 1 and not self.server_momentum

    def with_changes(self, **changes: Any) -> "Settings":
        """The same settings with some replaced.

        Raises:
            InputError: there is no such setting, or its value is out of range.
        """
        check_names("setting", changes, self.__dataclass_fields__)
        return replace(self, **changes)


def check_settings(settings: object) -> None:
    """Raise InputError unless they are Settings."""
    require(
        isinstance(settings, Settings),
        f"settings is {settings!r}; it must be Settings, such as Settings(rounds=3)",
    )
