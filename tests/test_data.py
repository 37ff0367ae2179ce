"""Rotations and label shifts, who gets which samples, synthetic maps, and image files."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from floral_lite import InputError
from floral_lite.data import (
    Images,
    Truth,
    as_float,
    cifar10,
    cifar100,
    diagonal_clusters,
    digits,
    draw_truth,
    mnist,
    num_kept,
    rotate,
    shift_labels,
    split_by_label,
    split_evenly,
)
from floral_lite.data import images as images_module

IMAGES = torch.rand(3, 1, 9, 9, generator=torch.Generator().manual_seed(0))


def blob(x: float, y: float, size: int = 33) -> Tensor:
    """A smooth spot at (x, y), with the origin in the centre, x to the right and y up."""
    axis = torch.arange(size) - (size - 1) / 2
    column, row = axis[None, :], -axis[:, None]
    return torch.exp(-((column - x) ** 2 + (row - y) ** 2) / 8)[None, None]


def centre(image: Tensor) -> tuple[float, float]:
    """The centre of mass, in the coordinates of `blob`."""
    axis = torch.arange(image.shape[-1]) - (image.shape[-1] - 1) / 2
    mass = image[0, 0] / image.sum()
    return float((mass * axis[None, :]).sum()), float((mass * -axis[:, None]).sum())


@pytest.mark.parametrize("num_clusters", [4, 8, 12])
@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_quarter_turns_are_exact(num_clusters: int, turns: int) -> None:
    turned = rotate(IMAGES, turns * num_clusters // 4, num_clusters)
    assert torch.equal(turned, torch.rot90(IMAGES, turns, dims=(2, 3)))


def test_a_quarter_turn_by_hand() -> None:
    # counter-clockwise: the right column becomes the top row
    turned = rotate(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), cluster=1, num_clusters=4)
    assert torch.equal(turned[0, 0], torch.tensor([[2.0, 4.0], [1.0, 3.0]]))


@pytest.mark.parametrize(
    ("cluster", "num_clusters"), [(1, 4), (1, 3), (2, 3), (1, 8), (3, 8), (89, 360), (1, 10)]
)
def test_images_turn_counter_clockwise_by_360_c_over_C(cluster: int, num_clusters: int) -> None:
    angle = torch.tensor(2 * torch.pi * cluster / num_clusters)
    # the spot at (8, 3) goes to R (8, 3)
    expected = (float(8 * angle.cos() - 3 * angle.sin()), float(8 * angle.sin() + 3 * angle.cos()))
    assert centre(rotate(blob(8, 3), cluster, num_clusters)) == pytest.approx(expected, abs=0.05)


def test_a_turn_of_89_degrees_is_nearly_a_quarter_turn() -> None:
    nearly, quarter = rotate(blob(8, 3), 89, 360), torch.rot90(blob(8, 3), 1, dims=(2, 3))
    assert float((nearly - quarter).abs().max()) < 0.1
    assert float((nearly - torch.rot90(blob(8, 3), -1, dims=(2, 3))).abs().max()) > 0.9


def test_rotation_keeps_shape_precision_and_the_original() -> None:
    images = IMAGES.expand(3, 2, 9, 9).double()
    before = images.clone()
    turned = rotate(images, 1, 8)
    assert (turned.shape, turned.dtype) == (images.shape, torch.float64)
    assert not torch.equal(turned, turned.float().double())
    assert torch.equal(images, before)


def test_what_turns_in_from_outside_is_black() -> None:
    assert rotate(torch.ones(1, 1, 9, 9), 1, 8)[0, 0, [0, 4], [0, 4]].tolist() == pytest.approx([0.0, 1.0])


def test_pixels_are_read_as_parts_of_255() -> None:
    pixels = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(as_float(pixels), torch.arange(256).float() / 255)
    assert pixels.tolist() == list(range(256))
    doubles = IMAGES.double()
    assert as_float(doubles) is doubles


@pytest.mark.parametrize(("cluster", "num_clusters"), [(c, 4) for c in range(4)] + [(1, 3), (5, 8), (2, 8)])
def test_pixels_turn_as_their_floats_do(cluster: int, num_clusters: int) -> None:
    pixels = torch.randint(256, (6, 2, 9, 9), dtype=torch.uint8)
    turned = rotate(pixels, cluster, num_clusters)
    # bytes stay bytes where nothing is interpolated
    assert turned.dtype == (torch.uint8 if 4 * cluster % num_clusters == 0 else torch.float32)
    assert torch.equal(as_float(turned), rotate(as_float(pixels), cluster, num_clusters))


def test_an_image_turns_alike_in_any_company() -> None:
    together = rotate(IMAGES, 1, 8)
    for image, turned in zip(IMAGES, together, strict=True):
        assert torch.equal(rotate(image[None], 1, 8)[0], turned)
    assert rotate(IMAGES[:0], 1, 8).shape == (0, 1, 9, 9)


def test_numbers_of_words_are_not_averaged_by_a_turn() -> None:
    words = torch.arange(16).view(1, 1, 4, 4)
    assert torch.equal(rotate(words, 1, 4), words.rot90(1, (2, 3)))
    with pytest.raises(InputError, match=r"images are of torch\.int64.* cluster 1 of 3 would mix"):
        rotate(words, 1, 3)


def test_labels_shift_by_the_cluster_modulo_their_number() -> None:
    assert shift_labels(torch.tensor([0, 7, 9]), cluster=3, num_labels=10).tolist() == [3, 0, 2]
    assert shift_labels(torch.arange(10), cluster=0, num_labels=10).tolist() == list(range(10))


@pytest.mark.parametrize("integers", [torch.uint8, torch.int8, torch.int64])
def test_labels_of_small_integers_do_not_overflow(integers: torch.dtype) -> None:
    assert shift_labels(torch.tensor([0, 8, 9], dtype=integers), -1, 10).tolist() == [9, 7, 8]
    assert shift_labels(torch.tensor([99], dtype=integers), 50, 100).tolist() == [49]


def test_clusters_are_assigned_diagonally() -> None:
    assert diagonal_clusters(7, 3).tolist() == [0, 1, 2, 0, 1, 2, 0]


@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 99))
def test_every_sample_is_dealt_once_and_shares_differ_by_at_most_one(
    num_samples: int, num_clients: int, seed: int
) -> None:
    num_samples = max(num_samples, num_clients)
    shares = split_evenly(num_samples, num_clients, torch.Generator().manual_seed(seed))
    assert sorted(torch.cat(shares).tolist()) == list(range(num_samples))
    sizes = [len(share) for share in shares]
    assert len(sizes) == num_clients
    assert max(sizes) - min(sizes) <= 1


def test_more_clients_than_samples_are_refused() -> None:
    with pytest.raises(InputError, match=r"num_clients is 9.*only 8 samples"):
        split_evenly(8, 9, torch.Generator())
    with pytest.raises(InputError, match=r"num_clients is 0.*at least 1"):
        split_evenly(8, 0, torch.Generator())


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 30), st.integers(0, 99))
def test_each_cluster_gets_its_group_of_labels(
    num_labels: int, num_clusters: int, num_clients: int, seed: int
) -> None:
    num_clusters = min(num_clusters, num_labels)
    clusters = diagonal_clusters(num_clusters + num_clients, num_clusters)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num_labels).repeat(40)[torch.randperm(40 * num_labels, generator=generator)]
    rows_of = split_by_label(labels, clusters, num_clusters, generator, num_labels)
    # every sample once, every cluster's labels next to each other and nobody else's
    assert sorted(torch.cat(rows_of).tolist()) == list(range(len(labels)))
    groups = [
        sorted({int(y) for k, rows in enumerate(rows_of) if clusters[k] == c for y in labels[rows]})
        for c in range(num_clusters)
    ]
    assert [label for group in groups for label in group] == list(range(num_labels))
    assert max(map(len, groups)) - min(map(len, groups)) <= 1
    for cluster in range(num_clusters):
        sizes = [len(rows) for k, rows in enumerate(rows_of) if clusters[k] == cluster]
        assert max(sizes) - min(sizes) <= 1


def test_samples_of_a_group_are_dealt_at_random() -> None:
    labels, clusters = torch.arange(4).repeat_interleave(50), torch.zeros(2, dtype=torch.int64)
    first, again, other = (
        split_by_label(labels, clusters, 1, torch.Generator().manual_seed(seed), 4) for seed in (1, 1, 2)
    )
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])
    assert set(labels[first[0]].tolist()) == {0, 1, 2, 3}


def test_groups_without_labels_and_clients_without_samples_are_refused() -> None:
    labels = torch.arange(4)
    with pytest.raises(InputError, match="cluster 0 has 1 clients, and there are 0 samples of its labels"):
        split_by_label(labels + 4, torch.arange(2), 2, torch.Generator(), 8)
    with pytest.raises(InputError, match=r"num_clusters is 5.*only 4 labels"):
        split_by_label(labels, torch.arange(5), 5, torch.Generator(), 4)
    with pytest.raises(InputError, match=r"cluster 0 has 3 clients, and there are 2 samples of its labels"):
        split_by_label(labels, torch.tensor([0, 1, 0, 1, 0]), 2, torch.Generator(), 4)
    with pytest.raises(InputError, match="no client in cluster 1, and its labels would go to nobody"):
        split_by_label(labels, torch.tensor([0, 2, 0]), 3, torch.Generator(), 4)
    with pytest.raises(InputError, match=r"labels has \[4\], which no cluster would get.*in \[0, 4\)"):
        split_by_label(labels + 1, torch.tensor([0, 1]), 2, torch.Generator(), 4)
    with pytest.raises(InputError, match=r"labels has \[-1\], which no cluster would get"):
        split_by_label(labels - 1, torch.tensor([0, 1]), 2, torch.Generator(), 4)
    with pytest.raises(InputError, match="cluster 0 has 1 clients, and there are 0 samples"):
        split_by_label(labels[:0], torch.tensor([0, 1]), 2, torch.Generator(), 4)


def test_groups_of_labels_are_the_same_in_bytes() -> None:
    labels, clusters = torch.arange(100).repeat(2), torch.arange(10)
    wide, bytes_ = (
        split_by_label(of_type, clusters, 10, torch.Generator().manual_seed(0), 100)
        for of_type in (labels, labels.to(torch.uint8))
    )
    assert all(map(torch.equal, wide, bytes_))


@pytest.mark.parametrize(
    ("num_samples", "fraction", "kept"),
    [
        (200, 0.05, 10),
        (2500, 0.05, 125),
        (100, 0.05, 10),
        (100, 0.5, 50),
        (7, 0.05, 7),
        (230, 0.05, 11),  # of 11.5
        (90, 1.0, 90),
        (10, 0.01, 10),
        # as floats, 28.999... and 56.999...
        (100, 0.29, 29),
        (100, 0.57, 57),
    ],
)
def test_a_share_of_the_samples_is_kept_but_at_least_ten(
    num_samples: int, fraction: float, kept: int
) -> None:
    assert num_kept(num_samples, fraction) == kept


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.5, float("nan")])
def test_a_fraction_out_of_range_is_refused(fraction: float) -> None:
    with pytest.raises(InputError, match=rf"data_fraction is {fraction}.*\(0, 1\]"):
        num_kept(100, fraction)


def test_synthetic_maps_differ_by_low_rank_matrices() -> None:
    truth = draw_truth((10, 6), 3, rank=1, scale=2.0, generator=torch.Generator().manual_seed(0))
    maps = truth.maps().double()
    assert maps.shape == (3, 6, 10)
    # (W + alpha U_a V_a^T) - (W + alpha U_b V_b^T) has rank 2 r
    assert torch.linalg.matrix_rank(maps[0] - maps[1], rtol=1e-5) == 2
    assert torch.linalg.matrix_rank(maps[0], rtol=1e-5) == 6


def test_the_scale_of_the_differences() -> None:
    """Entries are normal with standard deviation 1 / sqrt(d_in): W has 1 / d_x, alpha U V^T alpha^2 / d_x."""
    generator = torch.Generator().manual_seed(0)
    same = draw_truth((50, 40), 200, rank=1, scale=0.0, generator=generator).maps()
    assert torch.equal(same[0], same[1])
    assert float(same[0].var()) == pytest.approx(1 / 50, rel=0.1)
    maps = draw_truth((50, 40), 200, rank=1, scale=3.0, generator=generator).maps()
    # var(U V^T) = 1/1 * 1/50, measured between clusters
    assert float(maps.var(dim=0).mean()) == pytest.approx(9 / 50, rel=0.1)
    # Phi takes in what W gives
    outer = draw_truth((3, 400, 20), 2, rank=1, scale=1.0, generator=generator).outer
    assert outer is not None
    assert outer.shape == (20, 400)
    assert float(outer.var()) == pytest.approx(1 / 400, rel=0.1)


def test_true_targets_by_hand() -> None:
    """W = (1, 0; 0, 1), U_1 V_1^T = (0, 0; 1, 0) times alpha = 2, Phi = (1, 10)."""
    base, left = torch.eye(2), torch.tensor([[[0.0], [0.0]], [[0.0], [1.0]]])
    right = torch.tensor([[[1.0], [0.0]], [[1.0], [0.0]]])
    inputs = torch.tensor([[1.0, -3.0], [-1.0, 5.0]])
    linear = Truth(base, left, right, 2.0)
    assert linear.targets(inputs, 0).tolist() == [[1, -3], [-1, 5]]
    assert linear.targets(inputs, 1).tolist() == [[1, -1], [-1, 3]]
    net = linear._replace(outer=torch.tensor([[1.0, 10.0]]))
    # (1, 0) and (0, 3) after the ReLU
    assert net.targets(inputs, 1).tolist() == [[1], [30]]
    # (1, -1) and (-1, 3) less the means (0, 1), over the deviations (1, 2): (1, -1) and (-1, 1)
    assert net._replace(normalised=True).targets(inputs, 1).tolist() == [[1], [10]]


@pytest.mark.parametrize("num_clusters", [2, 4])
def test_transforms_have_inverses(num_clusters: int) -> None:
    pixels = torch.randint(256, (6, 2, 9, 9), dtype=torch.uint8)
    labels = torch.arange(10)
    for cluster in range(num_clusters):
        turned = rotate(pixels, cluster, num_clusters)
        assert torch.equal(rotate(turned, num_clusters - cluster, num_clusters), pixels)
        shifted = shift_labels(labels, cluster, 10)
        assert torch.equal(shift_labels(shifted, 10 - cluster, 10), labels)


def test_digits_are_all_there_and_split_once() -> None:
    images = digits()
    # every fifth of 1797 is a test image
    assert (len(images.train_images), len(images.test_images)) == (1438, 359)
    assert images.train_images.shape[1:] == images.test_images.shape[1:] == (1, 8, 8)
    assert (float(images.train_images.min()), float(images.train_images.max())) == (0.0, 1.0)
    # the set begins with 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
    assert images.train_labels[:8].tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert images.test_labels[:2].tolist() == [4, 9]
    for labels in (images.train_labels, images.test_labels):
        assert labels.dtype == torch.int64
        assert sorted(set(labels.tolist())) == list(range(10))


@pytest.mark.parametrize("kind", [Path, str])
def test_mnist_without_its_files_says_which_are_missing_and_what_to_do(
    kind: type[Path] | type[str], tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        mnist(kind(tmp_path), download=False)
    message = str(caught.value)
    for words in (
        str(tmp_path),
        "train-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
        "--data",
        "FLORAL_LITE_DATA",
    ):
        assert words in message


def fake_cifar() -> SimpleNamespace:
    """What stands for torchvision.datasets: 5 training and 3 test images of its layout."""

    class Fake:
        def __init__(self, folder: Path, train: bool, download: bool) -> None:
            generator = np.random.default_rng(int(train))
            number = 5 if train else 3
            self.data = generator.integers(256, size=(number, 32, 32, 3), dtype=np.uint8)
            self.targets = [7 * train + label for label in range(number)]

    return SimpleNamespace(CIFAR10=Fake, CIFAR100=Fake)


def files(folder: Path) -> list[str]:
    """What is there beside the lock, which some systems leave behind."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def no_torchvision(name: str) -> SimpleNamespace:
    raise AssertionError("torchvision was asked")


@pytest.mark.parametrize(("read", "file"), [(cifar10, "cifar10.npz"), (cifar100, "cifar100.npz")])
def test_cifar_is_read_through_torchvision_once_and_from_one_file_afterwards(
    read: Callable[..., Images], file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = fake_cifar()
    monkeypatch.setattr(images_module, "import_torchvision", lambda name: datasets)
    first = read(tmp_path)
    source = datasets.CIFAR10(tmp_path, train=True, download=False)
    assert first.train_images.shape == (5, 3, 32, 32)
    assert first.train_images.dtype == torch.uint8
    # torchvision has channels last
    assert torch.equal(first.train_images[4, 2], torch.from_numpy(source.data[4, :, :, 2]))
    assert first.train_labels.tolist() == [7, 8, 9, 10, 11]
    assert first.test_labels.tolist() == [0, 1, 2]
    assert files(tmp_path) == [file]

    monkeypatch.setattr(images_module, "import_torchvision", no_torchvision)
    again = read(tmp_path)
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert again.test_labels.dtype == torch.int64


def test_a_file_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images_module, "import_torchvision", lambda name: fake_cifar())
    (tmp_path / "file").write_bytes(b"")
    assert len(cifar10(tmp_path / "file" / "below").train_images) == 5

    def full_disk(file: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    assert len(cifar10(tmp_path).train_images) == 5
    assert files(tmp_path) == ["file"]


def test_an_interrupted_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images_module, "import_torchvision", lambda name: fake_cifar())

    def interrupted(file: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cifar10(tmp_path)
    assert files(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut off"])
def test_a_damaged_file_says_what_to_do(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "cifar100.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"cifar100\.npz is damaged.*remove it"):
        cifar100(tmp_path)


def test_a_file_that_lacks_an_array_says_what_to_do(tmp_path: Path) -> None:
    np.savez(tmp_path / "cifar10.npz", train_images=np.zeros((1, 3, 32, 32), np.uint8))
    with pytest.raises(InputError, match=r"cifar10\.npz is damaged.*train_labels.*remove it"):
        cifar10(tmp_path)


@pytest.mark.parametrize(
    ("field", "array", "message"),
    [
        ("train_images", np.zeros((5, 32, 32, 3), np.uint8), r"train_images of shape \(5, 32, 32, 3\)"),
        ("train_images", np.zeros((5, 3, 32, 32), np.float32), "train_images of shape.*torch.float32"),
        ("test_labels", np.zeros(4, np.uint8), r"test_labels of shape \(4,\)"),
        ("train_labels", np.zeros((5, 1), np.uint8), r"train_labels of shape \(5, 1\)"),
    ],
)
def test_a_file_of_another_layout_says_what_it_has_and_what_to_do(
    field: str, array: Any, message: str, tmp_path: Path
) -> None:
    images, labels = np.zeros((5, 3, 32, 32), np.uint8), np.zeros(5, np.uint8)
    arrays = {"train_images": images, "train_labels": labels, "test_images": images, "test_labels": labels}
    np.savez(tmp_path / "cifar10.npz", **arrays)
    read = cifar10(tmp_path)
    assert len(read.train_images) == 5
    assert read.train_labels.dtype == read.test_labels.dtype == torch.int64
    np.savez(tmp_path / "cifar10.npz", **{**arrays, field: array})
    with pytest.raises(InputError, match=rf"{message}.*must be \(N, 3, 32, 32\) and torch.uint8.*remove it"):
        cifar10(tmp_path)


def test_what_cifar_was_read_from_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    source.parent.mkdir()
    source.write_bytes(b"images")
    monkeypatch.setattr(images_module, "import_torchvision", lambda name: fake_cifar())
    cifar10(tmp_path)
    assert source.read_bytes() == b"images"
    assert files(tmp_path) == ["cifar-10-batches-py", "cifar10.npz"]


@pytest.mark.parametrize(
    ("read", "missing"), [(cifar10, "cifar-10-batches-py"), (cifar100, "cifar-100-python")]
)
def test_cifar_without_its_files_says_which_are_missing_and_what_to_do(
    read: Callable[..., Images], missing: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, download=False)
    message = str(caught.value)
    words_of = (
        str(tmp_path),
        f"{read.__name__}.npz",
        missing,
        "with a network",
        "--data",
        "FLORAL_LITE_DATA",
    )
    for words in words_of:
        assert words in message


def test_a_download_that_fails_without_a_word_is_told_by_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*arguments: Any, **options: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr(images_module, "import_torchvision", lambda name: SimpleNamespace(CIFAR10=silent))
    with pytest.raises(InputError, match=r"could not be downloaded \(TimeoutError\(\)\)"):
        cifar10(tmp_path)


def test_operators_that_torchvision_lacks_are_declared_and_no_other_error_is_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declared: list[str] = []

    def of_another_torch(name: str) -> str:
        if name == "broken":
            raise RuntimeError("another error")
        if len(declared) < 2:
            raise RuntimeError("operator torchvision::nms does not exist")
        return name

    monkeypatch.setattr(images_module.importlib, "import_module", of_another_torch)
    monkeypatch.setattr(torch.library, "define", lambda name, schema: declared.append(name))
    with pytest.raises(RuntimeError, match="another error"):
        images_module.import_torchvision("broken")
    assert not declared
    loaded: object = images_module.import_torchvision("torchvision.datasets")
    assert loaded == "torchvision.datasets"
    assert declared == ["torchvision::nms", "torchvision::qnms"]


@pytest.mark.parametrize("read", [mnist, cifar10, cifar100])
def test_a_folder_that_is_given_comes_before_that_of_the_variable_and_both_before_data(
    read: Callable[..., Images], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLORAL_LITE_DATA", "named")
    for folder, looked_in in (("given", "given"), (None, "named")):
        with pytest.raises(InputError, match=f"^{looked_in}"):
            read(folder, download=False)
    monkeypatch.setenv("FLORAL_LITE_DATA", "")
    with pytest.raises(InputError, match=r"^data"):
        read(download=False)
    monkeypatch.delenv("FLORAL_LITE_DATA")
    with pytest.raises(InputError, match=r"^data"):
        read(download=False)


DATA = Path(os.environ.get("FLORAL_LITE_DATA", "nowhere"))


@pytest.mark.skipif(
    not any((DATA / name).exists() for name in ("cifar10.npz", "cifar-10-batches-py")),
    reason="FLORAL_LITE_DATA names no folder with CIFAR-10",
)
def test_cifar10_is_read_from_the_folder_that_the_variable_names() -> None:
    images = cifar10(download=False)
    # some copies lack a few of the 50,000 and 10,000 images
    assert 49900 <= len(images.train_images) == len(images.train_labels) <= 50000
    assert 9900 <= len(images.test_images) == len(images.test_labels) <= 10000
    assert images.train_images.shape[1:] == images.test_images.shape[1:] == (3, 32, 32)
    assert images.train_images.dtype == images.test_images.dtype == torch.uint8
    assert int(torch.bincount(images.test_labels).min()) >= 980
    mean = as_float(images.train_images[::10]).mean(dim=(0, 2, 3))
    torch.testing.assert_close(mean, torch.tensor([0.4914, 0.4822, 0.4465]), rtol=0, atol=3e-3)


@pytest.mark.skipif(
    not any((DATA / name).exists() for name in ("cifar100.npz", "cifar-100-python")),
    reason="FLORAL_LITE_DATA names no folder with CIFAR-100",
)
def test_cifar100_is_read_from_the_folder_that_the_variable_names() -> None:
    images = cifar100(download=False)
    assert images.train_images.shape == (50000, 3, 32, 32)
    assert images.test_images.shape == (10000, 3, 32, 32)
    assert images.train_images.dtype == torch.uint8
    assert torch.bincount(images.train_labels).tolist() == [500] * 100
    assert torch.bincount(images.test_labels).tolist() == [100] * 100


@pytest.mark.skipif(
    "FLORAL_LITE_DATA" not in os.environ, reason="FLORAL_LITE_DATA names no folder with MNIST"
)
def test_mnist_is_read_from_the_folder_that_the_variable_names() -> None:
    images = mnist(download=False)
    assert images.train_images.shape == (60000, 1, 28, 28)
    assert images.test_images.shape == (10000, 1, 28, 28)
    assert images.train_images.dtype == images.test_images.dtype == torch.uint8
    assert (int(images.train_images.min()), int(images.train_images.max())) == (0, 255)
    assert torch.bincount(images.test_labels).tolist() == [
        980,
        1135,
        1032,
        1010,
        982,
        892,
        958,
        1028,
        974,
        1009,
    ]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [8, 32, 182])
def test_images_in_half_precision_turn_as_others_do(dtype: torch.dtype, size: int) -> None:
    images = torch.linspace(0, 1, size).repeat(1, 1, size, 1).to(dtype)
    assert torch.equal(rotate(images, 1, 8), rotate(images.float(), 1, 8).to(dtype))


def test_a_share_of_numpy_s_is_that_which_is_written() -> None:
    assert (num_kept(300, 1 / 3), num_kept(600, 1 / 6), num_kept(700, 1 / 7)) == (100, 100, 100)
    assert num_kept(100, float(np.float64(0.57))) == num_kept(100, np.float32(0.57)) == 57  # type: ignore[arg-type]
