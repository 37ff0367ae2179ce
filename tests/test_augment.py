"""Random flips and crops, many images at once."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from floral_lite import InputError, Settings, Task, methods, train
from floral_lite.data import FlipAndCrop, rotate
from floral_lite.federation import Engine
from floral_lite.federation.clients import gather
from floral_lite.federation.pool import Pool
from floral_lite.federation.shards import Augment, Changes

ENGINES: tuple[Engine, ...] = get_args(Engine)


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
    with pytest.raises(InputError, match=r"padding is 2\.5; it must be a whole number"):
        FlipAndCrop(padding=2.5)


@pytest.mark.parametrize(
    "shape", [(2, 64), (2, 8, 8), (2, 1, 5, 8, 8)], ids=["rows", "no channels", "videos"]
)
def test_what_is_no_image_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"inputs have the shape \(2, .*; FlipAndCrop takes images"):
        FlipAndCrop()(torch.zeros(shape), torch.zeros(2, 3, dtype=torch.int64))


def clusters_of_turned_images() -> Task:
    """Three clients in three clusters, turned by 0, 90 and 180 degrees; the pool mixes their order."""
    images = torch.randint(256, (12, 2, 6, 6), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    pool = Pool(
        images,
        torch.arange(12) % 4,
        rows=torch.arange(12).flip(0),
        sizes=(5, 4, 3),
        clusters=(2, 0, 1),
        transform=lambda inputs, targets, cluster: (rotate(inputs, cluster, 4), targets),
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 4))
    settings = Settings(rounds=2, batch_size=2, local_epochs=2)
    clusters = torch.tensor(pool.clusters)
    loss = functional.cross_entropy
    return Task("turned", model, loss, pool, pool, clusters, settings, {}, FlipAndCrop(padding=1))


class Faded(FlipAndCrop):
    """Images of half the brightness too, where bytes would be taken for 0 to 255."""

    def __call__(self, inputs: Tensor, draws: Tensor) -> Tensor:
        return super().__call__(inputs, draws) / 2


def test_an_image_is_changed_before_it_is_turned() -> None:
    """Turned by 90 degrees first, it would be mirrored top to bottom, which no test image is."""
    task, augment = clusters_of_turned_images(), Faded(padding=1)
    clients, rows = [2, 0, 1], torch.tensor([[0, 2], [4, 1], [3, 3]])
    draws = augment.draws(6, torch.Generator().manual_seed(1)).reshape(3, 2, 3)
    seen = gather(task.train, clients, rows, Changes(augment, draws))
    pool = task.train
    assert isinstance(pool, Pool)
    for place, client in enumerate(clients):
        first = sum(pool.sizes[:client])
        own = pool.rows[first : first + pool.sizes[client]][rows[place]]
        upright = augment(pool.inputs[own] / 255, draws[place])
        assert torch.equal(seen.inputs[place], rotate(upright, pool.clusters[client], 4))
        assert torch.equal(seen.targets[place], pool.targets[own])


class Middle(FlipAndCrop):
    """Only the middle of an image."""

    def __call__(self, inputs: Tensor, draws: Tensor) -> Tensor:
        return inputs[..., 1:-1, 1:-1]


def test_what_is_changed_may_have_another_shape() -> None:
    task, rows = clusters_of_turned_images(), torch.tensor([[0, 2], [4, 1]])
    changes = Changes(Middle(), Middle().draws(4, torch.Generator()).reshape(2, 2, 3))
    for shards in (task.train, list(task.train)):
        whole, seen = gather(shards, [1, 0], rows % 3), gather(shards, [1, 0], rows % 3, changes)
        assert torch.equal(seen.inputs, whole.inputs[..., 1:-1, 1:-1])


def test_the_engines_change_turned_images_alike() -> None:
    task = clusters_of_turned_images()
    fast, loop = (train(task, methods.FedAvg(task.model), engine=engine, seed=3) for engine in ENGINES)
    torch.testing.assert_close(fast.state.shared, loop.state.shared, rtol=1e-5, atol=1e-6)
    assert isinstance(task.train, Pool)
    unturned = replace(task, train=replace(task.train, transform=None))
    other = train(unturned, methods.FedAvg(task.model), seed=3)
    assert not torch.allclose(other.state.shared["1.weight"], fast.state.shared["1.weight"], atol=1e-3)


class Short(FlipAndCrop):
    """All but the first image."""

    def __call__(self, inputs: Tensor, draws: Tensor) -> Tensor:
        return inputs[1:]


class Double(FlipAndCrop):
    """Images in double precision."""

    def __call__(self, inputs: Tensor, draws: Tensor) -> Tensor:
        return inputs.double()


class OneDraw(FlipAndCrop):
    """One row for all samples."""

    def draws(self, num_samples: int, generator: torch.Generator) -> Tensor:
        return super().draws(1, generator)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("augment", "message"),
    [
        (
            Short(),
            r"Short gives a Tensor of shape \(\d+, 2, 6, 6\), .* a tensor of as many, of the inputs' type",
        ),
        (Double(), r"Double gives a Tensor of shape .*, torch.float64, for \d+ inputs, torch.float32"),
        (OneDraw(), r"OneDraw.draws gives a Tensor of shape \(1, 3\) for \d+ samples"),
    ],
)
def test_changes_that_do_not_fit_the_samples_are_refused(
    engine: Engine, augment: Augment, message: str
) -> None:
    task = replace(clusters_of_turned_images(), augment=augment)
    with pytest.raises(InputError, match=message):
        train(task, methods.FedAvg(task.model), engine=engine)
