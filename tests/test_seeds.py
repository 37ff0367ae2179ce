"""One seed, many streams."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from floral_lite import InputError
from floral_lite.models import seeded
from floral_lite.seeds import stream

# Every stream that a run of 50 rounds and 20 clients, over Flower too, and the making of its task ask for.
KEYS: list[tuple[str | int, ...]] = [
    ("adaptors",), ("train",), ("test",), ("split",), ("maps",),
    *(("split", client) for client in range(20)),
    *(("samples", client) for client in range(20)),
    *(("clients", number) for number in range(1, 51)),
    *(("layers", number) for number in range(1, 51)), *(("layers", number, 0) for number in range(1, 51)),
    *(("batches", number, client) for number in range(1, 51) for client in range(20)),
]  # fmt: skip


def first_number(seed: int, *key: str | int) -> int:
    return int(torch.randint(2**62, (), generator=stream(seed, *key)))


def test_every_use_of_a_seed_has_a_stream_of_its_own() -> None:
    numbers = {first_number(seed, *key) for seed in (0, 1, 2) for key in KEYS}
    assert len(numbers) == 3 * len(KEYS)


@given(st.integers(0, 2**40), st.sampled_from(KEYS))
def test_the_same_key_gives_the_same_stream(seed: int, key: tuple[str | int, ...]) -> None:
    assert first_number(seed, *key) == first_number(seed, *key)


def test_streams_do_not_touch_the_global_generator() -> None:
    before = torch.get_rng_state()
    torch.rand(5, generator=stream(0, "clients", 1))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("whole", [np.int64, np.uint8, torch.tensor])
def test_a_seed_may_be_another_librarys_whole_number(whole: Callable[[int], int]) -> None:
    assert first_number(whole(3), "train") == first_number(3, "train")
    drawn, plain = (seeded(lambda: nn.Linear(2, 2), seed) for seed in (whole(3), 3))
    assert torch.equal(drawn.get_parameter("weight"), plain.get_parameter("weight"))


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(InputError, match=r"seed is -1.*0 or more"):
        stream(-1, "clients")
