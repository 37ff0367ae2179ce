"""Saving and loading: everything comes back, and nothing is taken from a file that does not fit."""

import copy
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from floral_lite import Floral, InputError, Router, export_peft, load, save, saving
from floral_lite.files import write_whole


class Everything(nn.Module):
    """A model with every kind of adaptor, and one layer that is used twice under two names."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.images = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.project = nn.Linear(64, width)
        self.words = nn.Embedding(5, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.again = self.norm
        self.register_buffer("scale", torch.full((width,), 2.0))

    def forward(self, images: Tensor, words: Tensor) -> Tensor:
        tokens = self.norm(self.project(self.images(images))[:, None] + self.words(words))
        outputs: Tensor = self.again(self.attention(tokens, tokens, tokens)[0])
        return outputs * self.get_buffer("scale")


IMAGES = torch.randn(6, 1, 6, 6, generator=torch.Generator().manual_seed(0))
WORDS = torch.tensor([[0, 1, 2]]).expand(6, 3)
OPTIONS: dict[str, Any] = {
    "rank": 2,
    "num_clusters": 3,
    "init": "authors",
    "convolution": "channel_in",
    "norms": "batch_nora",
    "router": Router(temperature=0.5, floor=0.01, noise=1.0, entropy=-0.1),
}


def trained(base: nn.Module, **options: Any) -> Floral:
    """A Floral away from where it starts, its running statistics too."""
    model = Floral(base, **{**OPTIONS, **options})
    with torch.no_grad():
        for parameter in [*model.adaptors.parameters(), model.router_logits]:
            parameter.normal_()
    model(IMAGES, WORDS)
    return model.eval()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("saved") / "client.safetensors"
    torch.manual_seed(0)
    save(trained(Everything()), path)
    return path


def unchanged(model: nn.Module, before: Mapping[str, Tensor]) -> bool:
    now = model.state_dict()
    return list(now) == list(before) and all(torch.equal(now[name], before[name]) for name in before)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rank": None, "budget": 0.29, "convolution": "filter", "norms": "affine", "biases": False},
        {"init": "paper", "norms": "none", "router": None},
    ],
)
def test_what_was_saved_is_loaded(tmp_path: Path, options: Mapping[str, Any]) -> None:
    model = trained(Everything(), **options)
    path = tmp_path / "client.safetensors"
    save(model, path)
    torch.manual_seed(1)
    twin = load(path, Everything()).eval()
    assert (twin.options, twin.num_clusters, twin.router) == (model.options, model.num_clusters, model.router)
    assert twin.plan == model.plan
    assert unchanged(twin, model.state_dict())
    assert torch.equal(twin(IMAGES, WORDS), model(IMAGES, WORDS))


def test_the_file_holds_the_routers_and_the_clients_statistics(saved: Path) -> None:
    model, fresh = load(saved, Everything()), Floral(Everything(), **OPTIONS)
    ours, started = model.state_dict(), fresh.state_dict()
    for name in ("router_logits", "statistics.images.1.mean", "statistics.images.1.variance"):
        assert not torch.equal(ours[name], started[name]), name


def test_what_has_two_names_is_saved_once(tmp_path: Path) -> None:
    seen: list[str] = []
    path = tmp_path / "client.safetensors"
    save(trained(Everything()), path)
    with saving.safe_open(path, framework="pt") as file:
        seen += file.keys()
    assert "base.norm.weight" in seen
    assert not any(name.startswith("base.again") for name in seen)


def test_a_loaded_model_trains_on(saved: Path) -> None:
    model = load(saved, Everything()).train()
    model(IMAGES, WORDS).square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.adaptors.parameters())


def narrow() -> nn.Module:
    return Everything(width=4)


def deeper() -> nn.Module:
    model = Everything()
    model.images.append(nn.Linear(64, 64))
    return model


def shallower() -> nn.Module:
    model = Everything()
    model.norm = model.again = nn.Identity()  # type: ignore[assignment]
    return model


def without_buffer() -> nn.Module:
    model = Everything()
    del model.scale
    return model


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (
            narrow,
            r"in_proj_bias.L is .* of shape \(3, 24\) in .*client.safetensors and .* \(3, 12\) in the model",
        ),
        (
            deeper,
            r"adaptors.images.4.bias.L is missing in .* and torch.float32 of shape \(3, 64\) in the model",
        ),
        (
            shallower,
            r"adaptors.norm.bias.L is torch.float32 of shape \(3, 8\) in .* and missing in the model",
        ),
        (without_buffer, r"base.scale is torch.float32 of shape \(8,\) in .* and missing in the model"),
        (lambda: Everything().double(), r"is torch.float32 of shape .* and torch.float64 of shape"),
    ],
    ids=["narrow", "deeper", "shallower", "buffer", "precision"],
)
def test_another_architecture_is_refused_and_left_alone(saved: Path, base: Any, message: str) -> None:
    model = base()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match=message) as error:
        load(saved, model)
    assert "the architecture and precision that it was saved from" in str(error.value)
    assert unchanged(model, before)


def truncated(saved: Path, path: Path) -> None:
    path.write_bytes(saved.read_bytes()[:-100])


def empty(saved: Path, path: Path) -> None:
    path.touch()


def text(saved: Path, path: Path) -> None:
    path.write_text("no tensors here", encoding="utf-8")


def foreign(saved: Path, path: Path) -> None:
    save_file({"weight": torch.zeros(2)}, path)


def foreign_with_settings(saved: Path, path: Path) -> None:
    save_file({"weight": torch.zeros(2)}, path, {"settings": "of another program"})


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (truncated, "is not a safetensors file"),
        (empty, "is not a safetensors file"),
        (text, "is not a safetensors file"),
        (foreign, "was not written by floral_lite.save"),
        (foreign_with_settings, "was not written by floral_lite.save"),
    ],
)
def test_a_file_of_another_kind_is_refused(saved: Path, tmp_path: Path, write: Any, message: str) -> None:
    path = tmp_path / "other.safetensors"
    write(saved, path)
    model = Everything()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match=rf"other\.safetensors {message}"):
        load(path, model)
    assert unchanged(model, before)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("{}", "KeyError"),
        ("[]", "TypeError"),
        ("no JSON", "JSONDecodeError"),
        ("[" * 100_000, "RecursionError"),
        # they would not fit into memory
        ('{"num_clusters": 1000000000000}', "another number of adaptors than router logits"),
    ],
    ids=["nothing", "list", "text", "brackets", "adaptors"],
)
def test_settings_that_are_none_are_refused(saved: Path, tmp_path: Path, settings: str, reason: str) -> None:
    with saving.safe_open(saved, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    save_file(tensors, tmp_path / "other.safetensors", {**metadata, "settings": settings})
    with pytest.raises(InputError, match=f"damaged, or of another version of floral_lite .*{reason}"):
        load(tmp_path / "other.safetensors", Everything())


def test_a_network_without_layers_to_adapt_is_called_another_one(saved: Path) -> None:
    with pytest.raises(InputError, match=r"is of another network, .*the model ReLU has nothing to adapt"):
        load(saved, nn.ReLU())


def test_router_logits_of_whole_numbers_are_refused(saved: Path, tmp_path: Path) -> None:
    with saving.safe_open(saved, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    tensors["router_logits"] = tensors["router_logits"].long()
    save_file(tensors, tmp_path / "other.safetensors", metadata)
    with pytest.raises(InputError, match=r"router_logits is torch.int64 .* and torch.float32 of shape"):
        load(tmp_path / "other.safetensors", Everything())


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load(tmp_path / "nowhere.safetensors", Everything())


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a folder; name the file"):
        load(tmp_path, Everything())


@pytest.mark.parametrize("there_before", [True, False])
def test_an_interrupted_write_leaves_what_was_there(
    saved: Path, tmp_path: Path, there_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "client.safetensors"
    if there_before:
        path.write_bytes(saved.read_bytes())

    def stop(part: Path, path: Path) -> None:
        part.write_bytes(part.read_bytes()[:100])
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        save(trained(Everything()), path)
    assert path.exists() == there_before
    assert [other for other in tmp_path.iterdir() if other != path] == []
    if there_before:
        assert path.read_bytes() == saved.read_bytes()


def test_all_of_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "file", []

    def on_the_disk(descriptor: int) -> None:
        seen.append((os.fstat(descriptor).st_size, path.exists()))

    monkeypatch.setattr(os, "fsync", on_the_disk)
    write_whole(path, b"so little that it would wait in a buffer")
    assert seen == [(path.stat().st_size, False)]


def test_threads_do_not_write_into_each_others_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: write_whole(path, bytes([n % 256]) * 1000), range(400)))
    content = path.read_bytes()
    assert content == content[:1] * 1000
    assert list(tmp_path.iterdir()) == [path]


def test_saving_again_replaces_the_file(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "client.safetensors"
    path.write_bytes(saved.read_bytes())
    model = trained(Everything(), num_clusters=2)
    save(model, path)
    assert load(path, Everything()).num_clusters == 2
    assert [other.name for other in tmp_path.iterdir()] == ["client.safetensors"]


def test_a_folder_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"{tmp_path.name} is a folder; name a file"):
        save(Floral(nn.Linear(3, 2), rank=1), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("write", [save, export_peft])
def test_a_plain_network_is_refused(write: Any, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"model is of type Linear; it must be a Floral, .* save the state_dict"
    ):
        write(Floral(nn.Linear(3, 2), rank=1).merge(), tmp_path / "model")
    assert not list(tmp_path.iterdir())


class Mine(Router):
    """A file has no room for its class."""


def test_a_router_of_ones_own_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"router is of type Mine, .* save its state_dict\(\), or what merge\(\)"
    ):
        save(Floral(nn.Linear(3, 2), rank=1, router=Mine()), tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({"budget": np.float32(0.5), "num_clusters": np.int64(2)}, {"budget": 0.5, "num_clusters": 2}),
        (
            {"rank": np.int64(1), "router": Router(floor=np.float32(0.125))},
            {"rank": 1, "router": Router(floor=0.125)},
        ),
    ],
)
def test_numbers_of_numpy_are_saved(tmp_path: Path, options: dict[str, Any], same: dict[str, Any]) -> None:
    save(Floral(nn.Linear(3, 2), **options), tmp_path / "model.safetensors")
    loaded, plain = load(tmp_path / "model.safetensors", nn.Linear(3, 2)), Floral(nn.Linear(3, 2), **same)
    told, wanted = ((model.options, model.num_clusters, model.router) for model in (loaded, plain))
    assert told == wanted


@pytest.mark.parametrize("budget", [np.float32(0.7), Fraction(1, 3)])
@pytest.mark.parametrize("side", [12, 20])
def test_a_budget_gives_the_rank_that_its_file_gives(tmp_path: Path, side: int, budget: Any) -> None:
    made = Floral(nn.Linear(side, side), budget=budget)
    save(made, tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors", nn.Linear(side, side))
    assert torch.equal(loaded.clustered()["weight.U"], made.clustered()["weight.U"])


class Masked(nn.Module):
    """A layer with a mask whose rows are one row of memory."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("mask", torch.full((1, 4), value).expand(3, 4))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs) * self.get_buffer("mask")[0]
        return outputs


def test_an_expanded_buffer_is_loaded(tmp_path: Path) -> None:
    made = Floral(Masked(2.0), rank=1)
    save(made, tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors", Masked(0.0))
    for name, tensor in made.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)


@pytest.mark.parametrize(
    ("buffer", "kind"),
    [
        (torch.ones(2, dtype=torch.complex128), "torch.complex128"),
        (torch.eye(2).to_sparse(), "torch.sparse_coo"),
    ],
)
def test_a_tensor_that_no_file_can_keep_is_named(buffer: Tensor, kind: str, tmp_path: Path) -> None:
    base = nn.Sequential(nn.Linear(4, 2))
    base[0].register_buffer("own", buffer)
    with pytest.raises(InputError, match=rf"base\.0\.own is .*{kind}.*; a file keeps dense tensors"):
        save(Floral(base, rank=1), tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_weight_with_its_channels_last_is_saved(tmp_path: Path) -> None:
    base = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    assert not base.weight.is_contiguous()
    save(Floral(base, rank=1), tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors", nn.Conv2d(2, 3, 3))
    assert torch.equal(loaded.base.get_parameter("weight"), base.weight)


def test_two_parameters_in_one_memory_are_saved_apart(tmp_path: Path) -> None:
    base = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    base[1].weight = nn.Parameter(base[0].weight.data)
    save(Floral(base, rank=1), tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors", nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    assert torch.equal(loaded.base.get_parameter("1.weight"), base[0].weight)


def test_a_floral_in_half_precision_is_loaded_with_its_router(tmp_path: Path) -> None:
    save(Floral(nn.Linear(3, 2), rank=1).bfloat16(), tmp_path / "model.safetensors")
    loaded = load(tmp_path / "model.safetensors", nn.Linear(3, 2).bfloat16())
    assert loaded.router_logits.dtype == torch.bfloat16


def test_a_floral_is_not_loaded_into_a_floral(tmp_path: Path) -> None:
    model = Floral(nn.Linear(3, 2), rank=1)
    save(model, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"is a Floral already; give the base network: model\.base"):
        load(tmp_path / "model.safetensors", model)
