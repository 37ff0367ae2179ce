"""What a run leaves behind."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from floral_lite import History, InputError, Task, methods, train
from floral_lite.federation import Round
from floral_lite.federation.record import plain


def history() -> History:
    """Two clients, three rounds of which the first was not evaluated."""
    rounds = [
        Round(1, train_loss=2.0, seconds=0.5),
        Round(2, 1.5, 0.25, 1.25, 0.5, [1.0, 1.5], [0.25, 0.75], [[0.1, 0.9], [0.6, 0.4]], 0.75),
        Round(3, 1.0, 0.25, 0.75, 0.75, [0.5, 1.0], [1.0, 0.5], [[0.0, 1.0], [1.0, 0.0]], 0.0),
    ]
    return History({"task": "own", "seed": 0}, [1, 0], 96, 88, {"base": 8, "added": 14}, rounds)


def test_a_configuration_may_have_arrays_and_what_else_there_is() -> None:
    given = {"sites": np.arange(2), "angles": torch.tensor([0.5]), "rate": np.float32(0.5), "by": {1: print}}
    assert plain(given) == {"sites": [0, 1], "angles": [0.5], "rate": 0.5, "by": {"1": repr(print)}}


def test_a_task_says_nothing_in_the_name_of_a_run(ragged_task: Task) -> None:
    method = methods.FedAvg(ragged_task.model)
    there = train(replace(ragged_task, details={"angle": 7}), method, rounds=1).history
    assert there.config["angle"] == 7
    for name in ("seed", "batch_size", "task"):
        with pytest.raises(InputError, match=f"details has '{name}'.*: call it 'task_{name}'"):
            train(replace(ragged_task, details={name: 7}), method)


def test_what_is_saved_is_loaded_again(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "history.json"
    history().save(path)
    assert History.load(path) == history()
    assert list(path.parent.iterdir()) == [path]


def test_nothing_is_overwritten_unless_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_text("another run")
    with pytest.raises(InputError, match=r"history\.json is there already"):
        history().save(path)
    assert path.read_text() == "another run"
    assert list(tmp_path.iterdir()) == [path]
    history().save(path, replace=True)
    assert History.load(path) == history()


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": [asdict(entry) for entry in history().rounds[1:]]},
        {"rounds": [asdict(Round(1, train_loss=2.0, seconds=0.5)) | {"client_loss": [["low"]]}]},
        {"rounds": [asdict(Round(1, train_loss=2.0, seconds=0.5)) | {"mixture": [0.5, 0.5]}]},
        {"clusters": ["north", "south"]},
        {"bytes_up": "96"},
        {"bytes_down": "88"},
        {"config": ["own"]},
        {"parameters": [8, 14]},
        {"rounds": [asdict(Round(1, train_loss=2.0, seconds=0.5)) | {"train_loss": None}]},
    ],
    ids=[
        "no first round",
        "a word for a loss",
        "a mixture of numbers",
        "words for clusters",
        "a word for bytes up",
        "a word for bytes down",
        "no config",
        "no parameters",
        "no loss",
    ],
)
def test_a_file_with_values_of_other_kinds_is_no_history(changes: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_text(json.dumps(asdict(history()) | changes))
    with pytest.raises(InputError, match=r"is no history \(values of other kinds\)"):
        History.load(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rounds": []}', "[" * 100_000], ids=lambda t: t[:12])
def test_a_file_of_something_else_is_no_history(text: str, tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"is no history \(\w+Error"):
        History.load(path)


def test_a_folder_is_no_history(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a folder; name the file that History\.save wrote in it"):
        History.load(tmp_path)


def test_a_history_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        replace(history(), config={"odd": object()}).save(tmp_path / "history.json")
    assert list(tmp_path.iterdir()) == []


def test_the_frame_has_one_row_a_round() -> None:
    frame = history().frame()
    assert list(frame.columns) == ["train_loss", "test_loss", "test_accuracy", "mismatch", "seconds"]
    assert frame.index.name == "round"
    assert frame.index.tolist() == [1, 2, 3]
    assert frame["train_loss"].tolist() == [2.0, 1.5, 1.0]
    assert frame["test_accuracy"].dropna().to_dict() == {2: 0.5, 3: 0.75}
    assert {str(dtype) for dtype in frame.dtypes} == {"float64"}


def test_regression_has_no_accuracy_in_its_frame() -> None:
    rounds = [replace(entry, test_accuracy=None) for entry in history().rounds]
    accuracy = replace(history(), rounds=rounds).frame()["test_accuracy"]
    assert accuracy.isna().all()
    assert accuracy.dtype == float  # else a plot of it would be refused


def test_the_clients_table_shows_the_last_evaluated_round() -> None:
    entries = [*history().rounds, Round(4, 0.9, 0.25)]
    table = replace(history(), rounds=entries).clients()
    assert table.index.name == "client"
    assert table["cluster"].tolist() == [1, 0]
    assert table["loss"].tolist() == [0.5, 1.0]
    assert table["accuracy"].tolist() == [1.0, 0.5]


def test_evaluated_rounds_are_those_with_a_test_loss() -> None:
    assert [entry.round for entry in history().evaluated] == [2, 3]
    # regression has no accuracy, and may fit its test data exactly
    rounds = [replace(entry, test_accuracy=None) for entry in history().rounds]
    rounds[1].test_loss = 0.0
    assert [entry.round for entry in replace(history(), rounds=rounds).evaluated] == [2, 3]
    with pytest.raises(InputError, match="no round was evaluated yet"):
        _ = replace(history(), rounds=history().rounds[:1]).last_evaluated
