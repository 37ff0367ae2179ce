"""The summary says what the history says."""

import pytest

from floral_lite import InputError, methods, tasks, train
from floral_lite.federation import History, Round
from floral_lite.report import recovered, summary


def test_recovered_is_one_for_the_truth_under_any_names_and_low_for_one_adaptor() -> None:
    clusters = [0, 1, 2, 0, 1, 2]
    names = {0: 2, 1: 0, 2: 1}
    truth = [[float(c == names[cluster]) for c in range(3)] for cluster in clusters]
    assert recovered(truth, clusters) == 1
    assert recovered([[1.0, 0.0, 0.0]] * 6, clusters) == 0


@pytest.mark.parametrize("name", ["fedavg", "floral"])
def test_summary_of_a_run(name: str) -> None:
    task = tasks.load("digits-rotate", num_clients=8)
    history = train(task, methods.make(name, task.model), rounds=1).history
    told = summary(history)
    assert told["accuracy (%)"] == f"{100 * history.rounds[0].test_accuracy:.1f}"
    assert told["bytes a client sends a round"] == f"{history.bytes_up:,}"
    assert [row for row in told.index if "of cluster" in row] == [f"  of cluster {c} (%)" for c in range(4)]
    assert ("mismatch of the mixtures (0 to 2)" in told) == (name == "floral")


def test_every_number_of_a_summary_by_hand() -> None:
    last = Round(
        4,
        train_loss=2.0,
        seconds=1.5,
        test_loss=0.5,
        test_accuracy=0.75,
        client_loss=[0.5] * 4,
        client_accuracy=[0.5, 0.5, 0.8, 1.0],
        mixture=[[0.9, 0.1]] * 3 + [[0.2, 0.8]],
        mismatch=0.25,
    )
    rounds = [last, Round(5, train_loss=1.0, seconds=2.0)]  # stopped before it was evaluated again
    told = summary(History({}, [0, 0, 0, 1], 1000, 2000, {"base": 200, "added": 50}, rounds))
    assert told.to_dict() == {
        "rounds": 4,
        "accuracy (%)": "75.0",
        "  of cluster 0 (%)": "60.0",
        "  of cluster 1 (%)": "100.0",
        "test loss": "0.5000",
        "clusters recovered (adjusted Rand index)": "1.00",
        "mismatch of the mixtures (0 to 2)": "0.25",
        "parameters of the base": "200",
        "parameters added": "50 (25.0%)",
        "bytes a client sends a round": "1,000",
        "seconds of training": "3.5",
    }


def test_summary_of_a_regression_has_no_accuracy() -> None:
    task = tasks.load("synthetic-linear")
    told = summary(train(task, methods.FedAvg(task.model), rounds=1).history)
    assert "accuracy (%)" not in told
    assert float(told["test loss"]) > 0


def test_summary_of_clients_of_whom_nothing_is_known_tells_of_no_clusters() -> None:
    task = tasks.load("digits-rotate", num_clients=2, num_clusters=1)
    told = summary(train(task, methods.FLoRAL(task.model, 2), rounds=1).history)
    assert "test loss" in told
    assert not [row for row in told.index if "mixtures" in row or "cluster" in row]


def test_a_run_that_was_never_evaluated_has_no_summary() -> None:
    task = tasks.load("synthetic-linear")
    history = train(task, methods.FedAvg(task.model), rounds=1, evaluate_every=0).history
    with pytest.raises(InputError, match="no round was evaluated yet"):
        summary(history)
