"""Dropout by key: masks of the right size, that look like chance, and depend on nothing but the key."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from floral_lite.dropout import Dropout, keep, next_key

SIZE = 100_000


def key(number: int) -> Tensor:
    return torch.tensor(number)


def correlation(one: Tensor, other: Tensor) -> float:
    """Of two masks, as numbers; of chance it is 0 +- 1 / sqrt(SIZE)."""
    return float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]).double())[0, 1])


# four standard deviations: of a million such comparisons a few dozen would fail by chance
UNRELATED = 4 / SIZE**0.5


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("number", [0, 1, 2**40, 2**62 - 1, -1])
def test_each_element_stays_with_probability_1_minus_p(p: float, number: int) -> None:
    kept = keep(key(number), (SIZE,), p).double()
    # mean 1 - p, variance p (1 - p)
    assert float(kept.mean()) == pytest.approx(1 - p, abs=4 * (p * (1 - p) / SIZE) ** 0.5)
    assert float(kept.var()) == pytest.approx(
        p * (1 - p), abs=4 * abs(1 - 2 * p) * (p * (1 - p) / SIZE) ** 0.5 + 1e-4
    )


def test_all_widths_of_p_are_told_apart() -> None:
    """The same key drops ever more as p grows, in steps as fine as there are elements."""
    masks = [keep(key(7), (SIZE,), p) for p in torch.linspace(0, 1, 101).tolist()]
    assert masks[0].all()
    assert not masks[-1].any()
    for more, fewer in pairwise(masks):
        assert not (fewer & ~more).any()
        assert int(more.sum() - fewer.sum()) == pytest.approx(SIZE / 100, rel=0.2)


@pytest.mark.parametrize("lag", [1, 2, 3, 8, 64, 1000])
def test_neighbours_are_unrelated(lag: int) -> None:
    kept = keep(key(3), (SIZE,), 0.5)
    assert abs(correlation(kept[:-lag], kept[lag:])) < UNRELATED


@pytest.mark.parametrize("difference", [1, 2, 256, 2**32, 2**61])
def test_keys_are_unrelated(difference: int) -> None:
    """Neighbouring ones too, and also at a distance, as when one mask were the other moved on."""
    one, other = keep(key(11), (SIZE,), 0.5), keep(key(11 + difference), (SIZE,), 0.5)
    for shift in range(-3, 4):
        assert abs(correlation(one, other.roll(shift))) < UNRELATED


def test_the_calls_of_a_step_are_unrelated() -> None:
    ones = torch.ones(SIZE, dtype=torch.float64)
    with Dropout(key(0)):  # which scrambles to itself
        masks = [functional.dropout(ones, 0.5) for _ in range(4)]
    for place, one in enumerate(masks):
        for other in masks[:place]:
            assert abs(correlation(one, other)) < UNRELATED


def test_keys_of_one_step_after_another_are_all_different() -> None:
    """Among the keys of many masks of many steps no two are the same."""
    keys = torch.randint(2**62, (1000,), generator=torch.Generator().manual_seed(0))
    chains = [keys]
    for _ in range(20):
        chains.append(next_key(chains[-1]))
    assert len(torch.cat(chains).unique()) == 21 * 1000


def test_a_key_says_everything() -> None:
    x = torch.randn(3, 5)
    masks = []
    for number in (1, 1, 2):
        with Dropout(key(number)):
            masks.append(functional.dropout(x, 0.5))
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


def test_the_numbers_are_splitmix64s() -> None:
    """Its first ones from seed 0, of which the upper 24 bits decide: other constants would look as good."""
    first = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    for position, number in enumerate(first, start=1):
        uniform = (number >> 40) / 2**24
        assert keep(key(0), (5,), uniform)[position]
        assert not keep(key(0), (5,), uniform + 2**-24)[position]
    # the seed grows by this in each step, written with a sign
    assert int(next_key(key(-7046029254386353131 - 1))) % 2**64 == first[0]


def test_more_rows_leave_the_masks_of_the_first_as_they_are() -> None:
    """So a batch can be filled up."""
    few, many = (keep(key(9), (rows, 7), 0.5) for rows in (3, 10))
    assert torch.equal(few, many[:3])


DROPOUTS: dict[str, tuple[Callable[..., Tensor], tuple[int, ...]]] = {
    "dropout": (functional.dropout, (4, 6)),
    "dropout1d": (functional.dropout1d, (4, 6, 5)),
    "dropout1d of one sample": (functional.dropout1d, (6, 5)),
    "dropout2d": (functional.dropout2d, (4, 6, 5, 5)),
    "dropout3d": (functional.dropout3d, (4, 6, 2, 3, 3)),
    "dropout3d of one sample": (functional.dropout3d, (6, 2, 3, 3)),
}


@pytest.mark.parametrize("name", DROPOUTS)
def test_under_vmap_as_alone(name: str) -> None:
    function, shape = DROPOUTS[name]
    inputs, keys = torch.randn(3, *shape), torch.tensor([5, -1, 2**62])

    def twice(x: Tensor, key: Tensor) -> Tensor:
        with Dropout(key):
            return function(function(x, 0.3), 0.5)

    together = torch.vmap(twice, randomness="error")(inputs, keys)
    for place in range(3):
        assert torch.equal(together[place], twice(inputs[place], keys[place]))


def test_a_stack_of_keys_is_the_keys_alone() -> None:
    keys = torch.tensor([[4, -7, 2**61], [0, 1, 2]])
    together = keep(keys, (2, 3), 0.4)
    assert together.shape == (2, 3, 2, 3)
    for row, column in ((0, 0), (0, 2), (1, 1)):
        assert torch.equal(together[row, column], keep(keys[row, column], (2, 3), 0.4))


@pytest.mark.parametrize("name", DROPOUTS)
@pytest.mark.parametrize("p", [0.0, 1.0])
def test_nothing_and_everything(name: str, p: float) -> None:
    function, shape = DROPOUTS[name]
    x = torch.randn(shape, requires_grad=True)
    with Dropout(key(1)):
        y = function(x, p)
    assert torch.equal(y, (1 - p) * x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, torch.full(shape, 1 - p))


@pytest.mark.parametrize("name", ["dropout1d", "dropout2d", "dropout3d"])
def test_channels_are_dropped_whole_and_the_others_scaled(name: str) -> None:
    function, shape = DROPOUTS[name]
    x = torch.rand(64, 32, *shape[2:]) + 1
    with Dropout(key(8)):
        y = function(x, 0.25)
    kept = (y != 0).flatten(2)
    assert torch.equal(kept.all(dim=2), kept.any(dim=2))
    # each sample loses channels of its own
    assert len(kept.any(dim=2).unique(dim=0)) == 64
    assert float(kept.double().mean()) == pytest.approx(0.75, abs=0.05)
    torch.testing.assert_close(y[kept.view_as(y)], x[kept.view_as(y)] / 0.75)


@pytest.mark.filterwarnings("ignore:dropout2d. Received a 3D input")
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (functional.dropout1d, (6, 8)),
        (functional.dropout1d, (3, 6, 8)),
        (functional.dropout2d, (6, 4, 5)),
        (functional.dropout2d, (3, 4, 5, 5)),
        (functional.dropout3d, (6, 4, 5, 5)),
        (functional.dropout3d, (2, 6, 3, 3, 3)),
    ],
)
def test_what_torch_drops_together_is_dropped_together(
    function: Callable[..., Tensor], shape: tuple[int, ...]
) -> None:
    def together(dropped: Tensor) -> list[bool]:
        kept = [(dropped != 0).flatten(axis) for axis in range(1, len(shape))]
        return [torch.equal(one.all(dim=-1), one.any(dim=-1)) for one in kept]

    x = torch.ones(shape)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = function(x, 0.5)
    with Dropout(key(0)):
        ours = function(x, 0.5)
    assert together(ours) == together(theirs)


def test_elements_are_scaled_so_that_the_mean_stays() -> None:
    x = torch.ones(SIZE, dtype=torch.float64)
    with Dropout(key(8)):
        y = functional.dropout(x, 0.2)
    assert set(y.unique().tolist()) == {0.0, 1 / 0.8}
    assert float(y.mean()) == pytest.approx(1, abs=4 * (0.2 / 0.8 / SIZE) ** 0.5)


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.Dropout(0.5, inplace=True), nn.Dropout2d(0.5)])
def test_layers_take_their_masks_from_the_key_in_training_only(layer: nn.Module) -> None:
    x = torch.ones(4, 6, 5, 5)
    with Dropout(key(1)) as mode:
        assert layer.eval()(x) is x
        # an evaluation uses up no mask
        assert int(mode.key) == 1
        trained = layer.train()(x.clone())
    with Dropout(key(1)):
        assert torch.equal(trained, layer(x.clone()))
    assert not torch.equal(trained, x)


def test_no_generator_is_touched() -> None:
    before = torch.get_rng_state()
    with Dropout(key(1)):
        functional.dropout(torch.ones(10), 0.5)
        nn.Dropout2d(0.5)(torch.ones(1, 2, 3, 3))
    keep(key(1), (10,), 0.5)
    assert torch.equal(torch.get_rng_state(), before)


def test_other_functions_are_left_alone() -> None:
    """Among them those dropouts that draw from torch's own generator."""
    x = torch.randn(5, 5)

    def outputs() -> list[Any]:
        torch.manual_seed(0)
        return [functional.relu(x), functional.linear(x, x), functional.alpha_dropout(x, 0.5, training=True)]

    plain = outputs()
    with Dropout(key(1)):
        assert all(torch.equal(*pair) for pair in zip(outputs(), plain, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_precision_stays(dtype: torch.dtype) -> None:
    with Dropout(key(1)):
        assert functional.dropout(torch.ones(8, dtype=dtype), 0.5).dtype == dtype
