"""The server's averages, worked out by hand, and the probabilities behind them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from floral_lite import InputError
from floral_lite.federation import (
    aggregate,
    client_given_cluster,
    cluster_probability,
    joint_probability,
    mismatch,
)
from floral_lite.federation.aggregate import Sums
from floral_lite.roles import Roles

from .federations import stack

# Three clients, two clusters, N = 10.
MIXTURE = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.25, 0.75]])
NUM_SAMPLES = torch.tensor([2.0, 4.0, 4.0])


NEAR_TWO = 2 - 2**-7


def state() -> Roles:
    """A federation of four clients and three clusters."""
    return Roles(
        {"u": torch.tensor([0.5, 0.5])},
        {"a.L": torch.tensor([[-1.0], [-2.0], [-3.0]]), "a.U": torch.full((3, 2, 1), -4.0)},
        {"router_logits": torch.arange(12.0).reshape(4, 3)},
    )


def sent(u: float, a: list[float], theta: float) -> Roles:
    """What one client sends back: the same number in every place of a tensor's slice."""
    slices = torch.tensor(a, dtype=torch.float32)
    return Roles(
        {"u": torch.tensor([u, 10 * u], dtype=torch.float32)},
        {"a.L": slices[:, None], "a.U": slices[:, None, None].expand(3, 2, 1)},
        {"router_logits": torch.full((3,), theta)},
    )


def test_aggregation_by_hand_with_partial_participation() -> None:
    """Clients 3, 0 and 2 of four are sampled, with N = 5, 1 and 2; nobody has weight in cluster 2."""
    after = aggregate(
        state(),
        sampled=[3, 0, 2],
        trained=[sent(24, [28, 18, 99], 30), sent(8, [7, 100, 99], 31), sent(16, [14, 9, 99], 32)],
        num_samples=torch.tensor([5.0, 1.0, 2.0]),
        mixture=torch.tensor([[0.4, 0.6, 0.0], [1.0, 0.0, 0.0], [0.25, 0.75, 0.0]]),
    )
    # u = (5 * 24 + 1 * 8 + 2 * 16) / 8 = 160 / 8
    torch.testing.assert_close(after.shared["u"], torch.tensor([20.0, 200.0]))
    # a_0: weights 0.4 * 5, 1 * 1, 0.25 * 2: (2 * 28 + 1 * 7 + 0.5 * 14) / 3.5 = 70 / 3.5
    # a_1: weights 0.6 * 5, 0, 0.75 * 2: (3 * 18 + 1.5 * 9) / 4.5 = 67.5 / 4.5
    # a_2: keeps what it had
    torch.testing.assert_close(after.clustered["a.L"], torch.tensor([[20.0], [15.0], [-3.0]]))
    expected = torch.tensor([20.0, 15.0, -4.0])[:, None, None].expand(3, 2, 1)
    torch.testing.assert_close(after.clustered["a.U"], expected)
    # theta of client 1, who was not sampled, stays
    expected = torch.tensor([[31.0] * 3, [3.0, 4.0, 5.0], [32.0] * 3, [30.0] * 3])
    assert torch.equal(after.private["router_logits"], expected)


def test_aggregation_leaves_the_old_state_alone() -> None:
    before = state()
    aggregate(before, [1], [sent(9, [9, 9, 9], 9)], torch.tensor([3.0]), torch.tensor([[0.5, 0.25, 0.25]]))
    for old, untouched in zip(before.tensors(), state().tensors(), strict=True):
        assert torch.equal(old, untouched)


def test_one_client_alone_becomes_the_average() -> None:
    trained = sent(9, [1, 2, 3], 0)
    after = aggregate(state(), [1], [trained], torch.tensor([3.0]), torch.tensor([[0.5, 0.25, 0.25]]))
    torch.testing.assert_close(after.shared["u"], trained.shared["u"])
    torch.testing.assert_close(after.clustered["a.L"], trained.clustered["a.L"])


@pytest.mark.parametrize("precision", [torch.float64, torch.float32, torch.bfloat16])
def test_averages_keep_the_precision_of_the_parameters(precision: torch.dtype) -> None:
    before, trained = (
        roles.map(lambda tensor: tensor.to(precision)) for roles in (state(), sent(8, [4, 2, 6], 1))
    )
    mixture = torch.full((2, 3), 1 / 3, dtype=precision)
    after = aggregate(before, [0, 1], [trained, trained], torch.tensor([1.0, 3.0]), mixture)
    assert {tensor.dtype for tensor in after.tensors()} == {precision}
    torch.testing.assert_close(after.shared["u"], trained.shared["u"])


def test_of_many_clients_that_are_alike_the_average_is_the_same_in_half_precision() -> None:
    """Thirty weights of 1/30, each rounded to bfloat16, would sum to 1.003, and give the next number, 2."""
    one = sent(8, [4, 2, 6], 1).map(lambda tensor: torch.full_like(tensor, NEAR_TWO, dtype=torch.bfloat16))
    before = state().map(lambda tensor: tensor.bfloat16())
    before.private["router_logits"] = torch.zeros(30, 3, dtype=torch.bfloat16)
    num_samples, mixture = torch.ones(30), torch.full((30, 3), 1 / 3)
    after = aggregate(before, range(30), [one] * 30, num_samples, mixture)
    sums = Sums(before, num_samples=30)
    for client in range(30):  # one by one, as the sums could round each time
        sums.add([client], one.map(lambda t: t[None]), num_samples[:1], mixture[:1])
    for average in (after, sums.average()):
        for tensor in (*average.shared.values(), *average.clustered.values()):
            assert torch.equal(tensor, torch.full_like(tensor, NEAR_TWO))


@pytest.mark.parametrize("precision", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stacks", [[[0, 1, 2]], [[2], [1, 0]], [[1], [2], [0]]], ids=str)
def test_clients_that_come_in_stacks_have_the_same_average(
    precision: torch.dtype, stacks: list[list[int]]
) -> None:
    """As above: clients 3, 0 and 2 of four, and a cluster in which nobody has weight to speak of."""
    before = state().map(lambda tensor: tensor.to(precision))
    sampled, num_samples = [3, 0, 2], torch.tensor([5.0, 1.0, 2.0])
    trained = [
        sent(u, a, theta).map(lambda tensor: tensor.to(precision))
        for u, a, theta in ((24, [28, 18, 99], 30), (8, [7, 100, 99], 31), (16, [14, 9, 99], 32))
    ]
    mixture = torch.tensor([[0.4, 0.6, 1e-31], [1.0, 0.0, 0.0], [0.25, 0.75, 0.0]])
    sums = Sums(before, num_samples=8)
    for places in stacks:
        stacked = stack([trained[place] for place in places])
        sums.add([sampled[place] for place in places], stacked, num_samples[places], mixture[places])
    expected = aggregate(before, sampled, trained, num_samples, mixture)
    tolerance = {"rtol": 1e-2, "atol": 0} if precision == torch.bfloat16 else {"rtol": 1e-6, "atol": 0}
    for one, other in zip(sums.average(), expected, strict=True):
        torch.testing.assert_close(one, other, **tolerance)
    # bit for bit: the slice of the cluster without weight, what is private, and the old state
    average = sums.average()
    assert torch.equal(average.clustered["a.L"][2], before.clustered["a.L"][2])
    assert torch.equal(average.private["router_logits"], expected.private["router_logits"])
    for old, untouched in zip(before.tensors(), state().tensors(), strict=True):
        assert torch.equal(old, untouched.to(precision))


@pytest.mark.parametrize("stacks", [None, [[0, 1, 2]], [[2], [1, 0]]], ids=str)
@pytest.mark.parametrize("alone", [False, True])
def test_an_average_of_updates_moves_what_somebody_has_changed_and_nothing_else(
    stacks: list[list[int]] | None, alone: bool
) -> None:
    """The average of equal numbers may round; the smallest change of a client is no rounding."""
    generator = torch.Generator().manual_seed(0)
    old = Roles(
        {"u": torch.randn(500, generator=generator)}, {"a.L": torch.randn(2, 500, generator=generator)}, {}
    )
    mixture = torch.tensor([[0.1, 0.9], [0.3, 0.7], [0.7, 0.3]])
    if alone:
        mixture = torch.eye(2)[mixture.argmax(dim=1)]
    num_samples = torch.tensor([3.0, 5.0, 3.0])
    one = old.map(torch.clone)
    for tensor in one.tensors():
        tensor[..., 0] = torch.nextafter(tensor[..., 0], torch.tensor(9.0))
    trained = [one, old, one]
    for as_updates in (False, True):
        if stacks is None:
            after = aggregate(old, [0, 1, 2], trained, num_samples, mixture, as_updates)
        else:
            sums = Sums(old, 11, as_updates)
            for clients in stacks:
                stacked = stack([trained[k] for k in clients])
                if alone:  # each has its only cluster's slice
                    own = mixture[clients].argmax(dim=1)
                    stacked.clustered["a.L"] = stacked.clustered["a.L"][torch.arange(len(own)), own][:, None]
                sums.add(clients, stacked, num_samples[clients], mixture[clients])
            after = sums.average()
        pairs = list(zip(after.tensors(), old.tensors(), strict=True))
        same = all(torch.equal(new[..., 1:], was[..., 1:]) for new, was in pairs)
        assert same == as_updates
    assert all((new[..., 0] > was[..., 0]).all() for new, was in pairs if new.dim() == 1)


def test_the_probabilities_by_hand() -> None:
    # p(k, c) = N^k / N pi_c^k
    torch.testing.assert_close(
        joint_probability(MIXTURE, NUM_SAMPLES), torch.tensor([[0.2, 0.0], [0.2, 0.2], [0.1, 0.3]])
    )
    torch.testing.assert_close(cluster_probability(MIXTURE, NUM_SAMPLES), torch.tensor([0.5, 0.5]))
    # p(k | c) = p(k, c) / p(c)
    torch.testing.assert_close(
        client_given_cluster(MIXTURE, NUM_SAMPLES), torch.tensor([[0.4, 0.0], [0.4, 0.4], [0.2, 0.6]])
    )


def test_a_cluster_without_weight_has_no_clients() -> None:
    weights = client_given_cluster(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([1.0, 3.0]))
    assert torch.equal(weights, torch.tensor([[0.25, 0.0], [0.75, 0.0]]))


@st.composite
def federations(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Mixtures (some one-hot) and sample counts of 1 to 6 clients in 1 to 4 clusters."""
    num_clients, num_clusters = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    row = st.lists(st.integers(0, 9), min_size=num_clusters, max_size=num_clusters).filter(any)
    rows = torch.tensor([draw(row) for _ in range(num_clients)], dtype=torch.float64)
    counts = [draw(st.integers(1, 500)) for _ in range(num_clients)]
    return rows / rows.sum(dim=1, keepdim=True), torch.tensor(counts, dtype=torch.float64)


@given(federations())
def test_the_sum_rules_of_the_probabilities(federation: tuple[Tensor, Tensor]) -> None:
    mixture, num_samples = federation
    joint = joint_probability(mixture, num_samples)
    cluster = cluster_probability(mixture, num_samples)
    given_cluster = client_given_cluster(mixture, num_samples)
    # sum_c p(k, c) = p(k) = N^k / N; sum_k p(k, c) = p(c); p(k | c) p(c) = p(k, c)
    torch.testing.assert_close(joint.sum(dim=1), num_samples / num_samples.sum())
    torch.testing.assert_close(joint.sum(dim=0), cluster)
    torch.testing.assert_close(given_cluster * cluster, joint)
    torch.testing.assert_close(given_cluster.sum(dim=0), (cluster > 0).double())
    assert float(cluster.sum()) == pytest.approx(1.0)


@given(st.permutations(range(4)), st.lists(st.integers(1, 50), min_size=7, max_size=7))
def test_the_mismatch_of_the_truth_is_zero_whatever_the_adaptors_are_called(
    names: list[int], counts: list[int]
) -> None:
    clusters = torch.tensor([0, 1, 2, 3, 0, 1, 0])
    mixture = torch.eye(4)[torch.tensor(names)[clusters]]
    assert mismatch(mixture, clusters, torch.tensor(counts).float()) == pytest.approx(0.0, abs=1e-6)


def test_a_cluster_in_which_nobody_is_does_not_count_as_a_mismatch() -> None:
    assert mismatch(torch.eye(3)[:2], torch.tensor([0, 2]), torch.ones(2)) == 0.0
    # halves of each of two clusters, whatever they are called
    uniform = torch.full((4, 2), 0.5)
    assert mismatch(uniform, torch.tensor([1, 5, 1, 5]), torch.ones(4)) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("num_clusters", [1, 2, 3, 4, 10])
def test_the_mismatch_of_uniform_routers(num_clusters: int) -> None:
    """Of K balanced clients K / C are in a cluster, where p goes from C / K to 1 / K; elsewhere from 0."""
    clusters = torch.arange(3 * num_clusters) % num_clusters
    uniform = torch.full((len(clusters), num_clusters), 1 / num_clusters)
    # K / C (C / K - 1 / K) + (K - K / C) / K = 2 (1 - 1 / C)
    expected = 2 * (1 - 1 / num_clusters)
    assert mismatch(uniform, clusters, torch.ones(len(clusters))) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("num_clusters", [2, 4])
def test_routers_that_all_chose_one_adaptor_mismatch_like_uniform_ones(num_clusters: int) -> None:
    """An adaptor that nobody uses fits no cluster."""
    clusters = torch.arange(3 * num_clusters) % num_clusters
    collapsed = torch.eye(num_clusters)[torch.zeros_like(clusters)]
    expected = 2 * (1 - 1 / num_clusters)
    assert mismatch(collapsed, clusters, torch.ones(len(clusters))) == pytest.approx(expected, abs=1e-6)


def test_the_mismatch_by_hand() -> None:
    mixture = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]])
    # p_hat(k | 0) = (1, 1, 1) / 3, p_hat(k | 1) = (0, 0, 1)
    # cluster 0, p = (1, 1, 0) / 2: 1/6 + 1/6 + 1/3 = 2/3 to adaptor 0, 2 to adaptor 1
    # cluster 1, p = (0, 0, 1): 4/3 to adaptor 0, 0 to adaptor 1
    distance = mismatch(mixture, torch.tensor([0, 0, 1]), torch.tensor([1.0, 1.0, 2.0]))
    assert distance == pytest.approx((2 / 3 + 0) / 2, abs=1e-6)


def test_a_mismatch_of_others_than_the_clients_is_refused() -> None:
    mixture, clusters = torch.eye(3), torch.tensor([0, 1, 1])
    for others in ((mixture, clusters, torch.ones(1)), (mixture[:2], clusters, torch.ones(3))):
        with pytest.raises(InputError, match="give one of each for every client"):
            mismatch(*others)


def test_probabilities_of_others_than_the_clients_are_refused() -> None:
    # all of these broadcast
    for num_samples in (torch.ones(1), torch.ones(3, 1)):
        for probability in (joint_probability, cluster_probability, client_given_cluster):
            with pytest.raises(InputError, match=r"mixture has shape \(3, 2\) and num_samples \("):
                probability(MIXTURE, num_samples)


def test_an_average_of_others_than_the_sampled_clients_is_refused() -> None:
    trained = [sent(8, [7, 100, 99], 31)] * 2
    mixture = torch.eye(3)[:2]
    with pytest.raises(InputError, match="sampled has 2 clients, trained 2 and num_samples 1: give one of"):
        aggregate(state(), [0, 1], trained, torch.ones(1), mixture)
    with pytest.raises(InputError, match=r"mixture has shape \(1, 3\) and num_samples \(2,\)"):
        aggregate(state(), [0, 1], trained, torch.ones(2), mixture[:1])


def test_spare_adaptors_do_not_count_as_a_mismatch() -> None:
    clusters = torch.tensor([0, 1, 0, 1])
    assert mismatch(torch.eye(5)[clusters], clusters, torch.ones(4)) == 0.0


def test_numbers_of_samples_may_be_larger_than_the_model_s_type_has() -> None:
    state = Roles(
        {"u": torch.zeros(1, dtype=torch.float16)}, {"a": torch.zeros(1, 1, dtype=torch.float16)}, {}
    )
    trained = [state.map(lambda tensor, new=new: torch.full_like(tensor, new)) for new in (1.0, 3.0)]
    num_samples, mixture = torch.full((2,), 70_000.0), torch.ones(2, 1)
    sums = Sums(state, num_samples=140_000)
    sums.add(range(2), stack(trained), num_samples, mixture)
    for after in (aggregate(state, range(2), trained, num_samples, mixture), sums.average()):
        assert [tensor.item() for tensor in after.tensors()] == [2, 2]
