"""The tasks: their shapes, their clusters, and the paper's settings."""

import inspect
import json
import math
import os
import pickle
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from floral_lite import Floral, InputError, Pool, Settings, Shard, Task, methods, personal_model, tasks, train
from floral_lite.data import FlipAndCrop, as_float, digits, shift_labels
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
    # both the model and the data
    assert not torch.equal(first_values(first)[0], first_values(other)[0])
    assert not torch.equal(first.train[0].inputs, other.train[0].inputs)
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


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("name", ["digits-rotate", "digits-label-shift", "digits-label-groups"])
def test_every_image_is_dealt_to_one_client(name: str, split: str) -> None:
    pool = getattr(tasks.load(name, seed=2), split)
    assert sorted(pool.rows.tolist()) == list(range(len(pool.inputs)))


@pytest.mark.parametrize("num_clusters", [2, 4])
def test_rotation_and_label_shift_undone_give_the_original_back(num_clusters: int) -> None:
    turned, shifted = (
        tasks.load(f"digits-{kind}", seed=2, num_clusters=num_clusters) for kind in ("rotate", "label-shift")
    )
    for client, cluster in enumerate(turned.clusters.tolist()):
        original, one, other = dealt(2, "train", client), turned.train[client], shifted.train[client]
        back = torch.rot90(one.inputs, -4 * cluster // num_clusters, dims=(2, 3))
        assert torch.equal(back, original.inputs)
        assert torch.equal((other.targets - cluster) % 10, original.targets)


@pytest.mark.parametrize(("num_clusters", "size"), [(2, 5), (5, 2)])
def test_digits_in_groups_of_labels(num_clusters: int, size: int) -> None:
    task = tasks.load("digits-label-groups", num_clusters=num_clusters)
    assert tasks.load("digits-label-groups").details["task_clusters"] == 5
    for split in (task.train, task.test):
        for client, cluster in enumerate(task.clusters.tolist()):
            own = set(split[client].targets.tolist())
            assert own <= set(range(size * cluster, size * (cluster + 1)))
    images = digits()
    assert sum(len(shard) for shard in task.train) == len(images.train_labels)


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


REDUCED = [name for name in tasks.TASKS if name.endswith("-reduced")]


def test_every_image_task_has_a_reduced_version() -> None:
    full = [name for name in tasks.TASKS if not name.startswith("synthetic") and name not in REDUCED]
    assert len(full) == 8
    assert sorted(REDUCED) == sorted(f"{name}-reduced" for name in full)
    for name in full:
        recipe, small = tasks.TASKS[name], tasks.TASKS[f"{name}-reduced"]
        changed = {field for field, value in vars(recipe).items() if vars(small)[field] != value}
        assert changed == {"about", "settings", "data_fraction"}


def check_nested(name: str, **arguments: Any) -> None:
    """The task's reduced version is a part of it."""
    full, small = (tasks.load(each, seed=3, **arguments) for each in (name, f"{name}-reduced"))
    assert all(torch.equal(*pair) for pair in zip(first_values(full), first_values(small), strict=True))
    share = tasks.TASKS[f"{name}-reduced"].data_fraction
    for whole, part in zip(full.train, small.train, strict=True):
        assert len(part) == min(len(whole), max(10, int(share * len(whole))))
        assert torch.equal(part.inputs, whole.inputs[: len(part)])
        assert torch.equal(part.targets, whole.targets[: len(part)])
    for whole, part in zip(full.test, small.test, strict=True):
        assert torch.equal(part.inputs, whole.inputs)
        assert torch.equal(part.targets, whole.targets)


def first_values(task: Task) -> list[Tensor]:
    return [parameter.detach() for parameter in task.model.parameters()]


@pytest.mark.parametrize("name", ["digits-rotate", "digits-label-shift", "digits-label-groups"])
def test_reduced_digits_are_a_part_of_the_digits(name: str) -> None:
    check_nested(name)
    assert {len(shard) for shard in tasks.load(f"{name}-reduced").train} <= {13, 14, 15, 16}


@needs_mnist
@pytest.mark.parametrize("name", ["mnist-rotate", "mnist-label-shift"])
def test_reduced_mnist_is_a_part_of_mnist(name: str) -> None:
    check_nested(name)
    assert {len(shard) for shard in tasks.load(f"{name}-reduced").train} == {10}


def test_reduced_cifar_is_a_part_of_cifar(tmp_path: Path) -> None:
    fake_cifar(tmp_path, "cifar10", 10, num_train=60, num_test=3)
    fake_cifar(tmp_path, "cifar100", 100, num_train=25, num_test=3)
    for name in ("cifar10-rotate", "cifar10-label-shift"):
        check_nested(name, data=tmp_path, num_clients=4)
        small = tasks.load(f"{name}-reduced", data=tmp_path, num_clients=2, num_clusters=2)
        # 5% of 300
        assert [len(shard) for shard in small.train] == [15, 15]
    check_nested("cifar100", data=tmp_path)


def test_no_client_of_cifar10_has_a_last_batch_of_a_few_images(tmp_path: Path) -> None:
    """Such a batch counts as much as a full one: chapter 15, 'One image left over'."""
    fake_cifar(tmp_path, "cifar10", 10, num_train=45, num_test=3)
    # of 225, 150, 64 or 65 and 22 or 23 images; 225 are 3 * 64 + 33, 30% of them are 67
    for num_clients, share, kept in (
        (2, 1, {225}),
        (3, 1, {150}),
        (7, 1, {64}),
        (20, 1, {22, 23}),
        (2, 0.3, {64}),
    ):
        task = tasks.load(
            "cifar10-rotate", data=tmp_path, num_clients=num_clients, num_clusters=1, data_fraction=share
        )
        assert {len(shard) for shard in task.train} == kept
        assert sum(len(shard) for shard in task.test) == 30


def test_a_share_of_a_reduced_task_is_that_which_is_written(tmp_path: Path) -> None:
    fake_cifar(tmp_path, "cifar10", 10, num_train=160, num_test=1)
    one = {"num_clients": 1, "num_clusters": 1}
    task = tasks.load("cifar10-rotate-reduced", data=tmp_path, data_fraction=0.7, **one)
    # as floats 0.05 * 0.7 is less than 3.5%
    assert len(task.train[0]) == 56


def test_a_share_of_a_reduced_task_is_a_share_of_what_it_has() -> None:
    """digits-rotate-reduced has 14 of 71 images; of 287 with 5 clients 57, and a half of those 28."""
    for fraction, kept in ((1.0, 57), (0.5, 28)):
        task = tasks.load("digits-rotate-reduced", data_fraction=fraction, num_clients=5)
        assert len(task.train[4]) == kept
        assert task.details["data_fraction"] == fraction
    # never fewer than 10
    assert len(tasks.load("digits-rotate-reduced", data_fraction=0.1).train[0]) == 10
    with pytest.raises(InputError, match=r"data_fraction is 5\.0.*\(0, 1\]"):
        tasks.load("digits-rotate-reduced", data_fraction=5.0)


@pytest.mark.parametrize("name", NO_DOWNLOAD)
def test_several_seeds_at_once_are_the_tasks_of_each(name: str) -> None:
    arguments = {"data_fraction": 0.5, "num_clients": 6, "num_clusters": 3}
    together = tasks.load_seeds(name, [2, 5], **arguments)
    assert [task.details["task_seed"] for task in together] == [2, 5]
    for seed, task in zip((2, 5), together, strict=True):
        assert equal(task, tasks.load(name, seed=seed, **arguments))
    assert tasks.load_seeds(name, []) == []
    (numpys,) = tasks.load_seeds(name, np.array([2]), **arguments)  # type: ignore[arg-type]
    assert json.dumps(numpys.details) == json.dumps(together[0].details)


@pytest.mark.parametrize("seeds", [4, None])
def test_a_number_of_seeds_is_not_the_seeds(seeds: Any) -> None:
    with pytest.raises(InputError, match=rf"seeds is {seeds}; .* such as range\(4\)"):
        tasks.load_seeds("digits-rotate", seeds)


def test_image_tasks_share_one_copy_of_the_images_whatever_their_number_and_clusters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = []

    def source(folder: Path | None) -> Any:
        read.append(digits())
        return read[-1]

    prepare = image_task(source, lambda: nn.Flatten(), rotated)
    recipe = replace(tasks.TASKS["digits-rotate"], prepare=prepare)
    monkeypatch.setitem(
        tasks.TASKS, "digits-rotate", replace(recipe, loss=lambda outputs, targets: outputs.mean())
    )
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
    cifar = [name for name in tasks.TASKS if name.startswith("cifar")]
    assert [name for name, recipe in tasks.TASKS.items() if recipe.augment] == cifar


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
    ("name", "num_parameters", "num_samples"),
    [
        # 10 * 20 + 20 + 20 + 1 parameters, half as many samples, 80% of them to train on
        ("synthetic-mlp", 241, (96, 24)),
        # and 2 * 20 of the norm
        ("synthetic-mlp-norm", 281, (112, 28)),
    ],
)
def test_synthetic_nets_have_the_papers_numbers(
    name: str, num_parameters: int, num_samples: tuple[int, int]
) -> None:
    task = tasks.load(name)
    assert task.clusters.tolist() == [0, 1, 2, 3] * 5
    assert sum(parameter.numel() for parameter in task.model.parameters()) == num_parameters
    assert {(len(a), len(b)) for a, b in zip(task.train, task.test, strict=True)} == {num_samples}
    assert task.train[0].targets.shape[1:] == (1,)
    assert task.settings.statistics == "local"
    kinds = [type(layer) for layer in task.model.children()]
    norm = [nn.BatchNorm1d] if name == "synthetic-mlp-norm" else []
    assert kinds == [nn.Linear, nn.ReLU, *norm, nn.Linear]


@pytest.mark.parametrize("name", ["synthetic-linear", "synthetic-mlp", "synthetic-mlp-norm"])
def test_the_truth_behind_synthetic_targets_can_be_had(name: str) -> None:
    task, other = (tasks.load(name, seed=seed, num_clients=6, num_clusters=3) for seed in (4, 5))
    truth = tasks.truth(task)
    assert truth.base.shape == ((3, 10) if name == "synthetic-linear" else (10, 10))
    assert (len(truth.left), len(truth.right), truth.left.shape[2], truth.scale) == (3, 3, 1, 2.0)
    for client, cluster in enumerate(task.clusters.tolist()):
        inputs, targets = (
            torch.cat(parts) for parts in zip(task.train[client], task.test[client], strict=True)
        )
        # W x + 2 U_c (V_c^T x)
        left, right = truth.left[cluster], truth.right[cluster]
        hidden = inputs @ truth.base.T + 2.0 * (inputs @ right) @ left.T
        if name == "synthetic-mlp-norm":
            # over all of the client's samples
            hidden = nn.BatchNorm1d(10, eps=1e-12, affine=False)(hidden)
        if truth.outer is not None:
            hidden = hidden.clamp(min=0) @ truth.outer.T
        torch.testing.assert_close(targets, hidden, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(targets, tasks.truth(other).targets(inputs, cluster), rtol=0.1)
    with pytest.raises(InputError, match=r"task is 'digits-rotate'.*synthetic-linear, synthetic-mlp"):
        tasks.truth(tasks.load("digits-rotate"))
    # less training data are the first of them, and have the same truth, as has another device's copy
    small = tasks.load(name, seed=4, num_clients=6, num_clusters=3, data_fraction=0.5)
    assert torch.equal(small.train[5].inputs, task.train[5].inputs[: len(small.train[5])])
    assert torch.equal(tasks.truth(small.to(torch.device("cpu"))).base, truth.base)


def test_a_name_alone_has_no_truth() -> None:
    drawn = tasks.load("synthetic-linear")
    pairs = {str(k): (2 * shard.inputs, shard.targets) for k, shard in enumerate(drawn.train)}
    loss = functional.mse_loss
    own = tasks.from_clients(pairs, model=nn.Linear(10, 3), loss=loss, name="synthetic-linear")
    for other in (own, replace(drawn, details={}), replace(drawn, details=drawn.details | {"task_seed": 1})):
        with pytest.raises(InputError, match="whose data no known parameters made"):
            tasks.truth(other)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # K, C and participation: the paper; rounds, batch and learning rates: the authors' configuration
        ("synthetic-linear", (10, 2, 2000, 1.0, 4, 0.1, 0.1)),
        ("synthetic-mlp", (20, 4, 2000, 1.0, 8, 0.03, 0.1)),
        ("synthetic-mlp-norm", (20, 4, 2000, 1.0, 5, 0.03, 0.1)),
        ("mnist-rotate", (300, 4, 500, 0.1, 32, 0.1, 0.1)),
        ("mnist-label-shift", (300, 4, 500, 0.1, 32, 0.1, 0.1)),
        ("cifar10-rotate", (20, 4, 500, 1.0, 64, 0.03, 0.1)),
        ("cifar10-label-shift", (20, 4, 500, 1.0, 64, 0.03, 0.1)),
        ("cifar100", (100, 10, 500, 0.5, 64, 0.001, 0.1)),
        ("mnist-rotate-reduced", (300, 4, 1500, 0.1, 32, 0.1, 0.3)),
        ("mnist-label-shift-reduced", (300, 4, 1500, 0.1, 32, 0.1, 0.3)),
        ("cifar10-rotate-reduced", (20, 4, 1500, 1.0, 64, 0.03, 0.3)),
        ("cifar10-label-shift-reduced", (20, 4, 1500, 1.0, 64, 0.03, 0.3)),
        ("cifar100-reduced", (100, 10, 1500, 0.5, 64, 0.001, 0.3)),
        # ours
        ("digits-label-groups", (20, 5, 100, 1.0, 16, 0.3, 10.0)),
        ("digits-rotate-reduced", (20, 4, 300, 1.0, 16, 0.3, 10.0)),
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
    # in the paper's algorithm clients keep what is theirs
    assert (settings.stateful, settings.statistics) == (True, "local")
    assert settings.evaluate_every == (1 if name.startswith("digits") else 10)
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
        ("digits-rotate", {"num_clients": 8.0}, r"num_clients is 8\.0; it must be a whole number"),
        ("digits-rotate", {"num_clusters": 2.5}, r"num_clusters is 2\.5; it must be a whole number"),
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
    with pytest.raises(InputError, match=r"no whole train-images-idx3-ubyte.*could not be downloaded"):
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
            "client 2 has train targets from 0 to 3.*3 outputs.*0 to 2",
        ),
        ([shard()] * 2, [shard(), shard(largest=3)], None, "client 1 has test targets from 0 to 3"),
        (
            [Shard(torch.ones(1, 2), torch.tensor([-1]))],
            [shard()],
            None,
            "client 0 has train targets from -1 to -1",
        ),
        (
            [tuple(shard())] * 2,
            [shard()] * 2,
            None,
            "client 0's train data are a tuple.*a Shard of two tensors",
        ),
        (
            [shard()] * 2,
            [shard(), Shard(shard().inputs.numpy(), shard().targets)],
            None,
            "client 1's test data are a Shard; they must be a Shard of two tensors",
        ),
        (
            [Shard(shard().inputs.double(), shard().targets)],
            [Shard(shard().inputs.double(), shard().targets)],
            None,
            r"the model cannot be run on train inputs of shape \(1, 2\) and torch.float64 .*Double",
        ),
        ([Shard(torch.ones(4, 3), shard().targets)], [shard()], None, r"inputs of shape \(1, 3\) and .*1x3"),
        # not after the rounds up to the first evaluation
        ([shard()], [Shard(torch.ones(4, 3), shard().targets)], None, r"on test inputs of shape .*2x3"),
        (
            [shard()],
            [Shard(shard().inputs, shard().targets.int())],
            None,
            r"\(2, 3\), test targets \(2,\) .*Int",
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
        "tuple",
        "arrays",
        "type",
        "shape",
        "test-shape",
        "test-type",
    ],
)
def test_data_that_mean_nothing_are_refused(
    train: list[Shard], test: list[Shard], num_clients: int | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        task(train, test, num_clients)


def test_a_task_is_told_in_a_line() -> None:
    assert repr(tasks.load("digits-rotate")) == "Task(digits-rotate, 20 clients, 4 clusters)"


@pytest.mark.parametrize(
    "clusters",
    [torch.tensor([-1, 1]), torch.tensor([0.0, 1.0]), torch.tensor([[0], [1]]), [0, 1], np.array([0, 1])],
    ids=["negative", "floats", "table", "list", "array"],
)
def test_clusters_that_are_no_numbers_of_clusters_are_refused(clusters: Any) -> None:
    whole = task([shard(), shard()], [shard(), shard()])
    with pytest.raises(
        InputError, match=r"clusters are .*give a tensor of each client's, integers from 0 on"
    ):
        replace(whole, clusters=clusters)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_samples_that_are_no_numbers_are_refused(bad: float) -> None:
    whole = shard()
    inputs = whole.inputs.clone()
    inputs[-1, -1] = bad
    with pytest.raises(InputError, match="client 1 has test inputs that are NaN or infinite"):
        task([whole, whole], [whole, Shard(inputs, whole.targets)])
    loss = {"model": nn.Linear(2, 1), "loss": functional.mse_loss}
    plain = Shard(whole.inputs, torch.ones(len(whole), 1))
    with pytest.raises(InputError, match="client 0 has train targets that are NaN or infinite"):
        task([Shard(whole.inputs, torch.full((len(whole), 1), bad))], [plain], **loss)


@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: nn.BatchNorm1d(3, momentum=None), r"batch norm 1 has momentum=None.*such as 0\.1"),
        (lambda: nn.LazyLinear(3), r"1\.weight has no shape yet.*one batch first"),
        (lambda: nn.Embedding(9, 3, sparse=True), "embedding 1 has sparse=True.*use sparse=False"),
        (
            lambda: nn.EmbeddingBag(9, 3, scale_grad_by_freq=True),
            "embedding 1 has scale_grad_by_freq=True.*use scale_grad_by_freq=False",
        ),
        (lambda: nn.Embedding(9, 3, max_norm=1.0), r"embedding 1 has max_norm=1\.0.*use max_norm=None"),
        (lambda: nn.Linear(3, 3, dtype=torch.complex64), r"1\.weight is of torch\.complex64.*view_as_real"),
    ],
)
def test_a_layer_that_a_federation_cannot_train_is_refused(
    layer: Callable[[], nn.Module], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        task([shard()], [shard()], model=nn.Sequential(nn.Linear(2, 3), layer()))


def test_a_sparse_buffer_is_refused() -> None:
    model = nn.Linear(2, 3)
    model.register_buffer("neighbours", torch.eye(2).to_sparse())
    with pytest.raises(InputError, match=r"buffer neighbours is sparse.*to_dense\(\)"):
        task([shard()], [shard()], model=model)


def test_a_layer_under_two_names_is_refused() -> None:
    layer, activation = nn.Linear(2, 2), nn.ReLU()
    task([shard()], [shard()], model=nn.Sequential(nn.Linear(2, 2), activation, nn.Linear(2, 3), activation))
    with pytest.raises(InputError, match="one layer under two names, 0 and 1; register it once"):
        task([shard()], [shard()], model=nn.Sequential(layer, layer, nn.Linear(2, 3)))


class Pair(nn.Linear):
    """Returns more than logits."""

    def forward(self, inputs: Tensor) -> Any:
        return super().forward(inputs), inputs


def test_outputs_that_are_no_tensor_are_refused() -> None:
    with pytest.raises(InputError, match="the model returns a tuple, and a task needs one tensor"):
        task([shard()], [shard()], model=Pair(2, 3))


class Auxiliary(nn.Linear):
    """Returns more than logits in training only, as GoogLeNet does."""

    def forward(self, inputs: Tensor) -> Any:
        outputs = super().forward(inputs)
        return (outputs, outputs) if self.training else outputs


class Checkpointed(nn.Linear):
    """Computes its outputs a second time in the backward pass, with whatever weights it then has."""

    def forward(self, inputs: Tensor) -> Any:
        return checkpoint(super().forward, inputs, use_reentrant=False)


def test_a_model_that_is_another_in_training_is_refused() -> None:
    with pytest.raises(InputError, match=r"the model returns a tuple, .* in training too"):
        task([shard()], [shard()], model=Auxiliary(2, 3))
    told = r"computes activations anew.*switch checkpointing off"
    with torch.no_grad(), pytest.raises(InputError, match=told):  # it may be trained elsewhere
        task([shard()], [shard()], model=Checkpointed(2, 3))


def test_what_looks_like_a_fault_and_is_none_is_taken() -> None:
    norm = nn.BatchNorm1d(1, momentum=None, track_running_stats=False)  # it keeps no mean
    model = nn.Sequential(nn.Linear(2, 3), nn.Unflatten(1, (1, 3)), norm, nn.Flatten(), nn.Dropout(0.5))
    before = torch.get_rng_state()
    task([shard()], [shard()], model=model)
    assert torch.equal(torch.get_rng_state(), before)
    task([shard()], [shard()], loss=lambda outputs, _: 0 * outputs.mean())  # twice nothing is no sum


def test_a_parameter_with_the_routers_name_is_refused() -> None:
    # it would take the routers' learning rate
    model = nn.Linear(2, 3)
    model.register_parameter("router_logits", nn.Parameter(torch.ones(3)))
    with pytest.raises(InputError, match=r"the model has a parameter router_logits.*another name"):
        task([shard()], [shard()], model=model)
    task([shard()], [shard()], model=nn.Sequential(model))


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Shard:
    return Shard(torch.ones(4, 2), torch.ones(4, *shape, dtype=dtype))


@pytest.mark.parametrize(
    ("loss", "targets", "message"),
    [
        (
            functional.mse_loss,
            numbers(),
            r"targets of shape \(4,\).*outputs have shape \(4, 3\).*\[:, None\]",
        ),
        # which would compare each sample with the targets of all
        *(
            (loss, numbers(), r"targets of shape \(4,\).*\[:, None\]")
            for loss in (
                *(functional.smooth_l1_loss, functional.huber_loss, nn.MSELoss(), nn.L1Loss()),
                *(nn.SmoothL1Loss(), nn.HuberLoss(), nn.BCELoss(), nn.BCEWithLogitsLoss()),
                *(functional.binary_cross_entropy, functional.binary_cross_entropy_with_logits),
            )
        ),
        (functional.l1_loss, numbers(1), r"targets of shape \(4, 1\).*outputs have shape \(4, 3\)"),
        (functional.mse_loss, numbers(3, dtype=torch.int64), r"targets of torch.int64.*to\(torch"),
        (functional.cross_entropy, numbers(1, dtype=torch.int64), r"targets of shape \(4, 1\).*\[:, 0\]"),
        (nn.CrossEntropyLoss(), numbers(3, dtype=torch.int64), r".*shape \(4, 3\).*many labels.*0 or 1"),
    ],
)
def test_targets_that_do_not_fit_the_outputs_are_refused(loss: Loss, targets: Shard, message: str) -> None:
    with pytest.raises(InputError, match=f"client 0 has train {message}"):
        task([targets], [targets], loss=loss)


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (nn.MSELoss(reduction="none"), r"2 samples is tensor\(\[\[.*"),
        (nn.MSELoss(reduction="sum"), "2 samples is twice as large if they are given twice"),
        (lambda *_: None, "2 samples is None"),
        (
            lambda outputs, targets: functional.mse_loss(outputs.detach(), targets),
            r"2 samples is tensor\(\d.*",
        ),
    ],
)
def test_a_loss_is_the_mean_of_its_samples(loss: Any, told: str) -> None:
    with pytest.raises(InputError, match=f"{told}; it must be .*reduction='mean'.*"):
        task([numbers(3)], [numbers(3)], loss=loss)


@pytest.mark.parametrize("loss", ["cross_entropy", nn.CrossEntropyLoss, functional.gaussian_nll_loss])
def test_a_loss_that_cannot_be_computed_is_told(loss: Any) -> None:
    with pytest.raises(
        InputError, match=r"loss is .*cannot be computed of outputs \(2, 3\), train targets \(2,"
    ):
        task([shard()], [shard()], loss=loss)


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (nn.DataParallel, "DataParallel"),
        (partial(torch.compile, backend="eager"), "OptimizedModule"),
        (partial(Floral, rank=1), "Floral"),
    ],
)
def test_a_wrapped_network_is_refused(wrap: Callable[[nn.Module], nn.Module], name: str) -> None:
    with pytest.raises(InputError, match=rf"the model is wrapped in a {name}, .*FLoRAL adds adaptors"):
        task([shard()], [shard()], model=wrap(nn.Linear(2, 3)))


@pytest.mark.parametrize("shards", [None, {"north": shard()}, iter([shard()])])
def test_clients_are_a_list(shards: Any) -> None:
    for split in ({"train": shards, "test": [shard()]}, {"train": [shard()], "test": shards}):
        (wrong,) = (name for name, given in split.items() if given is shards)
        with pytest.raises(
            InputError, match=rf"{wrong} is of type .*; it must be a list of Shards, one a client"
        ):
            replace(task([shard()], [shard()]), **split)


def test_a_class_is_no_network_and_none_are_no_details() -> None:
    with pytest.raises(InputError, match=r"model is <class '.*Linear'>; give an nn\.Module"):
        task([shard()], [shard()], model=nn.Linear)
    with pytest.raises(InputError, match="details are None; give a dictionary"):
        replace(task([shard()], [shard()]), details=None)  # type: ignore[arg-type]


def test_every_client_must_have_targets_that_fit() -> None:
    with pytest.raises(InputError, match="client 1 has test targets of shape"):
        task([numbers(3)] * 2, [numbers(3), numbers()], loss=functional.mse_loss)


def test_labels_of_an_images_pixels_are_refused() -> None:
    images = Shard(torch.ones(4, 2, 5, 5), torch.zeros(4, 5, 5, dtype=torch.long))
    with pytest.raises(InputError, match=r"outputs have shape \(1, 3, 5, 5\).*one label for each sample"):
        task([images], [images], model=nn.Conv2d(2, 3, 1))


def test_labels_of_a_sequences_words_are_taken_by_a_loss_of_ones_own() -> None:
    def of_words(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())

    # every label is there often enough that no start, which differs between processors, has none right
    words = Shard(torch.randn(4, 5, 2), torch.arange(20).reshape(4, 5) % 3)
    own = task([words], [words], loss=of_words)
    method = methods.FedAvg(own.model)
    federation = train(own, method, rounds=1)
    # the accuracy is the share of words
    right = personal_model(own, method, federation, client=0)(words.inputs).argmax(dim=-1) == words.targets
    assert right.any()
    assert federation.history.rounds[-1].test_accuracy == pytest.approx(float(right.double().mean()))


def test_padding_counts_neither_in_a_loss_of_ones_own_nor_in_the_accuracy() -> None:
    def of_words(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())

    padded, inputs = torch.tensor([[2, 1, -100], [0, -100, -100]]), torch.eye(3).expand(2, 3, 3)
    words = Shard(inputs, padded)
    own = task([words], [words], loss=of_words, model=nn.Linear(3, 3))
    own.model.load_state_dict({"weight": torch.eye(3), "bias": torch.zeros(3)})  # says i of word i
    for engine in ("fast", "loop"):
        history = train(own, methods.FedAvg(own.model), engine=engine, rounds=1, learning_rate=1e-6).history
        assert history.rounds[-1].test_accuracy == pytest.approx(2 / 3)
    with pytest.raises(InputError, match=r"from -100 to -100; .* 0 to 2, and some -100 with a loss of"):
        task([words], [Shard(inputs, torch.full((2, 3), -100))], loss=of_words, model=nn.Linear(3, 3))


def test_a_byte_s_label_156_is_no_padding() -> None:
    def of_bytes(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets.long())

    alike = Shard(torch.ones(2, 2), torch.tensor([156, 156], dtype=torch.uint8))
    own = task([alike], [alike], loss=of_bytes, model=nn.Linear(2, 200))
    assert train(own, methods.FedAvg(own.model), rounds=1).history.rounds[-1].test_accuracy in (0, 1)


def test_integers_that_are_no_labels_are_told_apart() -> None:
    ages = Shard(torch.ones(2, 2), torch.tensor([20, 28]))
    with pytest.raises(InputError, match=r"20 to 28; .*integers are read as labels.* give numbers as floats"):
        task([ages], [ages], loss=nn.PoissonNLLLoss())


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


def test_a_rate_may_be_any_whole_number() -> None:
    # torch takes no int of more than 64 bits
    assert isinstance(Settings(router_learning_rate=10**30).router_learning_rate, float)


def test_unknown_settings_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        InputError, match=r"no setting is called 'learning_rat'.*did you mean 'learning_rate'"
    ):
        Settings().with_changes(learning_rat=0.1)
    with pytest.raises(InputError, match=r"no setting is called 'local_epoch'.*did you mean 'local_epochs'"):
        Settings().with_changes(local_epoch=2)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rounds", "5", "a whole number"),
        ("rounds", None, "a whole number"),
        ("learning_rate", "0.1", "a number"),
        ("learning_rate", None, "a number"),
        ("clip_norm", "1", "a number"),
        ("stateful", "no", "True or False"),
        ("stateful", 1, "True or False"),
        ("precision", 32, "'float32', 'tf32' or 'bfloat16'"),
    ],
)
def test_settings_of_another_kind_are_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=f"{name} is {value!r}; it .*{message}"):
        Settings(**{name: value})  # type: ignore[arg-type]


def test_settings_take_numpys_numbers_and_keep_their_signature() -> None:
    settings = Settings(rounds=np.int64(3), learning_rate=np.float64(0.5))
    assert type(settings.rounds) is int
    assert json.loads(json.dumps(asdict(settings))) == asdict(Settings(rounds=3, learning_rate=0.5))
    assert list(inspect.signature(Settings).parameters) == list(asdict(settings))
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_changes_replace_only_what_they_name() -> None:
    assert Settings(batch_size=7).with_changes(rounds=3) == replace(Settings(batch_size=7), rounds=3)


def test_to_a_model_of_its_own_a_cluster_is_the_same_task_turned_or_renamed() -> None:
    """Cluster 0 is neither: its clients come to the same in both tasks, to the last bit."""
    ends = []
    for name in ("digits-rotate", "digits-label-shift"):
        task = tasks.load(name, seed=3)
        method = methods.Ensemble(task.model, num_clusters=4, routing="optimal")
        ends.append(train(task, method, seed=3, rounds=2).history.evaluated[-1].client_loss)
    first = task.clusters == 0
    losses = torch.tensor(ends)
    assert torch.equal(losses[0, first], losses[1, first])
    assert not torch.isclose(losses[0, ~first], losses[1, ~first]).any()


def test_labels_shift_in_no_more_ways_than_there_are_labels() -> None:
    with pytest.raises(InputError, match="num_clusters is 11, but 10 labels can be shifted in 10 ways only"):
        tasks.load("digits-label-shift", num_clusters=11)


OWN: dict[str, Loss] = {
    "Poisson": nn.PoissonNLLLoss(),
    "own": lambda outputs, targets: ((outputs - targets) ** 2).mean(),
    "quantile": lambda outputs, targets: torch.maximum(0.9 * (targets - outputs), outputs - targets).mean(),
}


@pytest.mark.parametrize("loss", OWN.values(), ids=OWN)
def test_a_loss_that_would_compare_every_output_with_every_target_is_refused(loss: Loss) -> None:
    inputs, targets = torch.randn(6, 2), torch.rand(6)
    whole = tasks.from_clients(
        dict.fromkeys("ab", (inputs, targets[:, None])), model=nn.Linear(2, 1), loss=loss
    )
    train(whole, methods.FedAvg(whole.model), rounds=1)
    flat = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))
    for model, given in ((nn.Linear(2, 1), targets), (flat, targets[:, None])):
        with pytest.raises(InputError, match=r"each output with the targets of all samples.*\[:, None\]"):
            tasks.from_clients(dict.fromkeys("ab", (inputs, given)), model=model, loss=loss)


def test_a_loss_may_flatten_the_outputs_itself() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs[:, 0] - targets).abs().mean()

    tasks.from_clients({"a": (torch.randn(6, 2), torch.rand(6))}, model=nn.Linear(2, 1), loss=loss)


def test_a_losss_weights_go_along_to_another_device() -> None:
    """And tasks that share a loss share it there."""
    loss, there = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])), torch.device("meta")
    data = {"a": (torch.randn(6, 2), torch.arange(6) % 2)}
    task = tasks.from_clients(data, model=nn.Linear(2, 2), loss=loss)
    moved: dict[Any, Any] = {}
    first, second = (task.to(there, moved).loss for _ in range(2))
    assert isinstance(first, nn.CrossEntropyLoss)
    assert first.weight is not None
    assert first.weight.device == there
    assert first is second
    assert task.to(torch.device("cpu")).loss is loss
