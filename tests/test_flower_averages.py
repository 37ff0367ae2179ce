"""A server's averages: clipped, trimmed, of sums, and exact where nobody has changed anything."""

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'flwr>=1.41'")

from floral_lite.flower.averages import (
    MEDIAN,
    Averaging,
    average,
    average_of_sums,
    clip_update,
    trimmed_average,
    trimmed_mean,
)
from floral_lite.flower.messages import Trained
from floral_lite.roles import Roles

from .federations import make_task, normal
from .flower_runs import SEED, Flown, a_task, assert_same, make, with_norm


def test_an_update_is_clipped_to_the_norm_but_for_statistics() -> None:
    statistics = {"n.running_mean": torch.tensor([9.0]), "running_var": torch.tensor([7.0])}
    after = Roles({"a": torch.tensor([3.0, 0.0]), **statistics}, {"b": torch.tensor([[0.0], [4.0]])}, {})
    before = after.map(torch.zeros_like)
    clipped = clip_update(before, after, 0.5)
    torch.testing.assert_close(clipped.shared["a"], torch.tensor([0.3, 0.0]))
    torch.testing.assert_close(clipped.clustered["b"], torch.tensor([[0.0], [0.4]]))
    assert all(torch.equal(clipped.shared[name], after.shared[name]) for name in statistics)
    # and so it is before a share at the ends is left out
    reply = Trained(after, 2.0, torch.ones(2).double(), 0.0)
    trimmed = Averaging(clip_norm=0.5, trim=0.1, weighted=False).of(before, [reply], as_updates=False)
    torch.testing.assert_close(trimmed.shared["a"], clipped.shared["a"])


def test_the_trimmed_mean_is_that_of_repeated_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(5, 3, 2, generator=generator, dtype=torch.float64)
    weights = torch.tensor([4, 1, 3, 2, 10])
    repeated = values.repeat_interleave(weights, dim=0).sort(dim=0).values
    for trim, cut in ((0.1, 2), (0.25, 5), (0.45, 9)):
        torch.testing.assert_close(
            trimmed_mean(values, weights.double(), trim), repeated[cut:-cut].mean(dim=0)
        )
    median = torch.from_numpy(np.median(repeated.numpy(), axis=0))
    torch.testing.assert_close(trimmed_mean(values, weights.double(), 0.5), median)
    assert MEDIAN < 0.5
    # a weight of 0 counts for nothing
    with_zero = torch.cat([values, torch.full((1, 3, 2), 1e9, dtype=torch.float64)])
    padded = torch.cat([weights.double(), torch.zeros(1, dtype=torch.float64)])
    torch.testing.assert_close(trimmed_mean(with_zero, padded, 0.1), repeated[2:-2].mean(dim=0))


def test_a_trimmed_average_has_each_cluster_s_own_weights() -> None:
    """Of three clients two are in cluster 0, one is in cluster 1, and nobody is in cluster 2."""
    before = Roles({"u": torch.zeros(1)}, {"a": torch.full((3, 1), 7.0)}, {})
    replies = [
        Trained(before.map(lambda old, new=new: torch.full_like(old, new)), 2.0, torch.tensor(weights), 0.0)
        for new, weights in ((1.0, [2.0, 0, 0]), (2.0, [2.0, 0, 0]), (9.0, [0, 2.0, 0]))
    ]
    after = trimmed_average(before, replies, 0.25)
    # a twelfth of 1, four of 2 and one of 9
    torch.testing.assert_close(after.shared["u"], torch.tensor([3.0]))
    assert after.clustered["a"].flatten().tolist() == [1.5, 9, 7]


def test_a_cluster_of_nobody_keeps_its_slice_in_the_pre_weighted_form() -> None:
    before = Roles({"u": torch.zeros(1)}, {"a": torch.full((2, 1), 7.0)}, {})
    products = Roles({"u": torch.tensor([6.0])}, {"a": torch.tensor([[2.0], [0.0]])}, {})
    after = average_of_sums(before, [Trained(products, 2.0, torch.tensor([2.0, 0.0]), 0.0)], as_updates=False)
    assert after.shared["u"].tolist() == [3]
    assert after.clustered["a"].flatten().tolist() == [1, 7]


def test_a_cluster_of_nobody_keeps_its_slice_when_trimmed(tmp_path: Path) -> None:
    task = a_task(rounds=1, participation=1.0)  # three true clusters, four adaptors
    method = make("floral", task, routing="optimal")
    plain, trimmed = (
        Flown(task, method, tmp_path / str(trim), trim=trim).server.state.clustered for trim in (0.0, 0.2)
    )
    first = method.initialise(task.clusters, SEED).clustered
    assert all(torch.equal(trimmed[name][3], first[name][3].to(trimmed[name])) for name in first)
    assert not torch.equal(trimmed["0.weight.U"], plain["0.weight.U"])


def test_a_clip_where_statistics_alone_are_shared_changes_nothing(tmp_path: Path) -> None:
    task = make_task(with_norm, normal(4), rounds=2, batch_size=5, statistics="averaged")
    plain, clipped = (
        Flown(task, make("local", task), tmp_path / name, **choice)
        for name, choice in {"plain": {}, "clipped": {"clip_norm": 1.0}}.items()
    )
    assert_same(clipped.federation, plain.federation)


def test_a_trimmed_average_leaves_what_nobody_has_changed() -> None:
    """For Adam at the server: in double precision a mean of equal numbers rounds."""
    generator = torch.Generator().manual_seed(0)
    before = Roles(
        {"u": torch.randn(500, generator=generator).double() / 3},
        {"a": torch.randn(2, 500, generator=generator).double() / 3},
        {},
    )
    replies = [
        Trained(
            before.map(lambda old, moved=moved: torch.cat([old[..., :1] + moved, old[..., 1:]], dim=-1)),
            num_samples,
            num_samples * torch.tensor([share, 1 - share], dtype=torch.float64),
            0.0,
        )
        for num_samples, share, moved in ((3.0, 0.1, 1.0), (5.0, 0.3, 2.0), (7.0, 0.7, 3.0))
    ]
    after = trimmed_average(before, replies, 0.1)
    for new, old in zip(after.tensors(), before.tensors(), strict=True):
        assert torch.equal(new[..., 1:], old[..., 1:])
        assert (new[..., 0] > old[..., 0] + 0.9).all()


def test_an_average_of_updates_leaves_what_nobody_has_changed() -> None:
    """For Adam at the server, in both forms of a reply: products with N^k round, as their average does."""
    generator = torch.Generator().manual_seed(0)
    shared, clustered = torch.randn(500, generator=generator), torch.randn(2, 500, generator=generator)
    shared[1:] *= 100  # larger numbers round by more
    before = Roles({"u": shared}, {"a.L": clustered}, {})
    replies, products = [], []
    for num_samples, share in ((3.0, 0.1), (5.0, 0.3), (7.0, 0.7)):
        weights = num_samples * torch.tensor([share, 1 - share], dtype=torch.float64)
        own = before.map(torch.clone)
        for tensor in own.tensors():
            tensor[..., 0] += 1e-4
        replies.append(Trained(own, num_samples, weights, 0.0))
        weighted = Roles(
            {"u": num_samples * own.shared["u"]}, {"a.L": weights.float()[:, None] * own.clustered["a.L"]}, {}
        )
        products.append(Trained(weighted, num_samples, weights, 0.0))
    for averaged, given in ((average, replies), (average_of_sums, products)):
        for as_updates in (False, True):
            after = averaged(before, given, as_updates=as_updates)
            pairs = list(zip(after.tensors(), before.tensors(), strict=True))
            assert all(torch.equal(new[..., 1:], old[..., 1:]) for new, old in pairs) == as_updates
            for new, old in pairs:
                torch.testing.assert_close(new[..., 0], old[..., 0] + 1e-4)
