"""The tasks: their shapes, their clusters, and the paper's settings."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from floral_lite import InputError, Settings, Shard, Task, tasks
from floral_lite.data import FlipAndCrop, as_float, digits, shift_labels
from floral_lite.federation.pool import Pool
from floral_lite.federation.task import Loss
from floral_lite.seeds import stream
from floral_lite.tasks.images import image_task, rotated

NO_DOWNLOAD = [name for name in tasks.TASKS if not name.startswith(("mnist", "cifar"))]
needs_mnist = pytest.mark.skipif(
    "FLORAL_LITE_DATA" not in os.environ, reason="FLORAL_LITE_DATA names no folder with MNIST"
)


def shapes(model: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(parameter.shape) for parameter in model.parameters()]


def equal(first: Task, second: Task) -> bool:
    """The same model and the same data."""
    tensors = [
        [*task.model.parameters(), *(tensor for shard in [*task.train, *task.test] for tensor in shard)]
        for task in (first, second)
    ]
    return all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))


@pytest.mark.parametrize("name", NO_DOWNLOAD)
def test_the_seed_decides_the_task_and_nothing_else_does(name: str) -> None:
    before = torch.get_rng_state()
    first = tasks.load(name, seed=1)
    torch.rand(3)
    again, other = tasks.load(name, seed=1), tasks.load(name, seed=2)
    assert equal(first, again)
    assert not equal(first, other)
    torch.set_rng_state(before)
    tasks.load(name)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", NO_DOWNLOAD)
def test_the_record_says_how_the_task_was_made(name: str) -> None:
    task = tasks.load(name, seed=3, data_fraction=0.5, num_clients=6, num_clusters=3)
    assert task.name == name
    assert task.details == {"task_clusters": 3, "num_clients": 6, "data_fraction": 0.5, "task_seed": 3}
    assert task.clusters.tolist() == [0, 1, 2, 0, 1, 2]
    assert task.num_clients == len(task.train) == len(task.test) == 6


@pytest.mark.parametrize("name", ["digits-rotate", "digits-label-shift"])
def test_digits_tasks(name: str) -> None:
    task = tasks.load(name)
    assert task.clusters.tolist() == [k % 4 for k in range(20)]
    assert shapes(task.model) == [(32, 64), (32,), (10, 32), (10,)]
    assert sum(len(shard) for shard in task.train) == 1438
    assert sum(len(shard) for shard in task.test) == 359
    assert {len(shard) for shard in task.train} == {71, 72}
    assert task.train[0].inputs.shape[1:] == (1, 8, 8)
    assert task.is_classification


def dealt(seed: int, split: str, client: int) -> Shard:
    """A client's digits before its cluster changes them: 20 clients get all images at random."""
    images = digits()
    pixels, labels = {"train": images[:2], "test": images[2:]}[split]
    rows = torch.randperm(len(labels), generator=stream(seed, split)).tensor_split(20)[client]
    return Shard(pixels[rows], labels[rows])


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("client", [0, 5, 11, 18])
def test_clusters_turn_their_images_by_quarter_turns(client: int, split: str) -> None:
    shard = getattr(tasks.load("digits-rotate", seed=2), split)[client]
    original = dealt(2, split, client)
    # c = k mod 4, by 2 pi c / 4
    assert torch.equal(shard.inputs, torch.rot90(original.inputs, client % 4, dims=(2, 3)))
    assert torch.equal(shard.targets, original.targets)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("client", [0, 5, 11, 18])
def test_clusters_shift_their_labels(client: int, split: str) -> None:
    shard = getattr(tasks.load("digits-label-shift", seed=2), split)[client]
    original = dealt(2, split, client)
    assert torch.equal(shard.inputs, original.inputs)
    # y -> (y + c) mod 10
    assert torch.equal(shard.targets, shift_labels(original.targets, client % 4, 10))
    assert shard.targets.tolist() == [(int(y) + client % 4) % 10 for y in original.targets]


@pytest.mark.parametrize("fraction", [0.05, 0.3])
def test_reduced_tasks_keep_a_share_of_the_same_training_images_and_all_test_images(fraction: float) -> None:
    full, reduced = (tasks.load("digits-rotate", data_fraction=share) for share in (1.0, fraction))
    for whole, part in zip(full.train, reduced.train, strict=True):
        # 72 * 0.05 < 10; 72 * 0.3 = 21.6, 71 * 0.3 = 21.3
        assert len(part) == max(10, int(fraction * len(whole))) == {0.05: 10, 0.3: 21}[fraction]
        assert torch.equal(part.inputs, whole.inputs[: len(part)])
        assert torch.equal(part.targets, whole.targets[: len(part)])
    for whole, part in zip(full.test, reduced.test, strict=True):
        assert torch.equal(part.inputs, whole.inputs)


@pytest.mark.parametrize("name", NO_DOWNLOAD)
def test_several_seeds_at_once_are_the_tasks_of_each(name: str) -> None:
    arguments = {"data_fraction": 0.5, "num_clients": 6, "num_clusters": 3}
    together = tasks.load_seeds(name, [2, 5], **arguments)
    assert [task.details["task_seed"] for task in together] == [2, 5]
    for seed, task in zip((2, 5), together, strict=True):
        assert equal(task, tasks.load(name, seed=seed, **arguments))
    assert tasks.load_seeds(name, []) == []


def test_image_tasks_share_one_copy_of_the_images_whatever_their_number_and_clusters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = []

    def source(folder: Path | None) -> Any:
        read.append(digits())
        return read[-1]

    prepare = image_task(source, lambda: nn.Flatten(), rotated)
    recipe = replace(tasks.TASKS["digits-rotate"], prepare=prepare)
    monkeypatch.setitem(tasks.TASKS, "digits-rotate", replace(recipe, loss=lambda outputs, targets: outputs))
    loaded = tasks.load_seeds("digits-rotate", [0, 1, 2], num_clusters=8, data_fraction=0.1)
    assert len(read) == 1
    for task in loaded:
        assert isinstance(task.train, Pool)
        assert isinstance(task.test, Pool)
        assert task.train.inputs.data_ptr() == read[0].train_images.data_ptr()
        assert task.train.targets.data_ptr() == read[0].train_labels.data_ptr()
        assert task.test.inputs.data_ptr() == read[0].test_images.data_ptr()


def fake_cifar(folder: Path, name: str, num_labels: int, num_train: int, num_test: int) -> None:
    """A CIFAR file of random images, with as many of each label."""
    generator = np.random.default_rng(0)
    arrays = {}
    for split, number in (("train", num_train), ("test", num_test)):
        shape = (number * num_labels, 3, 32, 32)
        arrays[f"{split}_images"] = generator.integers(256, size=shape, dtype=np.uint8)
        arrays[f"{split}_labels"] = generator.permutation(np.arange(num_labels).repeat(number))
    np.savez(folder / f"{name}.npz", **arrays)


def test_cifar10_tasks(tmp_path: Path) -> None:
    fake_cifar(tmp_path, "cifar10", 10, num_train=24, num_test=5)
    turned, shifted = (
        tasks.load(f"cifar10-{kind}", seed=1, data=tmp_path) for kind in ("rotate", "label-shift")
    )
    for task in (turned, shifted):
        assert task.clusters.tolist() == [k % 4 for k in range(20)]
        assert [len(shard) for shard in task.train] == [12] * 20
        assert {len(shard) for shard in task.test} == {2, 3}
        assert task.train[0].inputs.shape == (12, 3, 32, 32)
        assert task.train[0].inputs.dtype == torch.float32
        assert task.augment == FlipAndCrop(padding=4)
        assert task.model(task.train[0].inputs).shape == (12, 10)
        assert sum(parameter.numel() for parameter in task.model.parameters()) == 87178
    for client in range(5):
        first, second = turned.train[client], shifted.train[client]
        assert torch.equal(torch.rot90(second.inputs, client % 4, dims=(2, 3)), first.inputs)
        assert torch.equal((first.targets + client % 4) % 10, second.targets)
    assert tasks.load("cifar10-rotate", data=tmp_path, data_fraction=0.05).train[3].inputs.shape[0] == 10


def test_cifar100_gives_each_cluster_ten_of_the_labels(tmp_path: Path) -> None:
    fake_cifar(tmp_path, "cifar100", 100, num_train=12, num_test=3)
    task = tasks.load("cifar100", seed=1, data=tmp_path)
    assert task.clusters.tolist() == [k % 10 for k in range(100)]
    assert [len(shard) for shard in task.train] == [12] * 100
    assert [len(shard) for shard in task.test] == [3] * 100
    for split in (task.train, task.test):
        for cluster in range(10):
            own = torch.cat([split[client].targets for client in range(cluster, 100, 10)])
            assert sorted(set(own.tolist())) == list(range(10 * cluster, 10 * cluster + 10))
    assert isinstance(task.train, Pool)
    # images and labels stay together, and everyone sees them as they are
    for client in (0, 57):
        rows = task.train.rows[12 * client : 12 * client + 12]
        assert torch.equal(task.train[client].inputs, as_float(task.train.inputs[rows]))
        assert torch.equal(task.train[client].targets, task.train.targets[rows])
    assert task.augment == FlipAndCrop(padding=4)
    assert task.model.eval()(task.test[0].inputs).shape == (3, 100)
    assert (task.settings.server_optimizer, task.settings.server_learning_rate) == ("adam", 0.001)
    with pytest.raises(InputError, match=r"num_clusters is 101.*only 100 labels"):
        tasks.load("cifar100", data=tmp_path, num_clients=101, num_clusters=101)


def test_only_cifar_images_are_augmented() -> None:
    assert {name for name, recipe in tasks.TASKS.items() if recipe.augment} == {
        "cifar10-rotate", "cifar10-label-shift", "cifar100",
    }  # fmt: skip


def test_synthetic_linear_has_the_papers_numbers() -> None:
    task = tasks.load("synthetic-linear")
    assert task.clusters.tolist() == [0, 1] * 5
    assert shapes(task.model) == [(3, 10), (3,)]
    # 0.25 * 33 parameters = 8 samples, 80% of them to train on
    assert [(len(train), len(test)) for train, test in zip(task.train, task.test, strict=True)] == [
        (6, 2)
    ] * 10
    assert not task.is_classification
    assert task.loss is functional.mse_loss


def test_synthetic_targets_follow_the_map_of_the_cluster() -> None:
    """Y = (W + alpha U_c V_c^T) x, without noise: each cluster's clients together give its map back."""
    task = tasks.load("synthetic-linear", seed=4)

    def fitted(cluster: int) -> Tensor:
        shards = [
            shard for split in (task.train, task.test) for k, shard in enumerate(split) if k % 2 == cluster
        ]
        inputs, targets = (torch.cat(parts).double() for parts in zip(*shards, strict=True))
        solution = torch.linalg.lstsq(inputs, targets).solution
        torch.testing.assert_close(inputs @ solution, targets, rtol=0, atol=1e-5)
        return solution.T

    maps = [fitted(0), fitted(1)]
    assert torch.linalg.matrix_rank(maps[0] - maps[1], rtol=1e-4) == 2
    assert float((maps[0] - maps[1]).norm()) > 0.5


def test_synthetic_inputs_are_standard_normal_and_differ_between_clients() -> None:
    task = tasks.load("synthetic-linear", num_clients=200)
    inputs = torch.cat([shard.inputs for shard in task.train])
    assert float(inputs.mean()) == pytest.approx(0.0, abs=0.03)
    assert float(inputs.std()) == pytest.approx(1.0, abs=0.03)
    assert not torch.equal(task.train[0].inputs, task.train[2].inputs)
    assert not torch.equal(task.train[0].inputs, task.train[1].inputs)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # K, C, rounds, participation, batch, client lr, router lr: the paper's
        ("synthetic-linear", (10, 2, 2000, 1.0, 4, 0.1, 0.1)),
        ("mnist-rotate", (300, 4, 500, 0.1, 32, 0.1, 0.1)),
        ("mnist-label-shift", (300, 4, 500, 0.1, 32, 0.1, 0.1)),
        ("cifar10-rotate", (20, 4, 500, 1.0, 64, 0.03, 0.1)),
        ("cifar10-label-shift", (20, 4, 500, 1.0, 64, 0.03, 0.1)),
        ("cifar100", (100, 10, 500, 0.5, 64, 0.001, 0.1)),
        # ours
        ("digits-rotate", (20, 4, 100, 1.0, 16, 0.3, 10.0)),
        ("digits-label-shift", (20, 4, 100, 1.0, 16, 0.3, 10.0)),
    ],
)
def test_settings_of_the_tasks(name: str, expected: tuple[float, ...]) -> None:
    recipe = tasks.TASKS[name]
    settings = recipe.settings
    assert expected == (
        recipe.num_clients, recipe.num_clusters, settings.rounds, settings.participation,
        settings.batch_size, settings.learning_rate, settings.router_learning_rate,
    )  # fmt: skip
    assert recipe.about


@needs_mnist
def test_mnist_tasks() -> None:
    rotated = tasks.load("mnist-rotate", seed=1)
    assert [len(shard) for shard in rotated.train] == [200] * 300
    assert {len(shard) for shard in rotated.test} == {33, 34}
    assert sum(len(shard) for shard in rotated.test) == 10000
    assert shapes(rotated.model) == [(200, 784), (200,), (10, 200), (10,)]
    assert isinstance(rotated.train, Pool)
    assert rotated.train.inputs.dtype == torch.uint8
    assert rotated.train[0].inputs.dtype == torch.float32
    shifted = tasks.load("mnist-label-shift", seed=1, data_fraction=0.05)
    assert [len(shard) for shard in shifted.train] == [10] * 300
    for client in (0, 1, 2, 3, 299):
        turned, plain = rotated.train[client], shifted.train[client]
        assert torch.equal(torch.rot90(turned.inputs[:10], -(client % 4), dims=(2, 3)), plain.inputs)
        assert torch.equal((turned.targets[:10] + client % 4) % 10, plain.targets)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("digit-rotate", {}, "no task is called 'digit-rotate'.*did you mean 'digits-rotate'.*mnist-rotate"),
        ("digits-rotate", {"num_clusters": 0}, "num_clusters is 0.*1 to the number of clients, 20"),
        ("digits-rotate", {"num_clusters": 21}, "num_clusters is 21.*1 to the number of clients, 20"),
        ("digits-rotate", {"num_clients": 0}, "num_clients is 0.*at least 1"),
        ("digits-rotate", {"num_clients": 360}, "num_clients is 360.*only 359 samples"),
        ("digits-rotate", {"data_fraction": 0.0}, r"data_fraction is 0\.0.*\(0, 1\]"),
        ("synthetic-linear", {"data_fraction": 1.01}, r"data_fraction is 1\.01.*\(0, 1\]"),
        ("digits-label-shift", {"seed": -1}, "seed is -1.*0 or more"),
    ],
)
def test_arguments_out_of_range_are_refused(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tasks.load(name, **arguments)


def test_a_folder_without_mnist_is_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # a proxy that is not there: no download, and no waiting for one
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(InputError, match=r"lacks train-images-idx3-ubyte.*could not be downloaded"):
        tasks.load("mnist-rotate", data=tmp_path)


MODEL = nn.Linear(2, 3)


def shard(num_samples: int = 4, largest: int = 2) -> Shard:
    return Shard(torch.ones(num_samples, 2), torch.arange(num_samples) % (largest + 1))


def task(
    train: list[Shard], test: list[Shard], num_clients: int | None = None, model: nn.Module = MODEL,
    loss: Loss = functional.cross_entropy,
) -> Task:  # fmt: skip
    clusters = torch.zeros(len(train) if num_clients is None else num_clients, dtype=torch.long)
    return Task("own", model, loss, train, test, clusters, Settings(), {})


def test_a_task_of_ones_own() -> None:
    own = task([shard(), shard(1)], [shard(2), shard(3)])
    assert own.num_clients == 2
    assert own.is_classification
    moved = own.to(torch.device("cpu"))
    assert equal(own, moved)


@pytest.mark.parametrize(
    ("train", "test", "num_clients", "message"),
    [
        ([shard(), shard(0)], [shard(), shard()], None, "client 1 has no train data"),
        ([shard(), shard()], [shard(0), shard()], None, "client 0 has no test data"),
        (
            [shard(), Shard(shard(5).inputs, shard(4).targets)],
            [shard(), shard()],
            None,
            "client 1 has 5 train inputs and 4 targets",
        ),
        ([shard(), shard()], [shard()], None, "'train': 2, 'test': 1, 'clusters': 2"),
        ([shard()], [shard()], 3, "'train': 1, 'test': 1, 'clusters': 3"),
        ([], [], None, "'train': 0.*one per client"),
        (
            [shard(), shard(), shard(largest=3)],
            [shard()] * 3,
            None,
            "client 2 has targets from 0 to 3.*3 outputs.*0 to 2",
        ),
        ([shard()] * 2, [shard(), shard(largest=3)], None, "client 1 has targets from 0 to 3"),
        (
            [Shard(torch.ones(1, 2), torch.tensor([-1]))],
            [shard()],
            None,
            "client 0 has targets from -1 to -1",
        ),
    ],
    ids=[
        "no-train",
        "no-test",
        "lengths",
        "lists",
        "clusters",
        "nobody",
        "train-label",
        "test-label",
        "negative-label",
    ],
)
def test_data_that_mean_nothing_are_refused(
    train: list[Shard], test: list[Shard], num_clients: int | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        task(train, test, num_clients)


def test_a_batch_norm_without_momentum_is_refused() -> None:
    with pytest.raises(InputError, match=r"batch norm 1 has momentum=None.*such as 0\.1"):
        task([shard()], [shard()], model=nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, momentum=None)))


def test_a_layer_under_two_names_is_refused() -> None:
    layer, activation = nn.Linear(2, 2), nn.ReLU()
    task([shard()], [shard()], model=nn.Sequential(nn.Linear(2, 2), activation, nn.Linear(2, 3), activation))
    with pytest.raises(InputError, match="one layer under two names, 0 and 1; register it once"):
        task([shard()], [shard()], model=nn.Sequential(layer, layer, nn.Linear(2, 3)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rounds", 0), ("local_epochs", 0), ("batch_size", 0), ("evaluate_every", -1), ("rounds", -5),
        ("learning_rate", 0.0), ("router_learning_rate", -0.1), ("learning_rate", float("nan")),
        ("participation", 0.0), ("participation", 1.1), ("participation", float("nan")),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{name} is {value}"):
        Settings(**{name: value})
    with pytest.raises(InputError, match=f"{name} is {value}"):
        Settings().with_changes(**{name: value})


def test_unknown_settings_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        InputError, match=r"no setting is called 'learning_rat'.*did you mean 'learning_rate'"
    ):
        Settings().with_changes(learning_rat=0.1)


def test_changes_replace_only_what_they_name() -> None:
    assert Settings(batch_size=7).with_changes(rounds=3) == replace(Settings(batch_size=7), rounds=3)
