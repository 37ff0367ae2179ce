"""A bad reply is dropped, with a reason in the log, and the round goes on as if it had not come."""

import io
import logging
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'floral-lite[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from floral_lite import InputError, Task
from floral_lite.flower.averages import MEDIAN, clip_update, trimmed_mean
from floral_lite.flower.messages import ARRAYS, METRICS
from floral_lite.roles import Roles

from .flower_grid import Meddle
from .test_flower import Flown, a_task, assert_same, make, scores

BAD = 1
FIRST = "shared/0.weight"
CLUSTERED = "clustered/0.weight.U"

# Changes the arrays and metrics of a reply in place.
Spoil = Callable[[dict[str, Array], dict[str, Any]], None]


def task() -> Task:
    return a_task(rounds=2, participation=1.0)


def is_training(message: Message) -> bool:
    return message.metadata.message_type == "train"


def answer(arrays: dict[str, Array], metrics: dict[str, Any], message: Message) -> Message:
    content = RecordDict({ARRAYS: ArrayRecord(arrays), METRICS: MetricRecord(metrics)})
    return Message(content, reply_to=message)


def spoiled(spoil: Spoil) -> Meddle:
    """The bad client's training replies, spoiled."""

    def meddle(client: int, message: Message, reply: Message) -> list[Message]:
        if client != BAD or not is_training(message):
            return [reply]
        arrays = dict(reply.content.array_records[ARRAYS])
        metrics = dict(reply.content.metric_records[METRICS])
        spoil(arrays, metrics)
        return [answer(arrays, metrics, message)]

    return meddle


def silent(client: int, message: Message, reply: Message) -> list[Message]:
    """The bad client sends no training reply."""
    return [] if client == BAD and is_training(message) else [reply]


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
    "type": (changed(FIRST, lambda array: array.astype(np.float32)), "is float32"),
    "whole numbers": (changed(FIRST, lambda array: array.astype(np.int64)), "is int64"),
    "missing": (lambda arrays, _: arrays.pop(FIRST) and None, "names are missing"),
    "unknown": (lambda arrays, _: arrays.update({"private/theta": arrays[FIRST]}), "not known"),
    "empty": (lambda arrays, _: arrays.clear(), "names are missing"),
    "cut off": (raw(lambda data: data[:-8]), "bytes of numbers"),
    "too long": (raw(lambda data: data + data), "bytes of numbers"),
    "no array": (raw(lambda _: b"\x93NUMPY\x01\x00\xff\xff("), "does not begin as an array"),
    "nested": (raw(lambda _: b"\x93NUMPY\x01\x00\x00\x20" + b"(" * 8192), "does not begin as an array"),
    "nothing": (raw(lambda _: b""), "does not begin as an array"),
    "huge": (raw(lambda _: header((2**40, 4)), shape=(2**40, 4)), r"shape \(1099511627776, 4\)"),
    "huge, it lies": (raw(lambda _: header((2**40, 4))), r"shape \(1099511627776, 4\)"),
    "pickle": (raw(lambda _: pickled(), dtype="object", shape=(1,)), "is object"),
    "other bytes": (raw(lambda data: data, stype="torch"), "must be 'numpy.ndarray'"),
    "weights < 0": (told(weights=[-1.0, 1.0, 1.0, 2.0]), "sum 3"),
    "weights NaN": (told(weights=[math.nan, 1.0, 1.0, 1.0]), "sum 3"),
    "weights large": (told(weights=[3.0, 3.0, 3.0, 3.0]), "sum 3"),
    "weights few": (told(weights=[1.5, 1.5]), "must be 4 numbers"),
    "weights no list": (told(weights=3.0), "must be a list"),
    "no samples": (told(**{"num-examples": 0, "weights": [0.0] * 4}), "at least 1"),
    "many samples": (told(**{"num-examples": 10**6, "weights": [250000.0] * 4}), "at most 1000"),
    "samples NaN": (told(**{"num-examples": math.nan}), "must be finite"),
    "samples list": (told(**{"num-examples": [3]}), "must be a number"),
    "loss": (told(**{"train-loss": math.nan}), "train-loss is nan"),
    "no loss": (lambda _, metrics: metrics.pop("train-loss") and None, "train-loss is None"),
    "old": (told(round=1), "reply of round 1"),
    "from the future": (told(round=7), "reply of round 7"),
    "other form": (told(weighted=1), "weighted=True, the server with weighted=False"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_reply_is_dropped(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spoil, reason = SPOILED[name]
    fair = task()
    method = make("floral", fair)
    caplog.set_level(logging.WARNING, "flwr")
    flown = Flown(fair, method, tmp_path / "bad", meddle=spoiled(spoil), max_samples=1000)
    warnings = [line for line in caplog.messages if "is dropped" in line]
    dropped = 1 if name == "old" else 2  # in the first round it is of that round
    assert len(warnings) == dropped
    assert all(f"the reply of client {BAD} is dropped" in line for line in warnings)
    assert re.search(reason, warnings[-1])
    if name != "old":
        without = Flown(fair, method, tmp_path / "without", meddle=silent)
        assert_same(flown.server, without.server, tolerance=0)


def test_replies_of_other_kinds_are_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fair = task()
    method = make("floral", fair)
    caplog.set_level(logging.WARNING, "flwr")
    without = Flown(fair, method, tmp_path / "without", meddle=silent)

    def twice(reply: Message, message: Message) -> list[Message]:
        arrays = {
            name: Array(array.numpy() + 1) for name, array in reply.content.array_records[ARRAYS].items()
        }
        return [reply, answer(arrays, dict(reply.content.metric_records[METRICS]), message)]

    def more(reply: Message, message: Message) -> list[Message]:
        content = RecordDict({**reply.content, "more": ConfigRecord({"a": 1})})
        return [Message(content, reply_to=message)]

    def of_another(reply: Message, message: Message) -> list[Message]:
        reply.metadata.__dict__["_src_node_id"] = 999
        return [reply]

    kinds: dict[str, tuple[Callable[[Message, Message], list[Message]], str]] = {
        "error": (lambda _, message: [Message(Error(1, "out of memory"), reply_to=message)], "out of memory"),
        "empty": (lambda _, message: [Message(RecordDict(), reply_to=message)], "has the records"),
        "more": (more, "has the records"),
        "stranger": (of_another, "node 999 is dropped: it was not asked"),
        "twice": (twice, "it has answered already"),
    }
    for name, (change, reason) in kinds.items():

        def meddle(client: int, message: Message, reply: Message, change: Any = change) -> list[Message]:
            return change(reply, message) if client == BAD and is_training(message) else [reply]  # type: ignore[no-any-return]

        caplog.clear()
        flown = Flown(fair, method, tmp_path / name, meddle=meddle)
        assert sum(reason in line for line in caplog.messages) == 2, name
        # of two replies the first one counts
        expected = Flown(fair, method, tmp_path / "fair") if name == "twice" else without
        assert_same(flown.server, expected.server, tolerance=0)


def test_a_client_that_cannot_train_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fair = task()
    method = make("floral", fair)
    caplog.set_level(logging.WARNING, "flwr")
    whole = Flown(fair, method, tmp_path / "whole")
    assert not caplog.messages
    damaged = Flown(a_task(rounds=1, participation=1.0), method, tmp_path / "damaged")
    path = damaged.own(BAD)
    path.write_bytes(path.read_bytes()[:20])
    before = path.read_bytes()
    flown = Flown(fair, method, tmp_path / "damaged")
    assert any("client 1 is dropped" in line and "is damaged" in line for line in caplog.messages)
    assert path.read_bytes() == before
    assert len(flown.server.history.rounds) == len(whole.server.history.rounds)


def test_an_old_reply_that_comes_late_does_not_count(tmp_path: Path) -> None:
    fair = task()
    method = make("floral", fair)
    late: list[Message] = []

    def meddle(client: int, message: Message, reply: Message) -> list[Message]:
        if client != BAD or not is_training(message):
            return [reply]
        late.append(reply)
        return [late[0], *late[1:]][: len(late) - 1]  # in round 1 nothing, then that of round 1

    flown = Flown(fair, method, tmp_path / "late", meddle=meddle)
    without = Flown(fair, method, tmp_path / "without", meddle=silent)
    assert len(late) == 2
    assert_same(flown.server, without.server, tolerance=0)


def test_with_too_few_good_replies_a_round_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"participation": 1.0, "server_optimizer": "adam", "server_learning_rate": 0.05}
    method = make("floral", a_task(**settings))
    caplog.set_level(logging.WARNING, "flwr")

    def poison(client: int, message: Message, reply: Message) -> list[Message]:
        config = message.content.config_records["config"]
        if is_training(message) and config["round"] == 2 and client in (0, 2):
            return [Message(Error(1, "lost"), reply_to=message)]
        return [reply]

    one = Flown(a_task(rounds=1, **settings), method, tmp_path / "one", min_replies=4, meddle=poison)
    two = Flown(a_task(rounds=2, **settings), method, tmp_path / "two", min_replies=4, meddle=poison)
    assert any("3 good replies have come, and min_replies is 4" in line for line in caplog.messages)
    assert math.isnan(two.server.history.rounds[1].train_loss)
    for role in ("shared", "clustered"):
        before, after = getattr(one.server.state, role), getattr(two.server.state, role)
        assert all(torch.equal(before[name], after[name]) for name in before)
    for name, moment in one.server.moments.items():
        pairs = zip(moment.tensors(), two.server.moments[name].tensors(), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)
    three = Flown(a_task(rounds=3, **settings), method, tmp_path / "two", min_replies=4, meddle=poison)
    assert [entry.round for entry in three.server.history.rounds] == [1, 2, 3]
    assert not torch.equal(three.server.state.shared["0.weight"], one.server.state.shared["0.weight"])


@pytest.mark.parametrize(
    ("largest", "choice"),
    [(1e308, {"weighted": True}), (1e160, {"server_optimizer": "adam"})],
    ids=["sums", "adam's squares"],
)
def test_finite_replies_with_an_average_that_is_not_change_nothing(
    largest: float, choice: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    of_server = {name: choice[name] for name in choice.keys() & {"weighted"}}
    fair = a_task(rounds=1, participation=1.0, **{k: v for k, v in choice.items() if k not in of_server})
    method = make("floral", fair)

    def largest_of_all(arrays: dict[str, Array], _: dict[str, Any]) -> None:
        for name, array in arrays.items():
            arrays[name] = Array(np.full_like(array.numpy(), largest))

    def meddle(client: int, message: Message, reply: Message) -> list[Message]:
        return spoiled(largest_of_all)(BAD, message, reply)

    caplog.set_level(logging.WARNING, "flwr")
    flown = Flown(fair, method, tmp_path, meddle=meddle, **of_server)
    assert any("changes nothing: of finite replies the average is not finite" in m for m in caplog.messages)
    first = method.initialise(fair.clusters, 3)
    assert all(torch.equal(flown.server.state.shared[name], first.shared[name]) for name in first.shared)
    for moment in flown.server.moments.values():
        assert not any(tensor.any() for tensor in moment.tensors())


def test_what_a_reply_says_of_itself_fills_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fair = a_task(rounds=1, participation=1.0)
    caplog.set_level(logging.WARNING, "flwr")

    def long(arrays: dict[str, Array], metrics: dict[str, Any]) -> None:
        metrics["weights"] = [1.0] * 100_000

    Flown(fair, make("floral", fair), tmp_path / "list", meddle=spoiled(long))
    error = Error(1, "first line\nround 9: a line that is not ours" + " x" * 100_000)
    Flown(
        fair,
        make("floral", fair),
        tmp_path / "error",
        meddle=lambda k, message, reply: [Message(error, reply_to=message)] if k == BAD else [reply],
    )
    dropped = [line for line in caplog.messages if "is dropped" in line]
    assert len(dropped) == 3  # of the error also the test's reply
    assert all(len(line) < 600 and "\n" not in line for line in dropped)


def test_a_round_goes_on_without_clients_that_are_not_there(tmp_path: Path) -> None:
    fair = task()
    method = make("floral", fair)
    flown = Flown(fair, method, tmp_path / "absent", absent=[BAD])
    without = Flown(fair, method, tmp_path / "without", meddle=silent)
    for name, tensor in flown.server.state.shared.items():
        assert torch.equal(tensor, without.server.state.shared[name])
    last = flown.server.history.rounds[-1]
    assert last.test_accuracy is not None
    assert last.client_accuracy is None  # one is missing
    assert len(scores(without.server)[-1]["client_accuracy"]) == 5


def huge(arrays: dict[str, Array], _: dict[str, Any]) -> None:
    for name, array in arrays.items():
        arrays[name] = Array(array.numpy() + 1e6)


def distance(one: Flown, other: Flown) -> float:
    pairs = zip(one.server.state.tensors(), other.server.state.tensors(), strict=True)
    return float(torch.stack([(a - b).norm() for a, b in pairs]).norm())


@pytest.mark.parametrize("choice", [{"clip_norm": 1.0}, {"trim": 0.2}, {"trim": 0.5}], ids=str)
def test_a_huge_update_is_borne(choice: dict[str, float], tmp_path: Path) -> None:
    fair = task()
    method = make("floral", fair)
    honest = Flown(fair, method, tmp_path / "honest")
    plain = Flown(fair, method, tmp_path / "plain", meddle=spoiled(huge))
    assert distance(honest, plain) > 1e5
    borne = Flown(fair, method, tmp_path / "borne", meddle=spoiled(huge), **choice)  # type: ignore[arg-type]
    assert distance(honest, borne) < 10


def test_a_clip_that_nobody_reaches_changes_nothing(tmp_path: Path) -> None:
    fair = task()
    method = make("floral", fair)
    honest = Flown(fair, method, tmp_path / "honest")
    clipped = Flown(fair, method, tmp_path / "clipped", clip_norm=1e3)
    assert_same(honest.server, clipped.server, tolerance=0)


def test_an_update_is_clipped_to_the_norm_but_for_statistics() -> None:
    before = Roles({"a": torch.zeros(2), "n.running_mean": torch.zeros(1)}, {"b": torch.zeros(2, 1)}, {})
    after = Roles(
        {"a": torch.tensor([3.0, 0.0]), "n.running_mean": torch.tensor([9.0])},
        {"b": torch.tensor([[0.0], [4.0]])},
        {},
    )
    clipped = clip_update(before, after, 0.5)
    torch.testing.assert_close(clipped.shared["a"], torch.tensor([0.3, 0.0]))
    torch.testing.assert_close(clipped.clustered["b"], torch.tensor([[0.0], [0.4]]))
    assert clipped.shared["n.running_mean"] == 9


def test_the_trimmed_mean_is_that_of_repeated_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(5, 3, 2, generator=generator, dtype=torch.float64)
    weights = torch.tensor([4, 1, 3, 2, 10])
    repeated = values.repeat_interleave(weights, dim=0).sort(dim=0).values
    for trim, cut in ((0.1, 2), (0.25, 5), (0.45, 9)):
        torch.testing.assert_close(
            trimmed_mean(values, weights.double(), trim), repeated[cut:-cut].mean(dim=0)
        )
    median = torch.from_numpy(np.median(repeated.numpy(), axis=0))
    torch.testing.assert_close(trimmed_mean(values, weights.double(), 0.5), median)
    assert MEDIAN < 0.5
    # a weight of 0 counts for nothing
    with_zero = torch.cat([values, torch.full((1, 3, 2), 1e9, dtype=torch.float64)])
    padded = torch.cat([weights.double(), torch.zeros(1, dtype=torch.float64)])
    torch.testing.assert_close(trimmed_mean(with_zero, padded, 0.1), repeated[2:-2].mean(dim=0))


def test_a_cluster_of_nobody_keeps_its_slice_when_trimmed(tmp_path: Path) -> None:
    fair = a_task(rounds=1, participation=1.0)  # three true clusters, four adaptors
    method = make("floral", fair, routing="optimal")
    plain, trimmed = (
        Flown(fair, method, tmp_path / str(trim), trim=trim).server.state.clustered for trim in (0.0, 0.2)
    )
    first = method.initialise(fair.clusters, 3).clustered
    assert all(torch.equal(trimmed[name][3], first[name][3].to(trimmed[name])) for name in first)
    assert not torch.equal(
        trimmed[CLUSTERED.removeprefix("clustered/")], plain[CLUSTERED.removeprefix("clustered/")]
    )


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"min_replies": 0}, "min_replies is 0"),
        ({"min_replies": 6}, "of the 5 clients 5 are sampled a round"),
        ({"trim": 0.6}, r"trim is 0\.6; it must be in \[0, 0\.5\]"),
        ({"clip_norm": 0.0}, "clip_norm is 0"),
        ({"patience": 0}, "patience is 0"),
        ({"weighted": True, "trim": 0.1}, "only the sums are used"),
    ],
    ids=str,
)
def test_choices_out_of_range_are_refused(choice: dict[str, Any], message: str, tmp_path: Path) -> None:
    fair = task()
    with pytest.raises(InputError, match=message):
        Flown(fair, make("floral", fair), tmp_path, **choice)
