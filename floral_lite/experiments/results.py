"""Results files: what one cell of a table came to, small enough to keep beside the text that draws it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal

from ..errors import InputError, require
from ..federation.history import History
from ..federation.settings import Settings
from ..files import write_whole
from .cells import Cell, configuration

if TYPE_CHECKING:
    import pandas as pd

# The numbers of a round that are kept.
OF_A_ROUND = ("round", "train_loss", "test_loss", "test_accuracy", "mismatch")

# The types of a result's attributes that a file must have.
KINDS = {
    "configuration": dict,
    "run": dict,
    "seed": int,
    "made": dict,
    "clusters": list,
    "sizes": dict,
    "rounds": dict,
    "clients": dict,
}


@dataclass(frozen=True)
class Result:
    """What one cell came to.

    Attributes:
        configuration: what was asked for, see `cells.configuration`.
        run: the run's own record of itself: every option of the method, defaults too. Where it diverged in
            its first round this is empty, and all sizes are 0.
        seed: of the task and of the run.
        status: "done", or "diverged" where the loss stopped being a finite number.
        message: why it diverged.
        made: "command", "device", "versions", "commit"; of one seed the "seconds" from start to end (before
            an interruption of the training only) and the "training_seconds"; and how many "seeds_together".
        clusters: the true cluster of each client, K integers.
        sizes: numbers of "base" and "added" parameters, "bytes_up" and "bytes_down" of a client's round.
        rounds: of the evaluated rounds, a list for each of OF_A_ROUND.
        clients: of the last round: "accuracy" (None for regression) and "loss" of each client, their
            "accuracy_mean", "accuracy_sd", "loss_mean" and "loss_sd", and "mixture", K lists of C numbers.
            Empty where no round was evaluated.
    """

    configuration: dict[str, Any]
    run: dict[str, Any]
    seed: int
    status: Literal["done", "diverged"]
    message: str | None
    made: dict[str, Any]
    clusters: list[int]
    sizes: dict[str, int]
    rounds: dict[str, list[Any]]
    clients: dict[str, Any] = field(default_factory=dict)

    @property
    def score(self) -> float | None:
        """The mean over clients at the last round: accuracy in per cent, or the loss of a regression.

        None where the run diverged.
        """
        if self.status == "diverged":
            return None
        accuracy = self.clients["accuracy_mean"]
        return float(self.clients["loss_mean"] if accuracy is None else 100 * accuracy)

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all; a line for each attribute."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in asdict(self).items()]
        write_whole(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def summarise(cell: Cell, history: History, made: dict[str, Any], message: str | None = None) -> Result:
    """The result of a run.

    Args:
        cell: what was run.
        history: what came of it.
        made: see `Result`.
        message: why it diverged, if it did.
    """
    evaluated = history.evaluated
    rounds = {name: [_rounded(getattr(entry, name), 8) for entry in evaluated] for name in OF_A_ROUND}
    clients: dict[str, Any] = {}
    if evaluated:
        last = evaluated[-1]
        for name, values in (("accuracy", last.client_accuracy or []), ("loss", last.client_loss or [])):
            clients[name] = [_rounded(value, 6) for value in values] or None
            clients[f"{name}_mean"] = _rounded(fmean(values), 8) if values else None
            clients[f"{name}_sd"] = _rounded(stdev(values), 8) if len(values) > 1 else None
        # near uniform the largest weight, by which clusters are told, is in the later digits
        clients["mixture"] = [[round(weight, 7) for weight in row] for row in last.mixture or []]
    return Result(
        configuration=configuration(cell),
        run=history.config,
        seed=int(cell.seed),
        status="done" if message is None else "diverged",
        message=message,
        made=made,
        clusters=history.clusters,
        sizes={**history.parameters, "bytes_up": history.bytes_up, "bytes_down": history.bytes_down},
        rounds=rounds,
        clients=clients,
    )


def _rounded(value: float | int | None, digits: int) -> float | int | None:
    """To so many significant digits."""
    return value if value is None or isinstance(value, int) else float(f"{value:.{digits}g}")


def read(path: Path) -> Result:
    """The result in a file.

    Raises:
        InputError: the file is none.
    """
    try:
        result = Result(**json.loads(path.read_text(encoding="utf-8")))
        for name, kind in KINDS.items():
            require(isinstance(getattr(result, name), kind), f"{name} is no {kind.__name__}")
        # what tables and figures take from it
        require(len({len(result.rounds[name]) for name in OF_A_ROUND}) == 1, "rounds are of two lengths")
        require(result.made.keys() >= {"device", "seconds"}, "made has no device or no seconds")
        require(result.configuration.keys() >= {"task", "row"}, "configuration has no task or no row")
        require(result.configuration["settings"]["rounds"] >= 1, "settings.rounds is not positive")
        require(result.status == "diverged" or result.score is not None, "there is no score")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"{path} is no results file of this version ({error}): move it away") from None
    return result


def find(cell: Cell, folder: Path, same_rounds: bool = True) -> Result | None:
    """The result of a cell, or None if there is none.

    Args:
        cell: which.
        folder: of results.
        same_rounds: whether the file must have the cell's number of rounds.

    Raises:
        InputError: the file is of another configuration or seed.
    """
    path = folder / cell.path
    if not path.exists():
        return None
    result = read(path)
    wanted = flat(configuration(cell)) | {"seed": cell.seed}
    found = flat(result.configuration) | {"seed": result.seed}
    same = (wanted.keys() & found.keys()) - (set() if same_rounds else {"settings.rounds"})
    for key in sorted(same):
        require(
            wanted[key] == found[key],
            f"{path} was made with {key.removeprefix('settings.')}={found[key]!r}, and this is "
            f"{wanted[key]!r}: name another folder with --out, ask for the same "
            f"(such as --rounds {found['settings.rounds']}), or move the file away",
        )
    for key in sorted(found.keys() - wanted.keys()):
        told = f"{key.removeprefix('settings.')}={found[key]!r}"
        raise InputError(f"{path} was made with {told}, which this version does not know: move the file away")
    return result


def flat(configuration: dict[str, Any]) -> dict[str, Any]:
    """Settings by their own names: one that came later than a file had its default then."""
    settings = asdict(Settings()) | configuration["settings"]
    named = {f"settings.{name}": value for name, value in settings.items()}
    return {key: value for key, value in configuration.items() if key != "settings"} | named


def load_results(folder: Path | str) -> pd.DataFrame:
    """Every evaluated round of every result in a folder.

    Args:
        folder: of results.

    Returns:
        One row a round: task, row, seed, status, device, round, train_loss, test_loss, test_accuracy
        (in [0, 1]; the mean over clients weighted by test samples), mismatch.

    Raises:
        InputError: there is no such folder, or a file in it is no result.
    """
    import pandas as pd  # here: it takes longer to load than this whole package

    folder = Path(folder)
    require(folder.is_dir(), f"there is no folder {folder}: name one that `floral-lite table` filled")
    lines = []
    for path in sorted(folder.glob("*/*/seed-*.json")):
        result = read(path)
        config = result.configuration
        run = (config["task"], config["row"], result.seed, result.status, result.made["device"])
        rounds = zip(*(result.rounds[name] for name in OF_A_ROUND), strict=True)
        lines += [(*run, *numbers) for numbers in rounds]
    columns = ["task", "row", "seed", "status", "device", *OF_A_ROUND]
    kinds = {**dict.fromkeys(OF_A_ROUND, float), "seed": int, "round": int}
    frame: pd.DataFrame = pd.DataFrame(lines, columns=columns).astype(kinds)
    return frame
