"""Tasks out of clients that are there already."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from floral_lite import InputError, Settings, methods, personal_model, tasks, train
from floral_lite.data import FlipAndCrop
from floral_lite.models import mlp

IMAGES = np.random.default_rng(0).integers(256, size=(40, 1, 4, 4), dtype=np.uint8)
LABELS = np.arange(40) % 3
OWNERS = np.array(["north", "east", "north", "south"] * 10)
ROWS = {name: np.flatnonzero(name == OWNERS) for name in ("north", "east", "south")}
PAIRS = {name: (IMAGES[rows], LABELS[rows]) for name, rows in ROWS.items()}
NETWORK = {"model": lambda: mlp(16, 4, 3)}


def test_clusters_may_be_numbers_of_a_tensor() -> None:
    groups = dict(zip(PAIRS, torch.tensor([3, 3, 1]), strict=True))
    assert tasks.from_clients(PAIRS, clusters=groups, **NETWORK).clusters.tolist() == [0, 0, 1]
    for wrong in ([1], torch.ones(2)):
        with pytest.raises(InputError, match=r"a cluster is called .*; it must be a word or a number"):
            tasks.from_clients(PAIRS, clusters={**groups, next(iter(PAIRS)): wrong}, **NETWORK)  # type: ignore[dict-item]


def test_every_client_keeps_its_samples_in_the_order_given() -> None:
    task = tasks.from_clients(PAIRS, clusters={"east": "old", "south": "new", "north": "new"}, **NETWORK)
    # 20% of 20, 10 and 10 for tests
    assert [len(shard) for shard in task.train] == [16, 8, 8]
    assert [len(shard) for shard in task.test] == [4, 2, 2]
    assert task.clusters.tolist() == [0, 1, 0]
    assert task.details == {"task_clusters": 2, "num_clients": 3, "task_seed": 0}
    assert task.model.training
    for (images, labels), *shards in zip(PAIRS.values(), task.train, task.test, strict=True):
        seen = sorted(
            (*(255 * x).round().int().flatten().tolist(), int(y))
            for s in shards
            for x, y in zip(*s, strict=True)
        )
        assert seen == sorted((*x.flatten().tolist(), int(y)) for x, y in zip(images, labels, strict=True))
    history = train(task, methods.FedAvg(task.model), rounds=1).history
    assert history.config["task"] == "own-clients"
    assert history.clients()["cluster"].tolist() == [0, 1, 0]


def test_a_dataset_of_torch_is_a_client_in_a_line() -> None:
    inputs, labels = torch.rand(5, 2), torch.arange(5) % 3
    client = tuple(zip(*TensorDataset(inputs, labels), strict=True))
    task = tasks.from_clients({"a": client}, {"a": (inputs, labels)}, model=nn.Linear(2, 3))
    assert all(map(torch.equal, task.train[0], task.test[0]))


def test_the_share_for_tests_is_rounded() -> None:
    task = tasks.from_clients(PAIRS, test_fraction=0.29, **NETWORK)
    # of 5.8, 2.9 and 2.9
    assert [len(shard) for shard in task.test] == [6, 3, 3]


def test_clients_may_bring_what_they_are_tested_on_in_any_order() -> None:
    test = {name: [images[:1], labels[:1]] for name, (images, labels) in reversed(PAIRS.items())}
    task = tasks.from_clients(
        PAIRS, test, settings=Settings(batch_size=5), augment=FlipAndCrop(1), name="wards", **NETWORK
    )
    assert task.name == "wards"
    assert [len(shard) for shard in task.train] == [20, 10, 10]
    for (images, _), shard in zip(PAIRS.values(), task.test, strict=True):
        assert torch.equal(shard.inputs, torch.tensor(images[:1]) / 255)
    assert task.clusters.tolist() == [0, 0, 0]
    assert task.settings.batch_size == 5
    assert task.augment == FlipAndCrop(1)


def test_the_seed_decides_the_split_and_a_built_model() -> None:
    first, again, other = (tasks.from_clients(PAIRS, seed=seed, **NETWORK) for seed in (1, 1, 2))
    assert torch.equal(first.test[0].inputs, again.test[0].inputs)
    assert not torch.equal(first.test[0].inputs, other.test[0].inputs)
    assert (first.details["task_seed"], other.details["task_seed"]) == (1, 2)
    weights = [task.model.get_parameter("1.weight") for task in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_clients_with_as_many_samples_are_split_apart() -> None:
    task = tasks.from_clients(dict.fromkeys("ab", PAIRS["north"]), **NETWORK)
    assert not torch.equal(task.test[0].inputs, task.test[1].inputs)


def test_targets_may_be_numbers_where_the_loss_takes_them() -> None:
    pairs = {"a": (np.ones((5, 2)), np.ones((5, 1))), "b": (np.zeros((5, 2)), np.zeros((5, 1)))}
    task = tasks.from_clients(pairs, model=nn.Linear(2, 1).double(), loss=functional.mse_loss)
    assert not task.is_classification
    assert task.train[0].inputs.dtype == task.train[0].targets.dtype == torch.float64
    assert train(task, methods.FedAvg(task.model), rounds=1).history.rounds[0].test_loss is not None


def test_a_loss_of_ones_own_gets_numbers_as_they_are_and_labels_as_torch_wants_them() -> None:
    halves = {"a": (np.ones((5, 2)), np.full((5, 1), 0.5))}
    task = tasks.from_clients(halves, model=nn.Linear(2, 1), loss=lambda x, y: (x - y).abs().mean())
    assert task.train[0].targets.unique().tolist() == [0.5]
    labels = {name: (images, of_owner.astype(np.int32)) for name, (images, of_owner) in PAIRS.items()}
    task = tasks.from_clients(labels, loss=functional.multi_margin_loss, **NETWORK)
    assert task.train[0].targets.dtype == torch.int64


def test_a_sample_may_have_labels_at_every_place() -> None:
    class LabelsLast(nn.Conv1d):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs).transpose(1, -1)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs.transpose(1, -1), targets)

    rng = np.random.default_rng(0)
    texts = {
        name: (rng.normal(size=(n, 2, 6)), rng.integers(0, 4, (n, 6))) for name, n in (("a", 5), ("b", 9))
    }
    task = tasks.from_clients(texts, model=LabelsLast(2, 4, 3, padding=1), loss=loss)
    method = methods.FLoRAL(task.model, 2, rank=1)
    ends = [train(task, method, rounds=2, engine=engine) for engine in ("fast", "loop")]
    for one, other in zip(*(end.state.tensors() for end in ends), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    inputs, targets = task.test[1]
    right = personal_model(task, method, ends[0], 1)(inputs).argmax(dim=-1) == targets
    assert ends[0].history.evaluated[-1].client_accuracy[1] == pytest.approx(float(right.double().mean()))


@pytest.mark.parametrize("kind", [bool, np.int64, np.float32])
def test_what_a_loss_compares_with_the_outputs_has_their_precision(kind: type) -> None:
    answers = (LABELS > 0).astype(kind)[:, None]
    pairs = {name: (IMAGES[rows], answers[rows]) for name, rows in ROWS.items()}
    loss = functional.binary_cross_entropy_with_logits
    task = tasks.from_clients(pairs, model=lambda: mlp(16, 4, 1), loss=loss)
    assert task.train[0].targets.dtype == torch.float32
    assert train(task, methods.FedAvg(task.model), rounds=1).history.rounds[0].test_accuracy is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": {}}, "train is empty"),
        (
            {"train": [(IMAGES, IMAGES)]},
            "train is of type list; it must be a dictionary",
        ),
        ({"test": [*PAIRS.values()]}, "test is of type list; it must be a dictionary"),
        ({"clusters": [0, 0, 1]}, "clusters is of type list; it must be a dictionary"),
        (
            {"test": {"north": PAIRS["north"]}},
            "test must name the same clients, and ['east', 'south'] are in one of them only: keep some",
        ),
        (
            {"clusters": {**dict.fromkeys(PAIRS, 0), "west": 1, 3: 1}},
            "clusters must name the same clients, and ['3', 'west']",
        ),
        ({"train": {"a": (IMAGES, LABELS[:3])}}, "the inputs of train['a'] has shape (40, 1, 4, 4)"),
        ({"train": {"a": (IMAGES, LABELS / 2)}}, "labels are integers from 0 on"),
        (
            {"train": {"a": IMAGES[:2]}},
            "train['a'] is of type ndarray; it must be a pair of inputs and targets",
        ),
        (
            {"train": {"a": TensorDataset(torch.eye(3), torch.arange(3))}},
            "is of type TensorDataset; it must be a pair of inputs and targets, such as tuple(zip(*dataset))",
        ),
        (
            {"train": {"a": (LABELS[:, None, None], LABELS[:, None])}},
            "labels of every word or pixel, need a loss, as from_clients(",
        ),
        (
            {"train": {"a": (IMAGES, LABELS, LABELS)}},
            "train['a'] is of type tuple; it must be a pair of inputs",
        ),
        ({"train": {**PAIRS, "a": (IMAGES[:1], LABELS[:1])}}, "0.2, of the 1 samples of client 'a'; it is"),
        (
            {"train": {**PAIRS, "a": (IMAGES[:, :, 1:], LABELS)}},
            "have the shapes [(1, 3, 4), (1, 4, 4)]",
        ),
        (
            {"test": {**PAIRS, "east": (IMAGES[:, :, 1:], LABELS)}},
            "have the shapes [(1, 3, 4), (1, 4, 4)]",
        ),
        (
            {"train": {**PAIRS, "a": (IMAGES.astype(float), LABELS)}},
            "train['north'] is of torch.uint8 and train['a'] is of torch.float64; uint8 is read as x / 255",
        ),
        (
            {"train": {"a": (IMAGES / 255, LABELS), "b": (IMAGES.astype(int), LABELS)}},
            "train['a'] is of torch.float64 and train['b'] is of torch.int64; uint8 is read as x / 255",
        ),
        (
            {"test": {**PAIRS, "east": (IMAGES.astype(float), LABELS)}},
            "train['north'] is of torch.uint8 and test['east'] is of torch.float64; uint8 is read as x / 255",
        ),
        (
            {"train": {"a": (np.where(IMAGES.max() == IMAGES, np.nan, IMAGES / 255), LABELS)}},
            "inputs that are NaN or infinite: fill in what is missing",
        ),
        ({"settings": {}}, "settings is {}; it must be Settings, such as Settings(rounds=3)"),
        ({"model": nn.Linear(5, 3)}, "model does not take inputs of shape (1, 4, 4)"),
        ({"loss": functional.mse_loss, "train": {"a": (IMAGES, LABELS[:3])}}, "its targets (3,)"),
        ({"loss": functional.mse_loss, "train": {"a": (IMAGES, torch.tensor(2.0))}}, "and its targets ();"),
        ({"loss": functional.mse_loss, "train": {"a": (1.0, 2.0)}}, "have shape () and its targets ()"),
        ({"loss": functional.mse_loss, "train": {"a": (IMAGES[:0], LABELS[:0])}}, "the same N of at least 1"),
        ({"loss": functional.mse_loss}, "targets of shape (16,), and the model's outputs have shape (16, 3)"),
    ],
)
def test_clients_that_make_no_task_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        tasks.from_clients(**{"train": PAIRS, **NETWORK, **changes})


@pytest.mark.parametrize(
    "unknown", [float("nan"), torch.tensor(float("nan")), np.float64("nan"), pd.NA, pd.NaT]
)
def test_a_cluster_of_which_nothing_is_known_is_refused(unknown: object) -> None:
    generator = torch.Generator().manual_seed(0)
    clients = {
        name: (torch.randn(10, 4, generator=generator), torch.arange(10) % 2) for name in ("a", "b", "c")
    }
    with pytest.raises(InputError, match=r"a cluster is called .*(nan|<NA>|NaT)"):
        tasks.from_clients(clients, model=nn.Linear(4, 2), clusters={"a": 1.0, "b": unknown, "c": unknown})
