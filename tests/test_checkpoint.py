"""Checkpoints: a run that is interrupted and resumed is the run that was not."""

import copy
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from floral_lite import Federation, History, InputError, Task, methods, tasks, train
from floral_lite.federation import checkpointed_rounds, federated_rounds, load_checkpoint, save_checkpoint
from floral_lite.methods import Method


def without_seconds(history: History) -> list[Any]:
    return [replace(entry, seconds=0.0) for entry in history.rounds]


def assert_same(one: Federation, other: Federation) -> None:
    """Bit for bit, but for the time that it took."""
    assert without_seconds(one.history) == without_seconds(other.history)
    for first, second in zip(one.state, other.state, strict=True):
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)


def make(name: str, task: Task) -> Method:
    if name == "fedavg":
        return methods.FedAvg(task.model)
    return methods.FLoRAL(task.model, 3, rank=1, routing="optimal" if name == "optimal" else "learned")


@pytest.mark.parametrize("stateful", [True, False])
@pytest.mark.parametrize("name", ["fedavg", "learned", "optimal"])
@pytest.mark.parametrize("interrupted_after", [1, 3, 4])
def test_a_resumed_run_is_the_uninterrupted_one(
    ragged_task: Task, tmp_path: Path, name: str, stateful: bool, interrupted_after: int
) -> None:
    method = make(name, ragged_task)
    settings = ragged_task.settings.with_changes(rounds=6, stateful=stateful, evaluate_every=2)
    *_, whole = federated_rounds(ragged_task, method, settings, seed=1)

    def rounds() -> Any:
        return checkpointed_rounds(ragged_task, method, settings, seed=1, folder=tmp_path, every=2)

    for _ in islice(rounds(), interrupted_after):
        pass
    resumed = list(rounds())
    # it begins with the checkpoint of the last even round, if there was one
    begun = interrupted_after - interrupted_after % 2
    assert len(resumed) == 6 - begun + (begun > 0)
    assert_same(resumed[-1], whole)


def test_a_finished_run_can_be_made_longer(ragged_task: Task, tmp_path: Path) -> None:
    method = make("learned", ragged_task)
    short = train(ragged_task, method, rounds=2, checkpoints=tmp_path)
    assert_same(train(ragged_task, method, rounds=2, checkpoints=tmp_path), short)
    longer = train(ragged_task, method, rounds=4, checkpoints=tmp_path)
    assert_same(longer, train(ragged_task, method, rounds=4))


def test_only_the_newest_checkpoint_is_kept(ragged_task: Task, tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    done = train(
        ragged_task, make("optimal", ragged_task), rounds=5, checkpoints=tmp_path, checkpoint_every=2
    )
    assert [path.name for path in tmp_path.iterdir()] == ["round-000005"]
    kept = load_checkpoint(tmp_path)
    assert kept is not None
    assert_same(kept, done)
    assert replace(kept.history, rounds=[]) == replace(done.history, rounds=[])


@pytest.mark.parametrize("broken", ["save_file", "os.replace", "shutil.rmtree"])
def test_an_interrupted_write_loses_nothing(
    ragged_task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    run = federated_rounds(ragged_task, make("learned", ragged_task), ragged_task.settings)
    rounds = [copy.deepcopy(federation) for federation in run]  # the history goes on growing
    save_checkpoint(rounds[0], tmp_path)

    def fail(*arguments: object, **options: object) -> None:
        if not options.get("ignore_errors"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(f"floral_lite.federation.checkpoint.{broken}", fail)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(rounds[1], tmp_path)
    kept = load_checkpoint(tmp_path)
    assert kept is not None
    # once the new one has its name, what remains of the older one does not matter
    assert_same(kept, rounds[1] if broken == "shutil.rmtree" else rounds[0])
    save_checkpoint(rounds[2], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["round-000003"]


def test_dropout_follows_from_the_seed_too(ragged_task: Task, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3)).double()
    task = replace(ragged_task, model=model)
    method = methods.FedAvg(model)
    torch.manual_seed(1)
    whole = train(task, method, rounds=4)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    train(task, method, rounds=2, checkpoints=tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    assert_same(train(task, method, rounds=4, checkpoints=tmp_path), whole)
    other = train(task, method, rounds=4, seed=1)
    assert not torch.allclose(other.state.shared["0.weight"], whole.state.shared["0.weight"])


def test_another_model_is_not_resumed(ragged_task: Task, tmp_path: Path) -> None:
    train(ragged_task, make("fedavg", ragged_task), rounds=1, checkpoints=tmp_path)
    other = replace(ragged_task, model=nn.Linear(4, 3).double())
    with pytest.raises(InputError, match="another model: give the same one"):
        train(other, make("fedavg", other), rounds=2, checkpoints=tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed is 1, but the run that is to be resumed has 0"),
        ({"learning_rate": 0.1}, r"learning_rate is 0\.1, but the run that is to be resumed has 0\.3"),
        ({"method": "optimal"}, "routing is 'optimal', but the run that is to be resumed has 'learned'"),
        ({"method": "fedavg"}, "method is 'fedavg', but|is None, but"),
    ],
)
def test_another_run_is_not_resumed(
    ragged_task: Task, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    run = {"seed": 0, "rounds": 2, "checkpoints": tmp_path}
    train(ragged_task, make("learned", ragged_task), **run)
    method = make(change.pop("method", "learned"), ragged_task)
    with pytest.raises(InputError, match=message):
        train(ragged_task, method, **{**run, "rounds": 3, **change})


def test_checkpoints_need_a_distance_of_at_least_one_round(ragged_task: Task, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="checkpoint_every is 0; it must be at least 1"):
        train(ragged_task, make("fedavg", ragged_task), checkpoints=tmp_path, checkpoint_every=0)


def test_a_killed_command_goes_on_where_it_was(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from floral_lite.cli import main; main()", "run", "digits-rotate"]
    command += [
        "--budget",
        "0.1",
        "--rounds",
        "30",
        "--evaluate-every",
        "10",
        "--device",
        "cpu",
        "--out",
        "out",
        "--checkpoint-every",
        "1",
    ]
    # one thread, as in this process: sums are added up in the same order
    settings: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, **settings) as running:
        while running.poll() is None and not list(tmp_path.glob("out/checkpoints/round-*[3-9]")):
            time.sleep(0.01)
        running.send_signal(signal.SIGKILL)
    assert running.returncode == -signal.SIGKILL
    assert not (tmp_path / "out/history.json").exists()
    resumed = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False, **settings)
    assert resumed.returncode == 0, resumed.stderr

    task = tasks.load("digits-rotate")
    method = methods.FLoRAL(task.model, budget=0.1)
    kept = load_checkpoint(tmp_path / "out/checkpoints")
    assert kept is not None
    assert_same(kept, train(task, method, rounds=30, evaluate_every=10))
    assert without_seconds(History.load(tmp_path / "out/history.json")) == without_seconds(kept.history)
