"""A bad reply is dropped, with a reason in the log, and the round goes on as if it had not come."""

import io
import logging
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'flwr>=1.41'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.server.superlink.linkstate.utils import (
    NODE_UNAVAILABLE_ERROR_REASON,
    create_message_error_unavailable_res_message,
)

from floral_lite import InputError, Run
from floral_lite.federation.server import first_moments, server_step
from floral_lite.flower import RolesStrategy, client_app
from floral_lite.flower.client import Client
from floral_lite.flower.messages import ARRAYS, METRICS, BadMessage, admitted
from floral_lite.flower.scores import read_tested
from floral_lite.methods import ROUTER

from .federations import first_state, make_task, normal
from .flower_grid import LocalGrid
from .flower_runs import SEED, Flown, a_task, assert_same, make, with_norm

BAD = 1
FIRST = "shared/0.weight"
CLUSTERED = "clustered/0.weight.U"

# Changes the arrays and metrics of a reply in place.
Spoil = Callable[[dict[str, Array], dict[str, Any]], None]


class Replies:
    """A first round of five clients: what each sent, and what a server makes of that or of something else."""

    def __init__(self, folder: Path) -> None:
        task = a_task(participation=1.0)
        self.run = Run(task, make("floral", task), SEED)
        self.folder = folder
        self.grid = LocalGrid(client_app(lambda _: self.run, folder / "clients"), 5)
        strategy = self.server("collected")
        self.asked = list(strategy.configure_train(1, strategy.arrays, ConfigRecord(), self.grid))
        self.fair = list(self.grid.send_and_receive(self.asked))

    def server(self, name: str, **choices: Any) -> RolesStrategy:
        choices = {"patience": 0.01, "max_samples": 1000} | choices
        return RolesStrategy(self.run, self.folder / name, **choices)

    def after(self, replies: Iterable[Message], **choices: Any) -> RolesStrategy:
        """A server after the round."""
        server = self.server("unused", **choices)
        server.configure_train(1, server.arrays, ConfigRecord(), self.grid)
        server.aggregate_train(1, replies)
        return server

    @property
    def without(self) -> list[Message]:
        """All replies but the bad client's."""
        return [*self.fair[:BAD], *self.fair[BAD + 1 :]]

    def with_bad(self, *bad: Message) -> list[Message]:
        """The bad client's replies in place of its fair one."""
        return [*self.fair[:BAD], *bad, *self.fair[BAD + 1 :]]

    def spoiled(self, spoil: Spoil) -> list[Message]:
        """All replies, the bad client's spoiled."""
        arrays = dict(self.fair[BAD].content.array_records[ARRAYS])
        metrics = dict(self.fair[BAD].content.metric_records[METRICS])
        spoil(arrays, metrics)
        return self.with_bad(self.answer(arrays, metrics))

    def answer(self, arrays: dict[str, Array], metrics: dict[str, Any], **more: Any) -> Message:
        content = {ARRAYS: ArrayRecord(arrays), METRICS: MetricRecord(metrics), **more}
        return Message(RecordDict(content), reply_to=self.asked[BAD])


@pytest.fixture(scope="module")
def replies(tmp_path_factory: pytest.TempPathFactory) -> Replies:
    return Replies(tmp_path_factory.mktemp("replies"))


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What the server warns of."""
    caplog.set_level(logging.WARNING, "flwr")
    return caplog


def distance(one: RolesStrategy, other: RolesStrategy) -> float:
    pairs = zip(one.state.tensors(), other.state.tensors(), strict=True)
    return float(torch.stack([(a - b).norm() for a, b in pairs]).norm())


def changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Spoil:
    """One array is another."""
    return lambda arrays, _: arrays.update({name: Array(change(arrays[name].numpy()))})


def with_one(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array.flat[-1] = value
        return array

    return change


def raw(change: Callable[[bytes], bytes], **told: Any) -> Spoil:
    """The bytes of an array are others."""

    def spoil(arrays: dict[str, Array], _: dict[str, Any]) -> None:
        old = arrays[FIRST]
        kept = {"dtype": old.dtype, "shape": old.shape, "stype": old.stype}
        arrays[FIRST] = Array(**kept | told, data=change(old.data))

    return spoil


def header(shape: tuple[int, ...], descr: str = "<f8") -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def told(**metrics: Any) -> Spoil:
    return lambda _, old: old.update(metrics)


def pickled() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return stream.getvalue()


SPOILED: dict[str, tuple[Spoil, str]] = {
    "NaN": (changed(FIRST, with_one(math.nan)), "not finite"),
    "infinity": (changed(CLUSTERED, with_one(math.inf)), "not finite"),
    "shape": (changed(FIRST, lambda array: array[:-1]), r"of shape \(5, 4\); it must be"),
    "turned": (changed(FIRST, np.transpose), "row by row|of shape"),
    "in columns": (changed(FIRST, np.asfortranarray), "row by row"),
    "told otherwise": (raw(lambda data: data, shape=(4, 6)), "it must be float64"),
    "told another type": (raw(lambda data: data, dtype="float32"), "it must be float64"),
    "type": (changed(FIRST, lambda array: array.astype(np.float32)), "is float32"),
    "whole numbers": (changed(FIRST, lambda array: array.astype(np.int64)), "is int64"),
    "missing": (lambda arrays, _: arrays.pop(FIRST) and None, "names are missing"),
    "unknown": (lambda arrays, _: arrays.update({"private/theta": arrays[FIRST]}), "not known"),
    "empty": (lambda arrays, _: arrays.clear(), "names are missing"),
    "cut off": (raw(lambda data: data[:-8]), "bytes of numbers"),
    "too long": (raw(lambda data: data + data), "bytes of numbers"),
    "no array": (raw(lambda _: b"\x93NUMPY\x01\x00\xff\xff("), "does not begin as an array"),
    "another version": (raw(lambda data: data[:6] + b"\x02" + data[7:]), "it must be float64"),
    "nested": (raw(lambda _: b"\x93NUMPY\x01\x00\x00\x20" + b"(" * 8192), "does not begin as an array"),
    "nothing": (raw(lambda _: b""), "does not begin as an array"),
    "huge": (raw(lambda _: header((2**40, 4)), shape=(2**40, 4)), r"shape \(1099511627776, 4\)"),
    "huge, it lies": (raw(lambda _: header((2**40, 4))), r"shape \(1099511627776, 4\)"),
    "pickle": (raw(lambda _: pickled(), dtype="object", shape=(1,)), "is object"),
    "other bytes": (raw(lambda data: data, stype="torch"), "must be 'numpy.ndarray'"),
    "weights < 0": (told(weights=[-1.0, 1.0, 1.0, 2.0]), "sum 3"),
    "weights NaN": (told(weights=[math.nan, 1.0, 1.0, 1.0]), "sum 3"),
    "weights large": (told(weights=[3.0, 3.0, 3.0, 3.0]), "sum 3"),
    "weights small": (told(weights=[0.5] * 4), "sum 3"),
    "weights few": (told(weights=[1.5, 1.5]), "must be 4 numbers"),
    "weights no list": (told(weights=3.0), "must be a list"),
    "half a sample": (told(**{"num-examples": 0.5, "weights": [0.125] * 4}), "at least 1"),
    "no samples": (told(**{"num-examples": 0, "weights": [0.0] * 4}), "at least 1"),
    "many samples": (told(**{"num-examples": 10**6, "weights": [250000.0] * 4}), "at most 1000"),
    "samples NaN": (told(**{"num-examples": math.nan}), "must be finite"),
    "samples list": (told(**{"num-examples": [3]}), "must be a number"),
    "loss": (told(**{"train-loss": math.nan}), "train-loss is nan"),
    "no loss": (lambda _, metrics: metrics.pop("train-loss") and None, "train-loss is None"),
    "old": (told(round=0), "reply of round 0"),
    "from the future": (told(round=7), "reply of round 7"),
    "other form": (told(weighted=1), "weighted=True, the server with weighted=False"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_reply_is_dropped(name: str, replies: Replies, log: pytest.LogCaptureFixture) -> None:
    spoil, reason = SPOILED[name]
    after = replies.after(replies.spoiled(spoil))
    (line,) = log.messages
    assert re.fullmatch(rf"round 1: the reply of client {BAD} is dropped: .*({reason}).*", line)
    assert distance(after, replies.after(replies.without)) == 0
    assert distance(after, replies.after(replies.fair)) > 1e-3


KINDS: dict[str, tuple[Callable[[Replies], list[Message]], str]] = {
    "error": (lambda r: [Message(Error(1, "out of memory"), reply_to=r.asked[BAD])], "out of memory"),
    "empty": (lambda r: [Message(RecordDict(), reply_to=r.asked[BAD])], "it has the records"),
    "more": (lambda r: [r.answer({}, {}, more=ConfigRecord({"a": 1}))], "it has the records"),
    "arrays": (lambda r: [r.answer({}, {}, more=ArrayRecord())], "it has the records"),
    "no number": (lambda r: [r.answer({}, {"round": [1]})], "round is [1]; it must be a number"),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_reply_of_another_kind_is_dropped(
    name: str, replies: Replies, log: pytest.LogCaptureFixture
) -> None:
    make_bad, reason = KINDS[name]
    after = replies.after(replies.with_bad(*make_bad(replies)))
    (line,) = log.messages
    assert f"client {BAD} is dropped: {reason}" in line
    assert distance(after, replies.after(replies.without)) == 0


def test_of_a_client_that_is_gone_the_log_says_so(replies: Replies, log: pytest.LogCaptureFixture) -> None:
    """The SuperLink answers in its place, as a node that nobody has asked."""
    log.set_level(logging.INFO, "flwr")
    gone = create_message_error_unavailable_res_message(replies.asked[BAD].metadata, "node_unavail")
    after = replies.after(replies.with_bad(gone))
    assert log.messages[-2:] == [
        f"round 1: the reply of node 1 is dropped: {NODE_UNAVAILABLE_ERROR_REASON}",
        f"round 1: it goes on without clients [{BAD}]",
    ]
    assert distance(after, replies.after(replies.without)) == 0


def test_of_two_replies_the_first_one_counts(replies: Replies, log: pytest.LogCaptureFixture) -> None:
    other = replies.spoiled(huge)[BAD]
    after = replies.after([*replies.fair, other])
    assert log.messages == [f"round 1: the reply of client {BAD} is dropped: it has answered already"]
    assert distance(after, replies.after(replies.fair)) == 0


def test_replies_stand_in_the_order_of_the_clients(replies: Replies) -> None:
    server = replies.server("unused")
    server.configure_train(1, server.arrays, ConfigRecord(), replies.grid)
    assert list(admitted(reversed(replies.fair), server.asked, 1, lambda _: None)) == [*range(5)]


def test_who_was_not_asked_does_not_count(replies: Replies, log: pytest.LogCaptureFixture) -> None:
    stranger = replies.spoiled(huge)[BAD]
    stranger.metadata.__dict__["_src_node_id"] = 999
    after = replies.after([*replies.fair, stranger])
    assert log.messages == ["round 1: the reply of node 999 is dropped: it was not asked in this round"]
    assert distance(after, replies.after(replies.fair)) == 0


def test_what_a_reply_says_of_itself_fills_no_log(replies: Replies, log: pytest.LogCaptureFixture) -> None:
    error = Error(1, "one line\nround 9: a line that is not ours" + " x" * 100_000)
    replies.after(replies.with_bad(Message(error, reply_to=replies.asked[BAD])))
    replies.after(replies.spoiled(told(weights=[1.0] * 100_000)))
    assert len(log.messages) == 2
    assert all(len(line) < 600 and "\n" not in line for line in log.messages)


def test_a_client_that_cannot_train_says_why(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    short, longer = (a_task(rounds=rounds, participation=1.0) for rounds in (1, 2))
    damaged = Flown(short, make("floral", short), tmp_path)
    assert not log.messages
    path = damaged.own(BAD)
    path.write_bytes(path.read_bytes()[:20])
    before = path.read_bytes()
    flown = Flown(longer, make("floral", longer), tmp_path)
    assert any("client 1 is dropped" in line and "is damaged" in line for line in log.messages)
    assert path.read_bytes() == before
    assert len(flown.server.history.rounds) == 2


def test_an_old_reply_that_comes_late_is_as_none(tmp_path: Path) -> None:
    task = a_task(rounds=2, participation=1.0)
    method = make("floral", task)
    late: list[Message] = []

    def is_bad(client: int, message: Message) -> bool:
        return client == BAD and message.metadata.message_type == "train"

    def meddle(client: int, message: Message, reply: Message) -> list[Message]:
        if not is_bad(client, message):
            return [reply]
        late.append(reply)
        return [late[0]] if len(late) == 2 else []  # in round 1 nothing, then that of round 1

    def silent(client: int, message: Message, reply: Message) -> list[Message]:
        return [] if is_bad(client, message) else [reply]

    flown = Flown(task, method, tmp_path / "late", meddle=meddle)
    without = Flown(task, method, tmp_path / "without", meddle=silent)
    assert len(late) == 2
    assert_same(flown.server, without.server, tolerance=0)


def test_with_too_few_good_replies_a_round_changes_nothing(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    settings = {"participation": 1.0, "server_optimizer": "adam", "server_learning_rate": 0.05}

    def poison(client: int, message: Message, reply: Message) -> list[Message]:
        config = message.content.config_records["config"]
        if message.metadata.message_type == "train" and config["round"] == 2 and client in (0, 2):
            return [Message(Error(1, "lost"), reply_to=message)]
        return [reply]

    ends, routers = [], []
    for rounds in (1, 2, 3):  # each goes on from the one before
        task = a_task(rounds=rounds, **settings)
        method = make("floral", task)
        ends.append((flown := Flown(task, method, tmp_path, min_replies=4, meddle=poison)).server)
        routers.append(flown.federation.state.private[ROUTER])
    one, two, three = ends
    assert "round 2 changes nothing: 3 good replies have come, and min_replies is 4" in log.messages
    for before, after in [(one.state, two.state), *((one.moments[k], two.moments[k]) for k in one.moments)]:
        assert all(torch.equal(*pair) for pair in zip(before.tensors(), after.tensors(), strict=True))
    assert not torch.equal(routers[0], routers[1])  # what clients keep they do not take back
    assert [entry.round for entry in three.history.rounds] == [1, 2, 3]
    assert [math.isnan(entry.train_loss) for entry in three.history.rounds] == [False, True, False]
    assert not torch.equal(three.state.shared["0.weight"], one.state.shared["0.weight"])


def test_a_round_that_changes_nothing_is_no_step_of_the_optimizer(tmp_path: Path) -> None:
    """Adam's first step is as long whenever it comes: it divides by how much its means have seen."""

    def lost(client: int, message: Message, reply: Message) -> list[Message]:
        first = message.content.config_records["config"]["round"] == 1
        return [] if first and message.metadata.message_type == "train" else [reply]

    adam = {"server_optimizer": "adam", "server_learning_rate": 0.05}
    task, plain = a_task(rounds=2, **adam), a_task(rounds=2)
    flown, averaged = (
        Flown(one, make("fedavg", one), tmp_path / name, meddle=lost).server
        for name, one in {"adam": task, "plain": plain}.items()
    )
    first = first_state(task, make("fedavg", task), SEED)
    moments = first_moments(first, task.settings)
    wanted, _ = server_step(first, averaged.state, moments, task.settings, number=1)
    for name, tensor in flown.state.shared.items():
        torch.testing.assert_close(tensor, wanted.shared[name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("largest", "settings", "weighted"),
    [(1e308, {}, True), (1e160, {"server_optimizer": "adam"}, False)],
    ids=["their sum", "adam's squares"],
)
def test_finite_replies_with_an_average_that_is_not_change_nothing(
    largest: float,
    settings: dict[str, Any],
    weighted: bool,
    tmp_path: Path,
    log: pytest.LogCaptureFixture,
) -> None:
    task = a_task(rounds=1, participation=1.0, **settings)
    method = make("floral", task)

    def meddle(client: int, message: Message, reply: Message) -> list[Message]:
        for name, array in reply.content.array_records.get(ARRAYS, {}).items():
            reply.content.array_records[ARRAYS][name] = Array(np.full_like(array.numpy(), largest))
        return [reply]

    server = Flown(task, method, tmp_path, meddle=meddle, weighted=weighted).server
    assert "round 1 changes nothing: of finite replies the average is not finite" in log.messages[0]
    first = method.initialise(task.clusters, SEED)
    assert all(torch.equal(server.state.shared[name], first.shared[name]) for name in first.shared)
    assert not any(tensor.any() for moment in server.moments.values() for tensor in moment.tensors())


def test_a_round_goes_on_without_clients_that_are_not_there(tmp_path: Path) -> None:
    task = a_task(rounds=1, participation=1.0)
    method = make("floral", task)
    server = Flown(task, method, tmp_path / "absent", absent=[BAD]).server
    whole = Flown(task, method, tmp_path / "whole").server
    assert not torch.equal(server.state.shared["0.weight"], whole.state.shared["0.weight"])
    last = server.history.rounds[-1]
    assert last.test_accuracy is not None
    assert last.client_accuracy is None  # one is missing
    assert whole.history.rounds[-1].client_accuracy is not None


def test_a_variance_below_0_does_not_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Else nobody's test would have a finite loss any more, whatever the clip."""
    task = make_task(with_norm, normal(4), rounds=1, batch_size=5, statistics="averaged", participation=1.0)

    def turn(client: int, message: Message, reply: Message) -> list[Message]:
        arrays = reply.content.array_records.get("arrays", {})
        for name, array in arrays.items():
            if name.endswith("running_var") and client == 1:
                arrays[name] = Array(-100 * array.numpy())
        return [reply]

    caplog.set_level(logging.WARNING, "flwr")
    history = Flown(
        task, make("floral", task, norms="affine"), tmp_path, meddle=turn, clip_norm=1.0
    ).server.history
    assert history.rounds[0].test_loss is not None
    (line,) = caplog.messages
    assert "client 1 is dropped: 1.running_var has numbers below 0, and is a variance" in line


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"num-examples": 0}, "num-examples is 0"),
        ({"num-examples": 1e300}, "num-examples is 1e\\+300; it must be at least 1 and at most 100"),
        ({"accuracy": 1.5}, "accuracy is 1.5"),
        ({"accuracy": -0.5}, "accuracy is -0.5"),
        ({"loss": math.inf}, "loss is inf"),
    ],
    ids=str,
)
def test_a_score_out_of_range_is_refused(bad: dict[str, float], message: str) -> None:
    good = {"num-examples": 1, "loss": 0.5, "accuracy": 1.0}
    assert read_tested(RecordDict({METRICS: MetricRecord(good)}), max_samples=100) == (1, 0.5, 1)
    with pytest.raises(BadMessage, match=message):
        read_tested(RecordDict({METRICS: MetricRecord(good | bad)}), max_samples=100)


def test_of_a_test_too_no_more_samples_are_believed(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    """Else the federation's accuracy would be what one client says."""
    task = a_task(rounds=1)

    def boast(client: int, message: Message, reply: Message) -> list[Message]:
        if message.metadata.message_type == "evaluate" and client == BAD:
            reply.content.metric_records[METRICS].update({"num-examples": 10**6, "loss": 123.0})
        return [reply]

    server = Flown(task, make("floral", task), tmp_path, meddle=boast, max_samples=1000).server
    assert server.history.rounds[0].test_loss < 10
    assert f"the reply of client {BAD} is dropped: num-examples is 1000000" in log.messages[0]


def huge(arrays: dict[str, Array], _: dict[str, Any]) -> None:
    for name, array in arrays.items():
        arrays[name] = Array(array.numpy() + 1e6)


@pytest.mark.parametrize("number", [-1, 0])
def test_a_client_refuses_a_round_that_cannot_be(number: int, replies: Replies, tmp_path: Path) -> None:
    asked = replies.asked[0].content
    config = ConfigRecord({**asked.config_records["config"], "round": number})
    message = Message(
        RecordDict({ARRAYS: asked.array_records[ARRAYS], "config": config}),
        dst_node_id=1,
        message_type="train",
    )
    with pytest.raises(BadMessage, match=f"asks for round {number}; rounds begin with 1"):
        Client(replies.run, 0, tmp_path, message)


@pytest.mark.parametrize("choice", [{"clip_norm": 1.0}, {"trim": 0.2}, {"trim": 0.5}], ids=str)
def test_a_huge_update_is_borne(choice: dict[str, float], replies: Replies) -> None:
    honest, spoiled = replies.after(replies.fair), replies.spoiled(huge)
    assert distance(honest, replies.after(spoiled)) > 1e5
    assert distance(honest, replies.after(spoiled, **choice)) < 10


@pytest.mark.parametrize("choice", [{"clip_norm": 1e3}, {"max_samples": 10}, {"min_replies": 5}], ids=str)
def test_a_limit_that_nobody_exceeds_changes_nothing(choice: dict[str, float], replies: Replies) -> None:
    assert distance(replies.after(replies.fair), replies.after(replies.fair, **choice)) == 0


def test_weights_of_many_samples_may_round(replies: Replies, log: pytest.LogCaptureFixture) -> None:
    replies.after(replies.spoiled(told(**{"num-examples": 900, "weights": [225.01, 225.0, 225.0, 225.0]})))
    assert not log.messages


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"min_replies": 0}, "min_replies is 0"),
        ({"min_replies": 1.5}, r"min_replies is 1\.5; it must be a whole number"),
        ({"trim": 0.6}, r"trim is 0\.6; it must be in \[0, 0\.5\]"),
        ({"trim": -0.1}, r"trim is -0\.1; it must be in \[0, 0\.5\]"),
        ({"clip_norm": 0.0}, "clip_norm is 0"),
        ({"patience": 0}, "patience is 0"),
        ({"patience": "x"}, "patience is 'x'; it must be a number"),
        ({"clip_norm": True}, "clip_norm is True; it must be a number"),
        ({"trim": None}, "trim is None; it must be a number"),
        ({"max_samples": 0}, "max_samples is 0"),
        ({"weighted": True, "trim": 0.1}, "only the sums are used"),
        ({"weighted": True, "clip_norm": 0.1}, "only the sums are used"),
    ],
    ids=str,
)
def test_choices_out_of_range_are_refused(choice: dict[str, Any], message: str, replies: Replies) -> None:
    with pytest.raises(InputError, match=message):
        replies.server("unused", **choice)
