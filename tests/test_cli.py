"""The command line as a user meets it: exit codes, messages, files."""

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
import typer
from matplotlib.figure import Figure
from torch import Tensor
from tqdm import tqdm

from floral_lite import History, InputError, __version__, cli, methods, report
from floral_lite.experiments import figures
from floral_lite.federation import Round, checkpoint, load_checkpoint
from floral_lite.files import LOCK, alone_in
from floral_lite.methods.routed import Routing

COMMAND = [sys.executable, "-m", "floral_lite.cli"]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The command in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["floral-lite", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def test_a_run_keeps_its_history_and_a_figure_and_prints_a_summary(tmp_path: Path) -> None:
    command = ["run", "digits-rotate", "--method", "floral", "--budget", "0.1", "--num-clusters", "4"]
    command += ["--rounds", "2", "--seed", "3", "--data-fraction", "0.5", "--device", "auto"]
    done = subprocess.run(
        [*COMMAND, *command, "--out", "runs/\u03c1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "cp1252"},  # a pipe on Windows, which has no rho
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2 rounds are kept in runs" in done.stdout
    assert r"\u03c1" in done.stdout
    history = History.load(tmp_path / "runs/\u03c1/history.json")
    assert len(history.rounds) == 2
    assert {key: history.config[key] for key in ("task", "budget", "seed", "data_fraction")} == {
        "task": "digits-rotate",
        "budget": 0.1,
        "seed": 3,
        "data_fraction": 0.5,
    }
    assert (tmp_path / "runs/\u03c1/figure.png").read_bytes().startswith(b"\x89PNG")
    rows = ("accuracy (%)", "of cluster 3", "mismatch", "parameters added", "bytes a client sends", "seconds")
    for row in rows:
        assert row in done.stdout
    assert "loss=" in done.stderr
    assert "accuracy=" in done.stderr


def test_without_out_a_new_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "run", "synthetic-linear", "--method", "fedavg", "--rounds", "1") == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert "synthetic-linear-fedavg-0" in folder.name
    said = capsys.readouterr().err
    assert "loss=" in said
    assert "accuracy=" not in said  # of a regression


def made_up(train_losses: list[float], scores: list[float], regression: bool = False) -> History:
    """The rounds of a run, all of them evaluated."""
    rounds = [
        Round(
            number,
            loss,
            0.5,
            test_loss=score if regression else 2.0,
            test_accuracy=None if regression else score,
        )
        for number, (loss, score) in enumerate(zip(train_losses, scores, strict=True), start=1)
    ]
    return History({}, [0], 1, 2, {"base": 1, "added": 0}, rounds)


def test_what_is_told_of_several_seeds_is_of_their_last_rounds() -> None:
    histories = [made_up([9.0, 1.0], [0.1, 0.9]), made_up([9.0, 3.0], [0.1, 0.7])]
    assert report.over_seeds(histories) == "accuracy 80.0 +- 14.1 %"
    losses = [made_up([9.0], [score], regression=True) for score in (1.0, 3.0)]
    assert report.over_seeds(losses) == "test loss 2.0000 +- 1.4142"
    with pytest.raises(InputError, match="histories holds 1; a deviation needs two"):
        report.over_seeds(histories[:1])
    with tqdm(total=5) as bar:
        cli.show_progress(bar, histories)
        assert bar.postfix == "loss=2.000, accuracy=80.0%"
        assert bar.n == 2  # of a run that goes on


@pytest.mark.parametrize("code", [
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM,
    errno.ENOENT,  # of a folder in /proc
    errno.EIO,
])  # fmt: skip
def test_a_disk_that_takes_nothing_is_told_in_a_line_and_a_broken_one_in_full(
    code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise OSError(code, "It takes nothing", "there")

    monkeypatch.setattr(cli, "app", fail)
    if code == errno.EIO:
        with pytest.raises(OSError, match="It takes nothing"):
            cli.main()
    else:
        assert call(monkeypatch) == 1
        assert capsys.readouterr().err.startswith("error: It takes nothing: there; make room")


def test_several_seeds_are_trained_together_and_each_as_on_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["run", "digits-rotate", "--budget", "0.1", "--rounds", "2"]
    command += ["--data-fraction", "0.2", "--device", "cpu", "--evaluate-every", "1"]
    assert call(monkeypatch, *command, "--seed", "3", "--seeds", "2", "--out", "both") == 0
    assert "over the 2 seeds: accuracy" in capsys.readouterr().out
    folders = {path.name for path in (tmp_path / "both").iterdir()}
    assert folders == {"checkpoints", "seed-3", "seed-4"}
    histories = []
    for seed in ("3", "4"):
        assert call(monkeypatch, *command, "--seed", seed, "--out", seed) == 0
        together, alone = (History.load(Path(f"{of}/history.json")) for of in (f"both/seed-{seed}", seed))
        assert together.config == alone.config
        assert alone.config["seed"] == int(seed)
        for one, other in zip(together.rounds, alone.rounds, strict=True):
            # a stack of other clients may add up in another order
            assert one.train_loss == pytest.approx(other.train_loss, rel=1e-5)
            assert one.client_loss == pytest.approx(other.client_loss, rel=1e-5)
            assert np.array(one.mixture) == pytest.approx(np.array(other.mixture), rel=1e-5)
            assert one.client_accuracy == other.client_accuracy
        assert (tmp_path / f"both/seed-{seed}/figure.png").read_bytes().startswith(b"\x89PNG")
        histories.append(alone)
    assert histories[0].rounds[-1].client_loss != histories[1].rounds[-1].client_loss


def test_a_run_that_is_not_tested_keeps_its_history_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "synthetic-linear", "--rank", "1", "--rounds", "1", "--evaluate-every", "0"]
    command += ["--seeds", "2", "--device", "cpu", "--out", str(tmp_path / "run")]
    assert call(monkeypatch, *command) == 0
    assert [path.name for path in (tmp_path / "run" / "seed-1").iterdir()] == ["history.json"]
    assert "over the" not in capsys.readouterr().out


def test_how_it_is_computed_and_kept_is_what_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(cli, "checkpointed_rounds", lambda *runs, **options: given.update(options) or [])
    command = ["run", "synthetic-linear", "--rank", "1", "--engine", "loop", "--max-memory", "1.5"]
    assert call(monkeypatch, *command, "--checkpoint-every", "3", "--out", str(tmp_path / "run")) == 0
    wanted = {"checkpoint_every": 3, "engine": "loop", "max_memory": 1_500_000_000}
    assert given == wanted | {"checkpoints": tmp_path / "run" / "checkpoints"}


def test_any_setting_and_any_option_of_the_method_can_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["run", "digits-label-groups", "--rounds", "1", "--data-fraction", "0.1", "--device", "cpu"]
    command += ["--set", "batch_size=4", "--set", "clip_norm=1", "--set", "server_optimizer=adam"]
    command += ["--option", "convolution=filter", "--option", 'router={"temperature": 2}']
    command += ["--set", "stateful=false", "--precision", "bfloat16"]
    assert call(monkeypatch, *command, "--out", str(tmp_path / "run")) == 0
    config = History.load(tmp_path / "run/history.json").config
    wanted = {"rounds": 1, "batch_size": 4, "clip_norm": 1, "server_optimizer": "adam", "stateful": False}
    assert {name: config[name] for name in wanted} == wanted
    assert (config["convolution"], config["precision"]) == ("filter", "bfloat16")
    assert config["router"]["temperature"] == 2
    assert config["num_clusters"] == config["task_clusters"] == 5  # the task's own


def test_the_version_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"{__version__}\n"


def test_the_help_names_every_routing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert call(monkeypatch, "run", "--help") == 0
    told = capsys.readouterr().out
    assert all(routing in told for routing in get_args(Routing))


def test_the_engine_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["run", "synthetic-linear", "--rank", "1", "--rounds", "2", "--seeds", "2", "--device", "cpu"]
    for engine in ("fast", "loop"):
        assert call(monkeypatch, *command, "--engine", engine, "--max-memory", "1e-6", "--out", engine) == 0
    for seed in (0, 1):
        fast, loop = (History.load(Path(f"{engine}/seed-{seed}/history.json")) for engine in ("fast", "loop"))
        assert (fast.config["engine"], loop.config["engine"]) == ("fast", "loop")
        assert fast.rounds[-1].train_loss == pytest.approx(loop.rounds[-1].train_loss, rel=1e-5)


def test_lists(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "tasks") == 0
    listed = capsys.readouterr().out
    assert "mnist-label-shift" in listed
    assert "(K = 300, C = 4)" in listed
    assert call(monkeypatch, "methods") == 0
    listed = capsys.readouterr().out
    assert all(f"{name} " in listed for name in methods.METHODS)


WRONG = {
    "run digits-rotat": "did you mean 'digits-rotate'",
    "run digits-rotate --method flora": "did you mean 'floral'",
    "run digits-rotate --num-clusters 0": "num_clusters is 0",
    "run digits-rotate --budget 0": "budget is 0.0",
    "run digits-rotate --budget 1.5": "budget is 1.5",
    "run digits-rotate --rank 0": "rank is 0",
    "run digits-rotate --rank 2 --budget 0.1": "exactly one",
    "run digits-rotate --data-fraction 0": "data_fraction is 0.0",
    "run digits-rotate --rounds 0": "rounds is 0",
    "run digits-rotate --seed -1": "seed is -1",
    f"run digits-rotate --seed {2**63}": f"seed is {2**63}; it must be 0 or more, and smaller than 2**63",
    f"run synthetic-linear --seed {10**20}": f"seed is {10**20}",
    f"run digits-rotate --rounds 1 --seed {2**63 - 1} --seeds 2": f"seed is {2**63}",
    "run digits-rotate --seeds 0": "seeds is 0; it is how many seeds to run, 1 to 1000",
    "run digits-rotate --seeds 20261123": "seeds is 20261123; it is how many seeds to run",
    "run digits-rotate --engine quick": "engine is 'quick'; it must be 'fast' or 'loop'",
    "run digits-rotate --max-memory -1": "max_memory is -1.0 GB; it must be from 1e-9",
    "run digits-rotate --max-memory inf": "max_memory is inf GB; it must be from 1e-9 to 1e9",
    "run digits-rotate --max-memory 1e-12": "max_memory is 1e-12 GB",
    "run digits-rotate --device cuda:99": "device is 'cuda:99'",
    "run digits-rotate --method fedavg --budget 0.1": "fedavg has no option budget",
    "run digits-rotate --routing best": "routing is 'best'",
    "run digits-rotate --set batchsize=4": "no setting is called 'batchsize'; did you mean 'batch_size'?",
    "run digits-rotate --set batch_size=four": "batch_size is 'four'; it must be a whole number",
    "run digits-rotate --set batch_size": "--set is 'batch_size'; it must be NAME=VALUE",
    "run digits-rotate --set batch_size=4 --set batch_size=5": "batch_size is given twice, as 4",
    "run digits-rotate --rounds 2 --set rounds=3": "rounds is given twice, as 2 and with --set rounds=3",
    "run digits-rotate --stateless --set stateful=true": "stateful is given twice, as False",
    "run digits-rotate --rank 1 --option rank=2": "rank is given twice, as 1 and with --option rank=2",
    "run digits-rotate --option proximal=1": "floral has no option proximal (given as 1)",
    "run digits-rotate --option model=1": "floral has no option model",
    "run digits-rotate --set learning_rate=-.1": "learning_rate is -0.1; it must be",
    "run digits-rotate --method fedprox --option proximal=-.5": "proximal is -0.5",
    "run digits-rotate --method ditto --option proximal=abc": "proximal is 'abc'; it must be a number",
    "run digits-rotate --method fedper --option head=7": "head names '7', which is no layer",
    "run digits-rotate --option budget=small": "budget is 'small'; it must be a number",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_bad_input_is_told_in_a_line_and_leaves_nothing(
    arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, *arguments.split()) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("error: ")
    assert WRONG[arguments] in said[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("--engine quick", "engine is 'quick'; it must be 'fast' or 'loop'"),
        ("--method foo", "no method is called 'foo'"),
        ("--set rouns=3", "no setting is called 'rouns'; did you mean 'rounds'?"),
    ],
)
def test_a_word_that_is_wrong_is_told_before_the_data_are_read(
    wrong: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def read(*arguments: object, **options: object) -> None:
        pytest.fail("data were read")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli.tasks, "load_seeds", read)
    assert call(monkeypatch, "run", "mnist-rotate", *wrong.split()) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"error: {message}")


def test_missing_data_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_network(*args: object, **kwargs: object) -> None:
        raise RuntimeError("Error downloading train-images-idx3-ubyte.gz")

    from floral_lite.data import import_torchvision

    monkeypatch.setattr(import_torchvision("torchvision.datasets").MNIST, "download", no_network)
    assert call(monkeypatch, "run", "mnist-rotate", "--data", str(tmp_path / "nothing")) == 2
    said = capsys.readouterr().err
    assert "train-images-idx3-ubyte" in said
    assert "--data or FLORAL_LITE_DATA" in said


def test_a_folder_with_another_run_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "history.json").write_text("precious")
    assert call(monkeypatch, "run", "digits-rotate", "--rounds", "1", "--out", str(tmp_path)) == 2
    assert "holds another run" in capsys.readouterr().err
    assert (tmp_path / "history.json").read_text() == "precious"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("more", [[], ["--resume"]])
def test_a_folder_in_which_another_process_trains_is_left_to_it(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "all" / "run"
    command = ["run", "synthetic-linear", "--rounds", "1", "--device", "cpu", "--out", str(folder)]
    with alone_in(folder):
        assert call(monkeypatch, *command, *more) == 2
        assert "another process is at work in the folder" in capsys.readouterr().err
        assert [path.name for path in folder.iterdir()] == [LOCK]
    assert not folder.parent.exists()  # both were made for nothing
    folder.mkdir(parents=True)
    (folder / LOCK).touch()  # of a process that was killed
    assert call(monkeypatch, *command) == 0
    assert LOCK not in {path.name for path in folder.iterdir()}


def test_divergence_is_told_and_the_rounds_before_it_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = cli.tasks.TASKS["synthetic-linear"]
    wild = replace(recipe, settings=recipe.settings.with_changes(learning_rate=3.0))
    monkeypatch.setitem(cli.tasks.TASKS, "synthetic-linear", wild)
    assert call(monkeypatch, "run", "synthetic-linear", "--out", str(tmp_path / "run")) == 2
    assert "learning_rate=3.0" in capsys.readouterr().err
    assert History.load(tmp_path / "run/history.json").rounds


def test_a_run_stopped_by_ctrl_c_keeps_what_was_done_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["run", "digits-rotate", "--out", "kept", "--device", "cpu", "--data-fraction", "0.2"]
    process = subprocess.Popen(
        [*COMMAND, *command, "--rounds", "100000"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    seen = b""
    while b"accuracy=" not in seen:  # the bar shows a first finished round
        part = process.stderr.read(64)
        assert part, f"the run ended before its first round: {seen.decode()}"
        seen += part
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    path = Path("kept/history.json")
    assert str(path) in out.decode()
    assert "the same command with --out kept --resume goes on from here" in out.decode()
    rounds = History.load(tmp_path / path).rounds
    assert rounds
    # the last round is where --resume goes on
    (federation,) = load_checkpoint(tmp_path / "kept/checkpoints") or []
    assert len(federation.history.rounds) == len(rounds)
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, *command, "--resume", "--rounds", str(len(rounds) + 1)) == 0
    assert History.load(path).rounds[:-1] == rounds


def test_a_run_that_is_stopped_while_it_writes_a_checkpoint_goes_on_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["run", "synthetic-linear", "--rounds", "3", "--checkpoint-every", "2", "--device", "cpu"]
    assert call(monkeypatch, *command, "--out", "whole") == 0
    write, written = checkpoint.save, []

    def stop(tensors: dict[str, Tensor]) -> bytes:
        written.append(tensors)
        if len(written) == 2:  # the first is of the first round
            raise KeyboardInterrupt
        return write(tensors)

    monkeypatch.setattr(checkpoint, "save", stop)
    assert call(monkeypatch, *command, "--out", "stopped") == 130
    (stopped,) = load_checkpoint("stopped/checkpoints") or []
    assert len(stopped.history.rounds) == 1
    bars: list[Any] = []
    monkeypatch.setattr(cli, "tqdm", lambda **options: bars.append(tqdm(**options)) or bars[0])
    assert call(monkeypatch, *command, "--out", "stopped", "--resume") == 0
    assert (bars[0].initial, bars[0].n) == (1, 3)  # its speed is of two rounds
    (whole,), (resumed,) = (load_checkpoint(f"{name}/checkpoints") or [] for name in ("whole", "stopped"))
    assert len(resumed.history.rounds) == 3
    pairs = zip(whole.state.tensors(), resumed.state.tensors(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_a_resumed_run_that_is_stopped_at_once_says_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["run", "synthetic-linear", "--method", "fedavg", "--out", "kept"]
    assert call(monkeypatch, *command, "--rounds", "2") == 0
    monkeypatch.setattr(cli, "checkpointed_rounds", Mock(side_effect=KeyboardInterrupt))
    assert call(monkeypatch, *command, "--resume") == 130
    assert "the 2 rounds from before are kept" in capsys.readouterr().out
    assert call(monkeypatch, *command[:-1], "new") == 130
    assert "nothing was done yet, nothing is kept" in capsys.readouterr().out


def test_where_no_checkpoint_was_ever_whole_a_run_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["run", "synthetic-linear", "--method", "fedavg", "--rounds", "1", "--out", "kept"]
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save", Mock(side_effect=OSError(errno.ENOSPC, "no space")))
        assert call(monkeypatch, *command) == 1
    assert Path("kept/checkpoints/unfinished").is_dir()
    assert call(monkeypatch, *command, "--resume") == 2
    assert call(monkeypatch, *command) == 0
    assert call(monkeypatch, *command) == 2
    assert "holds another run" in capsys.readouterr().err


def test_every_seed_s_history_is_kept_where_nobody_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(typer, "echo", Mock(side_effect=BrokenPipeError))
    command = ["run", "synthetic-linear", "--method", "fedavg", "--rounds", "1", "--seeds", "2"]
    with pytest.raises(BrokenPipeError):
        call(monkeypatch, *command, "--out", "kept")
    assert len(list(tmp_path.glob("kept/seed-*/history.json"))) == 2


def test_resume_needs_the_folder_of_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "run", "digits-rotate", "--resume") == 2
    assert call(monkeypatch, "run", "digits-rotate", "--resume", "--out", "nothing") == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--seeds", "the run to be resumed has 2 seeds, and 3 were given"),
        # the task's has changed with it, and comes first in the configuration
        ("--seed", "seed is 3, but the run that is to be resumed has 2"),
    ],
)
def test_resume_needs_the_same_seeds(
    option: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["run", "synthetic-linear", "--method", "fedavg", "--rounds", "1", "--out", "kept"]
    assert call(monkeypatch, *command, option, "2") == 0
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    assert call(monkeypatch, *command, "--resume", option, "3") == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {message}")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == kept


def test_a_failed_save_leaves_no_half_written_file(tmp_path: Path) -> None:
    history = History({}, [0], 0, 0, {"base": 1, "added": 0})
    history.save(tmp_path / "history.json")
    with pytest.raises(InputError, match="is there already"):
        history.save(tmp_path / "history.json")
    assert [path.name for path in tmp_path.iterdir()] == ["history.json"]


TABLE = ["table", "methods", "--columns", "synthetic-linear", "--rows", "fedavg,floral-1-learned"]


def test_a_table_is_filled_printed_and_saved_and_its_figure_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = [*TABLE, "--seeds", "2", "--device", "cpu"]
    assert call(monkeypatch, *command, "--show") == 0
    assert "| -  " in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert call(monkeypatch, *command, "--rounds", "2") == 0
    printed = capsys.readouterr().out
    assert "| FedAvg " in printed
    assert "synthetic-linear: 2 rounds instead of the task's 2000" in printed
    assert (tmp_path / "results/methods.md").read_text(encoding="utf-8") == printed[:-1]
    assert (tmp_path / "results/methods.tex").read_text(encoding="utf-8").count(r"\\") == 4
    assert len(pd.read_csv(tmp_path / "results/methods.csv")) == 2
    kept = tmp_path / "results/synthetic-linear/fedavg/seed-2.json"
    repeated = f"floral-lite {' '.join(TABLE)} --seeds 2 --rounds 2 --device cpu"
    assert json.loads(kept.read_text())["made"]["command"] == repeated
    assert pd.read_csv(tmp_path / "results/methods.csv").columns[0] == "row"
    # again: nothing is run, and the same is printed; with other rounds it is refused
    before = kept.stat().st_mtime_ns
    saved = tmp_path / "results/methods.md"
    saved.write_text("of more seeds")
    spaced = [argument.replace(",", ", ") for argument in command]
    assert call(monkeypatch, *spaced, "--show") == 0
    assert capsys.readouterr().out == printed
    assert saved.read_text() == "of more seeds"  # nothing is written
    assert call(monkeypatch, *command, "--show", "--rounds", "3") == 2
    assert "seed-1.json was made with rounds=2, and this is 3" in capsys.readouterr().err
    assert call(monkeypatch, *command) == 2
    assert "seed-1.json was made with rounds=2, and this is 2000" in capsys.readouterr().err
    assert kept.stat().st_mtime_ns == before
    for name in ("figures/curves.svg", "curves.png"):
        assert call(monkeypatch, "figure", *TABLE[1:], "--save", name) == 0
        assert f"2 rows in 1 column: {name}" in capsys.readouterr().out
        assert (tmp_path / name).stat().st_size > 1000


def test_a_table_s_images_are_looked_for_in_the_folder_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli.commands, "fill", lambda *cells, **options: given.update(options))
    given: dict[str, object] = {}
    assert call(monkeypatch, *TABLE, "--data", "here", "--device", "cpu") == 0
    assert (given["data"], given["device"]) == (Path("here"), "cpu")


def test_the_rules_for_the_routers_are_judged_below_their_table_and_drawn_by_their_mismatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def draw(frame: pd.DataFrame, value: str) -> Figure:
        drawn.append((value, frame["seeds"].tolist()))
        return original(frame, value)

    monkeypatch.chdir(tmp_path)
    drawn: list[tuple[str, list[int]]] = []
    original = figures.draw
    monkeypatch.setattr(figures, "draw", draw)
    chosen = ["routing", "--columns", "synthetic-linear", "--rows", "floral-1-learned"]
    assert call(monkeypatch, "table", *chosen, "--seeds", "2", "--rounds", "1", "--device", "cpu") == 0
    assert "closed_error" in capsys.readouterr().out
    assert call(monkeypatch, "figure", *chosen, "--seeds", "1", "--save", "a.svg") == 0
    assert drawn == [("mismatch", [1])]


WRONG_TABLES = {
    "table method": "no table is called 'method'; did you mean 'methods'? There are: adaptors, batch-nora",
    "table methods --columns mnist-rotated": "did you mean 'mnist-rotate'",
    "table methods --rows fedavgg": "did you mean 'fedavg'? There are: ensemble-learned",
    "table methods --rows ,": "rows is []; name at least one",
    "table methods --columns=": "columns is []; name at least one",
    "table methods --seeds 0": "seeds is 0; it is how many seeds to run, 1 to 1000",
    "table methods --seeds 20261123": "seeds is 20261123",
    "table methods --show --seeds 1001": "seeds is 1001",
    "table methods --columns digits-rotate --rounds 0": "rounds is 0",
    "table methods --device cuda:99": "device is 'cuda:99'",
    "figure method --save a.svg": "no table is called 'method'",
    "figure methods --save a.txt": "save is a.txt; its name must end in one of .svg, .png, .pdf",
    "figure methods --save a.svg --value loss": "no value is called 'loss'",
    "figure methods --save a.svg": "results has no test_loss for the figure methods",
}


@pytest.mark.parametrize("arguments", WRONG_TABLES)
def test_a_wrong_table_or_figure_is_told_in_a_line(
    arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, *arguments.split()) == 2
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert said.startswith("error: ")
    assert WRONG_TABLES[arguments] in said
    assert not list(tmp_path.iterdir())


def test_a_table_stopped_by_a_batch_system_prints_what_there_is_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*TABLE[:-1], "fedavg", "--seeds", "2", "--rounds", "100000", "--device", "cpu"]
    process = subprocess.Popen(
        [*COMMAND, *command], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    seen = b""
    while b"fedavg seed 1" not in seen:  # a first round is finished
        part = os.read(process.stderr.fileno(), 64)
        assert part, f"the run ended before its first round: {seen.decode()}"
        seen += part
    process.send_signal(signal.SIGTERM)  # when the time is up
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on from here" in out.decode()
    assert "| FedAvg | -" in out.decode()
    kept = tmp_path / "results/unfinished/synthetic-linear/fedavg/seed-1"
    (federation,) = load_checkpoint(kept) or []
    monkeypatch.chdir(tmp_path)
    done = len(federation.history.rounds)
    assert call(monkeypatch, *command, "--seeds", "1", "--rounds", str(done + 1)) == 0
    assert f"{done + 1} rounds instead of the task's 2000" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [TABLE, ["figure", *TABLE[1:], "--save", "a.svg"], ["run", "synthetic-linear"]]
)
@pytest.mark.parametrize("out", ["file", "file/below", "x" * 300])
def test_a_folder_that_cannot_be_is_told_in_a_line(
    out: str,
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("precious")
    rounds = [] if arguments[0] == "figure" else ["--rounds", "1"]
    assert call(monkeypatch, *arguments, *rounds, "--out", out) in (1, 2)
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "precious")]


def test_a_figure_that_cannot_be_written_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, *TABLE, "--seeds", "1", "--rounds", "1", "--device", "cpu") == 0
    Path("file").write_text("precious")
    Path("folder.svg").mkdir()
    for name, code in (("file/a.svg", 1), ("folder.svg", 2), (f"{'x' * 300}.svg", 1)):
        capsys.readouterr()
        assert call(monkeypatch, "figure", *TABLE[1:], "--save", name) == code
        (said,) = capsys.readouterr().err.splitlines()
        assert said.startswith("error: ")
        assert name[:4] in said


def test_a_full_disk_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    resource = pytest.importorskip("resource", reason="Windows has no limits")
    monkeypatch.chdir(tmp_path)
    command = ["run", "synthetic-linear", "--checkpoint-every", "1", "--device", "cpu", "--out", "run"]
    assert call(monkeypatch, *command, "--rounds", "1") == 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
    try:
        assert call(monkeypatch, *command, "--rounds", "2", "--resume") == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: File too large")
    assert said.endswith("make room, or name another folder. What was whole before is kept")
    (kept,) = load_checkpoint(tmp_path / "run" / "checkpoints") or []
    assert len(kept.history.rounds) == 1
    assert not list(tmp_path.rglob("*.part"))
