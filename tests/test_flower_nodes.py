"""Which node is which client: asked once, believed within reason, waited for within patience."""

import logging
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'flwr>=1.41'")

from flwr.app import Context, Error, Message, MetricRecord, RecordDict

from floral_lite import InputError
from floral_lite.flower.client import find_number
from floral_lite.flower.nodes import ANSWER, Nodes

from .flower_grid import LocalGrid


def answering(claims: dict[int, Any]) -> LocalGrid:
    """Nodes 100, 101, ... that claim to be clients, or answer with an error."""

    def app(message: Message, context: Context) -> Message:
        claim = claims[context.node_id]
        if isinstance(claim, Error):
            return Message(claim, reply_to=message)
        return Message(RecordDict({"metrics": MetricRecord({"client": claim})}), reply_to=message)

    return LocalGrid(app, len(claims))  # type: ignore[arg-type]


def listen(nodes: Nodes, grid: LocalGrid, times: int = 4) -> dict[int, int]:
    for _ in range(times):
        found = nodes.present(grid)
    return found


def test_each_node_is_asked_once() -> None:
    grid = answering({100: 2, 101: 0, 102: 1})
    assert listen(Nodes(3), grid) == {2: 100, 0: 101, 1: 102}
    assert len(grid.sent) == 3
    # a question that is lost with its node expires, and is asked again
    assert {message.metadata.ttl for _, message, _ in grid.sent} == {ANSWER}


def test_a_slow_answer_counts_when_it_comes() -> None:
    grid = answering({100: 0, 101: 1})
    grid.at_once = 0
    nodes = Nodes(2)
    assert listen(nodes, grid) == {}
    grid.at_once = 9
    assert listen(nodes, grid, times=1) == {0: 100, 1: 101}
    assert len(grid.sent) == 2


@pytest.mark.parametrize("claim", [3, -1, 0.5, float("nan"), [1], Error(1, "no app")])
def test_a_claim_that_means_nothing_is_not_believed(claim: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "flwr")
    grid, nodes = answering({100: 0, 101: claim}), Nodes(3)
    assert listen(nodes, grid) == {0: 100}
    assert ["node 101 takes no part" in line for line in caplog.messages] == [True]  # asked often, told once
    node = grid.node_of.pop(1)
    listen(nodes, grid)
    grid.node_of[1] = node  # and once more when it comes back
    listen(nodes, grid)
    assert ["node 101 takes no part" in line for line in caplog.messages] == [True, True]


@pytest.mark.parametrize("claim", [[1] * 100_000, Error(1, "x\n" * 100_000)], ids=["claim", "error"])
def test_what_a_node_says_fills_no_log(claim: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "flwr")
    grid = answering({100: 0, 101: claim})
    assert listen(Nodes(3), grid) == {0: 100}
    assert caplog.messages
    assert all(len(line) < 600 and "\n" not in line for line in caplog.messages)


def test_of_two_that_are_the_same_client_the_newer_waits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "flwr")
    grid = answering({100: 0, 101: 0})
    nodes = Nodes(1)
    assert listen(nodes, grid) == {0: 100}
    (line,) = caplog.messages
    assert "node 101 takes no part: it says that it is client 0, as does node 100" in line
    del grid.node_of[0]  # it is gone
    assert listen(nodes, grid) == {0: 101}


@pytest.mark.parametrize("first", [0, 2], ids=["another's", "nobody's"])
def test_a_node_that_comes_back_as_another_client_is_that_client(first: int) -> None:
    claims = {100: 0, 101: first}
    grid, nodes = answering(claims), Nodes(3)
    listen(nodes, grid)
    claims[101] = 1  # its number was wrong, and it is started anew, with the same key
    node = grid.node_of.pop(1)
    assert listen(nodes, grid) == {0: 100}
    grid.node_of[1] = node
    assert listen(nodes, grid) == {0: 100, 1: 101}


def test_a_node_that_comes_back_has_as_long_for_its_answer_as_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grid, nodes, now = answering({100: 0, 101: 1}), Nodes(2), [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    assert listen(nodes, grid) == {0: 100, 1: 101}
    node = grid.node_of.pop(1)
    assert listen(nodes, grid) == {0: 100}
    grid.node_of[1], grid.at_once, now[0] = node, 0, 1e6
    monkeypatch.setattr("time.sleep", lambda _: setattr(grid, "at_once", 9))
    assert nodes.wait(grid, [0, 1], least=1, patience=-1) == {0: 100, 1: 101}


def test_a_number_that_is_taken_is_asked_for_again() -> None:
    """As between two rounds, where nobody sees that the node was away."""
    claims = {100: 0, 101: 0}
    grid, nodes = answering(claims), Nodes(2)
    assert listen(nodes, grid) == {0: 100}
    claims[101] = 1
    assert listen(nodes, grid) == {0: 100, 1: 101}


def test_who_is_gone_before_the_answer_comes_is_not_there() -> None:
    grid, nodes = answering({100: 0, 101: 1}), Nodes(2)
    grid.at_once = 0
    listen(nodes, grid)
    del grid.node_of[1]
    grid.at_once = 1
    assert nodes.wait(grid, [0, 1], least=1, patience=-1) == {0: 100}
    grid.at_once = 9
    assert listen(nodes, grid) == {0: 100}


def test_rounds_wait_only_once_for_a_node_that_never_says_who_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flwr")
    grid, nodes, now = answering({100: 0, 101: 1}), Nodes(2), [0.0]
    grid.at_once = 1  # client 0 answers, then nobody

    def sleep(seconds: float) -> None:
        grid.at_once = 0
        now[0] += seconds

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.sleep", sleep)
    waits = []
    for _ in range(3):
        begun = now[0]
        assert nodes.wait(grid, [0, 1], least=1, patience=60) == {0: 100}
        waits.append(now[0] - begun)
    assert waits == [601, 61, 61]
    assert caplog.messages == ["waiting for clients [1]"] * 3  # once a round, not once a second


def test_waiting_ends_with_all_or_with_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = answering({100: 0, 101: 1})
    whole = Nodes(4).wait(grid, [1, 0], least=1, patience=1e9)
    assert list(whole.items()) == [(0, 100), (1, 101)]
    assert Nodes(4).wait(grid, [0, 3], least=1, patience=1e-3) == {0: 100}
    node = grid.node_of.pop(1)
    # patience is over before it begins; while it waits another client connects
    monkeypatch.setattr("time.sleep", lambda _: grid.node_of.update({1: node}))
    assert Nodes(4).wait(grid, [0, 1], least=2, patience=-1) == {0: 100, 1: 101}


def test_a_client_that_is_connected_has_its_own_time_to_say_who_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grid = answering({100: 0, 101: 1})
    grid.at_once = 1
    monkeypatch.setattr("time.sleep", lambda _: setattr(grid, "at_once", 9))
    assert Nodes(2).wait(grid, [0, 1], least=1, patience=-1) == {0: 100, 1: 101}
    grid.at_once = 1
    monkeypatch.setattr("floral_lite.flower.nodes.ANSWER", -1)
    assert Nodes(2).wait(grid, [0, 1], least=1, patience=-1) == {0: 100}


@pytest.mark.parametrize("given", [{}, {"partition-id": "0"}, {"partition-id": -1}, {"partition-id": 5}])
def test_a_supernode_without_a_number_is_told_what_to_do(given: dict[str, Any]) -> None:
    context = Context(run_id=1, node_id=1, node_config=given, state=RecordDict(), run_config={})
    with pytest.raises(InputError, match="start the SuperNode with --node-config 'partition-id=0'"):
        find_number(context, 5)
