"""What a run leaves behind: every round's numbers, and what made them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, require
from ..files import write_whole

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class Round:
    """The numbers of one round; what is measured on test shards is None where the round was not evaluated.

    Over Flower means are over the clients whose replies counted; where one is missing, client_loss and
    client_accuracy are None, and where nothing could be averaged the training loss is NaN.

    Attributes:
        round: 1, 2, ...
        train_loss: mean over the sampled clients, weighted by N^k; while clients are asked, the loss at the
            first model in which every label counts alike.
        test_loss: mean over all clients, weighted by their test samples.
        test_accuracy: the same mean of the accuracy, in [0, 1]; None for regression.
        client_loss: test loss of each client.
        client_accuracy: test accuracy of each client.
        mixture: pi of each client, K lists of C numbers (C = 1 where the method mixes nothing). While clients
            are asked, already what their answers will give; over Flower uniform until all are known.
        mismatch: distance of the mixtures from the true clusters, 0 to 2; where the task knows of none, from
            one cluster for all, which says nothing.
        seconds: of the round's training, without evaluation; of runs side by side an equal share. The engines
            do not count the asking.
    """

    round: int
    train_loss: float
    seconds: float
    test_loss: float | None = None
    test_accuracy: float | None = None
    client_loss: list[float] | None = None
    client_accuracy: list[float] | None = None
    mixture: list[list[float]] | None = None
    mismatch: float | None = None


@dataclass(repr=False)
class History:
    """All rounds of one run, and everything needed to make them again.

    Attributes:
        config: task, network (its class, and a checksum of its layers as they print), loss, augmentation,
            method, settings, seed, device, package version.
        clusters: the true cluster of each client.
        bytes_up: what one client has to send in a round, in bytes: shared and clustered tensors, and the C
            weights of its averages. Where the method `sends_one_cluster`, it is that cluster's tensors, N^k
            and the cluster's number; but over Flower all clusters' tensors travel, and count.
        bytes_down: what one client receives in a round, in bytes: shared and clustered tensors.
        parameters: number of "base" parameters, and of those that a client holds beside them, "added" by
            the method; the router not counted.
        rounds: one entry a round.
    """

    config: dict[str, Any]
    clusters: list[int]
    bytes_up: int
    bytes_down: int
    parameters: dict[str, int]
    rounds: list[Round] = field(default_factory=list)

    def __repr__(self) -> str:
        """In a line: the numbers are in `frame()`."""
        return f"History({self.config.get('task')}, {self.config.get('method')}, {len(self.rounds)} rounds)"

    @property
    def evaluated(self) -> list[Round]:
        """The rounds whose test shards were evaluated."""
        return [entry for entry in self.rounds if entry.test_loss is not None]

    @property
    def last_evaluated(self) -> Round:
        """The last of them, or InputError where there is none."""
        require(bool(self.evaluated), "no round was evaluated yet; train on, or make evaluate_every smaller")
        return self.evaluated[-1]

    def frame(self) -> pd.DataFrame:
        """One row a round: losses, accuracy, mismatch, seconds; indexed by the round's number."""
        import pandas as pd  # here, as for clients(): it takes longer to load than this whole package

        columns = ["round", "train_loss", "test_loss", "test_accuracy", "mismatch", "seconds"]
        rows = [[getattr(entry, column) for column in columns] for entry in self.rounds]
        frame: pd.DataFrame = pd.DataFrame(rows, columns=columns).set_index("round").astype(float)
        return frame

    def clients(self) -> pd.DataFrame:
        """One row a client at the last evaluated round: cluster, loss, accuracy.

        Raises:
            InputError: no round was evaluated yet.
        """
        import pandas as pd

        last = self.last_evaluated
        columns = {"cluster": self.clusters, "loss": last.client_loss, "accuracy": last.client_accuracy}
        frame: pd.DataFrame = pd.DataFrame(columns)
        frame.index.name = "client"
        return frame

    def save(self, path: Path | str, replace: bool = False) -> None:
        """Write the history as JSON, completely or not at all.

        Args:
            path: of the file; folders on the way to it are made.
            replace: write over a file that is there.

        Raises:
            InputError: the file is there already, and is not to be replaced.
        """
        path = Path(path)
        require(
            replace or not path.exists(),
            f"{path} is there already; choose another path, or move it away",
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, path: Path | str) -> History:
        """Read what `save` wrote.

        Raises:
            InputError: the file is damaged, or something else, such as a folder.
            FileNotFoundError: there is none.
        """
        require(not Path(path).is_dir(), f"{path} is a folder; name the file that History.save wrote in it")
        try:
            content = json.loads(Path(path).read_text())
            history = cls(**{**content, "rounds": [Round(**entry) for entry in content["rounds"]]})
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(f"{path} is no history ({error!r}): name one that History.save wrote") from None
        kinds = Round.__annotations__
        require(
            [entry.round for entry in history.rounds] == list(range(1, 1 + len(history.rounds)))
            and all(_fits(getattr(entry, name), kinds[name]) for entry in history.rounds for name in kinds)
            and _fits(history.clusters, "list[int]")
            and _fits([history.bytes_up, history.bytes_down], "list[int]")
            and all(isinstance(named, dict) for named in (history.config, history.parameters)),
            f"{path} is no history (values of other kinds): name one that History.save wrote",
        )
        return history


def _fits(value: Any, annotation: str) -> bool:
    """Whether a value is of a kind such as "float | None" or "list[list[float]]"; any number is a number."""
    if value is None:
        return "None" in annotation
    values = [value]
    for _ in range(annotation.count("list")):
        if not all(isinstance(inner, list) for inner in values):
            return False
        values = [innermost for inner in values for innermost in inner]
    return all(isinstance(number, int | float) for number in values)
