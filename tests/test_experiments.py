"""Tables and figures of the paper: the data, the results' files, what is printed and drawn."""

import errno
import inspect
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from floral_lite import InputError, experiments, methods, plots, tasks
from floral_lite.devices import processor
from floral_lite.experiments import figures, stored_results
from floral_lite.experiments.catalogue import RELATIVES, ROUTING, TABLES
from floral_lite.experiments.cells import Cell, adapt_only, configuration, make_runs, method_options
from floral_lite.experiments.commands import repeated
from floral_lite.experiments.paper import ADAPTORS, CONVLORA, EARLIER, METHODS, RHO_AND_C
from floral_lite.experiments.provenance import commit, provenance
from floral_lite.experiments.results import Result, find, read, summarise
from floral_lite.experiments.routing import closed
from floral_lite.experiments.schema import Column, Row, Table
from floral_lite.experiments.tables import is_regression
from floral_lite.federation import History, Round
from floral_lite.federation.aggregate import mismatch
from floral_lite.models import cnn
from floral_lite.router import Router

PAPER = (METHODS, RHO_AND_C, CONVLORA, ADAPTORS)
MADE = {"device": "a machine", "seconds": 1.0}


def result(
    cell: Cell, score: float, curve: list[float] | None = None, status: str = "done", regression: bool = False
) -> Result:
    """What a cell might have come to: its score, and test losses of rounds 10, 20, ..."""
    losses = curve or [2.0, 1.0]
    rounds = [10 * (number + 1) for number in range(len(losses))]
    accuracy = None if regression else score / 100
    return Result(
        configuration=json.loads(json.dumps(configuration(cell))),
        run={},
        seed=cell.seed,
        status=status,  # type: ignore[arg-type]
        message=None if status == "done" else "the loss is nan",
        made=MADE,
        clusters=[0, 1],
        sizes={},
        rounds={
            "round": rounds,
            "train_loss": losses,
            "test_loss": losses,
            "test_accuracy": [accuracy] * len(losses),
            "mismatch": [0.5] * len(losses),
        },
        clients={"accuracy_mean": accuracy, "loss_mean": score},
    )


def fill_with(
    folder: Path, scores: dict[str, list[float]], task: str = "mnist-rotate", rounds: int | None = None
) -> None:
    """Results of rows of the first table: a score for each seed."""
    for row, numbers in scores.items():
        for seed, score in enumerate(numbers, start=1):
            cell = Cell(METHODS.row(row), task, seed, rounds)
            result(cell, score, regression=task.startswith("synthetic")).save(folder / cell.path)


# The paper's numbers.


@pytest.mark.parametrize("table", PAPER, ids=lambda table: table.name)
def test_every_cell_of_a_paper_table_has_a_number(table: experiments.Table) -> None:
    assert set(table.paper) == {row.name for row in table.rows}
    for numbers in table.paper.values():
        assert list(numbers) == [column.name for column in table.columns]
        for value in numbers.values():
            assert 10 < value.mean < 100
            assert (value.sd is not None) == (table is METHODS)
            assert value.sd is None or 0 <= value.sd < 10


def marked(table: experiments.Table, column: str) -> tuple[set[str], set[str]]:
    """The rows whose paper's number is best and second best, as the table's printing ranks them."""
    filled = experiments.collect(table.name, Path("nowhere"), [column])
    ranks = filled.ranks(filled.columns[0], paper=True)
    return {row for row in ranks if ranks[row] == 0}, {row for row in ranks if ranks[row] == 1}


# Bold and italic as printed in the paper; its adaptors table marks CIFAR-10 R otherwise than its numbers say.
MARKED = {
    ("methods", "mnist-rotate"): ("ensemble-optimal", "floral-10-optimal"),
    ("methods", "mnist-label-shift"): ("ensemble-optimal", "floral-10-optimal"),
    ("methods", "mnist-rotate-reduced"): ("ensemble-optimal", "floral-1-optimal"),
    ("methods", "mnist-label-shift-reduced"): ("ensemble-optimal floral-1-optimal", "floral-10-optimal"),
    ("methods", "cifar10-rotate"): ("ensemble-optimal", "ensemble-learned"),
    ("methods", "cifar10-label-shift"): ("ensemble-optimal", "floral-1-optimal"),
    ("methods", "cifar10-rotate-reduced"): ("floral-1-optimal", "floral-10-optimal"),
    ("methods", "cifar10-label-shift-reduced"): ("ensemble-optimal", "floral-1-learned"),
    ("methods", "cifar100"): ("ensemble-optimal", "floral-10-learned"),
    ("methods", "cifar100-reduced"): ("ensemble-optimal", "floral-10-optimal"),
    ("rho-and-c", "cifar10-rotate"): ("floral-10-optimal", "floral-10-double-c"),
    ("rho-and-c", "cifar10-label-shift"): ("floral-10-optimal", "floral-1-optimal floral-10-double-c"),
    ("rho-and-c", "cifar100"): ("floral-10-optimal", "floral-10-double-c"),
    ("convlora", "cifar10-rotate"): ("floral-1-optimal", "floral-1-channel-out"),
    ("convlora", "cifar10-label-shift"): ("floral-1-optimal", "floral-1-channel-out"),
    ("convlora", "cifar100"): ("floral-1-channel-out", "floral-1-optimal"),
    ("adaptors", "cifar10-label-shift"): ("floral-1-optimal", "floral-1-lora"),
    ("adaptors", "cifar100"): ("floral-1-optimal", "floral-1-lora"),
}


@pytest.mark.parametrize(("table", "column"), MARKED)
def test_the_numbers_rank_as_the_paper_marks_them(table: str, column: str) -> None:
    best, second = MARKED[table, column]
    assert marked(experiments.find_table(table), column) == (set(best.split()), set(second.split()))


def test_the_relatives_are_all_methods() -> None:
    # FedBN needs norms, which these tasks have not
    compared = {row.method for table in (METHODS, RELATIVES) for row in table.rows}
    assert compared == methods.METHODS.keys() - {"fedbn"}


def test_a_name_means_the_same_configuration_in_every_table() -> None:
    rows: dict[str, experiments.Row] = {}
    for table in experiments.TABLES.values():
        assert len({row.name for row in table.rows}) == len(table.rows)
        for row in table.rows:
            assert replace(rows.setdefault(row.name, row), label=row.label) == row
    names = [row.name for table in PAPER for row in table.rows]
    assert Counter(names)["floral-1-optimal"] == 4


@pytest.mark.parametrize("name", experiments.TABLES)
def test_every_row_can_be_configured_on_every_column(name: str) -> None:
    for cell in experiments.cells(name, seeds=1):
        known = inspect.signature(methods.METHODS[cell.row.method]).parameters
        assert set(method_options(cell)) <= set(known), cell
        needed = methods.METHODS[cell.row.method].needs
        assert {setting: getattr(cell.settings, setting) for setting in needed} == needed, cell
        assert cell.settings.rounds == tasks.TASKS[cell.task].settings.rounds
        # what a file keeps is compared with it
        assert json.loads(json.dumps(configuration(cell))) == configuration(cell)


@pytest.mark.parametrize("row", RELATIVES.rows, ids=lambda row: row.name)
def test_methods_still_have_the_defaults_that_the_stored_results_were_made_with(row: experiments.Row) -> None:
    cell = Cell(row, "digits-label-groups", 1)
    (run,) = make_runs([cell])
    options = json.loads(json.dumps(run.method.options()))
    assert options.items() <= read(stored_results() / cell.path).run.items()


def test_all_cells_of_a_seed_come_before_the_next() -> None:
    cells = experiments.cells("methods", ["digits-rotate", "mnist-rotate"], ["floral-1-learned", "fedavg"], 3)
    assert [cell.seed for cell in cells] == [1] * 4 + [2] * 4 + [3] * 4
    assert [str(cell) for cell in cells[:3]] == [
        "digits-rotate fedavg seed 1",  # in the table's order, whatever the order asked for
        "digits-rotate floral-1-learned seed 1",
        "mnist-rotate fedavg seed 1",
    ]
    assert experiments.cells("methods", ["digits-rotate"] * 2, ["fedavg"] * 2, 1) == cells[:1]


def test_the_rounds_that_are_asked_for_come_before_a_row_s_own() -> None:
    row = replace(METHODS.row("fedavg"), changes={"rounds": 7})
    assert [Cell(row, "digits-rotate", 1, rounds).settings.rounds for rounds in (None, 3)] == [7, 3]


def test_names_that_do_not_exist_are_told_with_those_that_do() -> None:
    with pytest.raises(InputError, match=r"no table is called 'method'.*'methods'.*adaptors, "):
        experiments.find_table("method")
    with pytest.raises(InputError, match=r"no row of the table methods is called 'fedavgg'.*'fedavg'"):
        experiments.cells("methods", rows=["fedavgg"])
    with pytest.raises(InputError, match=r"rows is 'fedavg'; name at least one, in a list"):
        experiments.cells("methods", rows="fedavg")
    with pytest.raises(InputError, match=r"columns is 'mnist-rotate'; name at least one, in a list"):
        experiments.cells("methods", "mnist-rotate")
    with pytest.raises(InputError, match=r"seeds is 2\.0; it must be a whole number"):
        experiments.cells("methods", seeds=2.0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"no column.*'mnist'.*mnist-rotate"):
        experiments.cells("methods", columns=["mnist"])
    with pytest.raises(InputError, match="seeds is 0"):
        experiments.cells("methods", seeds=0)
    with pytest.raises(InputError, match="seeds is 0"):
        experiments.collect("methods", Path("nowhere"), seeds=0)


def test_stored_results_are_of_the_rows_as_they_are() -> None:
    folder = stored_results()
    columns = [task for task in tasks.TASKS if (folder / task).is_dir()]
    rows = {row.name for table in experiments.TABLES.values() for row in table.rows}
    assert {path.name for task in columns for path in (folder / task).iterdir()} <= rows
    for table in experiments.TABLES:
        experiments.collect(table, folder, columns)  # a file of another configuration is refused


# Of each table as it is printed: the sum of its means and that of its deviations.
SUMS = {"methods": (5210.8, 116.7), "rho-and-c": (1103.8, 0), "convlora": (772.9, 0), "adaptors": (1240.4, 0)}


@pytest.mark.parametrize("table", [METHODS, RHO_AND_C, CONVLORA, ADAPTORS], ids=lambda table: table.name)
def test_no_digit_of_the_papers_numbers_is_another(table: experiments.Table) -> None:
    values = [value for numbers in table.paper.values() for value in numbers.values()]
    sums = (sum(value.mean for value in values), sum(value.sd or 0 for value in values))
    assert sums == pytest.approx(SUMS[table.name], abs=0.01)


# Rows become methods.


def test_the_authors_earlier_table_has_the_rows_of_the_first_and_a_number_of_the_ablations() -> None:
    assert EARLIER.keys() == {row.name for row in METHODS.rows}
    for name, ablation in RHO_AND_C.paper["floral-1-optimal"].items():
        assert EARLIER["floral-1-learned"][name].mean == pytest.approx(ablation.mean, abs=0.051)


def test_a_cells_seed_is_that_of_its_task_and_of_its_run() -> None:
    runs = make_runs(experiments.cells("methods", ["synthetic-linear"], ["fedavg"], seeds=2))
    assert [run.seed for run in runs] == [1, 2]
    for run in runs:
        task = tasks.load("synthetic-linear", seed=run.seed)
        assert torch.equal(run.task.train[0].inputs, task.train[0].inputs)


def test_twice_the_clusters_halve_each_cluster() -> None:
    double = RHO_AND_C.row("floral-10-double-c")
    (run,) = make_runs([Cell(double, "digits-rotate", seed=1)])
    mixture = run.method.mixtures(run.method.initialise(run.task.clusters, 1).private, 20)
    assert mixture.shape == (20, 8)
    assert mixture.argmax(dim=1).tolist() == [client % 8 for client in range(20)]
    half = RHO_AND_C.row("floral-10-half-c")
    (run,) = make_runs([Cell(half, "digits-rotate", seed=1)])
    mixture = run.method.mixtures(run.method.initialise(run.task.clusters, 1).private, 20)
    assert mixture.argmax(dim=1).tolist() == [client % 2 for client in range(20)]
    for factor, rounded in ((0.1, 1), (0.7, 3)):  # at least 1
        row = replace(half, clusters_factor=factor)
        assert method_options(Cell(row, "digits-rotate", seed=1))["num_clusters"] == rounded


@pytest.mark.parametrize("row", ["floral-1-half-c", "floral-1-double-c", "floral-1-optimal"])
def test_results_are_compared_with_the_true_clusters_whatever_routers_were_told(
    tmp_path: Path, row: str
) -> None:
    seldom = replace(RHO_AND_C.row(row), changes={"evaluate_every": 2})
    cell = Cell(seldom, "digits-rotate", seed=1, rounds=2)
    experiments.fill([cell], tmp_path, device="cpu")
    result = read(tmp_path / cell.path)
    task = tasks.load("digits-rotate", seed=1)
    assert result.clusters == task.clusters.tolist()
    sizes = torch.tensor([float(len(shard)) for shard in task.train])
    expected = mismatch(torch.tensor(result.clients["mixture"]), task.clusters, sizes)
    assert result.rounds["mismatch"][-1] == pytest.approx(expected)
    # two of four clusters share an adaptor; or each is cut in two
    assert (expected == 0) == (row == "floral-1-optimal")


KEPT = {
    "floral-1-convlora-no-bias": {"conv"},
    "floral-1-convlora": {"conv", "conv bias"},
    "floral-1-lora-no-bias": {"linear"},
    "floral-1-lora": {"linear", "linear bias"},
    "floral-1-no-bias": {"conv", "linear"},
    "floral-1-optimal": {"conv", "linear", "conv bias", "linear bias"},
}
NAMES = {
    "conv": {"1.weight", "4.weight"},
    "linear": {"8.weight", "10.weight"},
    "conv bias": {"1.bias", "4.bias"},
    "linear bias": {"8.bias", "10.bias"},
}


@pytest.mark.parametrize("name", KEPT)
def test_the_adaptors_table_adapts_what_it_says(name: str) -> None:
    row = ADAPTORS.row(name)
    method = methods.FLoRAL(cnn(), **row.options)  # type: ignore[arg-type]
    if row.layers is not None:
        adapt_only(method, row.layers)
    kept = set().union(*(NAMES[kind] for kind in KEPT[name]))
    assert set(method.plan) == kept
    clustered = method.initialise(torch.zeros(3, dtype=torch.long), 0).clustered
    assert {".".join(factor.split(".")[:2]) for factor in clustered} == kept


@pytest.mark.parametrize("kind", [methods.FLoRAL, methods.LocalAdaptor])
def test_layers_are_found_inside_others(kind: type[methods.FLoRAL | methods.LocalAdaptor]) -> None:
    method = kind(nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(4, 4)), nn.Linear(4, 2)), rank=1)
    adapt_only(method, ["linear"])
    assert set(method.plan) == {"0.1.weight", "0.1.bias", "1.weight", "1.bias"}


def test_layers_need_adaptors_and_a_model_that_has_them() -> None:
    with pytest.raises(InputError, match="fedavg has no adaptors"):
        adapt_only(methods.FedAvg(cnn()), ["linear"])
    cell = Cell(ADAPTORS.row("floral-1-convlora-no-bias"), "digits-rotate", 1)
    with pytest.raises(InputError, match=r"layers is \['conv'\], but the model has none"):
        make_runs([cell])
    with pytest.raises(InputError, match="no kind of layer is called 'Linear'; did you mean 'linear'"):
        make_runs([replace(cell, row=replace(cell.row, layers=("Linear",)))])


def test_a_row_has_scores_and_a_folder_of_its_own() -> None:
    row = replace(METHODS.row("fedavg"), changes={"evaluate_every": 0})
    with pytest.raises(InputError, match="evaluate_every is 0 in the row fedavg"):
        make_runs([Cell(row, "digits-rotate", 1)])
    for name in ("C/2", "", ".", ".."):
        with pytest.raises(InputError, match=f"name is '{re.escape(name)}'; a row's results are in a folder"):
            replace(row, name=name)


# Results files.


def long_history() -> History:
    """A made-up run of the size of the largest: 300 clients, 4 adaptors, 150 evaluated rounds."""
    generator = np.random.default_rng(0)
    rounds = []
    for number in range(1, 151):
        client_loss, client_accuracy = generator.random((2, 300)).tolist()
        rounds.append(
            Round(
                10 * number,
                train_loss=generator.random(),
                seconds=0.5,
                test_loss=generator.random(),
                test_accuracy=generator.random(),
                client_loss=client_loss,
                client_accuracy=client_accuracy,
                mixture=generator.dirichlet([1.0] * 4, 300).tolist(),
                mismatch=generator.random(),
            )
        )
    sizes = {"base": 159010, "added": 4512}
    return History({"task": "mnist-rotate-reduced"}, [k % 4 for k in range(300)], 1, 2, sizes, rounds)


def test_a_result_is_small_and_read_as_it_was_written(tmp_path: Path) -> None:
    cell = Cell(METHODS.row("floral-1-learned"), "mnist-rotate-reduced", 2)
    history = long_history()
    made = provenance(torch.device("cpu"), "floral-lite table methods")
    summary = summarise(cell, history, {**made, "seconds": 1.0})
    path = tmp_path / cell.path
    summary.save(path)
    assert path == tmp_path / "mnist-rotate-reduced/floral-1-learned/seed-2.json"
    assert path.stat().st_size < 40_000
    assert list(path.parent.iterdir()) == [path]
    assert find(cell, tmp_path) == read(path) == replace(summary, configuration=read(path).configuration)
    last = history.rounds[-1]
    assert last.client_accuracy is not None
    assert summary.score == pytest.approx(100 * np.mean(last.client_accuracy))
    assert summary.clients["accuracy_sd"] == pytest.approx(np.std(last.client_accuracy, ddof=1))
    assert summary.clients["loss"] == pytest.approx(last.client_loss, rel=1e-5)
    assert np.array(summary.clients["mixture"]) == pytest.approx(np.array(last.mixture), abs=6e-8)
    assert {type(number) for number in summary.rounds["round"]} == {int}
    assert summary.rounds["test_loss"] == pytest.approx([entry.test_loss for entry in history.rounds])
    assert summary.sizes == {"base": 159010, "added": 4512, "bytes_up": 1, "bytes_down": 2}
    assert set(made) == {"command", "device", "versions", "commit"}
    assert "thread" in made["device"]
    assert made["commit"] == commit()


def test_near_uniform_a_result_finds_the_clusters_that_the_run_found() -> None:
    history, generator = long_history(), np.random.default_rng(0)
    orders = generator.permuted(np.tile(np.arange(-1.5, 2), (300, 1)), axis=1)
    history.rounds[-1].mixture = (0.25 + 1e-6 * orders).tolist()
    summary = summarise(Cell(METHODS.row("floral-1-learned"), "mnist-rotate-reduced", 2), history, MADE)
    mixture = summary.clients["mixture"]
    assert np.argmax(mixture, 1).tolist() == np.argmax(history.rounds[-1].mixture, 1).tolist()


def test_a_result_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(part: Path, path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        result(Cell(METHODS.row("fedavg"), "digits-rotate", 1), 50.0).save(tmp_path / "seed-1.json")
    assert not list(tmp_path.iterdir())


def test_the_commit_is_that_of_the_package_and_tells_whether_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=A", "-c", "user.email=a@b.c", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    package = tmp_path / "package"
    package.mkdir()
    monkeypatch.setattr("floral_lite.experiments.provenance.PACKAGE", package)
    git("init")
    (package / "__init__.py").touch()
    (tmp_path / "beside").touch()
    git("add", "beside")
    git("commit", "-m", "A repository that holds an installed copy")
    assert commit() is None
    git("add", "package")
    git("commit", "-m", "The package")
    (tmp_path / "beside").write_text("changed")
    assert commit() == git("rev-parse", "HEAD")
    (package / "__init__.py").write_text("changed")
    assert commit() == f"{git('rev-parse', 'HEAD')}-dirty"


def test_without_git_or_a_list_of_processors_a_result_is_still_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(self: Path, **options: object) -> str:
        raise FileNotFoundError(self)

    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit() is None
    monkeypatch.setattr(Path, "read_text", missing)
    assert processor()


def test_a_client_alone_has_no_deviation_and_a_regression_no_accuracy() -> None:
    last = Round(1, 1.0, 0.5, test_loss=2.0, client_loss=[2.0], mixture=[[1.0]])
    cell = Cell(METHODS.row("fedavg"), "synthetic-linear", 1)
    summary = summarise(cell, History({}, [0], 1, 2, {}, [last]), MADE)
    assert (summary.score, summary.clients["loss_sd"], summary.clients["accuracy_mean"]) == (2.0, None, None)


@pytest.mark.parametrize(
    "name", ["configuration", "run", "seed", "made", "clusters", "sizes", "rounds", "clients"]
)
def test_a_result_with_a_value_of_another_kind_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "result.json"
    replace(result(Cell(METHODS.row("fedavg"), "digits-rotate", 1), 50.0), **{name: "other"}).save(path)
    with pytest.raises(InputError, match=rf"no results file of this version \({name} is no"):
        read(path)


@pytest.mark.parametrize("missing", ["task", "row", "settings", "rounds"])
def test_a_result_that_does_not_say_what_was_asked_for_is_refused(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "result.json"
    whole = result(Cell(METHODS.row("fedavg"), "digits-rotate", 1), 50.0)
    del (whole.configuration["settings"] if missing == "rounds" else whole.configuration)[missing]
    whole.save(path)
    with pytest.raises(InputError, match=rf"result\.json is no results file of this version .*{missing}"):
        read(path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("rounds", {"test_loss": [1.0]}, "rounds are of two lengths"),
        ("made", {"device": None}, "made has no device or no seconds"),
        ("made", {"seconds": None}, "made has no device or no seconds"),
        ("configuration", {"settings": {"rounds": 0}}, r"settings\.rounds is not positive"),
        ("clients", {"accuracy_mean": None}, "no results file of this version .'accuracy_mean'"),
    ],
)
def test_a_result_of_which_no_table_can_be_made_is_refused(
    tmp_path: Path, name: str, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "result.json"
    whole = result(Cell(METHODS.row("fedavg"), "digits-rotate", 1), 50.0)
    changed = {key: value for key, value in {**getattr(whole, name), **change}.items() if value is not None}
    replace(whole, **{name: changed}).save(path)
    with pytest.raises(InputError, match=message):
        read(path)


def test_a_result_of_another_configuration_is_refused_by_name(tmp_path: Path) -> None:
    cell = Cell(METHODS.row("fedavg"), "digits-rotate", 1, rounds=20)
    result(cell, 50.0).save(tmp_path / cell.path)
    assert find(cell, tmp_path) is not None
    with pytest.raises(InputError, match=r"fedavg/seed-1\.json was made with rounds=20, .* 100.*--out"):
        find(replace(cell, rounds=None), tmp_path)
    assert find(replace(cell, rounds=None), tmp_path, same_rounds=False) is not None
    other = replace(cell, row=replace(cell.row, changes={"learning_rate": 0.5}))
    with pytest.raises(InputError, match=r"was made with learning_rate=0\.3, and this is 0\.5"):
        find(other, tmp_path)
    for key in (
        "method",
        "options",
        "layers",
        "num_clients",
        "true_clusters",
        "multiple_of",
        "data_fraction",
    ):
        changed = result(cell, 50.0)
        changed.configuration[key] = "other"
        changed.save(tmp_path / cell.path)
        with pytest.raises(InputError, match=f"was made with {key}='other'"):
            find(cell, tmp_path)
    result(cell, 50.0).save(tmp_path / cell.path)
    newer = result(cell, 50.0)
    newer.configuration["settings"]["nesterov"] = True
    newer.save(tmp_path / cell.path)
    with pytest.raises(InputError, match="was made with nesterov=True, which this version does not know"):
        find(cell, tmp_path)
    result(cell, 50.0).save(tmp_path / cell.path)
    second = replace(cell, seed=2)
    (tmp_path / second.path).write_bytes((tmp_path / cell.path).read_bytes())
    with pytest.raises(InputError, match=r"seed-2\.json was made with seed=1, and this is 2"):
        find(second, tmp_path)
    # a setting that is newer than the file had its default
    older = result(cell, 50.0)
    del older.configuration["settings"]["shuffle"]
    older.save(tmp_path / cell.path)
    assert find(cell, tmp_path) is not None
    with pytest.raises(InputError, match="was made with shuffle=True, and this is False"):
        find(replace(cell, row=replace(cell.row, changes={"shuffle": False})), tmp_path)
    (tmp_path / cell.path).write_text("{}")
    with pytest.raises(InputError, match=r"seed-1\.json is no results file"):
        find(cell, tmp_path)


def test_results_are_loaded_as_a_tidy_frame(tmp_path: Path) -> None:
    fill_with(tmp_path, {"fedavg": [50.0, 51.0]}, "digits-rotate")
    fill_with(tmp_path, {"fedavg": [0.5]}, "synthetic-linear")
    (tmp_path / "digits-rotate/fedavg/notes.json").write_text("{}")  # the user's own
    frame = experiments.load_results(tmp_path)
    assert frame.groupby(["task", "row", "seed"]).size().tolist() == [2, 2, 2]
    assert frame["round"].tolist() == [10, 20] * 3
    assert frame["test_accuracy"].tolist()[:4] == [0.5, 0.5, 0.51, 0.51]
    assert frame["test_accuracy"].isna().sum() == 2
    assert frame.dtypes[["train_loss", "test_loss", "test_accuracy", "mismatch"]].tolist() == [float] * 4
    assert frame.index.is_unique
    cell = Cell(METHODS.row("fedavg"), "digits-rotate", 3)
    early = replace(result(cell, 50.0), status="diverged", message="of a loss that is NaN")
    replace(early, rounds={name: [] for name in early.rounds}).save(tmp_path / cell.path)
    pd.testing.assert_frame_equal(experiments.load_results(tmp_path), frame)
    with pytest.raises(InputError, match="there is no folder"):
        experiments.load_results(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    assert experiments.load_results(tmp_path / "empty").empty


# Tables.


def test_a_table_has_means_deviations_marks_and_differences(tmp_path: Path) -> None:
    scores = {
        "fedavg": [91.0, 91.4],  # the paper's 91.5 0.6
        "local-adaptor": [80.0, 80.2],  # 86.6 0.3
        "ensemble-optimal": [95.8, 95.84],
        "floral-1-learned": [91.16, 91.22],  # 91.19, printed like FedAvg's mean: both are second best
        "floral-1-optimal": [91.0],
        "floral-10-learned": [],
    }
    fill_with(tmp_path, scores)
    elsewhere = Cell(METHODS.row("ensemble-optimal"), "mnist-rotate", 2)
    replace(result(elsewhere, 95.84), made={**MADE, "device": "another"}).save(tmp_path / elsewhere.path)
    filled = experiments.collect("methods", tmp_path, ["mnist-rotate"], list(scores), seeds=2)
    frame = experiments.frame(filled).set_index("row")
    assert frame.loc["fedavg", "mean"] == pytest.approx(91.2)
    assert frame.loc["fedavg", "sd"] == pytest.approx(0.2 * 2**0.5)
    assert frame.loc["fedavg", "difference"] == pytest.approx(-0.3)
    assert frame.loc["fedavg", ["paper_mean", "paper_sd"]].tolist() == [91.5, 0.6]
    assert frame["off"].to_dict() == {row: row == "local-adaptor" for row in scores}
    assert frame["status"].tolist() == ["done"] * 4 + ["partial", "missing"]
    three = experiments.frame(experiments.collect("methods", tmp_path, ["mnist-rotate"], list(scores), 3))
    assert three["status"].tolist() == ["partial"] * 5 + ["missing"]
    lines = {
        line.split("|")[1].strip(): line for line in experiments.markdown(filled).splitlines() if "|" in line
    }
    label = filled.columns[0].label
    assert [part.strip() for part in lines[""].split("|")] == ["", "", label, "paper", ""]
    assert "| **95.8 ± 0.0** | **95.8 ± 0.3** |" in lines["Ensemble, optimal"]
    assert "| *91.2 ± 0.3* " in lines["FedAvg"]
    assert "| *91.2 ± 0.0* " in lines["FLoRAL(1%), learned"]
    assert "| 80.1 ± 0.1 † " in lines["Local Adaptor"]
    # second best of the paper's
    assert "| 91.0 [1] " in lines["FLoRAL(1%), optimal"]
    assert "| *93.9 ± 0.8* " in lines["FLoRAL(1%), optimal"]
    assert lines["FLoRAL(10%), learned"].split("|")[2].strip() == "-"
    notes = " ".join(filled.notes())
    assert "500 rounds, on a machine, another." in notes
    assert "seeds 1 to 2, the clients' mean accuracy in per cent, ours | the paper's. Best" in notes
    assert "† differs from the paper" in notes
    assert "[n]: only n of the 2 seeds." in notes
    # of nothing there is nothing more to say; that one column is not the paper's does not matter
    (note,) = experiments.collect("methods", tmp_path / "empty", ["mnist-rotate", "digits-rotate"]).notes()
    assert "ours | the paper's" in note
    latex = experiments.latex(filled)
    assert r"Ensemble, optimal & \textbf{95.8 $\pm$ 0.0} & \textbf{95.8 $\pm$ 0.3} \\" in latex
    assert r"Local Adaptor & 80.1 $\pm$ 0.1$^\dagger$ & 86.6 $\pm$ 0.3 \\" in latex
    assert r"FLoRAL(1\%), optimal" in latex
    assert r"FLoRAL(10\%), learned & -- & " in latex
    assert r"\begin{tabular}{lcc}" in latex
    assert f"\n & \\multicolumn{{2}}{{c}}{{{label}}} \\\\\n & ours & paper \\\\\n" in latex


def test_a_difference_counts_beyond_two_deviations_of_both(tmp_path: Path) -> None:
    # the paper has 91.5 0.6; ours have a deviation of 0.8: together 1.0
    spread = 0.8 / 2**0.5
    for mean, off in ((89.6, False), (89.4, True), (93.4, False), (93.6, True)):
        fill_with(tmp_path, {"fedavg": [mean - spread, mean + spread]})
        two = experiments.collect("methods", tmp_path, ["mnist-rotate"], ["fedavg"], seeds=2)
        assert experiments.frame(two)["off"].tolist() == [off], mean
    # the paper's smaller tables have no deviations
    fill_with(tmp_path, {"floral-1-optimal": [10.0, 11.0]}, "cifar10-rotate")
    small = experiments.collect("convlora", tmp_path, ["cifar10-rotate"], ["floral-1-optimal"], seeds=2)
    assert experiments.frame(small)["off"].tolist() == [False]
    # one seed has no deviation
    one = experiments.frame(experiments.collect("methods", tmp_path, ["mnist-rotate"], ["fedavg"], seeds=1))
    assert one["sd"].isna().all()
    assert not one["off"].any()


def test_a_regression_is_better_with_a_smaller_loss(tmp_path: Path) -> None:
    scores = {"fedavg": [2.5, 2.7], "ensemble-learned": [0.0123, 0.0123], "ensemble-optimal": [0.5, 0.5]}
    fill_with(tmp_path, scores, "synthetic-linear")
    filled = experiments.collect("synthetic", tmp_path, ["synthetic-linear"], list(scores), 2)
    text, latex = experiments.markdown(filled), experiments.latex(filled)
    assert r"\begin{tabular}{lc}" in latex
    assert "\n & ours \\\\\n" in latex
    assert len({len(line) for line in text.splitlines() if line.startswith("|")}) == 1
    assert "| **0.0123 ± 0.00** " in text
    assert "| *0.500 ± 0.00* " in text
    assert "| 2.60 ± 0.141 " in text
    assert "paper |" not in text  # it has no numbers for it
    assert "seeds 1 to 2, the clients' mean test loss, ours. Best" in text
    assert "[n]" not in text  # all are there


def test_a_diverged_seed_is_said_and_counts_for_nothing(tmp_path: Path) -> None:
    fill_with(tmp_path, {"fedavg": [50.0, 60.0]}, "digits-rotate")
    cell = Cell(METHODS.row("fedavg"), "digits-rotate", 2)
    result(cell, 99.0, status="diverged").save(tmp_path / cell.path)
    filled = experiments.collect("methods", tmp_path, ["digits-rotate"], ["fedavg"], seeds=2)
    assert "| diverged " in experiments.markdown(filled)
    frame = experiments.frame(filled)
    assert frame["status"].tolist() == ["diverged"]
    numbers = frame[["mean", "sd", "paper_mean", "paper_sd", "difference"]]  # which can be reckoned with
    assert numbers.isna().all(axis=None)
    assert numbers.dtypes.tolist() == [float] * 5


@pytest.mark.parametrize("loss", [torch.nn.L1Loss(), torch.nn.functional.smooth_l1_loss])
def test_a_regression_with_another_loss_is_one_too(loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tasks.TASKS["synthetic-linear"]
    monkeypatch.setitem(tasks.TASKS, "own", replace(recipe, loss=loss))
    assert is_regression("own")
    assert not is_regression("digits-rotate")


def test_options_are_compared_as_their_file_has_them(tmp_path: Path) -> None:
    options = {"num_clusters": np.int64(2), "router": Router(floor=0.01), "adapt": ("0", "2")}
    cell = Cell(Row("own", "own", "floral", options), "digits-rotate", 1)
    result(cell, 50.0).save(tmp_path / cell.path)
    assert find(cell, tmp_path) is not None


def test_rows_may_have_rounds_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = Row("few", "few & many_steps | $1", "fedavg", changes={"rounds": 20, "local_epochs": 5})
    rows = (few, replace(few, name="many", changes={"rounds": 100}), METHODS.row("fedavg"))
    table = Table("own", "An own table", rows, (Column("digits-rotate", "a | b & c"),))
    monkeypatch.setitem(TABLES, "own", table)
    for cell in experiments.cells("own", seeds=1, rounds=None):
        cell = replace(cell, rounds=50) if cell.row.name == "fedavg" else cell
        result(cell, 50.0).save(tmp_path / cell.path)
    filled = experiments.collect("own", tmp_path, seeds=1)
    assert [len(entry.results) for entry in filled.entries.values()] == [1, 1, 1]
    text, latex = experiments.markdown(filled), experiments.latex(filled)
    assert "a | b & c: 20 or 50 or 100 rounds instead of the task's 100, on" in text
    # what would end a cell is text
    assert r"| a \| b & c " in text
    assert r"| few & many_steps \| $1 " in text
    assert len({len(line) for line in text.splitlines() if line.startswith("|")}) == 1
    assert r"{a | b \& c}" in latex
    assert r"few \& many\_steps | \$1" in latex
    assert all(f"\n% {note}\n" in latex for note in filled.notes())
    with pytest.raises(InputError, match=r"few/seed-1\.json was made with rounds=20, and this is 100"):
        experiments.collect("own", tmp_path, seeds=1, rounds=100)


def test_shortened_results_are_said_and_not_mixed(tmp_path: Path) -> None:
    fill_with(tmp_path, {"fedavg": [50.0]}, "digits-rotate", rounds=20)
    text = experiments.markdown(experiments.collect("methods", tmp_path, ["digits-rotate"], seeds=1))
    assert "Of seed 1, the clients' mean accuracy in per cent, ours." in text
    assert "digits-rotate: 20 rounds instead of the task's 100, on" in text
    fill_with(tmp_path, {"fedavg": [0.5]}, "synthetic-linear", rounds=3000)
    text = experiments.markdown(experiments.collect("methods", tmp_path, ["synthetic-linear"], seeds=1))
    assert "3000 rounds instead of the task's 2000, on" in text
    both = experiments.collect(
        "methods", tmp_path, ["digits-rotate", "synthetic-linear"], ["fedavg"], seeds=1
    )
    assert [len(entry.results) for entry in both.entries.values()] == [1, 1]
    fill_with(tmp_path, {"local-adaptor": [50.0]}, "digits-rotate", rounds=30)
    with pytest.raises(
        InputError, match=r"local-adaptor/seed-1\.json was made with rounds=30, and this is 20"
    ):
        experiments.collect("methods", tmp_path, ["digits-rotate"], seeds=1)
    with pytest.raises(InputError, match=r"fedavg/seed-1\.json was made with rounds=20, and this is 30"):
        experiments.collect("methods", tmp_path, ["digits-rotate"], seeds=1, rounds=30)


# Rules for the routers.


def test_a_rule_is_judged_by_the_share_of_the_gap_that_it_closes(tmp_path: Path) -> None:
    scores = {
        "floral-1-learned": [50.0, 60.0],
        "floral-1-clustered": [84.0, 88.0],
        "floral-1-optimal": [90.0, 100.0],
    }
    mixtures = {  # of two clients, of one cluster each
        "floral-1-learned": [[0.6, 0.4], [0.7, 0.3]],
        "floral-1-clustered": [[0.9, 0.1], [0.2, 0.8]],
        "floral-1-optimal": [[0.0, 1.0], [1.0, 0.0]],
    }
    mismatches = {
        "floral-1-learned": [1.5, 0.2, 0.3],
        "floral-1-clustered": [0.2, 0.3, 0.25],
        "floral-1-optimal": [0.0, 0.0, 0.0],
    }
    for row, of_seeds in scores.items():
        for seed, score in enumerate(of_seeds, start=1):
            cell = Cell(ROUTING.row(row), "mnist-rotate", seed)
            one = result(cell, score, curve=[3.0, 2.0, 1.0])
            rounds = {**one.rounds, "mismatch": mismatches[row]}
            replace(one, rounds=rounds, clients={**one.clients, "mixture": mixtures[row]}).save(
                tmp_path / cell.path
            )
    judged = experiments.judged(experiments.collect("routing", tmp_path)).loc["mnist-rotate"]
    assert judged["closed"].to_dict() == pytest.approx(
        {"floral-1-learned": 0, "floral-1-clustered": 100 * (86 - 55) / (95 - 55), "floral-1-optimal": 100}
    )
    # The seeds close 34 of 40 and 28 of 40: half their difference is the standard error of two.
    assert judged.loc["floral-1-clustered", "closed_error"] == pytest.approx(100 * 3 / 40)
    assert judged["seeds"].tolist() == [2, 2, 2]
    assert judged.loc["floral-1-clustered", "sd"] == pytest.approx(4 / 2**0.5)
    assert judged["rand"].tolist() == [0.0, 1.0, 1.0]
    assert np.isnan(judged.loc["floral-1-learned", "decided"])  # it was, and did not stay so
    assert judged.loc["floral-1-clustered":, "decided"].tolist() == [30, 10]


def test_of_the_seeds_of_a_rule_all_must_decide_and_those_that_diverged_do_not_count(tmp_path: Path) -> None:
    for row, seed, status, mismatches in (
        ("floral-1-learned", 1, "done", [0.1, 0.1]),
        ("floral-1-learned", 2, "done", [0.1, 0.5]),
        ("floral-1-optimal", 1, "done", [0.0, 0.0]),
        ("floral-1-optimal", 2, "diverged", [0.0, 0.0]),
    ):
        cell = Cell(ROUTING.row(row), "mnist-rotate", seed)
        one = result(cell, 50.0, status=status)
        rounds = {**one.rounds, "mismatch": mismatches}
        clients = {**one.clients, "mixture": [[0.9, 0.1], [0.2, 0.8]]} if status == "done" else {}
        replace(one, rounds=rounds, clients=clients).save(tmp_path / cell.path)
    judged = experiments.judged(experiments.collect("routing", tmp_path)).loc["mnist-rotate"]
    assert judged["seeds"].to_dict() == {"floral-1-learned": 2, "floral-1-optimal": 1}
    assert np.isnan(judged.loc["floral-1-learned", "decided"])
    assert judged.loc["floral-1-optimal", "decided"] == 10


def test_a_share_is_closed_too_where_learned_routing_is_the_better_one() -> None:
    learned, optimal = {1: 50.0, 2: 50.0}, {1: 48.0, 2: 46.0}
    # 1 of 2 and 2.5 of 4, which is 3.5 of 6; each seed is a sixth of a point from that
    assert closed({1: 49.0, 2: 47.5}, learned, optimal) == pytest.approx((100 * 3.5 / 6, 100 / 6 / 3))


def test_a_rule_is_compared_on_its_own_seeds() -> None:
    learned, optimal = {1: 60.0, 2: 50.0, 3: 40.0}, {1: 90.0, 2: 90.0, 3: 90.0}
    share, error = closed({1: 75.0}, learned, optimal)
    assert share == pytest.approx(50)  # 15 of seed 1's 30, whatever the other seeds say
    assert np.isnan(error)
    # Half of 30 and half of 50: the same share in both seeds, so no error.
    assert closed({1: 75.0, 3: 65.0}, learned, optimal) == pytest.approx((50, 0))
    assert np.isnan(closed({4: 75.0}, learned, optimal)).all()


@pytest.mark.parametrize(
    ("gaps", "clear"),
    [((1.0, 5.0), False), ((2.0, 4.0), True), ((0.0, 0.0), False), ((3.0,), False), ((), False)],
)
def test_of_a_gap_that_is_not_clear_no_share_is_closed(gaps: tuple[float, ...], clear: bool) -> None:
    # Mean 3, standard errors 2 and 1.
    learned = dict.fromkeys(range(len(gaps)), 50.0)
    optimal = {seed: 50.0 + gap for seed, gap in enumerate(gaps)}
    assert np.isfinite(closed(optimal, learned, optimal)).all() == clear


def test_a_rule_whose_seeds_have_no_gap_closes_no_share() -> None:
    learned = dict.fromkeys(range(4), 50.0)
    assert np.isnan(closed({0: 51.0}, learned, {0: 50.0, 1: 54.0, 2: 54.0, 3: 54.0})).all()


def test_without_both_ends_no_share_is_closed(tmp_path: Path) -> None:
    judged = experiments.judged(
        experiments.collect("routing", stored_results(), ["mnist-rotate"], ["floral-1-clustered"])
    )
    assert judged[["closed", "closed_error"]].isna().all(axis=None)
    assert len(judged) == 1
    assert experiments.judged(experiments.collect("routing", tmp_path)).empty


def test_no_rule_for_the_routers_sends_more_than_the_paper_s() -> None:
    filled = experiments.collect("routing", stored_results())
    for column in filled.columns:
        sent = {
            row.name: one.sizes["bytes_up"]
            for row in filled.rows
            for one in filled.entries[row.name, column.name].results
        }
        assert len(set(sent.values())) == 1, column


# Figures.


def test_curves_are_means_and_extremes_over_seeds(tmp_path: Path) -> None:
    for seed, losses in ((1, [4.0, 2.0]), (2, [2.0, 1.0]), (3, [9.0])):  # whose median is no mean
        cell = Cell(METHODS.row("fedavg"), "digits-rotate", seed)
        result(cell, 50.0, losses).save(tmp_path / cell.path)
    frame = experiments.curves("methods", tmp_path, ["digits-rotate"])
    expected = pd.DataFrame(
        {"round": [10, 20], "mean": [5.0, 1.5], "low": [2.0, 1.0], "high": [9.0, 2.0], "seeds": [3, 2]}
    )
    pd.testing.assert_frame_equal(frame[list(expected)], expected)
    accuracy = experiments.curves("methods", tmp_path, ["digits-rotate"], value="test_accuracy")
    assert accuracy["mean"].tolist() == [0.5, 0.5]
    fill_with(tmp_path, {"local-adaptor": [50.0]}, "digits-rotate")
    chosen = experiments.curves("methods", tmp_path, ["digits-rotate"], ["fedavg"], seeds=2)
    assert chosen[["row", "seeds"]].to_numpy().tolist() == [["fedavg", 2]] * 2
    fill_with(tmp_path, {"fedavg": [1.0]}, "synthetic-linear")
    with pytest.raises(InputError, match=r"has no test_accuracy.*or another value"):  # a regression
        experiments.curves("methods", tmp_path, ["synthetic-linear"], value="test_accuracy")
    both = experiments.curves(
        "methods", tmp_path, ["synthetic-linear", "digits-rotate"], value="test_accuracy"
    )
    pd.testing.assert_frame_equal(both.query("row == 'fedavg'"), accuracy)  # floats, as without that
    learned = Cell(ROUTING.row("floral-1-learned"), "digits-rotate", 1)
    result(learned, 50.0).save(tmp_path / learned.path)
    own = experiments.curves("routing", tmp_path, ["digits-rotate"], [learned.row.name])
    assert own["mean"].tolist() == [0.5, 0.5]  # the mismatch
    with pytest.raises(InputError, match="no value is called 'loss'"):
        experiments.curves("methods", tmp_path, value="loss")
    with pytest.raises(InputError, match="has no test_loss for the figure methods"):
        experiments.curves("methods", tmp_path, ["digits-label-shift"])


def test_a_figure_draws_a_panel_a_task_and_a_line_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left")

    for task in ("digits-rotate", "digits-label-shift"):
        fill_with(tmp_path, {"ensemble-learned": [50.0, 51.0], "ensemble-optimal": [70.0, 71.0]}, task)
    frame = experiments.curves("methods", tmp_path, ["digits-rotate", "digits-label-shift"])
    made = figures.draw(frame)
    assert [axis.get_title() for axis in made.axes] == ["digits-rotate", "digits-label-shift"]
    assert [text.get_text() for text in made.legends[0].get_texts()] == [
        "Ensemble, learned",
        "Ensemble, optimal",
    ]
    for axis in made.axes:
        learned, optimal = axis.lines
        # the third of the paper's methods, whatever else is drawn
        assert learned.get_color() == optimal.get_color() == plots.COLOURS[2]
        assert (learned.get_linestyle(), optimal.get_linestyle()) == ("--", "-")
        assert np.asarray(learned.get_ydata()).tolist() == [2.0, 1.0]
        assert axis.get_yscale() == "log"
        assert axis.get_xlabel() == "communication round"
        assert axis.yaxis.get_major_formatter()(0.1) == "0.1"
    assert made.axes[0].get_ylabel() == "test loss"
    percent = figures.draw(
        experiments.curves("methods", tmp_path, ["digits-rotate"], value="test_accuracy"), "test_accuracy"
    )
    assert np.asarray(percent.axes[0].lines[1].get_ydata()).tolist() == [70.5, 70.5]
    band = percent.axes[0].collections[1].get_paths()[0].vertices
    assert sorted(set(np.asarray(band)[:, 1].tolist())) == [70, 71]
    assert percent.axes[0].get_ylabel() == "test accuracy (%)"
    assert percent.axes[0].get_yscale() == "linear"
    for name in ("a.svg", "b.svg"):
        figures.save(figures.draw(frame), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    figures.save(percent, tmp_path / "a.pdf")
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    assert b"Date" not in (tmp_path / "a.pdf").read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        figures.save(percent, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert len(list(tmp_path.glob("*.svg*"))) == 2


def test_up_to_three_tasks_are_drawn_side_by_side_with_their_rows_as_in_the_table(tmp_path: Path) -> None:
    names = ["digits-rotate", "digits-label-shift", "digits-label-groups"]
    for task in names:
        fill_with(tmp_path, {"ensemble-optimal": [50.0], "local-adaptor": [50.0]}, task)
    made = figures.draw(experiments.curves("methods", tmp_path, names))
    assert [axis.get_title() for axis in made.axes] == names
    assert [bool(axis.get_ylabel()) for axis in made.axes] == [True, False, False]
    assert [text.get_text() for text in made.legends[0].get_texts()] == ["Local Adaptor", "Ensemble, optimal"]


@pytest.mark.parametrize(("least", "told"), [(1e-3, "0.01"), (1e-9, "$\\mathdefault{10^{-2}}$")])
def test_losses_down_to_almost_nothing_are_all_told_as_powers(
    tmp_path: Path, least: float, told: str
) -> None:
    cell = Cell(METHODS.row("fedavg"), "digits-rotate", 1)
    result(cell, 50.0, [1.0, least]).save(tmp_path / cell.path)
    made = figures.draw(experiments.curves("methods", tmp_path, ["digits-rotate"]))
    made.draw_without_rendering()
    assert told in [text.get_text() for text in made.axes[0].get_yticklabels()]


@pytest.mark.parametrize(("highest", "between"), [(2.0, True), (1000.0, False)])
def test_a_loss_is_told_between_powers_of_ten_only_where_there_are_few(
    tmp_path: Path, highest: float, between: bool
) -> None:
    cell = Cell(METHODS.row("fedavg"), "digits-rotate", 1)
    result(cell, 50.0, [highest, 1.0]).save(tmp_path / cell.path)
    made = figures.draw(experiments.curves("methods", tmp_path, ["digits-rotate"]))
    made.draw_without_rendering()
    told = [text.get_text() for text in made.axes[0].get_yticklabels(minor=True)]
    assert ("2" in told) == any(told) == between


def test_many_tasks_are_drawn_in_two_columns_and_the_last_place_stays_empty(tmp_path: Path) -> None:
    names = ["digits-rotate", "digits-label-shift", "digits-label-groups", "cifar100", "cifar10-rotate"]
    for task in names:
        fill_with(tmp_path, {"fedavg": [50.0]}, task)
    made = figures.draw(experiments.curves("methods", tmp_path, names, ["fedavg"]))
    assert [axis.get_title() for axis in made.axes] == [*names[:3], "CIFAR-100", "CIFAR-10 R"]
    assert [bool(axis.get_ylabel()) for axis in made.axes] == [True, False, True, False, True]


def test_rows_that_differ_in_their_statistics_share_a_colour(tmp_path: Path) -> None:
    table = experiments.find_table("batch-nora")
    for name in ("fedavg", "fedavg-averaged", "fedbn"):
        cell = Cell(table.row(name), "synthetic-mlp-norm", 1)
        result(cell, 1.0, regression=True).save(tmp_path / cell.path)
    local, averaged, other = figures.draw(experiments.curves("batch-nora", tmp_path)).axes[0].lines
    assert local.get_color() == averaged.get_color() != other.get_color()
    assert [line.get_linestyle() for line in (local, averaged, other)] == ["-", "--", "-"]


def test_more_rows_than_colours_begin_them_again(tmp_path: Path) -> None:
    for row in RELATIVES.rows:
        cell = Cell(row, "digits-rotate", 1)
        result(cell, 50.0).save(tmp_path / cell.path)
    lines = figures.draw(experiments.curves("relatives", tmp_path, ["digits-rotate"])).axes[0].lines
    colours = [line.get_color() for line in lines]
    assert len(colours) == len(RELATIVES.rows) > len(plots.COLOURS)
    assert colours == [*plots.COLOURS, *plots.COLOURS][: len(colours)]
    looks = {(line.get_color(), line.get_marker(), line.get_markerfacecolor()) for line in lines}
    assert len(looks) == len(lines)


@pytest.mark.parametrize("value", figures.NAMES)
def test_a_label_is_no_longer_than_its_panel(value: str, tmp_path: Path) -> None:
    for row in RELATIVES.rows:
        cell = Cell(row, "digits-rotate", 1)
        result(cell, 50.0).save(tmp_path / cell.path)
    made = figures.draw(experiments.curves("relatives", tmp_path, ["digits-rotate"], value=value), value)
    made.draw_without_rendering()
    low, high = made.axes[0].yaxis.label.get_window_extent().intervaly
    assert 0 <= low < high <= made.bbox.height


def test_the_package_loads_nothing_that_only_frames_figures_and_the_command_line_need() -> None:
    code = "import sys, floral_lite.experiments; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"pandas", "matplotlib", "seaborn", "ipywidgets", "typer", "sklearn", "torchvision"}
    # the compiler takes as long to load as torch itself
    assert not (heavy | {"torch._dynamo", "sympy"}) & set(loaded.stdout.split())


def test_the_command_in_a_result_names_no_folder_of_the_machine() -> None:
    chosen = {"columns": "mnist-rotate", "rows": None, "seeds": 4, "rounds": 20, "device": "cpu"}
    command = "floral-lite table methods --columns mnist-rotate --seeds 4 --rounds 20 --device cpu"
    assert repeated("methods", chosen) == command
    blank = "floral-lite table methods --columns 'mnist-rotate, mnist-label-shift'"
    assert repeated("methods", {"columns": "mnist-rotate, mnist-label-shift"}) == blank


def test_a_row_on_other_data_is_another_configuration() -> None:
    cells = experiments.cells("methods", ["cifar10-rotate", "mnist-rotate"], ["fedavg"], 1, 1)
    assert [configuration(cell)["multiple_of"] for cell in cells] == [64, 1]
