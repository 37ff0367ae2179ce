"""A client's own file: whole or not at all, of one federation, and one round back if the server asks."""

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'flwr>=1.41'")

from floral_lite import InputError
from floral_lite.flower.state import OwnFile

NAME = "0123456789abcdef"


def theta(value: float) -> dict[str, torch.Tensor]:
    return {"router_logits": torch.full((3,), float(value)), "0.weight.U": torch.full((2, 1), float(value))}


def values(own: dict[str, torch.Tensor]) -> list[float]:
    return [float(tensor.mean()) for tensor in own.values()]


def test_a_round_that_is_asked_for_again_begins_where_it_began(tmp_path: Path) -> None:
    file = OwnFile(tmp_path, NAME, 7)
    assert values(file.load(1, theta(0))) == [0, 0]
    file.save(1, theta(0), theta(1))
    assert values(file.load(1, theta(0))) == [0, 0]
    assert values(file.load(2, theta(0))) == [1, 1]
    file.save(4, theta(1), theta(4))
    assert values(OwnFile(tmp_path, NAME, 7).load(4, theta(0))) == [1, 1]
    assert values(OwnFile(tmp_path, NAME, 7).load(9, theta(0))) == [4, 4]
    assert list(file.load(9, theta(0))) == list(theta(0))
    with pytest.raises(InputError, match="is of round 4, and the server asks for round 3"):
        file.load(3, theta(0))


def test_a_round_that_ends_after_a_later_one_is_not_kept(tmp_path: Path) -> None:
    """The server has given it up, and each message has a process of its own."""
    file = OwnFile(tmp_path, NAME, 7)
    assert values(file.load(4, theta(0))) == [0, 0]
    file.save(5, theta(0), theta(5))
    with pytest.raises(InputError, match="is of round 5"):
        file.save(4, theta(0), theta(4))
    assert values(file.load(6, theta(0))) == [5, 5]


def test_what_a_round_leaves_as_it_was_is_kept(tmp_path: Path) -> None:
    """A router that is given, say: it is the same tensor before and after."""
    given = theta(2)
    OwnFile(tmp_path, NAME, 7).save(1, given, given)
    assert values(OwnFile(tmp_path, NAME, 7).load(2, theta(0))) == [2, 2]


def test_clients_and_federations_have_files_of_their_own(tmp_path: Path) -> None:
    OwnFile(tmp_path, NAME, 7).save(1, theta(0), theta(1))
    assert values(OwnFile(tmp_path, NAME, 8).load(2, theta(0))) == [0, 0]
    assert values(OwnFile(tmp_path, NAME[::-1], 7).load(2, theta(0))) == [0, 0]


def test_without_anything_private_there_is_no_file(tmp_path: Path) -> None:
    OwnFile(tmp_path, NAME, 7).save(1, {}, {})
    assert list(tmp_path.rglob("*")) == []


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OwnFile(tmp_path, NAME, 7)
    file.save(1, theta(0), theta(1))

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            file.save(2, theta(1), theta(2))
    assert values(file.load(2, theta(0))) == [1, 1]
    file.save(2, theta(1), theta(2))
    assert values(file.load(3, theta(0))) == [2, 2]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["client-7.safetensors"]


def test_nobody_else_on_the_machine_reads_it_and_a_full_disk_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = OwnFile(tmp_path, NAME, 7)
    file.save(1, theta(0), theta(1))
    assert file.path.parent.stat().st_mode & 0o077 == 0

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        file.save(2, theta(1), theta(2))
    assert values(file.load(2, theta(0))) == [1, 1]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["client-7.safetensors"]


@pytest.mark.parametrize("name", ["../../../../tmp/x", "", "0123456789ABCDEF", NAME + "/", NAME + "\n"])
def test_the_server_cannot_choose_a_place_outside_the_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="16 hexadecimal digits"):
        OwnFile(tmp_path, name, 7)


@pytest.mark.parametrize("size", [0, 4, 30, 100])
def test_a_damaged_file_is_told_and_left(size: int, tmp_path: Path) -> None:
    file = OwnFile(tmp_path, NAME, 7)
    file.save(1, theta(0), theta(1))
    file.path.write_bytes(file.path.read_bytes()[:size])
    with pytest.raises(InputError, match="is damaged"):
        file.load(2, theta(0))
    assert file.path.stat().st_size == size


@pytest.mark.parametrize("metadata", [None, {"floral_lite": "1"}, {"round": "one"}], ids=str)
def test_a_file_without_its_round_is_told(metadata: dict[str, str] | None, tmp_path: Path) -> None:
    file = OwnFile(tmp_path, NAME, 7)
    file.path.parent.mkdir()
    save_file({"before/theta": torch.zeros(2)}, file.path, metadata)
    with pytest.raises(InputError, match="is damaged"):
        file.load(2, theta(0))


def test_a_file_of_another_model_is_told_and_left(tmp_path: Path) -> None:
    file = OwnFile(tmp_path, NAME, 7)
    file.save(1, theta(0), theta(1))
    others = [
        {"router_logits": torch.zeros(3)},
        {"router_logits": torch.zeros(4), "0.weight.U": torch.zeros(2, 1)},
        {"router_logits": torch.zeros(3), "0.weight.U": torch.zeros(2, 1, dtype=torch.float64)},
    ]
    for other in others:
        with pytest.raises(InputError, match="of another method or model"):
            file.load(2, other)
    assert values(file.load(2, theta(0))) == [1, 1]
