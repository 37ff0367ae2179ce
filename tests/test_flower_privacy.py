"""Differential privacy by Flower's own means: the client's modifier, and the server's wrapper."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'flwr>=1.41'")

from flwr.app import Error, Message
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

from floral_lite import InputError, Run
from floral_lite.flower import RolesStrategy, client_app
from floral_lite.flower.messages import from_arrays
from floral_lite.roles import Roles

from .federations import first_state
from .flower_grid import LocalGrid
from .flower_runs import SEED, Flown, a_task, assert_same, make


@pytest.fixture(autouse=True)
def noise_with_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower draws its noise from NumPy's own generator, which a test must not seed for others."""
    monkeypatch.setattr(np.random, "normal", np.random.default_rng(0).normal)


def update(before: Roles, after: Roles) -> torch.Tensor:
    """All that has moved, as one vector."""
    pairs = zip(before._replace(private={}).tensors(), after.tensors(), strict=True)
    return torch.cat([(new - old).flatten() for old, new in pairs])


def replies(flown: Flown, first: Roles) -> list[torch.Tensor]:
    """Each client's update as it was sent, in the first round."""
    return [
        update(first, from_arrays(reply.content.array_records["arrays"], first))
        for _, message, reply in flown.grid.sent
        if message.metadata.message_type == "train"
    ]


def test_a_wide_clip_without_noise_changes_nothing(tmp_path: Path) -> None:
    task = a_task(rounds=2)
    method = make("floral", task)
    plain = Flown(task, method, tmp_path / "plain")
    mod = LocalDpMod(clipping_norm=1e6, sensitivity=0.0, epsilon=1.0, delta=1e-5)
    private = Flown(task, method, tmp_path / "private", mods=[mod])
    assert_same(private.federation, plain.federation)


def test_each_update_is_clipped_and_noised_as_asked(tmp_path: Path) -> None:
    task = a_task(rounds=1)
    method = make("floral", task)
    first = first_state(task, method, SEED)
    clipped = Flown(task, method, tmp_path / "clipped", mods=[LocalDpMod(0.01, 0.0, 1.0, 1e-5)])
    unclipped = Flown(task, method, tmp_path / "plain")
    for own, whole in zip(replies(clipped, first), replies(unclipped, first), strict=True):
        assert float(whole.norm()) > 0.01
        torch.testing.assert_close(own, whole * 0.01 / whole.norm(), rtol=1e-6, atol=1e-9)
    noised = Flown(task, method, tmp_path / "noised", mods=[LocalDpMod(0.01, 0.5, 2.0, 1e-5)])
    noise = torch.cat(replies(noised, first)) - torch.cat(replies(clipped, first))
    # sigma = sensitivity sqrt(2 log(1.25 / delta)) / epsilon
    wanted = 0.5 * (2 * torch.tensor(1.25e5).log()).sqrt() / 2
    assert len(noise) > 500
    # six deviations of so many draws either way
    assert float(noise.std()) == pytest.approx(float(wanted), rel=0.2)
    assert abs(float(noise.mean())) < 0.35


@pytest.mark.parametrize("mod", [LocalDpMod(0.01, 0.0, 1.0, 1e-5), fixedclipping_mod, adaptiveclipping_mod])
def test_products_with_weights_are_not_clipped_as_if_they_were_updates(mod: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="weighted is True, and mods has LocalDpMod"):
        client_app(dict, tmp_path, weighted=True, mods=[mod])  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [1, 2])
def test_a_round_that_the_server_s_wrapper_drops_counts_as_one(number: int, tmp_path: Path) -> None:
    """Flower's wrappers hand no reply on where one of them is an error."""

    def fail(client: int, message: Message, reply: Message) -> list[Message]:
        if message.metadata.message_type == "train" and client == 2:
            round_number = message.content.config_records["config"]["round"]
            if round_number == number and not failed:
                failed.append(client)
                return [Message(Error(code=3, reason="out of memory"), reply_to=message)]
        return [reply]

    task, failed = a_task(rounds=3), list[int]()
    run = Run(task, make("floral", task), SEED)
    strategy = RolesStrategy(run, tmp_path / "server", patience=0.01)
    wrapped = DifferentialPrivacyServerSideFixedClipping(strategy, 0.0, 1e3, num_sampled_clients=4)
    grid = LocalGrid(client_app(lambda _: run, tmp_path / "clients"), task.num_clients, fail)
    wrapped.start(grid, strategy.arrays, num_rounds=3)
    losses = {entry.round: entry.train_loss for entry in strategy.history.rounds}
    assert list(losses) == [1, 2, 3]
    assert [index for index, loss in losses.items() if math.isnan(loss)] == [number]
    assert strategy.remaining == 0


def test_what_the_server_s_wrapper_makes_is_what_is_kept_and_sent(tmp_path: Path) -> None:
    task = a_task(rounds=2)
    method = make("floral", task)
    run = Run(task, method, SEED)
    ends = []
    # a deviation of 1e-3 * 1e3 / 4: more, and a model may be so sure that its gradient is zero, which the
    # wrapper's clipping divides by
    for name, noise in (("without", 0.0), ("with", 1e-3)):
        strategy = RolesStrategy(run, tmp_path / name / "server", patience=0.01)
        wrapped = DifferentialPrivacyServerSideFixedClipping(strategy, noise, 1e3, num_sampled_clients=4)
        grid = LocalGrid(client_app(lambda _: run, tmp_path / name / "clients"), task.num_clients)
        result = wrapped.start(grid, strategy.arrays, num_rounds=2)
        for ours, theirs in zip(
            strategy.state.tensors(), from_arrays(result.arrays, strategy.state).tensors(), strict=True
        ):
            assert torch.equal(ours, theirs)
        ends.append(RolesStrategy(run, tmp_path / name / "server").state)
        assert all(
            torch.equal(*pair) for pair in zip(ends[-1].tensors(), strategy.state.tensors(), strict=True)
        )
    Flown(task, method, tmp_path / "plain")
    plain = RolesStrategy(run, tmp_path / "plain" / "server").state
    assert float(update(plain, ends[0]).norm()) < 1e-9
    assert float(update(plain, ends[1]).norm()) > 1
