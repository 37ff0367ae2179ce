"""Tasks out of a user's own arrays."""

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from floral_lite import InputError, Settings, methods, tasks, train
from floral_lite.copies import copied
from floral_lite.data import FlipAndCrop
from floral_lite.federation.pool import Pool
from floral_lite.models import mlp

IMAGES = np.random.default_rng(0).integers(256, size=(120, 1, 6, 6), dtype=np.uint8)
LABELS = np.arange(120) % 6
FOUR: dict[str, Any] = {"model": lambda: mlp(36, 8, 6), "num_clients": 8, "num_clusters": 4}


def test_images_are_dealt_turned_and_trained_on() -> None:
    task = tasks.from_arrays(IMAGES, LABELS, transform="rotate", settings=Settings(rounds=2), **FOUR)
    assert task.name == "own-arrays"
    assert task.clusters.tolist() == [0, 1, 2, 3] * 2
    assert isinstance(task.train, Pool)
    assert isinstance(task.test, Pool)
    # 20% of 120 for tests
    assert (task.train.sizes, task.test.sizes) == ((12,) * 8, (3,) * 8)
    seen = []
    for split in (task.train, task.test):
        for client, cluster in enumerate(task.clusters.tolist()):
            inputs, targets = split[client]
            back = torch.rot90(inputs, -cluster, dims=(2, 3))
            seen += [(*(255 * image).round().int().flatten().tolist(),) for image in back]
            # each image kept its label
            originals = {
                tuple(image.flatten().tolist()): int(y) for image, y in zip(IMAGES, LABELS, strict=True)
            }
            assert [originals[image] for image in seen[-len(targets) :]] == targets.tolist()
    # every image went to one client, into one of the splits
    assert sorted(seen) == sorted(tuple(image.flatten().tolist()) for image in IMAGES)
    history = train(task, methods.FedAvg(task.model)).history
    assert history.config["task"] == "own-arrays"
    assert len(history.rounds) == 2


def test_arrays_may_run_backwards_and_have_bytes_in_another_order() -> None:
    images, labels = np.random.default_rng(0).random((60, 3, 4, 4)), np.arange(60) % 10
    other = np.dtype(float).newbyteorder("S")  # as in files from another machine
    usual, *others = (
        tasks.from_arrays(some, of_some, model=mlp(48, 8, 10), num_clients=6).train[0]
        for some, of_some in (
            (images[:, ::-1].copy(), labels),
            (images[:, ::-1], labels),
            (images[:, ::-1].astype(other), labels.astype(labels.dtype.newbyteorder("S"))),
        )
    )
    assert all(map(torch.equal, (*usual, *usual), (tensor for shard in others for tensor in shard)))


@pytest.mark.parametrize(
    ("labels", "test_labels"), [(LABELS, LABELS[:24] % 5), (LABELS % 5, LABELS[:24])], ids=["train", "test"]
)
def test_labels_are_shifted_modulo_their_number(labels: Any, test_labels: Any) -> None:
    """Wherever the largest of them is."""
    given = (IMAGES, labels, IMAGES[:24], test_labels)
    task = tasks.from_arrays(*given, transform="label-shift", seed=3, **FOUR)
    plain = tasks.from_arrays(*given, seed=3, **{**FOUR, "num_clusters": 1})
    for client, cluster in enumerate(task.clusters.tolist()):
        assert torch.equal((task.train[client].targets - cluster) % 6, plain.train[client].targets)
        assert torch.equal(task.train[client].inputs, plain.train[client].inputs)
        assert torch.equal((task.test[client].targets - cluster) % 6, plain.test[client].targets)
    assert sum(len(shard) for shard in plain.test) == 24


def test_labels_are_cut_into_groups() -> None:
    task = tasks.from_arrays(
        IMAGES, LABELS, transform="label-groups", **{**FOUR, "num_clusters": 3, "num_clients": 6}
    )
    for split in (task.train, task.test):
        for client, cluster in enumerate(task.clusters.tolist()):
            assert set(split[client].targets.tolist()) <= {2 * cluster, 2 * cluster + 1}


def test_the_seed_decides_split_dealing_and_built_models() -> None:
    arguments, before = {**FOUR, "num_clusters": 1}, torch.get_rng_state()
    first, again, other = (tasks.from_arrays(IMAGES, LABELS, seed=seed, **arguments) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.train[3].inputs, again.train[3].inputs)
    assert torch.equal(first.test[3].inputs, again.test[3].inputs)
    assert not torch.equal(first.train[3].inputs, other.train[3].inputs)
    assert isinstance(first.test, Pool)
    assert isinstance(other.test, Pool)
    assert not torch.equal(first.test.inputs, other.test.inputs)
    weights = [task.model.get_parameter("1.weight") for task in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_function_that_returns_ones_own_model_leaves_it_in_training_mode() -> None:
    model = mlp(36, 8, 6)
    tasks.from_arrays(IMAGES, LABELS, **{**FOUR, "model": lambda: model, "num_clusters": 1})
    assert model.training


def test_a_model_is_taken_as_it_is_and_copied() -> None:
    model = mlp(36, 8, 6)
    task = tasks.from_arrays(IMAGES, LABELS, **{**FOUR, "model": model, "num_clusters": 1})
    assert task.model is not model
    assert task.model.training
    assert torch.equal(task.model.get_parameter("1.weight"), model.get_parameter("1.weight"))
    nn.init.zeros_(model.get_parameter("1.weight"))
    assert task.model.get_parameter("1.weight").any()


@pytest.mark.parametrize("kind", ["numpy", "torch", "list", "read-only", "grad"])
def test_arrays_of_every_kind_are_copied(kind: str) -> None:
    images, labels = IMAGES / 255.0, LABELS.astype(np.int32)
    assert images.dtype == np.float64
    given: tuple[Any, Any] = (images.copy(), labels.copy())
    if kind in ("torch", "grad"):
        given = (torch.tensor(images), torch.tensor(labels))
        given[0].requires_grad_(kind == "grad")
    elif kind == "list":
        given = (images.tolist(), labels.tolist())
    elif kind == "read-only":
        for array in given:
            array.setflags(write=False)
    task = tasks.from_arrays(*given, **{**FOUR, "num_clusters": 1})
    expected = tasks.from_arrays(IMAGES, LABELS, **{**FOUR, "num_clusters": 1})
    if kind in ("numpy", "torch"):
        given[0][:] = 7
    # floats take the model's precision
    assert task.train[2].inputs.dtype == torch.float32
    assert not task.train[2].inputs.requires_grad
    torch.testing.assert_close(task.train[2].inputs, expected.train[2].inputs)
    assert torch.equal(task.train[2].targets, expected.train[2].targets)


def test_bytes_stay_bytes_unless_the_model_has_another_precision() -> None:
    for precision, kept in ((torch.float32, torch.uint8), (torch.float64, torch.float64)):
        # a batch norm refuses one sample in training
        model = nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.BatchNorm1d(6)).to(precision)
        task = tasks.from_arrays(IMAGES, LABELS, model=model, num_clients=8)
        assert isinstance(task.train, Pool)
        assert task.train.inputs.dtype == kept
        assert task.train[0].inputs.dtype == precision
        assert 0.9 < task.train[0].inputs.max() <= 1


def test_images_to_test_on_take_the_model_s_precision_too() -> None:
    floats = IMAGES / 255
    assert floats.dtype == np.float64
    task = tasks.from_arrays(floats, LABELS, floats, LABELS, **{**FOUR, "num_clusters": 1})
    assert task.train[0].inputs.dtype == task.test[0].inputs.dtype == torch.float32


class Refusing(nn.Linear):
    """Takes no inputs at all."""

    def __init__(self, error: Exception) -> None:
        super().__init__(1, 1)
        self.error = error

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        raise self.error


@pytest.mark.parametrize(
    ("error", "told"),
    [(RuntimeError("\nfirst line\nsecond line"), "first line"), (ValueError(), "ValueError")],
)
def test_what_a_model_says_of_inputs_is_told_in_a_line(error: Exception, told: str) -> None:
    with pytest.raises(InputError, match=rf"inputs of shape \(1, 6, 6\) \({told}\); images are"):
        tasks.from_arrays(IMAGES, LABELS, model=Refusing(error), num_clients=8)


def test_a_model_that_writes_into_its_inputs_leaves_the_task_s_alone() -> None:
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, 2))
    task = tasks.from_arrays(-np.ones((10, 2)), np.arange(10) % 2, model=model, num_clients=1)
    assert (task.train[0].inputs == -1).all()


@pytest.mark.parametrize("integers", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_labels_may_be_integers_without_a_sign(integers: type) -> None:
    task = tasks.from_arrays(IMAGES, LABELS.astype(integers), **{**FOUR, "num_clusters": 1})
    assert task.train[0].targets.dtype == torch.int64


@pytest.mark.parametrize("as_given", [np.array, torch.tensor])
def test_what_is_written_into_the_arrays_later_changes_nothing(as_given: Any) -> None:
    # no split and no other precision, which would copy anyway
    images, labels = as_given(IMAGES), as_given(LABELS)
    task = tasks.from_arrays(images, labels, images, labels, **{**FOUR, "num_clusters": 1})
    before = [tensor.clone() for shard in (task.train[2], task.test[2]) for tensor in shard]
    images[:], labels[:] = 7, 0
    after = [tensor for shard in (task.train[2], task.test[2]) for tensor in shard]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


def test_inputs_need_not_be_images() -> None:
    words = torch.randint(50, (40, 7), dtype=torch.int32)
    model = nn.Sequential(nn.EmbeddingBag(50, 4), nn.Linear(4, 3))
    labels = [0, 1, 2, 1] * 10
    task = tasks.from_arrays(
        words, labels, model=model, num_clients=4, num_clusters=2, transform="label-shift", name="words"
    )
    assert task.name == "words"
    assert task.train[0].inputs.dtype == torch.int64
    assert task.model(task.train[0].inputs).shape == (8, 3)


def test_data_sets_become_tasks_in_two_lines() -> None:
    """In the layouts of torchvision and Hugging Face, channels last or none."""
    gray = torch.randint(256, (60, 8, 8), dtype=torch.uint8)
    task = tasks.from_arrays(gray[:, None], torch.arange(60) % 5, model=lambda: mlp(64, 4, 5), num_clients=3)
    assert task.train[0].inputs.shape == (16, 1, 8, 8)
    colour = np.zeros((60, 8, 8, 3), np.uint8)
    conv = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(72, 5))
    task = tasks.from_arrays(
        colour.transpose(0, 3, 1, 2), list(range(5)) * 12, model=conv, num_clients=3, augment=FlipAndCrop(1)
    )
    assert task.train[0].inputs.shape == (16, 3, 8, 8)
    assert task.augment == FlipAndCrop(1)


def test_less_data_are_a_part_of_more() -> None:
    arguments = {**FOUR, "num_clients": 2, "num_clusters": 1}
    whole, half = (tasks.from_arrays(IMAGES, LABELS, data_fraction=f, **arguments) for f in (1.0, 0.5))
    assert [len(shard) for shard in half.train] == [24, 24]
    assert torch.equal(half.train[1].inputs, whole.train[1].inputs[:24])
    assert len(half.test[1]) == len(whole.test[1]) == 12


GRAY = np.zeros((20, 6, 6), np.uint8)


@pytest.mark.parametrize(
    ("given", "changes", "message"),
    [
        ((IMAGES, LABELS[:9]), {}, r"images has shape \(120, 1, 6, 6\) and labels has \(9,\).*same N"),
        ((IMAGES, np.eye(6)[LABELS]), {}, r"labels has \(120, 6\).*labels\.argmax\(1\) of one-hot ones"),
        # argmax would make them all 0
        (
            (IMAGES, LABELS[:, None]),
            {},
            r"labels has \(120, 1\).*labels\[:, 0\] of a column and labels\.argmax",
        ),
        ((IMAGES, LABELS.astype(str)), {}, r"labels cannot be read.*np\.searchsorted\(classes, labels\)"),
        ((IMAGES[:0], LABELS[:0]), {}, "at least 1"),
        ((LABELS, LABELS), {}, r"images has shape \(120,\)"),
        ((IMAGES, LABELS / 2), {}, "labels is of torch.float64.*integers from 0 on"),
        ((IMAGES, LABELS - 1), {}, "the smallest is -1.*integers from 0 on"),
        ((IMAGES, LABELS + 1), {"num_clusters": 1, "transform": None}, r"targets from \d to 6.*0 to 5"),
        ((["a", "b"], [0, 1]), {}, "images cannot be read as one array of numbers"),
        ((torch.eye(120).to_sparse(), LABELS), {}, r"images cannot be .* sparse tensor.*to_dense\(\)"),
        ((torch.eye(120) + 0j, LABELS), {}, r"images is of torch\.complex64.*view_as_real"),
        ((np.eye(120) + 0j, LABELS), {}, r"images is of torch\.complex128.*view_as_real"),
        (
            (IMAGES, LABELS),
            {"augment": "flip"},
            r"augment is 'flip'; .* such as data\.FlipAndCrop\(\), or None",
        ),
        (([[1.0], [1.0, 2.0]], [0, 1]), {}, "images cannot be read.*same shape"),
        ((IMAGES, LABELS, IMAGES), {}, "test_labels is None; give both"),
        ((IMAGES, LABELS, IMAGES, LABELS[:4]), {}, r"test_images has shape.*test_labels has \(4,\)"),
        ((IMAGES, LABELS, IMAGES[..., :5], LABELS), {}, r"\(1, 6, 6\), and one of test_images \(1, 6, 5\)"),
        (
            (IMAGES, LABELS, IMAGES.astype(float), LABELS),
            {},
            "images is of torch.uint8 and test_images is of torch.float64; uint8 .*give all in one type",
        ),
        (
            (IMAGES, LABELS, IMAGES.astype(int), LABELS),
            {},
            "images is of torch.uint8 and test_images is of torch.int64; uint8 .*give all in one type",
        ),
        (
            (IMAGES / 255, LABELS, np.full(IMAGES.shape, np.nan), LABELS),
            {},
            "test inputs that are NaN or infinite",
        ),
        ((IMAGES[..., :5], LABELS), {}, r"'rotate'.*\(1, 6, 5\).*H = W.*images\[:, None\]"),
        ((GRAY, LABELS[:20]), {}, r"'rotate'.*\(6, 6\)"),
        (
            (IMAGES.transpose(0, 2, 3, 1), LABELS),
            {"model": lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 6))},
            r"transpose\(0, 3, 1, 2\)",
        ),
        (
            (IMAGES, LABELS),
            {"model": lambda: mlp(35, 8, 6)},
            r"model does not take inputs of shape \(1, 6, 6\).*images\[:, None\] if they are \(N, H, W\)",
        ),
        (
            (np.zeros((120, 5), np.uint8), LABELS),
            {"model": lambda: nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(10, 6))}
            | {"transform": None, "num_clusters": 1},
            r"inputs of shape \(5,\).*; numbers of words are .* not uint8, .*as int64; or give another model",
        ),
        *(
            ((LABELS[:, None] + 9, LABELS), {"model": model, "transform": None, "num_clusters": 1}, message)
            for model, message in (
                (nn.Embedding(5, 2), "of shape \\(1,\\) \\(index out of range"),
                (nn.BatchNorm2d(3), "expected 4D input"),
                (
                    nn.Sequential(
                        nn.Embedding(200, 6), nn.Flatten(), nn.BatchNorm1d(6, track_running_stats=False)
                    ),
                    r"\(Expected more than 1 value.*\); a batch norm .* leave track_running_stats=True",
                ),
                (nn.Bilinear(1, 1, 6), "missing 1 required positional argument"),
            )
        ),
        (
            (IMAGES.astype(int), LABELS),
            {},
            r"not take inputs of shape \(1, 6, 6\) .*; integers, uint8 apart, are .* words.* images as uint8",
        ),
        (
            (np.full((120, 5), 9), LABELS),
            {"model": lambda: nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(10, 6))}
            | {"transform": None, "num_clusters": 1},
            r"\(index out of range in self\); integers, .*, each smaller than the embedding",
        ),
        (
            (IMAGES, LABELS),
            {"settings": {"rounds": 3}},
            r"settings is \{'rounds': 3\}; .*Settings\(rounds=3\)",
        ),
        ((IMAGES, LABELS), {"model": nn.Flatten}, "model has no parameters"),
        ((IMAGES, LABELS), {"model": None}, "model is None; give a network, or a function"),
        ((IMAGES, LABELS), {"model": lambda: None}, "the function model returns None; it must return"),
        ((IMAGES, LABELS), {"transform": "turn"}, "transform is 'turn'; it is 'rotate', 'label-shift', "),
        ((IMAGES, LABELS), {"transform": None}, "transform is None and num_clusters is 4"),
        ((IMAGES, LABELS), {"num_clusters": 1}, "transform is 'rotate' and num_clusters is 1.*None with 1"),
        ((IMAGES, LABELS), {"num_clusters": 9}, "num_clusters is 9.*number of clients, 8"),
        ((IMAGES, LABELS), {"num_clients": 8.0}, r"num_clients is 8\.0; it must be a whole number"),
        ((IMAGES, LABELS), {"num_clients": 50}, r"num_clients is 50, but.*only 24 samples"),
        ((IMAGES, LABELS), {"test_fraction": 1.0}, r"test_fraction is 1\.0, of 120 images.*such as 0\.2"),
        ((IMAGES, LABELS), {"test_fraction": 0.001}, r"test_fraction is 0\.001"),
        ((IMAGES, LABELS), {"test_fraction": 0.999}, r"test_fraction is 0\.999"),
        ((IMAGES, LABELS), {"test_fraction": np.nan}, "test_fraction is nan"),
        ((IMAGES, LABELS), {"data_fraction": 0.0}, r"data_fraction is 0\.0"),
        ((IMAGES, LABELS), {"seed": -1}, "seed is -1"),
        (
            (IMAGES, LABELS),
            {"transform": "label-groups", "num_clusters": 7, "num_clients": 7},
            "num_clusters is 7, but there are only 6 labels",
        ),
    ],
)
def test_arrays_that_make_no_task_are_refused(given: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tasks.from_arrays(*given, **{**FOUR, "transform": "rotate", **changes})


class Kept(nn.Linear):
    """A layer that keeps something beside its parameters."""

    def __init__(self, kept: Callable[["Kept"], object]) -> None:
        super().__init__(36, 6)
        self.kept = kept(self)


KEPT: list[Callable[[Kept], object]] = [
    lambda layer: 2 * layer.weight,
    lambda layer: [2 * layer.weight],
    lambda layer: {"seen": (1, 2 * layer.weight)},
]


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("as_function", [True, False])
def test_a_network_may_keep_tensors(kept: Callable[[Kept], object], as_function: bool) -> None:
    model = (lambda: Kept(kept)) if as_function else Kept(kept)
    task = tasks.from_arrays(IMAGES.reshape(120, 36), LABELS, **{**FOUR, "model": model, "num_clusters": 1})
    assert isinstance(task.model, Kept)


def test_a_list_that_holds_itself_is_copied() -> None:
    layer = nn.Linear(2, 1)
    kept: list[Any] = [layer.weight * 2]
    kept.append(kept)
    vars(layer)["kept"] = kept
    copy: Any = copied(layer)
    assert copy.kept is not kept
    assert copy.kept[1] is copy.kept
    assert not copy.kept[0].requires_grad


def test_where_a_network_cannot_be_copied_python_says_so() -> None:
    model = Kept(lambda _: Lock())
    with pytest.raises(TypeError, match=r"cannot pickle '_thread\.lock'"):
        tasks.from_arrays(IMAGES.reshape(120, 36), LABELS, **{**FOUR, "model": model, "num_clusters": 1})


class Square(nn.Module):
    """A network that asserts what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The linear layer's outputs."""
        assert x.shape[-1] == 28, "wrong width"
        out: torch.Tensor = self.linear(x)
        return out


def test_arrays_that_hide_something_are_refused() -> None:
    values = np.linspace(0, 1, 80, dtype=np.float32).reshape(20, 4)
    labels = np.arange(20) % 2
    masked = np.ma.masked_greater(values, 0.9)
    nothing_masked = np.ma.masked_greater(values, 2)
    assert len(tasks.from_arrays(nothing_masked, labels, model=nn.Linear(4, 2), num_clients=2).train) == 2
    learned = [torch.ones(4, requires_grad=True) for _ in range(20)]
    for inputs, words in ((masked, "masked"), (learned, "cannot be read as one array")):
        with pytest.raises(InputError, match=words):
            tasks.from_arrays(inputs, labels, model=nn.Linear(4, 2), num_clients=2)
    with pytest.raises(InputError, match="wrong width"):
        tasks.from_arrays(values, labels, model=Square(), num_clients=2)
