"""The runner: interrupted, killed, shared by two processes, it comes to what one quiet run comes to."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tqdm import tqdm

from floral_lite import DivergenceError, Federation, InputError, Run, Shard, methods, tasks, train
from floral_lite.experiments import runner
from floral_lite.experiments.cells import Cell, cells, make_runs
from floral_lite.experiments.progress import Progress
from floral_lite.experiments.results import find, read
from floral_lite.experiments.runner import UNFINISHED, Work, fill, locked, run_stack, stacks
from floral_lite.federation import load_checkpoint, stacked_rounds

ROWS = ["fedavg", "floral-1-learned"]
CPU = torch.device("cpu")


def few(rows: Sequence[str] = ROWS, seeds: int = 2, rounds: int = 4) -> list[Cell]:
    """Cells that take a second."""
    return cells("methods", ["synthetic-linear"], rows, seeds, rounds)


def numbers(folder: Path) -> dict[str, Any]:
    """What decides all numbers of a folder of results, without what made them."""
    made = {}
    for path in sorted(folder.glob("*/*/seed-*.json")):
        content = json.loads(path.read_text())
        del content["made"]
        made[str(path.relative_to(folder))] = content
    return made


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The few cells as one process comes to them."""
    folder = tmp_path_factory.mktemp("quiet")
    fill(few(), folder, device="cpu", command="floral-lite table")
    return folder


def test_a_result_holds_what_the_run_came_to(quiet: Path) -> None:
    assert len(numbers(quiet)) == 4
    result = find(few()[1], quiet)
    assert result is not None
    task = tasks.load("synthetic-linear", seed=1)
    method = methods.FLoRAL(task.model, num_clusters=2, budget=0.01)
    history = train(task, method, seed=1, rounds=4).history
    last = history.rounds[-1]
    assert result.rounds["round"] == [4]
    assert result.rounds["train_loss"] == pytest.approx([last.train_loss], rel=1e-6)
    assert result.clients["loss"] == pytest.approx(last.client_loss, rel=1e-5)
    assert result.run == json.loads(json.dumps(history.config))
    assert result.made["command"] == "floral-lite table"
    assert result.made["seeds_together"] == 1
    assert result.made["seconds"] >= result.made["training_seconds"] >= 0


def test_what_is_there_is_not_run_again(quiet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "run_stack", lambda *arguments: pytest.fail("a cell was run twice"))
    fill(few(), quiet, device="cpu")
    with pytest.raises(InputError, match="made with rounds=4, and this is 5"):
        fill(few(rounds=5), quiet, device="cpu")


def test_what_another_process_has_finished_before_the_lock_is_free_is_not_run_again(
    quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "run_stack", lambda *arguments: pytest.fail("a cell was run twice"))
    monkeypatch.setattr(runner, "locked", lambda *_: shutil.copytree(quiet, tmp_path, dirs_exist_ok=True))
    bars: list[Progress] = []
    monkeypatch.setattr(runner, "Progress", lambda *given: bars.append(Progress(*given)) or bars[0])
    fill(few(), tmp_path, device="cpu")
    assert bars[0].bar.n == bars[0].total == 16


def test_the_time_left_is_estimated_from_rounds_that_took_time(tmp_path: Path) -> None:
    first, second = few(["fedavg"])
    progress = Progress([first, second])
    with progress.bar as bar:
        progress.resume([first], 3)
        assert (bar.n, bar.initial) == (3, 3)
        progress.finished(first)
        assert (bar.n, bar.initial) == (4, 3)
        progress.only([])  # another process has done the second
        assert (bar.n, bar.initial) == (8, 7)


def test_a_log_file_tells_at_once_what_has_begun(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = few(["fedavg"])
    progress = Progress([first, second])
    begun: Any = SimpleNamespace(history=SimpleNamespace(rounds=[]))
    with progress.bar:
        for cell in (first, second):
            progress.show([cell], [begun])
            assert str(cell) in capsys.readouterr().err
        progress.show([second], [begun])  # and then no oftener than the bar is drawn
        assert not capsys.readouterr().err


def test_images_are_looked_for_in_the_folder_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "load_seeds", lambda name, seeds, data: pytest.fail(f"in {data}"))
    with pytest.raises(pytest.fail.Exception, match="in here"):
        fill(few(), tmp_path, device="cpu", data="here")


def test_checkpoints_of_a_cell_that_is_done_go(
    quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # killed after the first result was written, and before its checkpoints were removed
    with monkeypatch.context() as patched:
        patched.setattr(Progress, "finished", lambda *arguments: pytest.fail("killed"))
        patched.setattr(shutil, "rmtree", lambda *arguments, **options: None)
        with pytest.raises(pytest.fail.Exception, match="killed"):
            fill(few(), tmp_path, device="cpu", checkpoint_seconds=0)
    assert len(numbers(tmp_path)) == 1
    assert list((tmp_path / UNFINISHED).rglob("round-*"))
    fill(few(), tmp_path, device="cpu")
    assert not list((tmp_path / UNFINISHED).rglob("round-*"))
    assert numbers(tmp_path) == numbers(quiet)


def test_an_interrupted_cell_goes_on_from_its_checkpoint(
    quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: Progress, some: Sequence[Cell], federations: Sequence[Any]) -> None:
        rounds.append(len(federations[0].history.rounds))
        federations[0].history.rounds[0].seconds = 100.0
        if some[0] == few()[1] and rounds[-1] == 3:
            raise KeyboardInterrupt

    rounds: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(Progress, "show", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fill(few(), tmp_path, device="cpu")
    assert rounds == [1, 2, 3, 4, 1, 2, 3]
    assert list(numbers(tmp_path)) == ["synthetic-linear/fedavg/seed-1.json"]
    kept = tmp_path / UNFINISHED / "synthetic-linear/floral-1-learned/seed-1"
    checkpoint = load_checkpoint(kept)
    assert checkpoint is not None
    assert len(checkpoint[0].history.rounds) == 3
    began: list[int] = []
    original = Progress.show

    def watch(self: Progress, some: Sequence[Cell], federations: Sequence[Any]) -> None:
        began.append(len(federations[0].history.rounds))
        original(self, some, federations)

    monkeypatch.setattr(Progress, "show", watch)
    fill(few(), tmp_path, device="cpu")
    assert began == [3, 4, *[1, 2, 3, 4] * 2]
    result = find(few()[1], tmp_path)
    assert result is not None
    assert result.made["seconds"] >= result.made["training_seconds"] >= 100  # those before it, too
    assert not kept.exists()
    assert numbers(tmp_path) == numbers(quiet)


def interrupted(cell: Cell, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a checkpoint after the first round."""

    def interrupt(self: Progress, some: Sequence[Cell], federations: Sequence[Any]) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Progress, "show", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fill([cell], folder, device="cpu")


def test_a_checkpoint_of_another_configuration_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = few(["fedavg"])[0]
    interrupted(cell, tmp_path, monkeypatch)
    other = replace(cell, row=replace(cell.row, changes={"learning_rate": 0.2}))
    with pytest.raises(InputError, match=r"learning_rate is 0\.2.*fedavg.seed-1: remove them to start anew"):
        fill([other], tmp_path, device="cpu")


def test_of_what_is_not_the_checkpoints_fault_nobody_is_told_to_remove_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise InputError("round 2 does not fit into the memory")

    cell = few(["fedavg"])[0]
    interrupted(cell, tmp_path, monkeypatch)
    monkeypatch.setattr("floral_lite.federation.engine.federated_round", full)
    with pytest.raises(InputError, match=r"^round 2 does not fit into the memory$"):
        fill([cell], tmp_path, device="cpu")


def test_seeds_trained_together_come_to_what_each_comes_to_alone(quiet: Path, tmp_path: Path) -> None:
    every = few()
    assert stacks(every, together=False) == [[cell] for cell in every]
    assert stacks(every, together=True) == [[every[0], every[2]], [every[1], every[3]]]
    elsewhere = [replace(cell, task="synthetic-mlp") for cell in every]
    assert stacks([*every, *elsewhere], together=True) == stacks(every, True) + stacks(elsewhere, True)
    for stack in stacks(every, together=True):
        run_stack(stack, Work(tmp_path, CPU, None, {"device": "cpu"}, 60.0, Progress(every)))
    for path in sorted(path.relative_to(tmp_path) for path in tmp_path.glob("*/*/seed-*.json")):
        together, alone = read(tmp_path / path), read(quiet / path)
        assert together.made["seeds_together"] == 2
        assert together.rounds["train_loss"] == pytest.approx(alone.rounds["train_loss"], rel=1e-5)
        assert together.clients["loss"] == pytest.approx(alone.clients["loss"], rel=1e-4)


def test_the_time_of_seeds_trained_together_is_shared_and_checkpoints_are_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, kept = [0.0], []

    def ten_seconds(self: Progress, some: Sequence[Cell], federations: Sequence[Any]) -> None:
        clock[0] += 10

    monkeypatch.setattr(Progress, "show", ten_seconds)
    monkeypatch.setattr(runner, "save", lambda *arguments: kept.append(clock[0]))
    stack, progress = few(["fedavg"]), Progress([])
    with monkeypatch.context() as patched:
        patched.setattr(time, "monotonic", lambda: clock[0])
        run_stack(stack, Work(tmp_path, CPU, None, {"device": "cpu"}, 15.0, progress))
    # a round each ten seconds
    assert kept == [20, 40]
    assert [read(tmp_path / cell.path).made["seconds"] for cell in stack] == [20, 20]


def test_seeds_at_different_rounds_go_on_apart(quiet: Path, tmp_path: Path) -> None:
    first, second = few(["floral-1-learned"])
    shorter = replace(first, rounds=2)
    with pytest.MonkeyPatch.context() as patched:  # leave the checkpoint of two rounds
        patched.setattr(shutil, "rmtree", lambda *arguments, **options: None)
        run_stack([shorter], Work(tmp_path, CPU, None, {"device": "cpu"}, 0.0, Progress([])))
    (tmp_path / first.path).unlink()
    run_stack([second, first], Work(tmp_path, CPU, None, {"device": "cpu"}, 60.0, Progress([])))
    for cell in (first, second):
        apart, expected = find(cell, tmp_path), find(cell, quiet)
        assert apart is not None
        assert expected is not None
        assert apart.made["seeds_together"] == 1
        assert apart.clients == expected.clients
    assert not list((tmp_path / UNFINISHED).rglob("round-*"))


def test_seeds_at_the_same_round_go_on_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    after_two = SimpleNamespace(history=SimpleNamespace(rounds=[None] * 2))
    olds = iter([None, [after_two], None])
    trained: list[Any] = []
    monkeypatch.setattr(runner, "load_checkpoint", lambda folder: next(olds))
    monkeypatch.setattr(runner, "make_runs", lambda some, data: [cell.seed for cell in some])
    monkeypatch.setattr(runner, "train", lambda some, *rest: trained.append(rest[:2]))
    run_stack(few(["fedavg"], seeds=3), Work(tmp_path, CPU, None, {}, 60.0, Progress([])))
    assert trained == [([1, 3], []), ([2], [after_two])]


def test_a_device_that_cannot_train_is_told_without_checkpoints_to_remove(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"device is 'meta'.*or 'auto'$"):
        run_stack(few()[:1], Work(tmp_path, torch.device("meta"), None, {}, 60.0, Progress([])))


@pytest.mark.parametrize("learning_rate", [30.0, 1e30])  # after some rounds, and in the first
def test_a_cell_that_diverges_is_written_down_and_the_others_go_on(
    learning_rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tasks.TASKS["synthetic-linear"]
    settings = recipe.settings.with_changes(learning_rate=learning_rate, evaluate_every=1)
    wild = replace(recipe, settings=settings)
    monkeypatch.setitem(tasks.TASKS, "synthetic-linear", wild)
    wanted = cells("methods", ["synthetic-linear", "synthetic-mlp"], ["fedavg"], seeds=2)
    short = [replace(cell, rounds=50 if cell.task == "synthetic-linear" else 1) for cell in wanted]
    fill(short, tmp_path, device="cpu")
    alone = [find(cell, tmp_path) for cell in short]
    assert [result and result.status for result in alone] == ["diverged", "done"] * 2
    assert alone[0] is not None
    assert f"learning_rate={learning_rate}" in str(alone[0].message)
    assert len(alone[0].clusters) == recipe.num_clients
    assert bool(alone[0].rounds["round"]) == (learning_rate == 30)
    nothing = dict.fromkeys(["base", "added", "bytes_up", "bytes_down"], 0)
    assert (alone[0].sizes == nothing) == (learning_rate > 30)
    assert alone[0].score is None
    assert not list((tmp_path / UNFINISHED).rglob("round-*"))


def test_of_seeds_trained_together_only_the_one_that_diverges_is_lost(
    quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wild(some: Sequence[Cell], data: Path | None) -> list[Run]:
        first, *others = make_runs(some, data)
        train = [Shard(1e6 * shard.inputs, shard.targets) for shard in first.task.train]
        return [first._replace(task=replace(first.task, train=train)), *others]

    monkeypatch.setattr(runner, "make_runs", wild)
    stack = few(["fedavg"])
    run_stack(stack, Work(tmp_path, CPU, None, {"device": "cpu"}, 60.0, Progress([])))
    diverged, done = (find(cell, tmp_path) for cell in stack)
    expected = find(stack[1], quiet)
    assert diverged is not None
    assert done is not None
    assert expected is not None
    assert (diverged.status, done.status) == ("diverged", "done")
    assert done.clients["loss"] == pytest.approx(expected.clients["loss"], rel=1e-4)


def test_seeds_that_go_on_alone_go_on_where_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[list[int]] = []

    def diverging(runs: Sequence[Run], *rest: Any) -> Iterator[list[Federation]]:
        begun.append([len(old.history.rounds) for old in rest[-1] or []])
        for number, federations in enumerate(stacked_rounds(runs, *rest), start=1):
            if number > 2 and len(runs) > 1:
                raise DivergenceError("one of them")
            yield federations

    monkeypatch.setattr(runner, "stacked_rounds", diverging)
    stack = few(["fedavg"])
    run_stack(stack, Work(tmp_path, CPU, None, {"device": "cpu"}, 60.0, Progress([])))
    assert begun == [[], [2], [2]]
    assert all(find(cell, tmp_path) for cell in stack)


SCRIPT = """
import sys
from pathlib import Path
from floral_lite import experiments
rows = ["fedavg", "floral-1-learned"]
wanted = experiments.cells("methods", ["synthetic-linear"], rows, seeds=2, rounds=60)
experiments.fill(wanted, Path(sys.argv[1]), device="cpu", checkpoint_seconds=0.0, poll_seconds=0.1)
"""


def process(folder: Path) -> subprocess.Popen[bytes]:
    """A process that fills a folder."""
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)], stderr=subprocess.DEVNULL)


@pytest.mark.skipif(os.name == "nt", reason="Windows knows no SIGKILL")
def test_two_processes_fill_a_folder_and_one_is_killed(tmp_path: Path) -> None:
    shared, single = tmp_path / "shared", tmp_path / "single"
    killed, other = process(shared), process(shared)
    try:
        # kill the first in the middle of a cell: a first cell is done, and there is a checkpoint
        deadline = time.monotonic() + 120
        while not (numbers_of(shared) and has_checkpoint(shared / UNFINISHED)):
            assert time.monotonic() < deadline
            assert killed.poll() is None, "it ended before it could be killed"
            time.sleep(0.02)
        killed.send_signal(signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
        before = {path: path.stat().st_mtime_ns for path in numbers_of(shared)}
        assert len(before) < 4
        assert other.wait(timeout=200) == 0
    finally:
        for one in (killed, other):
            one.kill()
            one.wait()
    assert process(single).wait(timeout=200) == 0
    assert len(numbers(single)) == 4
    assert numbers(shared) == numbers(single)
    # no cell was run twice, nothing is left over
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert not list((shared / UNFINISHED).rglob("round-*"))
    assert not list(shared.rglob("*.part"))


def has_checkpoint(folder: Path) -> bool:
    """Whether a round is kept; unlike rglob, os.walk lets folders vanish while it looks."""
    return any(name.startswith("round-") for _, names, _ in os.walk(folder) for name in names)


def numbers_of(folder: Path) -> list[Path]:
    """The results files that are there."""
    return sorted(folder.glob("*/*/seed-*.json"))


HOLDER = """
import sys, time
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_cell_that_another_process_runs_is_left_to_it_and_waited_for(
    quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = few()[0]
    with ExitStack() as mine:  # which makes the folder of the lock
        assert locked(first, tmp_path, mine)
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock(tmp_path, first))], stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        assert len(numbers(tmp_path)) == 3  # the others are done, this one is left
        other.kill()
        other.wait()

    monkeypatch.setattr(time, "sleep", sleep)
    try:
        fill(few(), tmp_path, device="cpu", poll_seconds=0.5)
    finally:
        other.kill()
        other.communicate()
    assert waited == [0.5]
    assert numbers(tmp_path) == numbers(quiet)


def lock(folder: Path, cell: Cell) -> Path:
    """Where a cell's lock is."""
    return (folder / UNFINISHED / cell.path).with_suffix(".lock")


def test_the_bar_moves_with_the_rounds(tmp_path: Path) -> None:
    stack = few(["fedavg"])
    progress = Progress(stack)

    def after(rounds: int) -> int:
        history = SimpleNamespace(rounds=[None] * rounds)
        progress.show(stack, [SimpleNamespace(history=history)] * 2)  # type: ignore[list-item]
        return progress.bar.n

    # two seeds of four rounds
    assert [after(rounds=1), after(rounds=3)] == [2, 6]
    for cell, done in zip(stack, (7, 8), strict=True):
        progress.finished(cell)
        assert progress.bar.n == done
    progress.bar.close()


def test_the_bar_is_at_its_end_when_all_is_done(tmp_path: Path) -> None:
    progress = Progress(few())
    assert isinstance(progress.bar, tqdm)
    progress.only([])
    assert progress.bar.n == progress.total == 16
    progress.bar.close()
