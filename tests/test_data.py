"""Rotations and label shifts, who gets which samples, synthetic maps, and image files."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from floral_lite import InputError
from floral_lite.data import (
    cluster_maps,
    diagonal_clusters,
    digits,
    mnist,
    num_kept,
    rotate,
    shift_labels,
    split_evenly,
)

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
    assert torch.equal(images, before)


def test_labels_shift_by_the_cluster_modulo_their_number() -> None:
    assert shift_labels(torch.tensor([0, 7, 9]), cluster=3, num_labels=10).tolist() == [3, 0, 2]
    assert shift_labels(torch.arange(10), cluster=0, num_labels=10).tolist() == list(range(10))


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


@pytest.mark.parametrize(
    ("num_samples", "fraction", "kept"),
    [
        (200, 0.05, 10),
        (2500, 0.05, 125),
        (100, 0.05, 10),
        (100, 0.5, 50),
        (7, 0.05, 7),
        (90, 1.0, 90),
        (10, 0.01, 10),
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
    maps = cluster_maps(10, 6, 3, rank=1, scale=2.0, generator=torch.Generator().manual_seed(0)).double()
    assert maps.shape == (3, 6, 10)
    # (W + alpha U_a V_a^T) - (W + alpha U_b V_b^T) has rank 2 r
    assert torch.linalg.matrix_rank(maps[0] - maps[1], rtol=1e-5) == 2
    assert torch.linalg.matrix_rank(maps[0], rtol=1e-5) == 6


def test_the_scale_of_the_differences() -> None:
    """Entries are normal with standard deviation 1 / sqrt(d_in): W has 1 / d_x, alpha U V^T alpha^2 / d_x."""
    generator = torch.Generator().manual_seed(0)
    same = cluster_maps(50, 40, 200, rank=1, scale=0.0, generator=generator)
    assert torch.equal(same[0], same[1])
    assert float(same[0].var()) == pytest.approx(1 / 50, rel=0.1)
    maps = cluster_maps(50, 40, 200, rank=1, scale=3.0, generator=generator)
    # var(U V^T) = 1/1 * 1/50, measured between clusters
    assert float(maps.var(dim=0).mean()) == pytest.approx(9 / 50, rel=0.1)


def test_digits_are_all_there_and_split_once() -> None:
    images = digits()
    # every fifth of 1797 is a test image
    assert (len(images.train_images), len(images.test_images)) == (1438, 359)
    assert images.train_images.shape[1:] == images.test_images.shape[1:] == (1, 8, 8)
    assert (float(images.train_images.min()), float(images.train_images.max())) == (0.0, 1.0)
    for labels in (images.train_labels, images.test_labels):
        assert labels.dtype == torch.int64
        assert sorted(set(labels.tolist())) == list(range(10))


def test_mnist_without_its_files_says_which_are_missing_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        mnist(tmp_path, download=False)
    message = str(caught.value)
    for words in (
        str(tmp_path),
        "train-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
        "--data",
        "FLORAL_LITE_DATA",
    ):
        assert words in message


@pytest.mark.skipif(
    "FLORAL_LITE_DATA" not in os.environ, reason="FLORAL_LITE_DATA names no folder with MNIST"
)
def test_mnist_is_read_from_the_folder_that_the_variable_names() -> None:
    images = mnist(download=False)
    assert images.train_images.shape == (60000, 1, 28, 28)
    assert images.test_images.shape == (10000, 1, 28, 28)
    assert (float(images.train_images.min()), float(images.train_images.max())) == (0.0, 1.0)
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
