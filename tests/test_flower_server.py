"""A Flower server goes on where it was, alone in its folder, and refuses what it could not train."""

import logging
import shutil
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'flwr>=1.41'")

from flwr.app import ConfigRecord, Message, RecordDict

from floral_lite import History, InputError, Run, Shard, methods, train
from floral_lite.federation import Population
from floral_lite.flower import RolesStrategy, client_app, server_app
from floral_lite.flower.client import Client
from floral_lite.methods import ROUTER
from floral_lite.roles import Roles

from .federations import make_task, normal
from .flower_grid import LocalGrid
from .flower_runs import SEED, Flown, a_task, assert_same, make, with_norm


def test_a_server_looks_at_no_data(tmp_path: Path) -> None:
    """Its example may be a single sample, over which a batch norm has no variance; a client's may not."""
    task = make_task(with_norm, normal(4), batch_size=5)
    example = Shard(torch.zeros(1, 4, dtype=torch.float64), torch.zeros(1, dtype=torch.long))
    alone = replace(task, train=Population(5, lambda _: example), test=Population(5, lambda _: example))
    run = Run(alone, make("floral", alone), SEED)
    strategy = RolesStrategy(run, tmp_path)
    config = ConfigRecord({"round": 1, "federation": "0" * 16})
    message = Message(RecordDict({"arrays": strategy.arrays, "config": config}), 100, "train")
    with pytest.raises(InputError, match="its last batch has one"):
        Client(run, 0, tmp_path, message)


def test_a_server_that_is_started_again_goes_on(tmp_path: Path) -> None:
    task = a_task(server_optimizer="adam", server_learning_rate=0.05)
    method = make("floral", task)
    whole = Flown(task, method, tmp_path / "whole").federation

    class Stop(BaseException):
        pass

    def stop(client: int, message: Message, reply: Message) -> list[Message]:
        """The third round has begun: some clients have trained, and the server dies."""
        config = message.content.config_records["config"]
        if config["round"] == 3 and message.metadata.message_type == "train" and client == 2:
            raise Stop
        return [reply]

    with pytest.raises(Stop):
        Flown(task, method, tmp_path / "killed", meddle=stop)
    resumed = Flown(task, method, tmp_path / "killed")
    assert [entry.round for entry in resumed.server.history.rounds] == [1, 2, 3, 4, 5]
    rounds = {sent[1].content.config_records["config"]["round"] for sent in resumed.grid.sent[5:]}
    assert rounds == {3, 4, 5}
    assert_same(resumed.federation, whole, tolerance=0)
    # once more: nothing is left to do
    again = Flown(task, method, tmp_path / "killed")
    assert again.grid.sent == []
    assert History.load(tmp_path / "killed" / "server" / "history.json").rounds == whole_rounds(resumed)


def test_one_server_at_a_time_is_at_work_in_a_folder(tmp_path: Path) -> None:
    """Two would ask the same clients for different rounds, and the later file would be neither's."""
    task = a_task(rounds=2)
    method = make("floral", task)
    tried = []

    def start_another(client: int, message: Message, reply: Message) -> list[Message]:
        if not tried:
            tried.append(client)
            with pytest.raises(InputError, match="another process is at work in the folder"):
                Flown(task, method, tmp_path / "one")
        return [reply]

    flown = Flown(task, method, tmp_path / "one", meddle=start_another)
    assert len(tried) == 1
    assert_same(flown.federation, Flown(task, method, tmp_path / "alone").federation, tolerance=0)
    assert {path.name for path in (tmp_path / "one" / "server").iterdir()} == {"history.json", "round-000002"}


def whole_rounds(flown: Flown) -> list[Any]:
    return flown.server.history.rounds


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    task = a_task(rounds=2)
    Flown(task, make("floral", task), tmp_path)
    other = a_task(rounds=2, learning_rate=0.2)
    with pytest.raises(InputError, match=r"learning_rate is 0\.2"):
        Flown(other, make("floral", other), tmp_path)
    fewer = a_task(rounds=1)
    with pytest.raises(InputError, match="rounds is 1, but"):
        Flown(fewer, make("floral", fewer), tmp_path)


def test_a_new_run_has_new_files(tmp_path: Path) -> None:
    task = a_task(rounds=2)
    method = make("floral", task)
    one = Flown(task, method, tmp_path)
    kept = {path: path.read_bytes() for path in (tmp_path / "clients").rglob("*.safetensors")}
    theta = one.federation.state.private[ROUTER]
    shutil.rmtree(tmp_path / "server")
    other = Flown(task, method, tmp_path)
    assert torch.equal(other.federation.state.private[ROUTER], theta)
    assert {path: path.read_bytes() for path in kept} == kept


def test_a_method_that_shares_nothing_is_refused(tmp_path: Path) -> None:
    task = a_task()
    with pytest.raises(InputError, match="clients share nothing"):
        Flown(task, make("local", task), tmp_path)


class OtherWeights(methods.FLoRAL):
    """Averages with other weights than those that its networks are mixed with."""

    name = "other-weights"

    def mixture(self, private: dict[str, torch.Tensor]) -> torch.Tensor:
        return (3 * private[ROUTER]).softmax(dim=-1)


class NoRouter(methods.FLoRAL):
    """Loses what is private."""

    name = "no-router"

    def finish(self, client: Roles, start: Roles) -> Roles:
        return client._replace(private={})


@pytest.mark.parametrize("adapts", [False, True])
@pytest.mark.parametrize("kind", [OtherWeights, NoRouter])
def test_a_method_of_one_s_own_that_the_engines_refuse_is_refused(
    kind: type[methods.FLoRAL], adapts: bool, tmp_path: Path
) -> None:
    """Else the one would train something else than its networks, and the other nothing, in every round."""
    task = a_task(rounds=1)
    method = own = kind(task.model, 2, rank=1)
    if adapts:
        method = methods.FLoRAL(task.model, 2, rank=1)
        method.adaptation = own
    with pytest.raises(InputError) as engine:
        train(task, method, seed=SEED, engine="loop")
    with pytest.raises(InputError, match=kind.__name__) as flower:
        Flown(task, method, tmp_path)
    assert str(flower.value) == str(engine.value)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
def test_a_model_in_half_precision_is_refused(kind: torch.dtype, tmp_path: Path) -> None:
    """Its weights would not sum to N^k, and of bfloat16 NumPy knows nothing."""
    task = a_task()
    task.model.to(kind)
    with pytest.raises(InputError, match=rf"parameters of \['{kind}', .*\]; over Flower they must be"):
        RolesStrategy(Run(task, make("floral", task), SEED), tmp_path)


def test_a_server_takes_a_run_only(tmp_path: Path) -> None:
    """What make() forgot to return, say."""
    for wrong in (None, "x"):
        with pytest.raises(InputError, match=rf"a run is {wrong!r}; each must be a Run"):
            RolesStrategy(wrong, tmp_path)  # type: ignore[arg-type]
    # and so does a client
    grid = LocalGrid(client_app(lambda _: None, tmp_path), 1)  # type: ignore[arg-type,return-value]
    (reply,) = grid.deliver(Message(RecordDict(), 100, "train"))
    assert "a run is None; each must be a Run" in reply.error.reason
    assert list(tmp_path.iterdir()) == []


def test_a_server_wants_no_more_replies_than_it_samples_clients(tmp_path: Path) -> None:
    """A round would wait for them without end."""
    task = a_task()
    with pytest.raises(InputError, match=r"min_replies is 5; of the 5 clients 4 are sampled a round"):
        RolesStrategy(Run(task, make("fedavg", task), SEED), tmp_path, min_replies=5)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), "x", None])
def test_a_server_that_would_wait_for_no_reply_is_refused(timeout: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"timeout is '?{timeout}"):
        server_app(dict, tmp_path, timeout=timeout)  # type: ignore[arg-type]


def test_a_round_waits_for_replies_as_long_as_the_server_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []

    def in_vain(
        grid: LocalGrid, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        waits.append(timeout)
        return []

    monkeypatch.setattr(LocalGrid, "send_and_receive", in_vain)
    task = a_task(rounds=1)
    Flown(task, make("fedavg", task), tmp_path, timeout=7.0)
    assert waits == [7.0, 7.0]  # of the training, and of the test


def test_the_rounds_are_a_part_of_the_time(tmp_path: Path) -> None:
    task = a_task(rounds=2)
    begun = time.perf_counter()
    rounds = Flown(task, make("fedavg", task), tmp_path).server.history.rounds
    assert 0 < sum(entry.seconds for entry in rounds) < time.perf_counter() - begun


def test_a_round_without_a_test_misses_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flwr")
    task = a_task(rounds=1, evaluate_every=0)
    Flown(task, make("fedavg", task), tmp_path)
    assert not any("goes on without" in line for line in caplog.messages)
