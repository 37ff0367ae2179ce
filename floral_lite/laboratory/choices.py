"""What a reader of the laboratory has chosen, and what it comes to for the package's functions."""

from dataclasses import dataclass
from typing import Any

from .. import methods, tasks
from ..errors import check_names, require
from ..federation import Settings, Task
from ..methods.routed import Routing


@dataclass(frozen=True)
class Choices:
    """One setting of all controls; several methods are trained beside each other.

    Args:
        task: one of `tasks.TASKS`.
        methods: names in `methods.METHODS`, at least one.
        num_clusters: C, of the methods that have it.
        budget: rho of the adaptors, in (0, 1].
        data_fraction: share of every client's training data that is kept, in (0, 1].
        local_epochs: passes over a client's samples in a round.
        participation: share of the clients sampled in a round, in (0, 1].
        routing: how clients come by their mixtures.
        precondition: whether the adaptors' gradients are preconditioned.
        seed: of the task and of the run.
        device: where to compute.

    Raises:
        InputError: there is no method, or none of that name.
    """

    task: str = "digits-rotate"
    methods: tuple[str, ...] = ("fedavg", "floral")
    num_clusters: int = 4
    budget: float = 0.1
    data_fraction: float = 1.0
    local_epochs: int = 1
    participation: float = 1.0
    routing: Routing = "learned"
    precondition: bool = True
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Check what the package would not."""
        require(len(self.methods) > 0, "no method is chosen: choose at least one, such as 'floral'")
        check_names("method", self.methods, methods.METHODS)

    def load(self) -> Task:
        """The task."""
        return tasks.load(self.task, **self.task_options())

    def task_options(self) -> dict[str, Any]:
        """What `tasks.load` is given beside the name."""
        return {"seed": self.seed, "data_fraction": self.data_fraction}

    def method_options(self, name: str) -> dict[str, Any]:
        """Those of the choices that are options of a method.

        Example:
            >>> Choices().method_options("ensemble")
            {'num_clusters': 4, 'routing': 'learned'}
        """
        known = methods.option_names(name)
        names = ("num_clusters", "budget", "routing", "precondition")
        return {option: getattr(self, option) for option in names if option in known}

    def changes(self) -> dict[str, Any]:
        """Settings that the choices have in place of the task's own."""
        return {"local_epochs": self.local_epochs, "participation": self.participation}

    def settings(self) -> Settings:
        """How the task is trained."""
        return tasks.TASKS[self.task].settings.with_changes(**self.changes())

    def words(self, name: str) -> str:
        """A run of one of the methods in a few words: its options, and what else is not as usual.

        Example:
            >>> Choices(data_fraction=0.5).words("floral")
            'floral, C = 4, rho = 10%, 50% of the data'
        """
        options, usual = self.method_options(name), tasks.TASKS[self.task].settings
        parts = {
            name: True,
            f"C = {self.num_clusters}": "num_clusters" in options,
            f"rho = {self.budget:.0%}": "budget" in options,
            self.routing: options.get("routing", "learned") != "learned",
            "not preconditioned": not options.get("precondition", True),
            f"{self.data_fraction:.0%} of the data": self.data_fraction != 1,
            f"{self.local_epochs} epochs a round": self.local_epochs != usual.local_epochs,
            f"{self.participation:.0%} of the clients": self.participation != usual.participation,
            f"seed {self.seed}": self.seed != 0,
        }
        return ", ".join(part for part, said in parts.items() if said)
