"""The laboratory: what it runs is what its code runs; it stops, begins anew, and leaves nothing behind."""

import gc
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex

from floral_lite import InputError, Task, methods, tasks, widgets
from floral_lite.federation import History, Round
from floral_lite.laboratory import (
    Choices,
    Laboratory,
    Progress,
    Training,
    as_code,
    controls,
    in_turns,
    panel,
    training,
)
from floral_lite.laboratory import numbers as lines
from floral_lite.plots import Picture

SHORT = "digits-rotate"
USUAL = Choices()


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds."""
    limit(monkeypatch, 3)


def limit(monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    recipe = tasks.TASKS[SHORT]
    settings = recipe.settings.with_changes(rounds=rounds)
    monkeypatch.setitem(tasks.TASKS, SHORT, replace(recipe, settings=settings))


@pytest.fixture
def laboratory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Laboratory]:
    """One whose runs only end when they are stopped."""
    limit(monkeypatch, 10_000)
    made = Laboratory()
    yield made
    made.stop()
    made.training.wait(30)


def until(holds: Callable[[], object]) -> None:
    """Wait for a thread, half a minute at most."""
    for _ in range(3000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("waited in vain")


def numbers(history: History) -> list[tuple[float, float | None, Any]]:
    return [(entry.train_loss, entry.test_accuracy, entry.mixture) for entry in history.rounds]


OTHERS = Choices(
    methods=("floral", "ensemble", "local-adaptor", "local"),
    num_clusters=3,
    budget=0.2,
    data_fraction=0.25,
    local_epochs=2,
    participation=0.5,
    routing="optimal",
    precondition=False,
    seed=1,
)


@pytest.mark.parametrize("choices", [USUAL, OTHERS], ids=["usual", "others"])
def test_the_code_repeats_the_runs(choices: Choices) -> None:
    *_, last = in_turns(choices)
    names: dict[str, Any] = {}
    exec(as_code(choices), names)
    assert list(names["histories"]) == list(choices.methods)
    for name, history in names["histories"].items():
        assert len(history.rounds) == 3
        assert numbers(history) == numbers(last.histories[name])
        ours = last.histories[name].config
        assert {key: history.config[key] for key in ours} == ours


def test_every_choice_reaches_the_run() -> None:
    *_, last = in_turns(OTHERS)
    config = last.histories["floral"].config
    wanted = {"task": SHORT, "num_clusters": 3, "budget": 0.2, "data_fraction": 0.25, "local_epochs": 2}
    wanted |= {"participation": 0.5, "routing": "optimal", "precondition": False, "seed": 1, "task_seed": 1}
    assert {key: config[key] for key in wanted} == wanted


def test_a_run_in_words_says_all_that_is_not_as_usual() -> None:
    assert USUAL.words("floral") == "floral, C = 4, rho = 10%"
    assert OTHERS.words("floral") == (
        "floral, C = 3, rho = 20%, optimal, not preconditioned, 25% of the data, 2 epochs a round, "
        "50% of the clients, seed 1"
    )


def test_the_code_has_short_lines_for_every_method() -> None:
    assert "methods.FedAvg(task.model)" in as_code(USUAL)
    assert '"device": "cuda"' in as_code(replace(USUAL, device="cuda"))
    for name in methods.METHODS:
        code = as_code(replace(OTHERS, methods=(name,), task="digits-label-groups-reduced"))
        compile(code, name, "exec")
        assert max(map(len, code.splitlines())) <= 100


def test_a_round_of_each_in_turn() -> None:
    done = [{name: len(run.rounds) for name, run in now.histories.items()} for now in in_turns(USUAL)]
    assert done[:3] == [{"fedavg": 1}, {"fedavg": 1, "floral": 1}, {"fedavg": 2, "floral": 1}]
    assert len(done) == 6


def test_a_task_that_is_loaded_already_is_taken_and_rounds_a_second_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    halves = SimpleNamespace(perf_counter=iter(np.arange(0, 100, 0.5)).__next__)
    monkeypatch.setattr(training, "time", halves)
    for now in in_turns(USUAL, replace(tasks.load(SHORT), name="my own")):
        assert {history.config["task"] for history in now.histories.values()} == {"my own"}
        assert set(now.rates.values()) == {2.0}


def test_wrong_choices_are_told() -> None:
    with pytest.raises(InputError, match="no method is chosen"):
        Choices(methods=())
    with pytest.raises(InputError, match="did you mean 'floral'"):
        Choices(methods=("flora",))


def test_a_training_tells_every_round_and_then_that_it_has_finished() -> None:
    seen: list[tuple[str, threading.Thread]] = []
    training = Training(lambda now: seen.append((now.state, threading.current_thread())))
    training.start(USUAL)
    training.wait(60)
    assert [state for state, _ in seen] == ["running"] * 6 + ["finished"]
    assert threading.current_thread() not in {thread for _, thread in seen}
    assert not training.running


def test_another_start_replaces_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 10_000)
    seen: list[Progress] = []
    training = Training(seen.append)
    training.start(USUAL)
    until(lambda: seen)
    other = replace(USUAL, budget=0.2)
    training.start(other)
    until(lambda: seen[-1].choices == other)
    assert training.running
    training.stop()
    training.wait(30)
    changes = [now.choices for now in seen]
    assert changes == sorted(changes, key=lambda choices: choices.budget)  # nothing from before after it
    assert [now.state for now in seen if now.state != "running"] == ["stopped"]


def test_what_was_stopped_is_told_though_another_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 10_000)
    seen: list[Progress] = []
    training = Training(seen.append)
    other = replace(USUAL, seed=1)
    for choices in (USUAL, other):
        training.start(choices)
        until(lambda choices=choices: seen and seen[-1].choices == choices and seen[-1].state == "running")
        training.stop()
    training.wait(30)
    ends = [(now.choices, now.state) for now in seen if now.state != "running"]
    assert ends == [(USUAL, "stopped"), (other, "stopped")]


def test_runs_wait_for_those_before_them_and_take_their_task_where_it_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[Choices] = []
    released = threading.Event()

    def load(choices: Choices) -> Task:
        assert runs._loaded is None  # there is no room for two
        loaded.append(choices)
        released.wait(30)
        return tasks.load(choices.task, **choices.task_options())

    monkeypatch.setattr(Choices, "load", load)
    runs = Training(lambda _: None)
    runs.start(USUAL)
    until(lambda: loaded)
    assert runs.running
    runs.stop()
    assert not runs.running
    other = replace(USUAL, data_fraction=0.25)
    runs.start(other)
    time.sleep(0.05)
    assert loaded == [USUAL]
    released.set()
    runs.wait(30)
    for choices in (replace(other, budget=0.2), replace(other, task="digits-rotate-reduced")):
        runs.start(choices)
        runs.stop()
        runs.wait(30)
    assert loaded == [USUAL, other, replace(other, task="digits-rotate-reduced")]


def test_an_error_without_words_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_: Choices) -> Task:
        raise MemoryError

    monkeypatch.setattr(Choices, "load", load)
    seen: list[Progress] = []
    runs = Training(seen.append)
    runs.start(USUAL)
    runs.wait(30)
    assert [(now.state, now.message) for now in seen] == [("failed", "MemoryError")]


def test_an_error_is_a_sentence(laboratory: Laboratory) -> None:
    laboratory.controls["methods"].value = ("fedbn",)
    laboratory.run_button.click()
    laboratory.training.wait(30)
    assert "FedBN keeps norms with the clients" in laboratory.message.value
    assert laboratory.stop_button.disabled
    laboratory.controls["methods"].value = ()
    laboratory.run_button.click()
    assert "no method is chosen" in laboratory.message.value
    assert laboratory.code.value.startswith("# no method is chosen")


def test_no_method_ends_what_runs(laboratory: Laboratory) -> None:
    laboratory.run()
    laboratory.controls["methods"].value = ()
    assert not laboratory.training.running
    laboratory.training.wait(30)
    assert "no method is chosen" in laboratory.message.value
    laboratory.controls["methods"].value = ("fedavg",)
    laboratory.run()
    laboratory.stop()
    laboratory.training.wait(30)
    assert "Stopped after" in laboratory.message.value


def test_run_draws_and_stop_ends_it_and_leaves_a_thin_line(laboratory: Laboratory) -> None:
    threads = threading.active_count()
    laboratory.run_button.click()
    until(lambda: laboratory.routers.value)
    first = laboratory.curves.value
    until(lambda: laboratory.curves.value != first)
    assert bytes(first).startswith(b"\x89PNG")
    assert not laboratory.stop_button.disabled
    laboratory.stop_button.click()
    laboratory.training.wait(30)
    assert threading.active_count() == threads
    assert "Stopped after" in laboratory.message.value
    assert [kept.row[:2] for kept in laboratory._kept] == [
        ("1", "fedavg"),
        ("2", "floral, C = 4, rho = 10%"),
    ]


def test_the_first_drawing_has_every_method() -> None:
    """Else the method that comes second would wait for the next drawing."""
    laboratory = Laboratory()
    for now in islice(in_turns(USUAL), 2):
        assert not laboratory.table.value
        laboratory._show(now)
    assert laboratory.curves.value
    assert laboratory.curves.tooltip.endswith("of fedavg, floral: see the table below")
    assert laboratory.curves.get_state()["description"] == ""  # without one the page has an error instead
    assert not laboratory.routers.value  # they have not moved yet
    assert all(f">{name}<" in laboratory.table.value for name in USUAL.methods)


def test_the_routers_of_another_task_are_not_left_beside_the_new_curves() -> None:
    laboratory = Laboratory()
    laboratory.routers.layout.display = ""
    other = replace(USUAL, task="digits-label-shift", methods=("fedavg",))
    laboratory._show(Progress(other, {"fedavg": made_up()}, {"fedavg": 1.0}))
    assert laboratory.curves.value
    assert laboratory.routers.layout.display == "none"


def made_up(**changes: Any) -> History:
    """A run of one round."""
    entry = Round(**{"round": 1, "train_loss": 1.0, "seconds": 0.1, "test_loss": 0.5} | changes)
    return History({}, [0], 8, 8, {"base": 1, "added": 0}, [entry])


def shown(state: Any = "finished", histories: dict[str, History] | None = None, **others: Any) -> Laboratory:
    """A laboratory that was told of such runs."""
    laboratory, histories = Laboratory(), {"fedavg": made_up()} if histories is None else histories
    choices = replace(USUAL, methods=("fedavg",))
    laboratory._show(Progress(choices, histories, dict.fromkeys(histories, 1.0), state, **others))
    return laboratory


def test_a_run_that_failed_is_told_and_leaves_no_line() -> None:
    laboratory = shown("failed", message="a < b")
    assert "a &lt; b" in laboratory.message.value
    assert not laboratory._kept
    # before its first round there is nothing to draw
    assert not shown("failed", {}).curves.value


def test_what_was_stopped_is_as_long_as_its_shortest_run_and_leaves_what_was_evaluated() -> None:
    two = made_up()
    two.rounds.append(Round(2, train_loss=1.0, seconds=0.1))
    laboratory = shown("stopped", {"fedavg": two, "local": made_up(test_loss=None)})
    assert "Stopped after 1 rounds" in laboratory.message.value
    # a regression, which has no accuracy
    (kept,) = laboratory._kept
    assert kept.curve["test_loss"].to_dict() == {1: 0.5}


def test_other_choices_and_the_end_are_drawn_at_once_and_runs_before_them_stay_in_sight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[list[str]] = []

    def draw(histories: Any, before: Any, *others: Any) -> Picture:
        drawn.append([*histories, *before])
        return original(histories, before, *others)

    original = panel.draw_progress
    monkeypatch.setattr(panel, "draw_progress", draw)
    laboratory = shown(histories={"fedavg": made_up(test_accuracy=0.5)})
    assert laboratory.curves.layout.display == ""
    laboratory._next = float("inf")
    other = Progress(USUAL, dict.fromkeys(USUAL.methods, made_up()), dict.fromkeys(USUAL.methods, 1.0))
    laboratory._show(other)
    assert "Training, 3 rounds" in laboratory.message.value
    assert drawn == [["fedavg"], ["fedavg", "floral", "1"]]
    assert re.findall('<tr><td style="[^"]*">([^<]*)<', laboratory.table.value) == drawn[-1]
    assert laboratory._picture is not None
    colours = [to_hex(line.get_color()) for line in laboratory._picture.legends[0].get_lines()]
    assert re.findall("border-left:.5em solid (#[0-9a-f]{6})", laboratory.table.value) == colours
    # and so is the end
    laboratory._next = float("inf")
    laboratory._show(other._replace(state="finished"))
    assert len(drawn) == 3
    assert laboratory.routers.layout.display == "none"  # nothing is mixed


def test_most_of_the_time_is_for_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drawing that takes a second is followed by two without."""
    monkeypatch.setattr(panel, "time", SimpleNamespace(monotonic=iter(range(1, 100)).__next__))
    laboratory = shown("running")
    assert laboratory._next == 3 + 2
    monkeypatch.setattr(panel, "time", SimpleNamespace(monotonic=lambda: 7.0))
    assert shown("running")._next == 7 + panel.PAUSE  # the pictures come one by one


def test_a_control_that_moves_begins_anew_only_while_it_runs(laboratory: Laboratory) -> None:
    laboratory.controls["budget"].value = 0.05
    assert not laboratory.training.running
    assert "budget=0.05" in laboratory.code.value
    laboratory.run_button.click()
    until(lambda: laboratory.curves.value)
    laboratory.controls["budget"].value = 0.2
    until(lambda: "rho = 20%" in laboratory.table.value)
    assert laboratory.training.running
    assert not laboratory._kept  # neither finished nor stopped


@pytest.mark.parametrize("again", [False, True])
def test_the_stop_button_works_whatever_is_done_while_the_last_picture_is_drawn(
    monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    laboratory = Laboratory()
    original = panel.draw_progress

    def draw(histories: dict[str, History], *others: Any) -> Picture:
        if {len(run.rounds) for run in histories.values()} == {3}:
            limit(monkeypatch, 10_000)
            laboratory.controls["budget"].value = 0.2
            if again:
                laboratory.run_button.click()
        return original(histories, *others)

    monkeypatch.setattr(panel, "draw_progress", draw)
    laboratory.run()
    until(lambda: "rho = 20%" in laboratory.table.value if again else laboratory._kept)
    assert laboratory.training.running == again
    assert laboratory.stop_button.disabled != again
    assert ("Finished after 3 rounds" in laboratory.message.value) != again
    laboratory.stop()
    laboratory.training.wait(30)
    assert laboratory.stop_button.disabled


def test_it_computes_on_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for there in (["cpu"], ["cuda:0", "cuda:1", "cpu"]):
        for module in (panel, controls):
            monkeypatch.setattr(module, "devices", lambda there=there: there)
        control = Laboratory().controls["device"]
        assert control.value == there[0]
        assert set(control.options) == set(there)


def test_a_slider_tells_its_value_when_it_is_let_go(laboratory: Laboratory) -> None:
    told = {
        name: control.continuous_update
        for name, control in laboratory.controls.items()
        if "slider" in type(control).__name__.lower()
    }
    names = ("num_clusters", "budget", "data_fraction", "local_epochs", "participation")
    assert told == dict.fromkeys(names, False)


def test_a_task_brings_its_own_clusters_and_clients_and_begins_once(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Choices] = []
    laboratory.run()
    monkeypatch.setattr(laboratory.training, "start", begun.append)
    laboratory.controls["task"].value = "cifar100"
    assert len(begun) == 1
    assert (laboratory.controls["num_clusters"].value, laboratory.controls["participation"].value) == (
        10,
        0.5,
    )


def test_what_is_finished_stays_until_another_task_and_not_more_than_eight() -> None:
    laboratory = Laboratory()
    laboratory.controls["methods"].value = ("fedavg", "local")
    for _ in range(5):
        laboratory.run()
        laboratory.training.wait(60)
    assert "Finished after 3 rounds" in laboratory.message.value
    assert [kept.row[0] for kept in laboratory._kept] == [str(number) for number in range(3, 11)]
    laboratory.controls["task"].value = "synthetic-linear"
    laboratory.run()
    until(lambda: laboratory._shown.task == "synthetic-linear")
    laboratory.stop()
    laboratory.training.wait(60)
    assert all(int(kept.row[0]) > 10 for kept in laboratory._kept)


def test_restarts_leave_no_threads_histories_or_pictures(laboratory: Laboratory) -> None:
    def alive() -> tuple[int, int]:
        laboratory.stop()
        laboratory.training.wait(30)
        gc.collect()
        large = [thing for thing in gc.get_objects() if type(thing) in (History, Picture, Task)]
        return threading.active_count(), len(large)

    def restart(budget: float) -> None:
        laboratory.controls["budget"].value = budget
        until(lambda: laboratory._shown.budget == budget)

    laboratory.run()
    restart(0.2)
    before = alive()
    laboratory.run()
    for budget in (0.01, 0.02, 0.05, 0.1, 0.2):
        restart(budget)
    assert alive() == before


def test_fedavg_and_ensemble_are_the_measure() -> None:
    *_, last = in_turns(replace(USUAL, methods=("fedavg", "ensemble", "floral")))
    cells = {name: lines.row("", name, history, 1.0, 4)[5:7] for name, history in last.histories.items()}
    assert cells["fedavg"] == ("1.00, 0.25", "1.00, 0.25")
    assert cells["ensemble"] == ("4.00, 1.00", "4.00, 1.00")
    floral = last.histories["floral"]
    held = 1 + floral.parameters["added"] / floral.parameters["base"]
    assert cells["floral"][0] == f"{held:.2f}, {held / 4:.2f}"
    # what it has come to, and how fast
    longer = made_up(test_accuracy=0.25)
    longer.rounds += made_up(round=2, test_accuracy=0.625, test_loss=0.25).rounds
    longer.rounds.append(Round(3, train_loss=1.0, seconds=0.1))
    row = lines.row("1", "words", longer, 2.0, 4)
    assert (*row[:5], row[7]) == ("1", "words", "3", "62.5", "0.250", "2.0")
    # one parameter, and the client's weight
    tiny = History({}, [0], 8, 8, {"base": 1, "added": 0})
    assert lines.row("", "", tiny, 1.0, 4)[6] == "1.00, 0.25"


def test_it_shows_itself_and_tells_a_page_without_kernel_where_to_run_it() -> None:
    bundle = Laboratory()._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert "open this chapter in Colab" in str(bundle["text/html"])
    assert widgets.Laboratory is Laboratory
