"""The summary says what the history says."""

import math

import pytest
import torch

from floral_lite import InputError, methods, tasks, train
from floral_lite.federation import History, Round
from floral_lite.report import effective_number, over_seeds, recovered, summary


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


def test_the_effective_number_is_of_adaptors_that_clients_tell_apart() -> None:
    undecided, decided = torch.full((6, 3), 1 / 3).double(), torch.eye(3).repeat(2, 1).double()
    uneven = torch.eye(2).double()[[0, 0, 0, 1]]
    pi = torch.tensor([[0.9, 0.1], [0.3, 0.7]], dtype=torch.float64)
    apart = -(0.6 * math.log(0.6) + 0.4 * math.log(0.4))
    within = -sum(p * math.log(p) for p in (0.9, 0.1, 0.3, 0.7)) / 2
    for mixtures, wanted in (
        (undecided, 1),
        (decided, 3),
        (decided[:1].repeat(6, 1), 1),  # all agree
        (uneven, 4 / 3**0.75),  # exp of H(3/4, 1/4)
        (pi, math.exp(apart - within)),
    ):
        found = effective_number(mixtures)
        torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64))
    both = effective_number(torch.stack([undecided, decided]))
    torch.testing.assert_close(both, torch.tensor([1.0, 3.0], dtype=torch.float64))
    with pytest.raises(InputError, match="mixtures"):
        effective_number(2 * undecided)
    with pytest.raises(InputError, match=r"mixtures has the shape \(0, 3\), which is empty"):
        effective_number(undecided[:0])


def test_the_effective_number_takes_one_hot_integers_and_refuses_a_single_mixture() -> None:
    assert effective_number(torch.eye(4, dtype=torch.long)).item() == pytest.approx(4)
    with pytest.raises(InputError, match=r"mixtures has the shape \(2,\)"):
        effective_number(torch.tensor([0.5, 0.5]))


def test_a_reports_numbers_are_of_what_training_returns() -> None:
    task = tasks.load("digits-rotate", num_clients=4)
    federation = train(task, methods.FLoRAL(task.model), rounds=1)
    mixture = federation.history.rounds[-1].mixture
    assert effective_number(mixture) == effective_number(torch.tensor(mixture))
    with pytest.raises(InputError, match=r"history is of type Federation; give the \.history of what"):
        summary(federation)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"histories\[1\] is of type Federation"):
        over_seeds([federation.history, federation])  # type: ignore[list-item]


def test_a_mixture_in_half_precision_sums_to_one_to_its_own_rounding() -> None:
    uniform = torch.full((4, 11), 1 / 11, dtype=torch.float16)
    assert 1e-5 < abs(float(uniform[0].sum()) - 1) < 1e-3
    assert float(effective_number(uniform)) == pytest.approx(1, rel=0.01)
