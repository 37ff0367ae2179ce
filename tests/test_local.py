"""A client's half of Algorithm 1, worked out by hand."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from floral_lite import Settings, Shard, Task
from floral_lite.federation import evaluate, local_training
from floral_lite.federation.local import batches, gradient_step
from floral_lite.methods import ROUTER, FedAvg, FLoRAL
from floral_lite.roles import Roles
from floral_lite.router import Router


def scalar_task(*samples: tuple[float, float]) -> Task:
    """One client who fits y = w x, from w = 0."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    shard = Shard(*(torch.tensor(column)[:, None] for column in zip(*samples, strict=True)))
    settings = Settings(batch_size=1, learning_rate=0.1, router_learning_rate=1.0)
    return Task("scalar", model, functional.mse_loss, [shard], [shard], torch.tensor([0]), settings, {})


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(st.integers(1, 60), st.integers(1, 25))
def test_an_epoch_uses_every_sample_once_and_only_the_last_batch_is_short(
    num_samples: int, batch_size: int
) -> None:
    epoch = list(batches(num_samples, batch_size, generator()))
    assert sorted(torch.cat(epoch).tolist()) == list(range(num_samples))
    assert all(len(rows) == batch_size for rows in epoch[:-1])
    assert 1 <= len(epoch[-1]) <= batch_size


def test_the_order_of_the_samples_is_random() -> None:
    first, second = (torch.cat(list(batches(50, 8, generator(seed)))) for seed in (0, 1))
    assert not torch.equal(first, second)
    assert not torch.equal(first, torch.arange(50))


def test_the_router_steps_with_its_own_learning_rate() -> None:
    settings = Settings(learning_rate=0.5, router_learning_rate=2.0)
    before = Roles({"u": torch.tensor(1.0)}, {"a.L": torch.tensor([1.0])}, {ROUTER: torch.tensor([1.0])})
    gradients = before.map(lambda tensor: 0.25 * tensor)
    after = gradient_step(before, gradients, settings)
    # 1 - 0.5 * 0.25 and 1 - 2 * 0.25
    assert [float(tensor) for tensor in after.tensors()] == [0.875, 0.875, 0.5]


def test_two_epochs_are_one_epoch_twice(ragged_task: Task) -> None:
    method = FLoRAL(ragged_task.model, num_clusters=2, rank=1)
    client = method.initialise(ragged_task.clusters, seed=0).of_client(0)
    shard, settings = ragged_task.train[0], ragged_task.settings
    draws = generator()
    once, first_loss = local_training(ragged_task, method, client, shard, settings, draws)
    twice, second_loss = local_training(ragged_task, method, once, shard, settings, draws)
    together, loss = local_training(
        ragged_task, method, client, shard, settings.with_changes(local_epochs=2), generator()
    )
    assert all(torch.equal(a, b) for a, b in zip(together.tensors(), twice.tensors(), strict=True))
    assert not torch.allclose(together.shared["0.weight"], once.shared["0.weight"])
    assert loss == pytest.approx((first_loss + second_loss) / 2)


def test_one_step_of_fedavg_by_hand() -> None:
    task = scalar_task((2.0, 1.0))
    method = FedAvg(task.model)
    client = method.initialise(task.clusters, 0).of_client(0)
    trained, loss = local_training(task, method, client, task.train[0], task.settings, generator())
    # loss (w x - y)^2 = 1, gradient 2 (w x - y) x = -4, w = 0 + 0.1 * 4
    assert loss == pytest.approx(1.0)
    assert float(trained.shared["weight"]) == pytest.approx(0.4)


def test_the_loss_is_the_mean_over_the_steps() -> None:
    task = scalar_task((2.0, 1.0), (2.0, 1.0))
    method = FedAvg(task.model)
    client = method.initialise(task.clusters, 0).of_client(0)
    trained, loss = local_training(task, method, client, task.train[0], task.settings, generator())
    # second step: w = 0.4, loss (0.8 - 1)^2 = 0.04, gradient 2 * -0.2 * 2 = -0.8, w = 0.48
    assert loss == pytest.approx((1 + 0.04) / 2)
    assert float(trained.shared["weight"]) == pytest.approx(0.48)


def test_one_simultaneous_step_of_floral_by_hand() -> None:
    task = scalar_task((1.0, 1.0))
    method = FLoRAL(task.model, num_clusters=2, rank=1, precondition=False)
    client = Roles(
        {"weight": torch.tensor([[0.0]])},
        {"weight.U": torch.tensor([[[1.0]], [[-1.0]]]), "weight.V": torch.tensor([[[0.5]], [[0.5]]])},
        {ROUTER: torch.tensor([0.0, 0.0])},
    )
    trained, loss = local_training(task, method, client, task.train[0], task.settings, generator())
    # pi = (1/2, 1/2), w_0 = 0.5, w_1 = -0.5, w_hat = 0: loss (0 - 1)^2 = 1, g = df / dw_hat = -2
    assert loss == pytest.approx(1.0)
    # u: g = -2
    assert float(trained.shared["weight"]) == pytest.approx(0.2)
    # U_c: pi_c g V_c = -0.5, -0.5; V_c: pi_c g U_c = -1, 1
    assert trained.clustered["weight.U"].flatten().tolist() == pytest.approx([1.05, -0.95])
    assert trained.clustered["weight.V"].flatten().tolist() == pytest.approx([0.6, 0.4])
    # theta_c: pi_c g (w_c - w_hat) = -0.5, 0.5, with a learning rate of 1
    assert trained.private[ROUTER].tolist() == pytest.approx([0.5, -0.5])


def test_one_preconditioned_step_of_floral_by_hand() -> None:
    task = scalar_task((1.0, 1.0))
    method = FLoRAL(task.model, num_clusters=2, rank=1, precondition=True)
    client = Roles(
        {"weight": torch.tensor([[0.0]])},
        {"weight.U": torch.tensor([[[2.0]], [[-1.0]]]), "weight.V": torch.tensor([[[0.5]], [[1.0]]])},
        {ROUTER: torch.tensor([0.0, 0.0])},
    )
    trained, loss = local_training(task, method, client, task.train[0], task.settings, generator())
    # pi = (1/2, 1/2), w_0 = 1, w_1 = -1, w_hat = 0, g = -2 as above; u and theta as without
    assert loss == pytest.approx(1.0)
    assert float(trained.shared["weight"]) == pytest.approx(0.2)
    assert trained.private[ROUTER].tolist() == pytest.approx([1.0, -1.0])
    # U_c: pi_c g V_c / (V_c^2 + 1e-5) = -0.5 / 0.25, -1 / 1; V_c: pi_c g U_c / (U_c^2 + 1e-5) = -2 / 4, 1 / 1
    moved_u, moved_v = 0.1 * 0.5 / 0.25001, 0.1 * 1 / 1.00001
    assert trained.clustered["weight.U"].flatten().tolist() == pytest.approx([2 + moved_u, -1 + moved_v])
    moved_u, moved_v = 0.1 * 2 / 4.00001, 0.1 * 1 / 1.00001
    assert trained.clustered["weight.V"].flatten().tolist() == pytest.approx([0.5 + moved_u, 1 - moved_v])


def test_the_step_descends_the_loss_and_the_penalty_and_the_loss_is_told_without_it() -> None:
    """The router alone: theta - eta d (f - lambda H) / d theta, with one adaptor at w = 1, one at 0."""
    task = scalar_task((1.0, 1.0))
    method = FLoRAL(task.model, num_clusters=2, rank=1, router=Router(entropy=0.4), precondition=False)
    client = Roles(
        {"weight": torch.tensor([[0.0]])},
        {"weight.U": torch.tensor([[[1.0]], [[0.0]]]), "weight.V": torch.tensor([[[1.0]], [[1.0]]])},
        {ROUTER: torch.tensor([3.0, 1.0]).log()},
    )
    trained, loss = local_training(task, method, client, task.train[0], task.settings, generator())
    # pi = (3/4, 1/4), w_hat = 3/4, loss 1/16, g = -1/2: pi_c g (w_c - w_hat) = -3/32, 3/32
    assert loss == pytest.approx(1 / 16)
    # -0.4 d H / d theta_c = 0.4 pi_c (log pi_c + H), H = log 4 - 3/4 log 3; for c = 0: 0.4 * 3/16 log 3
    slope = -3 / 32 + 0.4 * 3 / 16 * math.log(3)
    assert trained.private[ROUTER].tolist() == pytest.approx([math.log(3) - slope, slope], abs=1e-6)


def test_noise_makes_the_steps_differ_between_generators() -> None:
    task = scalar_task((2.0, 1.0))  # one sample: the order cannot differ
    for noise in (0.0, 1.0):
        method = FLoRAL(task.model, num_clusters=2, rank=1, router=Router(noise=noise))
        client = Roles(
            {"weight": torch.tensor([[0.0]])},
            {"weight.U": torch.tensor([[[1.0]], [[-1.0]]]), "weight.V": torch.tensor([[[0.5]], [[0.7]]])},
            {ROUTER: torch.tensor([0.0, 0.0])},
        )
        first, again, other = (
            local_training(task, method, client, task.train[0], task.settings, generator(seed))
            for seed in (0, 0, 1)
        )
        assert all(torch.equal(*pair) for pair in zip(first[0].tensors(), again[0].tensors(), strict=True))
        assert (first[1] == other[1]) == (noise == 0)
        assert evaluate(task, method, client, task.test[0]) == evaluate(task, method, client, task.test[0])
        # at evaluation pi = (1/2, 1/2): w_hat = (0.5 - 0.7) / 2 = -0.1, loss (-0.2 - 1)^2
        assert evaluate(task, method, client, task.test[0]).loss == pytest.approx(1.44)


def test_a_client_smaller_than_a_batch_still_learns() -> None:
    task = scalar_task((2.0, 1.0))
    settings = task.settings.with_changes(batch_size=64)
    method = FedAvg(task.model)
    client = method.initialise(task.clusters, 0).of_client(0)
    trained, _ = local_training(task, method, client, task.train[0], settings, generator())
    assert float(trained.shared["weight"]) == pytest.approx(0.4)


def test_training_leaves_what_it_started_from_alone(ragged_task: Task) -> None:
    method = FLoRAL(ragged_task.model, num_clusters=2, rank=1)
    client = method.initialise(ragged_task.clusters, 0).of_client(2)
    before = client.map(lambda tensor: tensor.detach().clone())
    local_training(ragged_task, method, client, ragged_task.train[2], ragged_task.settings, generator())
    assert all(torch.equal(old, new) for old, new in zip(before.tensors(), client.tensors(), strict=True))


def test_one_hot_routers_stay_and_adaptors_of_other_clusters_do_not_move(ragged_task: Task) -> None:
    method = FLoRAL(ragged_task.model, num_clusters=3, rank=1, routing="optimal")
    client = method.initialise(ragged_task.clusters, 0).of_client(3)
    shard, settings = ragged_task.train[3], ragged_task.settings
    trained, _ = local_training(ragged_task, method, client, shard, settings, generator())
    assert torch.equal(trained.private[ROUTER], client.private[ROUTER])
    for name, tensor in trained.clustered.items():
        moved = [not torch.equal(*pair) for pair in zip(tensor, client.clustered[name], strict=True)]
        # the paper's V is zero at the first step, so U starts to move at the second
        assert moved == [False, False, True]


def test_a_regression_task_has_no_accuracy() -> None:
    task = scalar_task((1.0, 3.0), (1.0, 1.0))
    method = FedAvg(task.model)
    score = evaluate(task, method, method.initialise(task.clusters, 0).of_client(0), task.test[0])
    # (9 + 1) / 2 at w = 0
    assert score == (pytest.approx(5.0), None)


def test_a_classification_task_counts_right_labels(ragged_task: Task) -> None:
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
    shard = Shard(torch.eye(2)[[0, 1, 1, 0]], torch.tensor([0, 1, 0, 0]))
    task = replace(ragged_task, model=model, train=[shard] * 5, test=[shard] * 5)
    method = FedAvg(model)
    score = evaluate(task, method, method.initialise(task.clusters, 0).of_client(0), shard)
    assert score.accuracy == 0.75
    # log(1 + e) - logit of the right label: 1, 1, 0, 1
    assert score.loss == pytest.approx(float(torch.log(1 + torch.tensor(1.0).exp())) - 0.75)
