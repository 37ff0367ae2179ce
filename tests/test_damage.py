"""Files from outside are data: damaged in any way they load or are refused in a sentence, and they stay."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from floral_lite import Floral, History, InputError, Run, methods, save
from floral_lite import load as load_floral
from floral_lite.data.images import Images, cifar10
from floral_lite.experiments.results import OF_A_ROUND, Result, read
from floral_lite.federation import checkpointed_rounds, load_checkpoint

from .federations import make_task, normal

# The examples of one test share its folder. More of them were tried once; in CI seconds count.
several = settings(
    max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)

STATE, HISTORY = "round-000002/state-0.safetensors", "round-000002/history-0.json"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def network() -> nn.Module:
    return nn.Linear(4, 3)


def a_run() -> Run:
    task = make_task(network, normal(4), rounds=2, server_optimizer="adam", server_learning_rate=0.1)
    return Run(task, methods.FLoRAL(task.model, 2, rank=1), 0)


def resume(folder: Path) -> None:
    """What a run begins with; its rounds are done."""
    run = a_run()
    for _ in checkpointed_rounds([run], run.task.settings, checkpoints=folder):
        pass


def load_images(folder: Path) -> None:
    cifar10(folder, download=False)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file of each kind."""
    folder = tmp_path_factory.mktemp("good")
    resume(folder)
    (federation,) = load_checkpoint(folder) or []
    federation.history.save(folder / "history.json")
    made = {"command": "python", "device": "cpu", "seconds": 1.0}
    rounds, clients = {name: [1] for name in OF_A_ROUND}, {"accuracy_mean": None, "loss_mean": 1.0}
    asked = {"task": "digits-rotate", "row": "fedavg", "settings": {"rounds": 1}}
    result = Result(asked, {}, 0, "done", None, made, [0], {}, rounds, clients)
    result.save(folder / "result.json")
    torch.manual_seed(0)
    save(Floral(network(), rank=1, num_clusters=2), folder / "model.safetensors")
    images, labels = np.zeros((2, 3, 32, 32), np.uint8), np.arange(2)
    np.savez(folder / "cifar10.npz", **dict(zip(Images._fields, [images, labels] * 2, strict=True)))
    return folder


LOADERS: dict[str, Callable[[Path], object]] = {
    STATE: resume,
    HISTORY: resume,
    "history.json": lambda folder: History.load(folder / "history.json").frame(),
    "result.json": lambda folder: read(folder / "result.json").score,
    "model.safetensors": lambda folder: load_floral(folder / "model.safetensors", network()),
    "cifar10.npz": load_images,
}


def try_to_load(name: str, good: Path, folder: Path, content: bytes) -> bool:
    """Whether a file with that content loads; it must be refused in a sentence otherwise, and stay."""
    path = folder / name
    if not path.exists():
        shutil.copytree(good, folder, dirs_exist_ok=True)
    path.write_bytes(content)
    files = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    loaded = False
    with suppress(InputError):
        LOADERS[name](folder)
        loaded = True
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == files
    return loaded


@pytest.mark.parametrize("name", LOADERS)
def test_good_files_load(name: str, good: Path, tmp_path: Path) -> None:
    assert try_to_load(name, good, tmp_path, (good / name).read_bytes())


@pytest.mark.parametrize("name", LOADERS)
@given(data=st.data())
@several
def test_a_truncated_file_is_refused(name: str, good: Path, tmp_path: Path, data: st.DataObject) -> None:
    whole = (good / name).read_bytes()
    size = data.draw(st.integers(0, len(whole.rstrip()) - 1))
    assert not try_to_load(name, good, tmp_path, whole[:size])


@pytest.mark.parametrize("name", LOADERS)
@given(data=st.data())
@several
def test_changed_bytes_load_or_are_refused(
    name: str, good: Path, tmp_path: Path, data: st.DataObject
) -> None:
    content = bytearray((good / name).read_bytes())
    # headers are at the front, but for zip's
    near = st.integers(0, min(400, len(content) - 1)) | st.integers(0, len(content) - 1)
    for place in data.draw(st.lists(near, min_size=1, max_size=4)):
        content[place : place + 1] = data.draw(st.binary(max_size=3))
    try_to_load(name, good, tmp_path, bytes(content))


@pytest.mark.parametrize("name", [HISTORY, "history.json", "result.json"])
@given(data=st.data())
@several
def test_other_json_loads_or_is_refused(name: str, good: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = changed(json.loads((good / name).read_text()), data)
    try_to_load(name, good, tmp_path, json.dumps(content).encode())


@given(data=st.data())
@several
def test_other_settings_of_a_model_load_or_are_refused(
    good: Path, tmp_path: Path, data: st.DataObject
) -> None:
    with safe_open(good / "model.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    metadata["settings"] = json.dumps(changed(json.loads(metadata["settings"]), data))
    path = tmp_path / "other.safetensors"
    save_file(tensors, path, metadata)
    try_to_load("model.safetensors", good, tmp_path, path.read_bytes())


def changed(content: Any, data: st.DataObject) -> Any:
    """The same with one value, somewhere in it, that is another."""
    if isinstance(content, dict | list) and content and data.draw(st.integers(0, 4)):
        keys = list(content) if isinstance(content, dict) else range(len(content))
        key = data.draw(st.sampled_from(list(keys)))
        content[key] = changed(content[key], data)
        return content
    return data.draw(JSON)


@pytest.mark.parametrize("name", [HISTORY, "history.json", "result.json"])
def test_brackets_without_end_are_refused(name: str, good: Path, tmp_path: Path) -> None:
    assert not try_to_load(name, good, tmp_path, b"[" * 100_000)
