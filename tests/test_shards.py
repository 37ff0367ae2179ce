"""Clients' data: pools that share one copy of the samples, and populations made on demand."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from floral_lite import InputError, Shard
from floral_lite.data import as_float, rotate, shift_labels
from floral_lite.federation.clients import gather, known, size, to_device
from floral_lite.federation.pool import Pool, Transform
from floral_lite.federation.shards import Population

CPU = torch.device("cpu")
SIZES = (5, 1, 0, 3, 7, 2)
CLUSTERS = (2, 0, 1, 1, 0, 2)
NUM_SAMPLES = 20


def turned(inputs: Tensor, targets: Tensor, cluster: int, num_clusters: int) -> tuple[Tensor, Tensor]:
    return rotate(inputs, cluster, num_clusters), targets


def shifted(inputs: Tensor, targets: Tensor, cluster: int) -> tuple[Tensor, Tensor]:
    return inputs, shift_labels(targets, cluster, 10)


TRANSFORMS: dict[str, Transform | None] = {
    "none": None,
    "shift": shifted,
    "quarters": partial(turned, num_clusters=4),
    "thirds": partial(turned, num_clusters=3),
}


def samples(dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    pixels = torch.randint(256, (NUM_SAMPLES, 2, 5, 5), generator=generator, dtype=torch.uint8)
    return pixels if dtype == torch.uint8 else pixels.to(dtype) / 255


def a_pool(
    dtype: torch.dtype = torch.uint8,
    transform: Transform | None = None,
    sizes: Sequence[int] = SIZES,
    clusters: Sequence[int] = CLUSTERS,
    seed: int = 0,
) -> Pool:
    """Random samples; clients may share some, and some are nobody's."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(NUM_SAMPLES, (sum(sizes),), generator=generator)
    targets = torch.randint(10, (NUM_SAMPLES,), generator=generator)
    return Pool(samples(dtype, generator), targets, rows, tuple(sizes), tuple(clusters), transform)


def seen_by(pool: Pool, client: int) -> Shard:
    """A client's samples by plain indexing of floats, one after the other."""
    start = sum(pool.sizes[:client])
    inputs, targets = [], []
    for row in pool.rows[start : start + pool.sizes[client]].tolist():
        sample = as_float(pool.inputs[row : row + 1]), pool.targets[row : row + 1]
        changed = pool.transform(*sample, pool.clusters[client]) if pool.transform else sample
        inputs.append(changed[0])
        targets.append(changed[1])
    return Shard(torch.cat(inputs), torch.cat(targets))


def same(first: Shard, second: Shard) -> bool:
    """Equal in every bit and type."""
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", TRANSFORMS)
@given(
    clients=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=6),
    dtype=st.sampled_from([torch.uint8, torch.float32, torch.float64]),
    num_rows=st.integers(0, 7),
    data=st.data(),
)
def test_gathered_samples_are_those_of_plain_indexing(
    name: str, clients: list[tuple[int, int]], dtype: torch.dtype, num_rows: int, data: st.DataObject
) -> None:
    sizes, clusters = zip(*clients, strict=True)
    seed = data.draw(st.integers(0, 9))
    pool = a_pool(dtype, TRANSFORMS[name], sizes, clusters, seed)
    # in any order, and some more than once
    wanted = data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=8))
    generator = torch.Generator().manual_seed(seed)
    rows = torch.stack([torch.randint(sizes[client], (num_rows,), generator=generator) for client in wanted])
    inputs, targets = pool.gather(wanted, rows)
    assert inputs.shape == (len(wanted), num_rows, 2, 5, 5)
    assert inputs.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert inputs.is_contiguous()
    for place, client in enumerate(wanted):
        all_inputs, all_targets = seen_by(pool, client)
        expected = Shard(all_inputs[rows[place]], all_targets[rows[place]])
        assert same(Shard(inputs[place], targets[place]), expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_clients_shard_is_all_of_its_rows_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    pool = a_pool(dtype, TRANSFORMS[name])
    for client, num_samples in enumerate(SIZES):
        shard = pool[client]
        assert shard.inputs.is_contiguous()
        assert len(shard) == size(pool, client) == num_samples
        rows = torch.arange(num_samples)[None]
        gathered = pool.gather([client], rows)
        assert same(shard, Shard(gathered.inputs[0], gathered.targets[0]))
        if num_samples:
            assert same(shard, seen_by(pool, client))


def test_a_pool_is_a_sequence_of_shards() -> None:
    pool = a_pool(transform=shifted)
    assert len(pool) == len(list(pool)) == 6
    assert same(pool[-1], pool[5])
    assert same(pool[-6], pool[0])
    assert [len(shard) for shard in pool[1:4]] == [1, 0, 3]
    assert [len(shard) for shard in pool[4:0:-2]] == [7, 0]
    assert [len(shard) for shard in reversed(pool)] == list(reversed(SIZES))
    assert isinstance(pool[0], Shard)
    for client in (6, -7):
        with pytest.raises(IndexError):
            pool[client]
    assert repr(pool) == "Pool(6 clients, 18 samples of shape (2, 5, 5))"


def test_targets_may_have_any_shape() -> None:
    inputs, targets = torch.randn(4, 3).double(), torch.randn(4, 2).double()
    pool = Pool(inputs, targets, torch.tensor([3, 1, 0, 2]), (2, 2), (1, 0), lambda x, y, c: (x, y + c))
    assert torch.equal(pool[0].targets, targets[[3, 1]] + 1)
    picked = pool.gather([1, 0], torch.tensor([[1], [0]]))
    assert torch.equal(picked.inputs, inputs[[2, 3]][:, None])
    assert torch.equal(picked.targets, (targets[[2, 3]] + torch.tensor([[0.0], [1.0]]))[:, None])


def test_inputs_that_are_no_pixels_stay_as_they_are() -> None:
    words = torch.tensor([[3, 1000], [0, 7]])
    assert torch.equal(Pool(words, torch.zeros(2), torch.tensor([1, 0]), (2,), (0,))[0].inputs, words[[1, 0]])


def test_each_clusters_samples_are_transformed_once_and_as_they_are_stored() -> None:
    calls = []

    def count(inputs: Tensor, targets: Tensor, cluster: int) -> tuple[Tensor, Tensor]:
        calls.append((cluster, len(inputs), inputs.dtype))
        return inputs, targets

    a_pool(transform=count).gather([0, 1, 3, 4, 5, 0], torch.zeros(6, 2, dtype=torch.int64))
    assert sorted(calls) == [(0, 4, torch.uint8), (1, 2, torch.uint8), (2, 6, torch.uint8)]


def test_everything_made_of_a_pool_shares_its_samples() -> None:
    pool = a_pool(transform=partial(turned, num_clusters=4))
    before = pool.inputs.clone()
    made = [pool.first([1, 1, 0, 2, 3, 0]), pool.to(CPU), to_device(pool, CPU)]
    for _ in pool:
        pass
    for other in made:
        assert isinstance(other, Pool)
        assert other.inputs.data_ptr() == pool.inputs.data_ptr()
        assert other.targets.data_ptr() == pool.targets.data_ptr()
    assert torch.equal(pool.inputs, before)


def test_a_shard_moves_to_a_device_whole_and_so_does_one_that_is_made() -> None:
    meta = torch.device("meta")
    shard = Shard(torch.zeros(2, 1), torch.zeros(2))
    moved = (*shard.to(meta), *Population(1, lambda client: shard).to(meta)[0])
    assert {tensor.device for tensor in moved} == {meta}


def test_pools_that_share_samples_still_do_on_another_device() -> None:
    first, second = (a_pool(), a_pool().first([1] * 2 + [0] + [1] * 3))
    second = Pool(first.inputs, first.targets, second.rows, second.sizes, second.clusters)
    # as if these were on the device
    moved = {first.inputs: first.inputs.clone(), first.targets: first.targets.clone()}
    on_device = dict(moved)
    for pool in (first, second):
        there = to_device(pool, CPU, moved)
        assert isinstance(there, Pool)
        assert there.inputs is on_device[first.inputs]
        assert there.targets is on_device[first.targets]
        assert all(same(a, b) for a, b in zip(there, pool, strict=True))
    assert moved.keys() == on_device.keys()
    # without it they are found nowhere, and moved on their own
    assert first.to(CPU).inputs is first.inputs


def test_the_first_samples_of_each_client() -> None:
    pool = a_pool(transform=partial(turned, num_clusters=4))
    counts = [2, 1, 0, 3, 1, 0]
    part = pool.first(counts)
    assert part.sizes == tuple(counts)
    for client, count in enumerate(counts):
        whole = pool[client]
        assert same(part[client], Shard(whole.inputs[:count], whole.targets[:count]))
    assert sum(map(len, pool.first([0] * 6))) == 0


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([1, 1], "counts has 2 numbers, but there are 6 clients"),
        ([1, 2, 0, 0, 0, 0], "client 1 is to keep 2 of its 1 samples.*0 to 1"),
        ([1, 1, 0, -1, 0, 0], "client 3 is to keep -1 of its 3 samples"),
    ],
)
def test_clients_cannot_keep_more_than_they_have(counts: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        a_pool().first(counts)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"targets": torch.zeros(3)}, "4 inputs and 3 targets"),
        ({"inputs": np.zeros((4, 2))}, r"inputs is of type ndarray; .*torch\.as_tensor\(inputs\)"),
        ({"rows": [0, 1, 2]}, r"rows is of type list; it must be a tensor"),
        ({"clusters": (0,)}, "2 sizes and 1 clusters"),
        ({"sizes": (2, 2)}, "sizes add up to 4, but there are 3 rows"),
        ({"sizes": (4, -1)}, "sizes add up to 3.*0 or more"),
        ({"rows": torch.tensor([0, 1, 4])}, "rows go from 0 to 4, but there are 4 samples.*0 to 3"),
        ({"rows": torch.tensor([0, -1, 2])}, "rows go from -1 to 2"),
        ({"rows": torch.tensor([[0, 1, 2]])}, r"rows has shape \(1, 3\)"),
        ({"rows": torch.tensor([0.0, 1.0, 2.0])}, "type torch.float32.*torch.int64"),
    ],
)
def test_pools_that_mean_nothing_are_refused(changes: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {
        "inputs": torch.zeros(4, 2), "targets": torch.zeros(4), "rows": torch.tensor([0, 1, 2]),
        "sizes": (2, 1), "clusters": (0, 1),
    }  # fmt: skip
    Pool(**fields)
    with pytest.raises(InputError, match=message):
        Pool(**{**fields, **changes})


def test_a_population_makes_what_it_is_asked_for_and_keeps_nothing() -> None:
    made = []

    def make(client: int) -> Shard:
        made.append(client)
        return Shard(torch.full((client % 3 + 1, 2), float(client)), torch.arange(client % 3 + 1))

    population = Population(10**6, make)
    assert len(population) == 10**6
    assert made == []
    assert float(population[-1].inputs[0, 0]) == 999999
    assert size(population, 7) == 2
    assert [len(shard) for shard in population[3:6]] == [1, 2, 3]
    assert made == [999999, 7, 3, 4, 5]
    with pytest.raises(IndexError):
        population[10**6]
    moved = to_device(population, CPU)
    assert isinstance(moved, Population)
    assert same(moved[4], population[4])
    with pytest.raises(InputError, match="num_clients is 0"):
        Population(0, make)
    with pytest.raises(InputError, match=r"num_clients is 2\.5; it must be a whole number"):
        Population(2.5, make)  # type: ignore[arg-type]
    for wrong, kind in ((Shard(torch.zeros(0, 2), torch.zeros(0)), "an empty Shard"), ((1, 2), "a tuple")):
        population = Population(5, lambda _, wrong=wrong: wrong)  # type: ignore[misc]
        for there in (population, population.to(CPU)):
            with pytest.raises(
                InputError, match=rf"make\(3\) gives {kind}; it must give a Shard of at least"
            ):
                there[3]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Shard(np.zeros((3, 2)), torch.zeros(3)), "inputs of type ndarray; a Shard has tensors"),  # type: ignore[arg-type]
        (Shard(torch.zeros(3, 2), None), "targets of type NoneType; a Shard has tensors"),  # type: ignore[arg-type]
        (Shard(torch.zeros(3, 2), torch.zeros(2)), "3 inputs and 2 targets; each input needs one"),
        (Shard(torch.full((3, 2), torch.nan), torch.zeros(3)), "inputs that are NaN or infinite: fill in"),
        (Shard(torch.zeros(3, 2), torch.full((3,), torch.inf)), "targets that are NaN or infinite: fill in"),
    ],
)
def test_a_client_of_a_population_that_cannot_be_trained_on_is_named(wrong: Shard, message: str) -> None:
    """Else training would fail in the middle of a run, or look as if it had diverged."""
    right = Shard(torch.zeros(5, 2), torch.zeros(5))
    population = Population(9, lambda client: wrong if client == 7 else right)
    for there in (population, population.to(CPU)):
        assert len(there[0]) == len(there[8]) == 5
        with pytest.raises(InputError, match=re.escape(f"make(7) gives {message}")):
            there[7]


def test_lists_pools_and_populations_give_the_same_samples() -> None:
    pool = a_pool(transform=partial(turned, num_clusters=3))
    shards = list(pool)
    population = Population(len(pool), lambda client: pool[client])
    clients, rows = [4, 0, 3], torch.tensor([[6, 0], [1, 1], [2, 0]])
    expected = pool.gather(clients, rows)
    given: Sequence[Shard]
    for given in (pool, shards, population):
        assert same(gather(given, clients, rows), expected)
        # a population of an empty client is refused when that is made
        some = [client for client in range(6) if SIZES[client] or given is not population]
        assert [size(given, client) for client in some] == [SIZES[client] for client in some]
        there = to_device(given, CPU)
        assert all(same(there[client], shards[client]) for client in some)
    assert (list(known(pool)), list(known(shards)), list(known(population))) == (
        [*range(6)],
        [*range(6)],
        [0],
    )
