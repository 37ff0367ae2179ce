"""The benchmarks on tiny sizes: what they count, what the naive loop computes, and that each one runs."""

import copy
import doctest
import errno
import importlib
import json
import os
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import typer
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from floral_lite import Floral, InputError, Run, Settings, Task, clustering, methods, tasks, train, train_runs
from floral_lite.adaptors import LowRankAdaptor
from floral_lite.data import Images
from floral_lite.federation import Shard, federated_rounds
from floral_lite.federation.draws import batches, draw
from floral_lite.federation.loop import sample_clients
from floral_lite.methods import ROUTER
from floral_lite.router import entropy
from floral_lite.seeds import stream

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a benchmark by its file's name, with its neighbours as it has them when it is run."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


def batches_of(task: Task, method: methods.Method, sampled: list[int], number: int) -> list[list[Tensor]]:
    """The batches that the loop takes in a round, client by client."""
    settings = task.settings
    orders = [
        draw(task, method, len(task.train[client]), settings, 0, number, client).order for client in sampled
    ]
    return [batches(order, settings.batch_size) for order in orders]


def test_naive_fedavg_is_the_loop(benchmark: Any, ragged_task: Task) -> None:
    method, model = methods.FedAvg(ragged_task.model), copy.deepcopy(ragged_task.model)
    settings = ragged_task.settings
    for number, federation in enumerate(federated_rounds(ragged_task, method, settings, engine="loop"), 1):
        sampled = sample_clients(5, settings.participation, stream(0, "clients", number))
        taken = batches_of(ragged_task, method, sampled, number)
        benchmark("naive").fedavg_round(model, ragged_task, settings, sampled, taken)
        torch.testing.assert_close(dict(model.state_dict()), federation.state.shared)


def test_naive_floral_is_the_loop(benchmark: Any, ragged_task: Task) -> None:
    method = methods.FLoRAL(ragged_task.model, num_clusters=3, rank=2)
    state = method.initialise(ragged_task.clusters, seed=0)
    model = Floral(copy.deepcopy(ragged_task.model), num_clusters=3, rank=2)
    with torch.no_grad():
        for name, tensor in model.clustered().items():
            tensor.copy_(state.clustered[name])
    routers = state.private[ROUTER].clone()
    settings = ragged_task.settings
    for number, federation in enumerate(federated_rounds(ragged_task, method, settings, engine="loop"), 1):
        sampled = sample_clients(5, settings.participation, stream(0, "clients", number))
        taken = batches_of(ragged_task, method, sampled, number)
        benchmark("naive").mixture_round(model, routers, ragged_task, settings, sampled, taken)
        after = federation.state
        torch.testing.assert_close(dict(model.base.state_dict()), after.shared)
        torch.testing.assert_close({k: t.detach() for k, t in model.clustered().items()}, after.clustered)
        torch.testing.assert_close(routers, after.private[ROUTER])
    assert (routers != 0).any()
    assert (after.clustered["2.weight.U"][0] != after.clustered["2.weight.U"][1]).any()


def test_naive_ensemble_is_the_loop(benchmark: Any, ragged_task: Task) -> None:
    naive, method = benchmark("naive"), methods.Ensemble(ragged_task.model, num_clusters=2)
    state = method.initialise(ragged_task.clusters, seed=0)
    model = naive.Ensemble(ragged_task.model, 2)
    for c, copied in enumerate(model.models):
        copied.load_state_dict({name: tensor[c] for name, tensor in state.clustered.items()})
    routers, settings = state.private[ROUTER].clone(), ragged_task.settings
    for number, federation in enumerate(federated_rounds(ragged_task, method, settings, engine="loop"), 1):
        sampled = sample_clients(5, settings.participation, stream(0, "clients", number))
        taken = batches_of(ragged_task, method, sampled, number)
        naive.mixture_round(model, routers, ragged_task, settings, sampled, taken)
        for c, copied in enumerate(model.models):
            expected = {name: tensor[c] for name, tensor in federation.state.clustered.items()}
            torch.testing.assert_close(dict(copied.state_dict()), expected)
        torch.testing.assert_close(routers, federation.state.private[ROUTER])
    assert number == settings.rounds
    assert len(routers.unique(dim=0)) > 2  # the weights differ between clients


def test_flops_of_a_known_net_exactly_by_hand(benchmark: Any) -> None:
    floor = benchmark("floor")
    net = nn.Sequential(
        *[nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 6, 3, groups=2)],
        *[nn.Flatten(), nn.Linear(24, 5)],
    )
    made = {product.name: product.flops for product in floor.products(net, (3, 8, 8), num_samples=7)}
    # outputs (8, 4, 4) from 3 * 3 * 3 inputs each, (6, 2, 2) from 4 * 3 * 3 each, 5 from 24 each
    first, second, third = 8 * 16 * 27, 6 * 4 * 36, 24 * 5
    assert made == {
        **{f"0 {name}": 2 * 7 * first for name in ("forward", "weight gradient")},
        **{f"2 {name}": 2 * 7 * second for name in ("forward", "weight gradient", "input gradient")},
        **{f"4 {name}": 2 * 7 * third for name in ("forward", "weight gradient", "input gradient")},
    }


def test_the_products_of_the_floor_are_those_of_backward(benchmark: Any) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    calls: dict[str, list[tuple[int, ...]]] = {}
    for product in benchmark("floor").products(net, (1, 4, 4), num_samples=5, chunk=2):
        with torch.profiler.profile(record_shapes=True) as profiled:
            product.run()
        calls[product.name] = [
            tuple(map(tuple, event.input_shapes[:2]))
            for event in profiled.events()
            if event.name in ("aten::mm", "aten::conv2d", "aten::convolution_backward")
        ]
    images = [((2, 1, 4, 4), (2, 1, 3, 3)), ((2, 1, 4, 4), (2, 1, 3, 3)), ((1, 1, 4, 4), (2, 1, 3, 3))]
    upstream = [((2, 2, 2, 2), (2, 1, 4, 4)), ((2, 2, 2, 2), (2, 1, 4, 4)), ((1, 2, 2, 2), (1, 1, 4, 4))]
    assert calls == {
        "0 forward": images,
        "0 weight gradient": upstream,
        "2 forward": [((5, 8), (8, 3))],
        "2 weight gradient": [((3, 5), (5, 8))],
        "2 input gradient": [((5, 3), (3, 8))],
    }


def test_ratios_are_taken_within_repeats_and_a_record_says_where_it_comes_from(
    benchmark: Any, tmp_path: Path
) -> None:
    measure = benchmark("measure")
    order: list[str] = []
    times = measure.interleaved({name: lambda name=name: order.append(name) for name in "abc"}, repeats=2)
    assert order == list("abcabc")
    assert {name: len(values) for name, values in times.items()} == dict.fromkeys("abc", 2)
    # the quotient of the medians would be 1
    assert measure.ratio([1.0, 5.0, 5.0], [5.0, 1.0, 5.0]) == 1.0
    assert measure.ratio([2.0, 8.0, 9.0], [1.0, 2.0, 9.0]) == 2.0
    content = json.loads(measure.save("name", [1], tmp_path, device="cpu").read_text())
    assert content["results"] == [1]
    assert content["machine"].keys() >= {"cpu", "threads", "torch", "commit", "command", "device"}
    assert all(content["machine"].values())


def test_results_that_go_on_keep_what_the_first_ones_were_made_with(benchmark: Any, tmp_path: Path) -> None:
    measure = benchmark("measure")
    measure.save("name", [1], tmp_path, seeds=1)
    for results in ([1, 2], [1, 2, 3]):  # one call, which saves after each
        content = json.loads(measure.save("name", results, tmp_path, seeds=3).read_text())
        assert content["machine"]["seeds"] == 3
        assert [(made["seeds"], made["entries"]) for made in content["earlier"]] == [(1, 1)]
    assert "earlier" not in json.loads(measure.save("name", [4, 5], tmp_path, seeds=1).read_text())


def test_results_that_cannot_be_written_leave_those_that_are_there(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some scripts save after every case, for hours."""
    measure = benchmark("measure")
    path = measure.save("name", [1], tmp_path)

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        measure.save("name", [1, 2], tmp_path)
    assert json.loads(path.read_text())["results"] == [1]
    assert list(tmp_path.iterdir()) == [path]


def tiny_task(benchmark: Any) -> Task:
    """Two of four clients a round, six samples each, in the shape of MNIST."""
    task: Task = benchmark("shapes").mnist(4, 6, num_hidden=5, participation=0.5, batch_size=4)
    return task


def heard(monkeypatch: pytest.MonkeyPatch, script: ModuleType) -> list[tuple[str, Settings]]:
    """The engine and the settings of every federation that a script measures from now on."""
    asked: list[tuple[str, Settings]] = []

    def told(task: Task, method: methods.Method, settings: Settings, engine: Any) -> Any:
        asked.append((engine, settings))
        return federated_rounds(task, method, settings, engine=engine)

    monkeypatch.setattr(script, "federated_rounds", told)
    return asked


def test_every_method_and_optimizer_is_measured_with_both_engines(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    every, task = benchmark("every_method"), tiny_task(benchmark)
    asked = heard(monkeypatch, every)
    records = list(every.measure_all(task, repeats=1))
    untested = task.settings.with_changes(rounds=1 + every.WARM_UP, evaluate_every=0)
    changes = [every.OPTIMIZERS.get(record["optimizer"], {}) for record in records]
    assert asked == [(e, untested.with_changes(**c)) for c in changes for e in ("fast", "loop")]
    assert {record["method"] for record in records} >= {*methods.METHODS} - {"fedbn"}
    assert len({(record["method"], record["optimizer"]) for record in records}) == len(records)
    for record in records:
        times = record["seconds"]
        assert record["loop / engine"] == times["loop"][0] / times["fast"][0]
    assert list(every.table(records)["loop / engine"]) == [record["loop / engine"] for record in records]


def test_rounds_times_everyone_on_every_method(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, turns = benchmark("rounds"), []
    asked, original = heard(monkeypatch, rounds), rounds.interleaved

    def taken(actions: Any, repeats: int) -> Any:
        turns.append(repeats)
        return original(actions, repeats)

    monkeypatch.setattr(rounds, "interleaved", taken)
    records = list(rounds.measure_all({"tiny": tiny_task(benchmark)}, repeats=2))
    assert [(engine, settings.evaluate_every) for engine, settings in asked] == 4 * [("fast", 0), ("loop", 0)]
    assert turns == [1, 2]  # the first round is not counted
    assert [record["method"] for record in records] == ["FedAvg", "FLoRAL 1%", "FLoRAL 10%", "Ensemble"]
    ratios = {"naive / engine", "loop / engine", "engine / floor", "engine / FedAvg"}
    fedavg = records[0]["seconds"]["engine"]
    for record in records:
        assert record["seconds"].keys() == record["median"].keys() == {"naive", "engine", "loop", "floor"}
        assert all(len(times) == 2 and min(times) > 0 for times in record["seconds"].values())
        assert record["ratios"].keys() == ratios
        for name, ratio in record["ratios"].items():
            above, below = name.split(" / ")
            times = fedavg if below == "FedAvg" else record["seconds"][below]
            assert ratio == benchmark("measure").ratio(record["seconds"][above], times)
        assert record["seconds"]["floor"] == records[0]["seconds"]["floor"]  # once a repeat for all methods
    assert records[0]["ratios"]["engine / FedAvg"] == 1
    printed = rounds.table(records)
    assert len(printed) == 4
    assert {"task", "method", "naive (ms)", "floor (ms)", "engine / floor"} <= set(printed)


def test_imports_times_both(benchmark: Any) -> None:
    results = benchmark("imports").measure_imports("json", "csv", repeats=2)
    differences = [
        first - second
        for first, second in zip(results["seconds"]["json"], results["seconds"]["csv"], strict=True)
    ]
    assert results["median_difference"] == sum(differences) / 2


def test_asking_first_meets_federations_of_other_shapes(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking, task = benchmark("asking"), tiny_task(benchmark)
    task = replace(task, clusters=torch.tensor([0, 1, 0, 1]))
    unequal = asking.few(task, (2, 1))
    assert unequal.clusters.tolist() == [0, 0, 1]
    for found, expected in zip(unequal.train, [task.train[0], task.train[2], task.train[1]], strict=True):
        assert found is expected
    first, second = task.train[:2]
    mixed = asking.soft(task).train[0]
    assert torch.equal(mixed.inputs, torch.cat([first.inputs[::2], second.inputs[::2]]))
    assert torch.equal(mixed.targets, torch.cat([first.targets[::2], second.targets[::2]]))
    monkeypatch.setattr(asking, "ended", lambda runs, rounds: runs)
    (run,) = asking.digits("digits-rotate", "two adaptors", "learned", [1], 2)
    assert (len(run.task.clusters.unique()), run.method.num_clusters) == (4, 2)


def test_asking_first_runs_what_is_missing(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = benchmark("asking")
    monkeypatch.setattr(clustering, "NUM_NOISE", 10)
    whole = [("digits-rotate", "unequal", "clustered"), ("synthetic-mlp", "as it is", "learned")]
    for cells in (whole[:1], whole):
        monkeypatch.setattr(asking, "CELLS", cells)
        asking.main(num_seeds=1, rounds=2, synthetic_rounds=2, out=tmp_path)
    records = json.loads((tmp_path / "asking.json").read_text())["results"]
    assert [(record["task"], record["federation"], record["rule"]) for record in records] == whole
    for record, (low, high) in zip(records, [(0, 1), (0.01, 100)], strict=True):
        (entry,) = record["runs"]
        assert entry["seed"] == 1
        assert low < entry["score"] < high
        assert entry["effect"] > 0
    assert records[0]["runs"][0]["rand"] == records[0]["runs"][0]["rand of the first"]
    task = tasks.load("synthetic-mlp", seed=1)
    alone = train(task, methods.FLoRAL(task.model, 4, rank=1), seed=1, rounds=2).history.rounds[-1]
    assert records[1]["runs"][0]["score"] == pytest.approx(alone.test_loss, rel=1e-5)
    monkeypatch.setattr(asking, "ended", None)  # nothing is run again
    asking.main(num_seeds=1, out=tmp_path)


def test_ways_of_mixing_are_measured_against_each_other(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mixing = benchmark("mixing")
    monkeypatch.setattr(mixing, "LAYERS", {"linear": (lambda: nn.Linear(5, 3), (5,))})
    monkeypatch.setattr(mixing, "BATCHES", (2, 7))
    mixing.main(min_seconds=0.0)
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[2:]] == [
        ["linear", "2"],
        ["linear", "7"],
    ]
    times = {"base": 1.0, "merged": 4.0, "factored": 3.0, "auto": 6.0}
    monkeypatch.setattr(mixing, "seconds", lambda model, *_: times[getattr(model, "mixing", "base")])
    row = mixing.ratios("linear", 2, torch.device("cpu"), 0.0)
    assert [row[name] for name in ("factored / merged", "auto / better", "better / base")] == [0.75, 2, 3]


def test_the_laboratory_is_measured_over_restarts(benchmark: Any) -> None:
    before = threading.active_count()
    found = benchmark("laboratory").measure(1)
    for taken in found["seconds_to_first_point"].values():
        assert 0 < taken["smallest"] == taken["median"] == taken["largest"]
    assert [look["restarts"] for look in found["looks"]] == [0]
    assert found["threads_after_stop"] <= before


def test_a_slider_is_measured_also_where_the_run_before_had_ended(benchmark: Any) -> None:
    script = benchmark("laboratory")
    laboratory = script.Laboratory()
    laboratory.run()
    laboratory.stop()
    laboratory.training.wait(60)
    assert script.restart(laboratory, 0.2)[0] > 0
    laboratory.stop()
    laboratory.training.wait(60)


def test_the_laboratorys_grid_is_saved_line_by_line_and_goes_on(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, out = benchmark("laboratory_grid"), tmp_path / "laboratory.json"
    stored = json.loads(grid.OUT.read_text())
    lines = list(grid.grid())
    assert [(run["fraction"], run["method"], run["options"]) for run in stored["runs"]] == lines
    chosen = [line for line in lines if line[0] == 0.5][:2]
    for some in (chosen[:1], chosen):
        monkeypatch.setattr(grid, "grid", lambda some=some: iter(some))
        grid.main(out, rounds=2, every=1)
    made = json.loads(out.read_text())
    assert [(run["fraction"], run["method"]) for run in made["runs"]] == [line[:2] for line in chosen]
    for run in made["runs"]:
        assert run["round"] == [1, 2]
        assert len(run["accuracy"]) == len(made["seeds"]) == 3
        assert run.keys() == stored["runs"][0].keys()
    task = tasks.load("digits-rotate", seed=1, data_fraction=0.5)
    alone = train(task, methods.FedAvg(task.model), seed=1, rounds=2, evaluate_every=1).history
    assert made["runs"][0]["loss"][0] == pytest.approx([entry.test_loss for entry in alone.rounds], rel=1e-4)
    before = out.read_bytes()
    grid.main(out, rounds=2, every=1)  # nothing is run again
    assert out.read_bytes() == before
    with pytest.raises(typer.BadParameter, match="of another grid"):
        grid.main(out, rounds=3, every=1)


def test_growth_measures_a_case_with_what_it_says(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    growth = benchmark("growth")
    trained: list[tuple[Task, methods.FLoRAL, Settings]] = []

    def spied(*given: Any) -> Any:
        trained.append(given)
        return federated_rounds(*given)

    monkeypatch.setattr(growth, "federated_rounds", spied)
    assert growth.SWEEPS.keys() == growth.USUAL.keys()
    case = {"clients": 2, "clusters": 3, "rank": 4, "batch": 5, "hidden": 6}
    result = growth.measure(**case, num_clients=4, num_samples=7, repeats=2)
    assert len(result["seconds"]) == 2
    assert min(result["seconds"]) > 0
    assert 0 <= result["bytes"] < 2**30
    ((task, method, settings),) = trained
    assert len(sample_clients(4, settings.participation, stream(0))) == 2
    assert (method.num_clusters, method.adaptor_options.rank, settings.batch_size) == (3, 4, 5)
    assert [tuple(parameter.shape) for parameter in task.model.parameters()][:2] == [(6, 784), (6,)]


def test_growth_sees_memory_come_and_keeps_its_peak(benchmark: Any) -> None:
    growth = benchmark("growth")
    before = growth.peak_bytes()
    # so much that whatever other tests have held before does not hide it
    held = torch.ones(before // 4 + 2**26)
    assert growth.peak_bytes() - before >= 2**26
    peak = growth.peak_bytes()
    del held
    # the system counts to a few pages a core
    assert growth.peak_bytes() > peak - 2**20


def test_growth_measures_a_case_in_a_process_of_its_own(benchmark: Any) -> None:
    growth = benchmark("growth")
    case = {**growth.USUAL, "clients": 2, "hidden": 5, "num_clients": 4, "num_samples": 6}
    result = growth.in_a_process(case, repeats=1, threads=1)
    assert result.keys() == {"seconds", "median", "bytes"}
    assert result["bytes"] > 0


def test_gpu_runs_dry_without_one(benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = benchmark("gpu")
    monkeypatch.setattr(gpu, "tasks", lambda share: {"tiny": (tiny_task(benchmark), 2)})
    gpu.main(device="cpu", rounds=3, cifar_rounds=2, out=tmp_path)
    results = json.loads((tmp_path / "gpu.json").read_text())["results"]
    assert results["flops_a_second_of_products"] > 0
    record = results["tiny"]
    assert (record["rounds"], record["samples_a_client"]) == (2, 6)
    # two clients of six samples; 784 x 5 without its input gradient, 5 x 10
    assert record["flops_a_round"] == 2 * 6 * 2 * (2 * 784 * 5 + 3 * 5 * 10)
    assert record["seconds"] > record["seconds_of_training"] > 0
    rate = 2 * record["flops_a_round"] / record["seconds_of_training"]
    assert record["share_of_the_rate"] == pytest.approx(rate / results["flops_a_second_of_products"])
    assert record["profile"]["seconds"] > 0
    assert any("aten::" in line for line in record["table"])


def test_gpu_has_a_share_of_the_papers_samples(benchmark: Any) -> None:
    sizes = {
        name: (task.num_clients, len(task.train[0]), len(task.test[0]), num_clusters, bool(task.augment))
        for name, (task, num_clusters) in benchmark("gpu").tasks(0.05).items()
    }
    assert sizes == {
        "mnist": (300, 10, 2, 4, False),
        "cifar10": (20, 125, 21, 4, True),
        "cifar100": (100, 25, 5, 10, True),
    }


def test_precision_scores_every_seed_with_every_arithmetic(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precision, asked = benchmark("precision"), []

    def told(runs: list[Run], settings: Settings, **choices: Any) -> Any:
        asked.append(settings.precision)
        return train_runs(runs, settings, **choices)

    monkeypatch.setattr(precision, "train_runs", told)
    precision.main(["digits-rotate"], seeds=2, rounds=3, out=tmp_path)
    results = json.loads((tmp_path / "precision-digits-rotate.json").read_text())["results"]
    assert list(results) == asked == ["float32", "bfloat16"]
    task = tasks.load("digits-rotate", seed=2)
    method = methods.FLoRAL(task.model, 4, budget=0.1, routing="optimal")
    alone = train(task, method, seed=2, rounds=3).history.rounds[-1].test_accuracy
    assert alone is not None
    assert results["float32"]["accuracy"][1] == pytest.approx(100 * alone, abs=1e-4)
    assert all(one["seconds_a_round"] > 0 for one in results.values())


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks what happens without a GPU")
def test_gpu_says_what_it_needs(benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        benchmark("gpu").main()
    assert ended.value.exit_code == 1
    assert "--device cpu" in capsys.readouterr().out


def test_the_shapes_are_the_papers(benchmark: Any) -> None:
    shapes = benchmark("shapes")
    for task, name, image, base in (
        (shapes.mnist(num_samples=2), "mnist-rotate", (1, 28, 28), 784 * 200 + 200 + 200 * 10 + 10),
        (shapes.cifar10(num_samples=2), "cifar10-rotate", (3, 32, 32), 87178),
    ):
        recipe = tasks.TASKS[name]
        assert task.num_clients == recipe.num_clients
        for setting in ("participation", "batch_size", "learning_rate"):
            assert getattr(task.settings, setting) == getattr(recipe.settings, setting)
        assert sum(parameter.numel() for parameter in task.model.parameters()) == base
        assert task.train[0].inputs.shape == (2, *image)
    pixels = shapes.shards(2, 50, (3, 4, 4), seed=0)[0].inputs
    assert torch.equal((pixels * 255).round() / 255, pixels)
    assert 0 <= pixels.min() < pixels.max() <= 1


def test_newcomers_are_tried_by_every_rule(benchmark: Any, tmp_path: Path) -> None:
    newcomers = benchmark("newcomers")
    newcomers.main("digits-rotate", seeds=1, first=0, rounds=1, out=tmp_path)
    content = json.loads((tmp_path / "newcomers-digits-rotate.json").read_text())
    lines = {(line["routing"], line["rule"], line["samples"]): line for line in content["results"]}
    assert len(lines) == len(content["results"]) == 2 * (3 + 3 * 7)
    assert all(np.shape(line["accuracy"]) == (1, 8) for line in lines.values())
    assert np.shape(lines["learned", "entropy, gradient", 5]["right cluster"]) == (1, 8)
    # inputs alone tell how a newcomer is turned, whatever the models have learned
    assert np.mean(lines["optimal", "prototypes, pixels", 20]["right cluster"]) > 0.9
    assert content["machine"]["seeds"] == [0]


def test_newcomers_are_fitted_to_their_own_samples_and_scored_on_their_own_test_shards(
    benchmark: Any,
) -> None:
    newcomers, task = benchmark("newcomers"), tasks.load("digits-rotate", num_clients=24)
    for one, other in zip(newcomers.federation_of(task).train, task.train[:16], strict=True):
        assert torch.equal(one.inputs, other.inputs)
    generator, (inputs, targets) = torch.Generator().manual_seed(0), newcomers.draw(task, 5)
    models = {
        name: torch.randn(4, *tensor.shape, generator=generator) / 5
        for name, tensor in task.model.named_parameters()
    }
    views = {"pixels": torch.zeros(4, 10, 64), "hidden": torch.zeros(4, 10, len(models["1.bias"][0]))}
    found = newcomers.rules(models, views, Shard(inputs, targets))
    fitted = {rule: newcomers.mixed(models, mixture) for rule, mixture in found.items()}
    fitted["all parameters"] = newcomers.tuned(models, Shard(inputs, targets))
    outputs = {rule: newcomers.run(parameters, inputs) for rule, parameters in fitted.items()}
    uniform = newcomers.run(newcomers.mixed(models, torch.full((32, 4), 0.25)), inputs)
    loss = newcomers.mean_loss
    for rule in ("labels, gradient", "labels, closed form", "all parameters"):
        assert loss(outputs[rule], targets) < loss(uniform, targets), rule
    for rule in ("entropy, gradient", "entropy, closed form"):
        assert entropy(outputs[rule].softmax(dim=-1)).sum() < entropy(uniform.softmax(dim=-1)).sum(), rule
    # each of a newcomer's models says one digit, and each newcomer has another
    said = {name: torch.zeros(32, *tensor.shape[1:]) for name, tensor in models.items()}
    said["3.bias"] = torch.eye(10)[torch.arange(8).repeat_interleave(4)]
    shares = [(task.test[16 + k].targets == k).double().mean().item() for k in range(8)]
    assert newcomers.accuracies(task, said) == pytest.approx(shares, abs=1e-4)


def test_the_networks_of_the_newcomers_are_the_tasks(benchmark: Any) -> None:
    newcomers, task = benchmark("newcomers"), tasks.load("digits-rotate")
    parameters = {name: torch.stack([w, 2 * w]).detach() for name, w in task.model.named_parameters()}
    inputs = torch.stack([shard.inputs[:3] for shard in task.train[:2]])
    outputs = newcomers.run(parameters, inputs)
    for index in range(2):
        own = {name: tensor[index] for name, tensor in parameters.items()}
        torch.testing.assert_close(outputs[index], functional_call(task.model, own, (inputs[index],)))


def test_choosing_keeps_validation_samples_away_and_says_what_there_is(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choosing = benchmark("choosing")
    task = tasks.load("digits-rotate")
    kept, away = choosing.split(task)
    for whole, first, rest in zip(task.train, kept.train, away, strict=True):
        assert 4 * len(rest) <= len(first) == len(whole) - len(rest)
        assert torch.equal(torch.cat([first.inputs, rest.inputs]), whole.inputs)
    # of clients with other models and other numbers of samples
    method = methods.FLoRAL(task.model, 4, rank=1, routing="optimal")
    state = method.initialise(task.clusters, 0)
    state.clustered.update({name: torch.randn_like(old) / 5 for name, old in state.clustered.items()})
    uneven = [Shard(inputs[: 1 + k % 3], targets[: 1 + k % 3]) for k, (inputs, targets) in enumerate(away)]
    losses = [
        functional.cross_entropy(
            functional_call(task.model, method.personalise(state.of_client(k)), (shard.inputs,)),
            shard.targets,
            reduction="none",
        )
        for k, shard in enumerate(uneven)
    ]
    loss = choosing.validation_loss(Run(task, method), SimpleNamespace(state=state), uneven)
    assert loss == pytest.approx(torch.cat(losses).mean().item(), rel=1e-5)
    monkeypatch.setitem(choosing.CASES, "counts", [(2, 0.25, 3, 0.1)])
    monkeypatch.setitem(choosing.SEEDS, "counts", 1)
    choosing.main("digits-rotate", "counts", first=4, rounds=1, out=tmp_path)
    (line,) = json.loads((tmp_path / "choosing-digits-rotate-counts.json").read_text())["results"]
    assert (line["clusters"], line["fraction"], line["C"], line["seed"]) == (2, 0.25, 3, 4)
    assert 1.5 < line["validation loss"] < 3
    assert 1 <= line["effective"] < 1.1
    assert line["added"] > 0


def test_ablations_change_one_thing_at_a_time(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ablations = benchmark("ablations")
    usual = ablations.Case(0.01, 4)
    cases = ablations.weights(4)
    assert len(set(cases)) == len(cases)
    assert usual in cases
    assert {case.adaptors for case in ablations.counts(4, 20)} == {1, 2, 4, 8, 20}
    chosen = [ablations.Case(0.01, 4, layers=(), biases=False), ablations.Case(0.01, 4, layers=()), usual]
    monkeypatch.setattr(ablations, "weights", lambda clusters: chosen)
    monkeypatch.setattr(ablations, "counts", lambda clusters, clients: [ablations.Case(0.1, 2, 0.2)])
    for part in ("weights", "counts"):
        ablations.main("digits-rotate", part, seeds=1, rounds=1, out=tmp_path)
    content = json.loads((tmp_path / "ablations-digits-rotate-weights.json").read_text())
    base = 80 + 1168 + 64 * 32 + 32 + 330
    assert (content["machine"]["clusters"], content["machine"]["base"]) == (4, base)
    fedavg, biases, both = (line["parameters"] for line in content["results"])
    # the biases, and factors of rank 1: 8 * 3 + 1 * 3, (16 + 8) * 3, 32 + 64, 10 + 32
    assert (fedavg, biases, both) == (0, 66, 66 + 27 + 72 + 96 + 42)
    content = json.loads((tmp_path / "ablations-digits-rotate-counts.json").read_text())
    (line,) = content["results"]
    assert (line["adaptors"], line["fraction"], line["rounds"]) == (2, 0.2, 1)
    assert 0 < line["accuracy"][0] < 0.5


def test_the_adaptors_of_an_ablation_are_dealt_to_the_clients(benchmark: Any) -> None:
    ablations, task = benchmark("ablations"), tasks.load("digits-rotate", num_clients=8)
    run = ablations.make_run(task, ablations.Case(0.1, 3, kind="channel_in", layers=("linear",)), 0)
    assert run.task.clusters.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    logits = run.method.initialise(run.task.clusters, 0).private[ROUTER]
    assert logits.softmax(dim=-1).argmax(dim=-1).tolist() == run.task.clusters.tolist()
    assert run.method.plan.keys() == {"1.weight", "1.bias", "3.weight", "3.bias"}
    weights_only = ablations.make_run(task, ablations.Case(0.1, 3, biases=False), 0).method.plan
    assert weights_only.keys() == {"1.weight", "3.weight"}
    task = replace(task, model=ablations.network())
    of_linear = ablations.make_run(task, ablations.Case(0.1, 3, layers=("linear",)), 0).method.plan
    assert of_linear.keys() == {"0.bias", "2.bias", "5.weight", "5.bias", "7.weight", "7.bias"}


@pytest.mark.parametrize("name", ["floor", "growth", "measure"])
def test_the_examples_are_true(benchmark: Any, name: str) -> None:
    failed, tried = doctest.testmod(benchmark(name))
    assert tried > 0
    assert failed == 0


def test_recovery_begins_with_the_task_itself(benchmark: Any) -> None:
    recovery, task = benchmark("recovery"), tasks.load("synthetic-linear", seed=1)
    made, truth = recovery.make_task(1, 2, recovery.USUAL_ALPHA, recovery.USUAL_SAMPLES)
    for ours, usual in zip([*made.train, *made.test], [*task.train, *task.test], strict=True):
        assert torch.equal(ours.inputs, usual.inputs)
        torch.testing.assert_close(ours.targets, usual.targets)
    assert torch.equal(truth.maps(), tasks.truth(task).maps())


def test_recovery_finds_the_truth_where_it_is_put_in(benchmark: Any) -> None:
    recovery = benchmark("recovery")
    task, truth = recovery.make_task(0, 2, 1.0, 6)
    method = methods.FLoRAL(task.model, 2, rank=1, routing="optimal")
    state = method.initialise(task.clusters, 0)
    state.shared["weight"] = truth.base
    federation = SimpleNamespace(state=state)
    assert recovery.found(Run(task, method), federation, truth)["models"] > 0.1  # adaptors are zero
    state.clustered["weight.U"], state.clustered["weight.V"] = truth.left, truth.right
    numbers = recovery.found(Run(task, method), federation, truth)
    assert numbers == pytest.approx({"models": 0, "base": 0, "centered base": 0, "Rand index": 1}, abs=1e-6)
    state.shared["weight"] = 1.1 * truth.base
    assert recovery.found(Run(task, method), federation, truth)["base"] == pytest.approx(0.1, abs=1e-6)


def test_recovery_is_measured_on_bent_tasks(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery, asked = benchmark("recovery"), []

    def told(make: Any, cases: Any, *others: Any) -> Any:
        asked.append(cases)
        return original(make, cases, *others)

    original = recovery.measure
    monkeypatch.setattr(recovery, "measure", told)
    monkeypatch.setattr(recovery, "SAMPLES", (4,))
    recovery.main(seeds=2, rounds=1, longer=1, out=tmp_path)
    content = json.loads((tmp_path / "recovery.json").read_text())
    assert asked[-3:] == [[(num, 2.0, 6)] for num in (2, 3, 4)]
    bent = [line for line in content["results"] if line["kind"] == "bend"]
    assert len(bent) == len(recovery.METHODS) * len(recovery.ALPHAS) * len(recovery.SAMPLES)
    assert all(len(line["models"]) == 2 for line in content["results"])
    # where the clusters do not differ, the base is the model
    same = [line for line in bent if line["alpha"] == 0 and line["method"] == "FedAvg"]
    for line in same:
        assert line["base"] == pytest.approx(line["models"], abs=2e-6)  # they are rounded
        assert line["centered base"] == pytest.approx(line["models"], abs=2e-6)


def test_silent_units_tell_which_seed_diverged(benchmark: Any) -> None:
    silent = benchmark("silent_units")
    usual = [silent.make_run(seed, "after", "affine") for seed in (1, 2)]
    assert isinstance(silent.make_run(1, "before", "affine").task.model[1], nn.BatchNorm1d)
    endless = [Shard(shard.inputs, shard.targets * 1e30) for shard in usual[1].task.train]
    broken = replace(usual[1].task, train=endless)
    settings = usual[0].task.settings.with_changes(rounds=2, evaluate_every=2, batch_size=56)
    first, second = silent.ends([usual[0], usual[1]._replace(task=broken)], settings)
    assert first["seed"] == 1
    assert first["test loss"] > 0
    assert first["diverged in"] is None
    assert second == {"seed": 2, "test loss": None, "diverged in": 1}


def test_silent_units_are_written_for_every_case(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = benchmark("silent_units")
    monkeypatch.setattr(silent, "CASES", (("after", 56), ("before", 56)))
    silent.main(seeds=1, rounds=1, out=tmp_path)
    results = json.loads((tmp_path / "silent-units.json").read_text())["results"]
    made = [(line["norm"], line["batch"], line["rule"]) for line in results]
    assert made == [(*case, rule) for case in silent.CASES for rule in silent.RULES]
    assert all(line["test loss"] > 0 for line in results)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_server_goes_a_part_of_the_way_to_the_adaptors_average(benchmark: Any, share: float) -> None:
    task = tasks.load("digits-rotate", seed=1)
    settings = task.settings.with_changes(rounds=1, evaluate_every=1)
    part = benchmark("server_rate").PartOfTheWay(task.model, rank=1, routing="optimal")
    part.share = share
    usual = methods.FLoRAL(task.model, rank=1, routing="optimal")
    start = usual.initialise(task.clusters, 1)
    after, whole = (train_runs([Run(task, method, 1)], settings)[0].state for method in (part, usual))
    torch.testing.assert_close(after.shared, whole.shared)
    for name, tensor in start.clustered.items():
        expected = torch.lerp(tensor, whole.clustered[name], share)
        torch.testing.assert_close(after.clustered[name], expected, rtol=1e-4, atol=1e-6)


def test_biases_are_drawn_as_torch_draws_those_of_the_outer_layer(benchmark: Any) -> None:
    task, script = tasks.load("digits-rotate", seed=1), benchmark("server_rate")
    method, alone = script.PartOfTheWay(task.model, rank=4), script.DrawnLocalAdaptor(task.model, rank=4)
    usual = method.initialise(task.clusters, 1)
    method.draws_biases = True
    state, private = method.initialise(task.clusters, 1), alone.initialise(task.clusters, 1).private
    for name, tensor in state.clustered.items():
        if name.endswith("bias.L"):
            for drawn in (tensor, private[name]):  # for each cluster, for each client
                assert 0.45 < drawn.abs().max() <= 0.5  # 1 / sqrt(4)
                assert not torch.equal(drawn[0], drawn[1])
        else:
            assert torch.equal(tensor, usual.clustered[name])
    adaptors = {"0.weight": LowRankAdaptor("balanced", (1000, 3, 5, 5), rows=(0, 3), columns=(1, 2), rank=4)}
    (kernel,) = script.drawn_biases(adaptors, {"0.bias.L": torch.zeros(4, 1000)}, 1).values()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert 0.49 < nn.Linear(4, 10_000).bias.abs().max() <= 0.5
        of_torch = nn.Conv2d(4, 10_000, (1, 5)).bias  # U's layer: 4 channels, one side of the kernel
    assert of_torch is not None
    torch.testing.assert_close(kernel.abs().max(), of_torch.abs().max(), rtol=1e-2, atol=0)


def test_a_servers_rate_is_tried_where_it_was_not(benchmark: Any, tmp_path: Path) -> None:
    script = benchmark("server_rate")
    run = partial(script.main, "digits-rotate", rounds=1, out=tmp_path)
    run = partial(run, rows="floral-10-optimal,floral-10-learned,local-adaptor")
    run(seeds=1, all_of_it=True, checkpoints=tmp_path)
    apart = json.loads((tmp_path / "authors-digits-rotate.json").read_text())["results"]
    optimal, learned = (line["mismatch"] for line in apart)
    assert 0 < optimal < 0.1 < learned  # no mixture weight is below the floor of 0.01
    run(seeds=1, biases=True)
    run(seeds=1, all_of_it=True, biases=True)
    for case, share in (("biases", 1.0), ("authors-biases", 0.3), ("authors", 0.3)):
        lines_of = json.loads((tmp_path / f"{case}-digits-rotate.json").read_text())["results"]
        assert {line["share"] for line in lines_of} == {share}
        assert ("local" in {line["routing"] for line in lines_of}) == ("biases" in case)
    for seeds, lines in ((1, 2), (2, 4), (2, 4)):
        run(seeds=seeds)
        results = json.loads((tmp_path / "server-rate-digits-rotate.json").read_text())["results"]
        assert (
            len({(line["seed"], line["rho"], line["routing"]) for line in results}) == len(results) == lines
        )
    with pytest.raises(InputError, match="fedavg is no row: name some of floral-10-optimal"):
        run(rows="fedavg")


def test_a_model_is_scored_on_what_it_was_trained_on_and_on_its_whole_shard(
    benchmark: Any, tmp_path: Path
) -> None:
    script = benchmark("tested_on")
    for rows in ("fedavg", "fedavg,floral-1-optimal"):
        script.main("digits-rotate-reduced", rows=rows, rounds=30, out=tmp_path)
    first, second = json.loads((tmp_path / "tested-on-digits-rotate-reduced.json").read_text())["results"]
    assert (first["row"], second["row"]) == ("fedavg", "floral-1-optimal")
    for line in (first, second):  # what was trained on is a part of the shard, and known best
        assert line["trained on"] > line["all training images"] > 25
        assert line["trained on"] > line["test"] > 25
    layer = nn.Linear(1, 2)
    layer.load_state_dict({"weight": torch.tensor([[-1.0], [1.0]]), "bias": torch.zeros(2)})
    assert (
        script.accuracy(layer, Shard(torch.tensor([[-1.0], [1.0], [2.0], [3.0]]), torch.tensor([0, 1, 1, 0])))
        == 75
    )


def test_a_model_of_one_cluster_is_trained_in_each_order(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, asked = benchmark("batch_order"), []

    def told(runs: list[Run], settings: Settings, **choices: Any) -> Any:
        asked.append(settings.shuffle)
        return train_runs(runs, settings, **choices)

    monkeypatch.setattr(script, "train_runs", told)
    whole = tasks.load("digits-rotate", seed=1)
    clients = [k for k, cluster in enumerate(whole.clusters.tolist()) if cluster == 0]
    for last, kept in ((None, 72), (0, 64), (3, 67), (9, 57)):
        own = script.of_one_cluster(whole, last)
        assert 0 < own.num_clients == len(clients) < whole.num_clients
        for client, shard in zip(clients, own.train, strict=True):
            assert torch.equal(shard.inputs, whole.train[client].inputs[:kept])
    assert sum(map(len, own.test)) == sum(map(len, whole.test))
    for cases in ("fixed", "shuffled,fixed,fixed-whole"):
        script.main("digits-rotate", cases=cases, rounds=20, out=tmp_path)
    lines = json.loads((tmp_path / "batch-order-digits-rotate.json").read_text())["results"]
    assert [line["case"] for line in lines] == ["fixed", "shuffled", "fixed-whole"]
    assert asked == [False, True, False]
    assert all(line["round"] == [10, 20] for line in lines)
    assert len({tuple(line["accuracy"]) for line in lines}) == 3
    assert [set(line["images"]) for line in lines] == [{72}, {72}, {64}]
    with pytest.raises(InputError, match="in order is no case"):
        script.main("digits-rotate", cases="shuffled-4,in order", rounds=20, out=tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()  # not after an hour of the first case
    with pytest.raises(InputError, match="synthetic-linear is no task of images"):
        script.of_one_cluster(tasks.load("synthetic-linear", seed=1), None)


def test_the_public_codes_groups_are_the_labels_with_the_same_last_digit_and_its_biases_are_drawn(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = benchmark("tested_on")
    labels = torch.arange(100).repeat_interleave(10)
    pixels = labels.to(torch.uint8)[:, None, None, None].expand(-1, 3, 32, 32)  # an image shows its label
    monkeypatch.setattr(script, "cifar100", lambda data: Images(pixels, labels, pixels, labels))
    task = script.load("cifar100-reduced", "floral-1-optimal-public", 1, None)
    for shards in (task.train, task.test):
        for client in (0, 7, 93):
            inputs, targets = shards[client]
            shown = (255 * inputs[:, 0, 0, 0]).round().long()
            assert (shown % 10 == client % 10).all()
            assert targets.tolist() == (10 * (shown % 10) + shown // 10).tolist()
            assert len(set(shown.tolist())) > 3

    def stop(runs: list[Run], *_: object, **__: object) -> None:
        assert (runs[0].method.draws_biases, runs[0].method.share) == (True, 1.0)
        raise KeyboardInterrupt

    monkeypatch.setattr(script, "train_runs", stop)
    with pytest.raises(KeyboardInterrupt):
        script.main("cifar100-reduced", rows="floral-1-optimal-public", out=tmp_path)
    with pytest.raises(InputError, match="CIFAR-100's labels, and the task is digits-rotate"):
        script.load("digits-rotate", "floral-1-optimal-public", 1, None)
