"""Random flips and crops, many images at once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from floral_lite import InputError
from floral_lite.data import FlipAndCrop
from floral_lite.federation.shards import Augment


def one_by_one(images: Tensor, draws: Tensor, padding: int) -> Tensor:
    """Mirror, add a black border, cut out: image after image."""
    changed = []
    height, width = images.shape[2:]
    for image, (flip, top, left) in zip(images, draws.tolist(), strict=True):
        mirrored = image.flip(-1) if flip else image
        bordered = functional.pad(mirrored, (padding, padding, padding, padding))
        changed.append(bordered[:, top : top + height, left : left + width])
    return torch.stack(changed)


@given(
    st.integers(1, 12), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.integers(0, 4),
    st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip
def test_all_images_at_once_are_as_one_after_the_other(
    num_images: int, channels: int, height: int, width: int, padding: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(num_images)
    images = torch.rand(num_images, channels, height, width, generator=generator, dtype=dtype)
    augment: Augment = FlipAndCrop(padding)
    draws = augment.draws(num_images, generator)
    before = images.clone()
    changed = augment(images, draws)
    assert changed.dtype == dtype
    assert torch.equal(changed, one_by_one(images, draws, padding))
    assert torch.equal(images, before)


def test_by_hand() -> None:
    image = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    for draws, expected in [
        ([0, 1, 1], [[1.0, 2.0], [3.0, 4.0]]),
        ([1, 1, 1], [[2.0, 1.0], [4.0, 3.0]]),
        # a crop from the top left corner of the border shows the image further down and to the right
        ([0, 0, 0], [[0.0, 0.0], [0.0, 1.0]]),
        ([0, 2, 1], [[3.0, 4.0], [0.0, 0.0]]),
        ([1, 1, 2], [[1.0, 0.0], [3.0, 0.0]]),
    ]:
        assert FlipAndCrop(1)(image, torch.tensor([draws]))[0, 0].tolist() == expected


def test_every_flip_and_offset_is_drawn_equally_often() -> None:
    draws = FlipAndCrop(padding=4).draws(20000, torch.Generator().manual_seed(0))
    assert (draws.shape, draws.dtype) == ((20000, 3), torch.int64)
    for column, number in zip(draws.T, (2, 9, 9), strict=True):
        counts = torch.bincount(column).double()
        assert len(counts) == number
        # four standard deviations of a binomial count
        assert float((counts - 20000 / number).abs().max()) < 4 * (20000 / number) ** 0.5
    # and independently of each other
    assert float(torch.corrcoef(draws.T.double()).fill_diagonal_(0).abs().max()) < 0.04


def test_draws_follow_from_their_generator_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (FlipAndCrop().draws(9, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_border_of_less_than_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="padding is -1"):
        FlipAndCrop(padding=-1)
