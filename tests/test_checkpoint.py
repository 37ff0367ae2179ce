"""Checkpoints: a run that is interrupted and resumed is the run that was not."""

import copy
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from floral_lite import Federation, History, InputError, Task, cli, methods, tasks, train
from floral_lite.data import FlipAndCrop
from floral_lite.federation import (
    Engine,
    Run,
    Settings,
    checkpointed_rounds,
    load_checkpoint,
    save_checkpoint,
    stacked_rounds,
    train_runs,
)
from floral_lite.methods import Method
from floral_lite.personal import personal_model
from floral_lite.roles import Roles

from .federations import Jitter, identical, make_task, normal, numbers, single


def assert_all_same(some: Sequence[Federation] | None, others: Sequence[Federation]) -> None:
    assert some is not None
    for one, other in zip(some, others, strict=True):
        identical(one, other)


def make(name: str, task: Task) -> Method:
    if name == "fedavg":
        return methods.FedAvg(task.model)
    return methods.FLoRAL(task.model, 3, rank=1, routing="optimal" if name == "optimal" else "learned")


def stack(task: Task, name: str) -> list[Run]:
    """Two seeds of a configuration: the second has the first one's clients in another order."""
    other = replace(task, train=task.train[::-1], test=task.test[::-1])
    return [Run(task, make(name, task), 1), Run(other, make(name, other), 2)]


def assert_resumed_is_uninterrupted(
    runs: list[Run], settings: Settings, folder: Path, engine: Engine, interrupted_after: int
) -> None:
    *_, whole = stacked_rounds(runs, settings, engine=engine)

    def rounds() -> Any:
        return checkpointed_rounds(runs, settings, checkpoints=folder, checkpoint_every=2, engine=engine)

    for _ in islice(rounds(), interrupted_after):
        pass
    resumed = list(rounds())
    # it begins with the checkpoint of the last even round, if there was one
    begun = interrupted_after - interrupted_after % 2
    assert len(resumed) == settings.rounds - begun + (begun > 0)
    assert_all_same(resumed[-1], whole)


@pytest.mark.parametrize(
    ("name", "stateful"), [("fedavg", True), ("learned", True), ("learned", False), ("optimal", True)]
)
@pytest.mark.parametrize("interrupted_after", [1, 3, 4])
def test_a_resumed_run_is_the_uninterrupted_one(
    ragged_task: Task, tmp_path: Path, name: str, stateful: bool, interrupted_after: int, engine: Engine
) -> None:
    settings = ragged_task.settings.with_changes(rounds=6, stateful=stateful, evaluate_every=2)
    runs = [Run(ragged_task, make(name, ragged_task), 1)]
    assert_resumed_is_uninterrupted(runs, settings, tmp_path, engine, interrupted_after)


SERVERS: list[dict[str, Any]] = [
    {"server_optimizer": "adam", "server_learning_rate": 0.01},
    {"server_momentum": 0.9, "server_learning_rate": 0.5},
]


@pytest.mark.parametrize("server", SERVERS, ids=["adam", "momentum"])
@pytest.mark.parametrize("interrupted_after", [3, 4])
def test_a_resumed_stack_is_the_uninterrupted_one(
    ragged_task: Task,
    tmp_path: Path,
    server: dict[str, Any],
    interrupted_after: int,
    engine: Engine,
) -> None:
    """Two seeds, with what the server's optimizer remembers of each."""
    settings = ragged_task.settings.with_changes(rounds=6, evaluate_every=2, momentum=0.5, **server)
    runs = stack(ragged_task, "learned")
    assert_resumed_is_uninterrupted(runs, settings, tmp_path, engine, interrupted_after)
    one, other = load_checkpoint(tmp_path) or []
    assert set(one.moments) == ({"mean", "square"} if "server_optimizer" in server else {"velocity"})
    assert all(tensor.any() for moment in one.moments.values() for tensor in moment.tensors())
    assert not torch.equal(one.state.shared["0.weight"], other.state.shared["0.weight"])


def test_the_moments_matter(ragged_task: Task, tmp_path: Path) -> None:
    """A checkpoint that forgot them would resume another run."""
    run, settings = {"checkpoints": tmp_path}, SERVERS[0]
    method = make("fedavg", ragged_task)
    train(ragged_task, method, rounds=2, **run, **settings)
    (kept,) = load_checkpoint(tmp_path) or []
    save_checkpoint(
        [kept._replace(moments={n: m.map(torch.zeros_like) for n, m in kept.moments.items()})],
        tmp_path / "forgetful",
    )
    resumed, forgetful = (
        train(ragged_task, method, rounds=4, checkpoints=folder, **settings)
        for folder in (tmp_path, tmp_path / "forgetful")
    )
    assert not torch.allclose(resumed.state.shared["0.weight"], forgetful.state.shared["0.weight"])


def test_where_nothing_is_averaged_the_server_has_nothing_to_remember(
    ragged_task: Task, tmp_path: Path
) -> None:
    method = methods.Local(ragged_task.model)
    train(ragged_task, method, rounds=2, checkpoints=tmp_path, **SERVERS[0])
    resumed = train(ragged_task, method, rounds=4, checkpoints=tmp_path, **SERVERS[0])
    assert not resumed.state.shared
    whole = train(ragged_task, method, rounds=4, **SERVERS[0])
    assert numbers(resumed) == numbers(whole)


@pytest.mark.parametrize("evaluate_every", [1, 0])
def test_a_finished_run_can_be_made_longer(ragged_task: Task, tmp_path: Path, evaluate_every: int) -> None:
    method, run = make("learned", ragged_task), {"evaluate_every": evaluate_every}
    short = train(ragged_task, method, rounds=2, checkpoints=tmp_path, **run)
    identical(train(ragged_task, method, rounds=2, checkpoints=tmp_path, **run), short)
    longer = train(ragged_task, method, rounds=4, checkpoints=tmp_path, **run)
    identical(longer, train(ragged_task, method, rounds=4, **run))


def test_only_the_newest_checkpoint_is_kept(ragged_task: Task, tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    done = train(
        ragged_task, make("optimal", ragged_task), rounds=5, checkpoints=tmp_path, checkpoint_every=2
    )
    assert [path.name for path in tmp_path.iterdir()] == ["round-000005"]
    assert_all_same(load_checkpoint(tmp_path), [done])
    (kept,) = load_checkpoint(tmp_path) or []
    assert replace(kept.history, rounds=[]) == replace(done.history, rounds=[])


@pytest.mark.parametrize("broken", ["save", "os.replace", "shutil.rmtree"])
def test_an_interrupted_write_loses_nothing(
    ragged_task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    rounds = list(stacked_rounds(stack(ragged_task, "learned"), ragged_task.settings))
    save_checkpoint(rounds[0], tmp_path)

    def fail(*arguments: object, **options: object) -> None:
        if not options.get("ignore_errors"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(f"floral_lite.federation.checkpoint.{broken}", fail)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(rounds[1], tmp_path)
    # once the new one has its name, what remains of the older one does not matter
    assert_all_same(load_checkpoint(tmp_path), rounds[1] if broken == "shutil.rmtree" else rounds[0])
    save_checkpoint(rounds[2], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["round-000003"]


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(
    ragged_task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut leaves empty files under that name, and the older checkpoint is gone."""
    (federations,) = stacked_rounds(stack(ragged_task, "learned"), replace(ragged_task.settings, rounds=1))
    told, fsync, to_name = [], os.fsync, os.replace

    def synchronised(file: int) -> None:
        told.append("on disk")
        fsync(file)

    def named(part: Path, whole: Path) -> None:
        told.append(whole.name)
        to_name(part, whole)

    monkeypatch.setattr(os, "fsync", synchronised)
    monkeypatch.setattr(os, "replace", named)
    save_checkpoint(federations[:1], tmp_path)
    files = ["on disk", "state-0.safetensors", "on disk", "history-0.json"]
    assert told == [*files, "round-000001"]


@pytest.mark.parametrize("name", ["round-000001-best", "round-000002 (copy)", "round-notes"])
def test_a_copy_of_a_checkpoint_is_the_users_own(ragged_task: Task, tmp_path: Path, name: str) -> None:
    rounds = list(stacked_rounds(stack(ragged_task, "learned"), ragged_task.settings))
    save_checkpoint(rounds[0], tmp_path)
    shutil.copytree(tmp_path / "round-000001", tmp_path / name)
    save_checkpoint(rounds[1], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"round-000002", name}
    assert_all_same(load_checkpoint(tmp_path), rounds[1])


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), Jitter()], ids=["dropout", "jitter"])
def test_layers_that_draw_follow_from_the_seed_too(
    ragged_task: Task, tmp_path: Path, layer: nn.Module, engine: Engine
) -> None:
    model = nn.Sequential(nn.Linear(4, 6), layer, nn.Linear(6, 3)).double()
    task = replace(ragged_task, model=model)
    method = methods.FineTuned(model)  # which trains, and draws, for its tests too
    torch.manual_seed(1)
    whole = train(task, method, engine=engine, rounds=4)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    train(task, method, engine=engine, rounds=2, checkpoints=tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    identical(train(task, method, engine=engine, rounds=4, checkpoints=tmp_path), whole)
    # a seed and a round that change nothing else than what is drawn
    still: dict[str, Any] = {"shuffle": False, "participation": 1.0, "learning_rate": 1e-9}
    others = [train(task, method, engine=engine, rounds=2, seed=seed, **still) for seed in (0, 1)]
    assert len({round(entry.train_loss, 6) for other in others for entry in other.history.rounds}) == 4
    # and it draws: without it the same seed gives other numbers
    task = replace(ragged_task, model=nn.Sequential(model[0], nn.Identity(), model[2]))
    quiet = train(task, methods.FedAvg(task.model), engine=engine, rounds=4)
    assert not torch.allclose(quiet.state.shared["0.weight"], whole.state.shared["0.weight"])


def test_another_model_is_not_resumed(ragged_task: Task, tmp_path: Path) -> None:
    train(ragged_task, make("fedavg", ragged_task), rounds=1, checkpoints=tmp_path)
    other = replace(ragged_task, model=copy.deepcopy(ragged_task.model))
    next(other.model.parameters()).requires_grad_(False)
    with pytest.raises(InputError, match="another model: give the same one"):
        train(other, make("fedavg", other), rounds=2, checkpoints=tmp_path)
    # nor is one of other numbers
    (kept,) = load_checkpoint(tmp_path) or []
    save_checkpoint([kept._replace(state=kept.state.map(Tensor.float))], tmp_path / "single")
    with pytest.raises(InputError, match="another model: give the same one"):
        train(ragged_task, make("fedavg", ragged_task), rounds=2, checkpoints=tmp_path / "single")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()}, "network is 'Seq"),
        ({"loss": nn.CrossEntropyLoss()}, "loss is 'CrossEntropyLoss', but .* has 'cross_entropy'"),
        ({"augment": FlipAndCrop()}, "augment is 'FlipAndCrop', but the run .* has None"),
    ],
    ids=["network", "loss", "augmentation"],
)
def test_what_changes_no_shape_is_not_resumed_either(
    ragged_task: Task, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    task = replace(ragged_task, model=model)
    train(task, make("fedavg", task), rounds=1, checkpoints=tmp_path)
    other = replace(task, **change)
    with pytest.raises(InputError, match=message):
        train(other, make("fedavg", other), rounds=2, checkpoints=tmp_path)


def test_a_run_is_not_ended_where_it_was_not_evaluated(ragged_task: Task, tmp_path: Path) -> None:
    def stop(federation: Federation) -> None:
        if len(federation.history.rounds) == 3:
            raise RuntimeError("stop")

    method = make("fedavg", ragged_task)
    run = {"evaluate_every": 2, "checkpoints": tmp_path, "checkpoint_every": 1}
    with pytest.raises(RuntimeError, match="stop"):
        train(ragged_task, method, rounds=9, on_round=stop, **run)
    with pytest.raises(InputError, match=r"rounds is 3.* was not evaluated there: give more rounds"):
        train(ragged_task, method, rounds=3, **run)
    assert train(ragged_task, method, rounds=4, **run).history.evaluated[-1].round == 4


def test_a_resumed_loop_rounds_as_the_uninterrupted_one(tmp_path: Path) -> None:
    """A file's tensors begin anywhere in memory, and products of such ones are rounded otherwise."""
    task = tasks.load("digits-rotate", num_clients=8, data_fraction=0.1)
    method = methods.Ensemble(task.model)
    run: dict[str, Any] = {"momentum": 0.9, "engine": "loop"}
    whole = train(task, method, rounds=20, **run)
    train(task, method, rounds=1, checkpoints=tmp_path, **run)
    identical(train(task, method, rounds=20, checkpoints=tmp_path, **run), whole)


def test_a_resumed_run_rounds_as_the_uninterrupted_one_whatever_its_weights_lie_like(
    tmp_path: Path, engine: Engine
) -> None:
    def build() -> nn.Module:
        convolutions = nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU()
        model = nn.Sequential(nn.Unflatten(1, (3, 8, 8)), *convolutions, nn.Flatten(), nn.Linear(256, 3))
        return model.to(memory_format=torch.channels_last)

    task = single(make_task(build, normal(192), sizes=(13, 9, 20, 7, 5), rounds=6))
    method = methods.FedAvg(task.model)
    whole = train(task, method, engine=engine)
    train(task, method, rounds=3, checkpoints=tmp_path, engine=engine)
    identical(train(task, method, checkpoints=tmp_path, engine=engine), whole)


def test_a_run_may_go_on_elsewhere_and_in_another_version(ragged_task: Task, tmp_path: Path) -> None:
    method = make("learned", ragged_task)
    done = train(ragged_task, method, rounds=2)
    config = {**done.history.config, "device": "cuda", "version": "0.1"}
    save_checkpoint([done._replace(history=replace(done.history, config=config))], tmp_path)
    longer = train(ragged_task, method, rounds=4, checkpoints=tmp_path)
    identical(longer, train(ragged_task, method, rounds=4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed is 1, but the run that is to be resumed has 0"),
        ({"learning_rate": 0.1}, r"learning_rate is 0\.1, but the run that is to be resumed has 0\.3"),
        ({"engine": "loop"}, "engine is 'loop', but the run that is to be resumed has 'fast'"),
        ({"server_optimizer": "adam"}, "server_optimizer is 'adam', but the run .* has 'sgd'"),
        ({"method": "optimal"}, "routing is 'optimal', but the run that is to be resumed has 'learned'"),
        ({"method": "fedavg"}, "method is 'fedavg', but the run that is to be resumed has 'floral'"),
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


class Quiet(methods.FedAvg):
    """Sends what it was given; it has no name of its own."""

    remembers_start = True

    def finish(self, client: Roles, start: Roles) -> Roles:
        return start


def test_a_class_without_a_name_of_its_own_is_not_taken_for_the_one_that_it_is_made_from(
    ragged_task: Task, tmp_path: Path
) -> None:
    parent, child = methods.FedAvg(ragged_task.model), Quiet(ragged_task.model)
    done = train(ragged_task, parent, rounds=1, checkpoints=tmp_path)
    with pytest.raises(InputError, match=r"method is 'fedavg-Quiet', but the run .* has 'fedavg'"):
        train(ragged_task, child, rounds=2, checkpoints=tmp_path)
    with pytest.raises(InputError, match="method is 'fedavg-Quiet', but what was trained has 'fedavg'"):
        personal_model(ragged_task, child, done, client=0)
    train(ragged_task, child, rounds=1, checkpoints=tmp_path / "own")
    assert len(train(ragged_task, child, rounds=2, checkpoints=tmp_path / "own").history.rounds) == 2


def test_of_another_seed_and_what_follows_from_it_the_seed_is_told(tmp_path: Path) -> None:
    first, other = (tasks.load("digits-rotate", num_clients=2, num_clusters=1, seed=seed) for seed in (0, 1))
    train(first, methods.FedAvg(first.model), rounds=1, checkpoints=tmp_path)
    with pytest.raises(InputError, match=r"^seed is 1, but"):
        train(other, methods.FedAvg(other.model), seed=1, rounds=2, checkpoints=tmp_path)


def test_checkpoints_need_a_distance_of_at_least_one_round(ragged_task: Task, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="checkpoint_every is 0; it must be at least 1"):
        train(ragged_task, make("fedavg", ragged_task), checkpoints=tmp_path, checkpoint_every=0)
    with pytest.raises(InputError, match=r"checkpoint_every is 2\.5; it must be a whole number"):
        train(ragged_task, make("fedavg", ragged_task), checkpoints=tmp_path, checkpoint_every=2.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"warmup": 3}, "warmup is None, but .* has 3"),
        ({"precision": None}, "precision is 'float32', but .* None"),
    ],
    ids=["no more", "not yet"],
)
def test_a_run_with_settings_that_are_not_those_of_today_is_not_resumed(
    ragged_task: Task, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    method = make("fedavg", ragged_task)
    done = train(ragged_task, method, rounds=1)
    config = {name: value for name, value in {**done.history.config, **change}.items() if value is not None}
    save_checkpoint([done._replace(history=replace(done.history, config=config))], tmp_path)
    with pytest.raises(InputError, match=message):
        train(ragged_task, method, rounds=2, checkpoints=tmp_path)


@pytest.mark.parametrize("seeds", [1, 3])
def test_another_number_of_seeds_is_not_resumed(ragged_task: Task, tmp_path: Path, seeds: int) -> None:
    runs, settings = stack(ragged_task, "fedavg"), ragged_task.settings
    train_runs(runs, settings, checkpoints=tmp_path)
    with pytest.raises(InputError, match="seeds"):
        train_runs((2 * runs)[:seeds], settings.with_changes(rounds=4), checkpoints=tmp_path)


def test_a_killed_command_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at any moment, such as in the middle of writing a checkpoint of its two seeds."""
    options = "run synthetic-linear --rank 1 --rounds 40 --evaluate-every 20 --seeds 2 --device cpu"
    arguments = [*options.split(), "--out", "out", "--checkpoint-every", "1"]
    command = [sys.executable, "-c", "from floral_lite.cli import main; main()", *arguments]
    # one thread, as in this process: sums are added up in the same order
    settings: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, **settings) as running:
        while running.poll() is None and not list(tmp_path.glob("out/checkpoints/round-*[3-9]")):
            time.sleep(0.001)
        time.sleep(random.uniform(0, 0.05))
        running.send_signal(signal.SIGKILL)
    assert running.returncode == -signal.SIGKILL
    assert not (tmp_path / "out/seed-0/history.json").exists()
    killed = load_checkpoint(tmp_path / "out/checkpoints") or []
    assert len(killed) == 2
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["floral-lite", *arguments, "--resume"])
    with pytest.raises(SystemExit, match="0"):
        cli.main()

    runs = [
        Run(task, methods.FLoRAL(task.model, rank=1, num_clusters=2), seed)
        for seed, task in enumerate(tasks.load_seeds("synthetic-linear", seeds=[0, 1]))
    ]
    whole = train_runs(runs, runs[0].task.settings.with_changes(rounds=40, evaluate_every=20))
    assert_all_same(load_checkpoint(tmp_path / "out/checkpoints"), whole)
    for seed, federation in enumerate(whole):
        kept = History.load(tmp_path / f"out/seed-{seed}/history.json")
        assert numbers(federation._replace(history=kept)) == numbers(federation)
        # the rounds before the end were not done again: they took the same time
        before = killed[seed].history.rounds
        assert 3 <= len(before) < 40
        assert kept.rounds[: len(before)] == before


def test_a_tensor_may_have_any_name(ragged_task: Task, tmp_path: Path) -> None:
    done = train(ragged_task, make("fedavg", ragged_task), rounds=1)
    named = done._replace(state=done.state._replace(shared=done.state.shared | {"a/b/c": torch.ones(2)}))
    save_checkpoint([named], tmp_path)
    assert_all_same(load_checkpoint(tmp_path), [named])


def test_tensors_that_lie_otherwise_in_memory_are_kept_too(ragged_task: Task, tmp_path: Path) -> None:
    done = train(ragged_task, make("fedavg", ragged_task), rounds=1)
    turned = done.state.map(lambda tensor: tensor.T.contiguous().T if tensor.dim() == 2 else tensor)
    assert not turned.shared["0.weight"].is_contiguous()
    save_checkpoint([done._replace(state=turned)], tmp_path)
    assert_all_same(load_checkpoint(tmp_path), [done])


def test_a_history_that_lost_rounds_is_refused(ragged_task: Task, tmp_path: Path) -> None:
    """Else they would be trained once more, on the parameters after them."""
    train(ragged_task, make("fedavg", ragged_task), rounds=2, checkpoints=tmp_path)
    path = tmp_path / "round-000002/history-0.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rounds": []}))
    with pytest.raises(InputError, match=r"round-000002 is damaged.*\(history-0\.json has 0 rounds\)"):
        load_checkpoint(tmp_path)


def test_what_is_no_list_of_runs_after_one_round_is_not_saved(ragged_task: Task, tmp_path: Path) -> None:
    method = methods.FedAvg(ragged_task.model)
    once, twice = (train(ragged_task, method, rounds=rounds) for rounds in (1, 2))
    given: Any
    for given, message in (
        (once, r"federations is of type Federation.*\[federation\] of a single one"),
        ([], r"federations have done \[\] rounds"),
        ([twice, once], r"federations have done \[1, 2\] rounds"),
    ):
        with pytest.raises(InputError, match=message):
            save_checkpoint(given, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_checkpoint_that_lost_a_file_is_refused(ragged_task: Task, tmp_path: Path) -> None:
    train(ragged_task, make("fedavg", ragged_task), rounds=2, checkpoints=tmp_path)
    path = tmp_path / "round-000002/state-0.safetensors"
    path.unlink()
    with pytest.raises(InputError, match=r"round-000002 is damaged.*state-0\.safetensors"):
        load_checkpoint(tmp_path)
    # nor is one whole whose parameters are none of a state
    save_file({"mean/shared/0.weight": torch.ones(1)}, path)
    with pytest.raises(InputError, match=r"round-000002 is damaged.*'state'"):
        load_checkpoint(tmp_path)


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "round-999999").mkdir()
    with pytest.raises(InputError, match=r"round-999999 is no checkpoint of this version"):
        load_checkpoint(tmp_path)
    (tmp_path / "round-1000000").mkdir()  # which is newer
    with pytest.raises(InputError, match=r"round-1000000 is no checkpoint of this version"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("place", ["notes.txt", "notes.txt/run"], ids=["a file", "under a file"])
def test_a_folder_that_cannot_be_written_is_told_after_one_round(
    place: str, ragged_task: Task, tmp_path: Path
) -> None:
    """Not when the first checkpoint is due."""
    (tmp_path / "notes.txt").write_text("kept")
    done: list[Federation] = []
    with pytest.raises(InputError, match=r"checkpoints is '.*notes\.txt.*nothing can be written.*another"):
        train(
            ragged_task,
            make("fedavg", ragged_task),
            rounds=20,
            checkpoints=tmp_path / place,
            on_round=done.append,
        )
    assert not done
    assert (tmp_path / "notes.txt").read_text() == "kept"


def test_a_folder_that_may_not_be_written_is_told_too(
    ragged_task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(self: Path, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", forbidden)
    with pytest.raises(InputError, match=r"nothing can be written \(Permission denied\): name another"):
        train(ragged_task, make("fedavg", ragged_task), checkpoints=tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_memory": "1GB"}, "max_memory is '1GB'; it must be a whole number"),
        ({"device": "abacus"}, "device is 'abacus'"),
        ({"engine": "steam"}, "engine is 'steam'"),
    ],
)
def test_a_run_that_is_refused_leaves_no_folder(
    ragged_task: Task, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        train(ragged_task, make("fedavg", ragged_task), checkpoints=tmp_path / "run", **change)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("checkpoints", [True, ["runs/first"]])
def test_what_is_no_folder_is_told(ragged_task: Task, checkpoints: Any) -> None:
    with pytest.raises(InputError, match=r"checkpoints is .*; it must be a folder, such as 'runs/first'"):
        train(ragged_task, make("fedavg", ragged_task), checkpoints=checkpoints)


def test_no_checkpoint_is_loaded_from_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("kept")
    wrong: list[Any] = [None, ["runs/first"], tmp_path / "notes.txt", str(tmp_path / "notes.txt")]
    for folder in wrong:
        with pytest.raises(InputError, match=r"folder is .*; it must be a folder of checkpoints, such as"):
            load_checkpoint(folder)
    assert load_checkpoint(tmp_path / "not there yet") is None


def test_a_second_run_in_the_same_folder_is_refused(ragged_task: Task, tmp_path: Path) -> None:
    """Each would remove the other's checkpoints."""
    method = make("fedavg", ragged_task)

    def second(federation: Federation) -> None:
        with pytest.raises(InputError, match=r"another process is at work in the folder .*name another"):
            train(ragged_task, method, seed=1, checkpoints=tmp_path)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        train(ragged_task, method, rounds=2, checkpoints=tmp_path, on_round=second)
    # also as long as a notebook shows where it was stopped, the folder is free again
    assert stopped.traceback
    assert len(train(ragged_task, method, rounds=2, checkpoints=tmp_path).history.rounds) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["round-000002"]


def test_a_run_that_is_killed_early_goes_on_from_its_first_round(ragged_task: Task, tmp_path: Path) -> None:
    method = make("fedavg", ragged_task)
    whole = train(ragged_task, method, rounds=3)
    rounds = checkpointed_rounds(
        [Run(ragged_task, method, 0)], ragged_task.settings.with_changes(rounds=3), checkpoints=tmp_path
    )
    next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    assert [path.name for path in tmp_path.iterdir()] == ["round-000001"]
    identical(train(ragged_task, method, rounds=3, checkpoints=tmp_path), whole)


def test_a_checkpoint_of_the_same_round_stays_as_it_is(ragged_task: Task, tmp_path: Path) -> None:
    """As long as a new one is written, a run that goes on from it has no other."""
    done, other = (train(ragged_task, make("fedavg", ragged_task), rounds=1, seed=seed) for seed in (0, 1))
    for federation in (done, other):
        save_checkpoint([federation], tmp_path)
    assert_all_same(load_checkpoint(tmp_path), [done])


def test_an_earlier_round_leaves_a_later_checkpoint(tmp_path: Path) -> None:
    task = tasks.load("digits-rotate", num_clients=2, num_clusters=1)
    early, late = (train(task, methods.FedAvg(task.model), rounds=rounds) for rounds in (1, 2))
    save_checkpoint([late], tmp_path)
    save_checkpoint([early], tmp_path)
    kept = load_checkpoint(tmp_path)
    assert kept is not None
    assert len(kept[0].history.rounds) == 2


def test_what_a_user_keeps_beside_checkpoints_stays(tmp_path: Path) -> None:
    task = tasks.load("digits-rotate", num_clients=2, num_clusters=1)
    train(task, methods.FedAvg(task.model), rounds=1, checkpoints=tmp_path)
    shutil.copytree(tmp_path / "round-000001", tmp_path / "round-1")
    notes = ["round-0", "round-000000"]  # files, also under the name of a round
    for name in notes:
        (tmp_path / name).write_text("notes")
    train(task, methods.FedAvg(task.model), rounds=2, checkpoints=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [*notes, "round-000002", "round-1"]


def test_any_folder_that_cannot_be_made_is_an_input_error() -> None:
    task = tasks.load("digits-rotate", num_clients=2, num_clusters=1)
    with pytest.raises(InputError, match="nothing can be written"):
        train(task, methods.FedAvg(task.model), rounds=1, checkpoints="/proc/none")


class Schedule:
    """An object that prints as its class and its address in memory."""


class Scheduled(methods.FedAvg):
    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.schedule = Schedule()

    def options(self) -> dict[str, object]:
        return {"schedule": self.schedule}


class Told(nn.Linear):
    """A layer that prints an object, too."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.schedule = Schedule()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.schedule!r}"


def test_a_run_goes_on_in_another_process_where_its_objects_lie_elsewhere(tmp_path: Path) -> None:
    made = [make_task(Told, normal(4)) for _ in range(2)]  # both there, so that their addresses differ
    ways = [Scheduled(task.model) for task in made]
    for task, method, rounds in zip(made, ways, (1, 2), strict=True):
        history = train(task, method, rounds=rounds, checkpoints=tmp_path).history
    assert len(history.rounds) == 2
    assert history.config["schedule"].endswith("Schedule object>")
