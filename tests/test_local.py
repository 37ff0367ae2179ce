"""A client's half of Algorithm 1, worked out by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from floral_lite import Settings, Shard, Task
from floral_lite.federation import evaluate, local_training
from floral_lite.federation.draws import Draws, batches, draw
from floral_lite.federation.local import candidate_losses, clip, gradient_step, local_step
from floral_lite.methods import IFCA, ROUTER, FedAvg, FLoRAL, Method
from floral_lite.roles import Roles
from floral_lite.router import Router


def scalar_task(*samples: tuple[float, float]) -> Task:
    """One client who fits y = w x, from w = 0."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    shard = Shard(*(torch.tensor(column)[:, None] for column in zip(*samples, strict=True)))
    settings = Settings(batch_size=1, learning_rate=0.1, router_learning_rate=1.0)
    return Task("scalar", model, functional.mse_loss, [shard], [shard], torch.tensor([0]), settings, {})


def draws_of(task: Task, method: Method, client: int = 0, seed: int = 0, **changes: Any) -> Draws:
    """What chance gives a client in a first round."""
    settings = task.settings.with_changes(**changes)
    return draw(task, method, len(task.train[client]), settings, seed, 1, client)


def trained(
    task: Task, method: Method, client: Roles, number: int = 0, seed: int = 0, **changes: Any
) -> tuple[Roles, float]:
    """A client's local training in a first round."""
    settings = task.settings.with_changes(**changes)
    draws = draws_of(task, method, number, seed, **changes)
    return local_training(task, method, client, number, settings, draws)


def equal(one: Roles, other: Roles) -> bool:
    return all(torch.equal(*pair) for pair in zip(one.tensors(), other.tensors(), strict=True))


def test_the_router_steps_with_its_own_learning_rate() -> None:
    settings = Settings(learning_rate=0.5, router_learning_rate=2.0)
    before = Roles({"u": torch.tensor(1.0)}, {"a.L": torch.tensor([1.0])}, {ROUTER: torch.tensor([1.0])})
    gradients = before.map(lambda tensor: 0.25 * tensor)
    after, velocity = gradient_step(before, gradients, before.map(torch.zeros_like), settings)
    # 1 - 0.5 * 0.25 and 1 - 2 * 0.25
    assert [float(tensor) for tensor in after.tensors()] == [0.875, 0.875, 0.5]
    assert not velocity.tensors()


def test_a_step_with_momentum_and_decay_by_hand() -> None:
    settings = Settings(learning_rate=0.5, router_learning_rate=2.0, momentum=0.5, weight_decay=0.25)
    before = Roles({"u": torch.tensor(4.0)}, {"a.L": torch.tensor([2.0])}, {ROUTER: torch.tensor([1.0])})
    gradients, velocity = (before.map(lambda t, value=value: value + 0 * t) for value in (1.0, 3.0))
    after, velocity = gradient_step(before, gradients, velocity, settings)
    # v <- 3 / 2 + 1 + w / 4, of the router without the decay; w <- w - v / 2, of the router - 2 v
    assert [float(tensor) for tensor in velocity.tensors()] == [3.5, 3.0, 2.5]
    assert [float(tensor) for tensor in after.tensors()] == [2.25, 0.5, -4.0]


@pytest.mark.parametrize("limit", [0.1, 2.0, 1e9])
def test_clipping_is_torchs(limit: float) -> None:
    generator = torch.Generator().manual_seed(0)

    def gradient(*shape: int) -> Tensor:
        # torch adds 1e-6 to the norm, which large gradients do not see
        return 1e8 * torch.randn(shape, generator=generator, dtype=torch.float64)

    gradients = Roles({"u": gradient(3, 2)}, {"a.U": gradient(2, 3, 1)}, {ROUTER: gradient(2)})
    parameters = [nn.Parameter(torch.zeros_like(tensor)) for tensor in gradients.tensors()]
    for parameter, of_it in zip(parameters, gradients.tensors(), strict=True):
        parameter.grad = of_it.clone()
    norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
    assert (float(norm) > limit) == (limit < 1e9)
    clipped = clip(gradients, limit)
    for parameter, of_it in zip(parameters, clipped.tensors(), strict=True):
        torch.testing.assert_close(of_it, parameter.grad, rtol=1e-12, atol=0)
    # no gradient at all is left alone
    still = gradients.map(torch.zeros_like)
    assert equal(clip(still, limit), still)


def test_gradients_are_clipped_before_they_are_preconditioned_and_decay_is_added_last() -> None:
    task = scalar_task((1.0, 1.0))
    method = FLoRAL(task.model, num_clusters=1, rank=1)
    tensors = {"weight.U": torch.tensor([[[2.0]]]), "weight.V": torch.tensor([[[0.5]]])}
    client = Roles({"weight": torch.tensor([[1.0]])}, tensors, {ROUTER: torch.tensor([0.0])})
    gradients = client._replace(
        shared={"weight": torch.tensor([[0.0]])},
        clustered={"weight.U": torch.tensor([[[3.0]]]), "weight.V": torch.tensor([[[4.0]]])},
    )
    settings = Settings(learning_rate=0.1, clip_norm=1.0, weight_decay=0.5)
    told = torch.tensor(0.0), Roles({}, {}, {})  # the loss, and no statistics
    velocity = client.map(torch.zeros_like)
    after, *_ = local_step(method, settings, client, velocity, lambda _: (gradients, told))
    # 3, 4 have the norm 5: 0.6 / (V^2 + 1e-5) and 0.8 / (U^2 + 1e-5), and half of the parameter
    steps = (0.6 / 0.25001 + 0.5 * 2, 0.8 / 4.00001 + 0.5 * 0.5)
    assert [float(tensor) for tensor in after.clustered.values()] == pytest.approx(
        [2 - 0.1 * steps[0], 0.5 - 0.1 * steps[1]]
    )
    assert float(after.shared["weight"]) == pytest.approx(1 - 0.1 * 0.5)


CLIENT_OPTIMIZERS: list[dict[str, Any]] = [
    {"momentum": 0.9},
    {"weight_decay": 0.1},
    {"clip_norm": 0.5},
    {"momentum": 0.5, "weight_decay": 0.1, "clip_norm": 0.5, "local_epochs": 3},
]


@pytest.mark.parametrize("options", CLIENT_OPTIMIZERS, ids=str)
def test_local_training_is_torchs_sgd(ragged_task: Task, options: dict[str, Any]) -> None:
    """Its momentum, weight decay and clipped norm, over ragged batches, in float64."""
    method = FedAvg(ragged_task.model)
    client = method.initialise(ragged_task.clusters, 0).of_client(0)
    weights = {name: nn.Parameter(tensor.detach().clone()) for name, tensor in client.shared.items()}
    optimizer = torch.optim.SGD(
        weights.values(), 0.3, options.get("momentum", 0), weight_decay=options.get("weight_decay", 0)
    )
    losses, clipped = [], 0
    draws = draws_of(ragged_task, method, client=2, **options)
    for rows in batches(draws.order, 4):
        optimizer.zero_grad()
        inputs, targets = (tensor[rows] for tensor in ragged_task.train[2])
        loss = functional.cross_entropy(functional_call(ragged_task.model, weights, (inputs,)), targets)
        loss.backward()
        if "clip_norm" in options:
            clipped += int(torch.nn.utils.clip_grad_norm_(weights.values(), 0.5) > 0.5)
        optimizer.step()
        losses.append(loss.item())

    after, loss = trained(ragged_task, method, client, number=2, **options)
    # torch adds 1e-6 to the norm before it clips
    close = {"rtol": 1e-5, "atol": 1e-5} if clipped else {"rtol": 1e-12, "atol": 1e-12}
    for name, weight in weights.items():
        torch.testing.assert_close(after.shared[name], weight.detach(), **close)
    assert loss == pytest.approx(sum(losses) / len(losses), rel=close["rtol"])
    # the comparison means something: gradients were clipped, and the options matter
    assert (clipped > 0) == ("clip_norm" in options)
    plain, _ = trained(ragged_task, method, client, number=2)
    assert not torch.allclose(after.shared["0.weight"], plain.shared["0.weight"], rtol=1e-3)


def test_the_router_does_not_decay(ragged_task: Task) -> None:
    method = FLoRAL(ragged_task.model, num_clusters=3, rank=1, routing="optimal")
    client = method.initialise(ragged_task.clusters, 0).of_client(3)
    after, loss = trained(ragged_task, method, client, number=3, weight_decay=0.1, momentum=0.9, clip_norm=1)
    assert torch.equal(after.private[ROUTER], client.private[ROUTER])
    assert math.isfinite(loss)
    assert all(tensor.isfinite().all() for tensor in after.clustered.values())


def test_two_epochs_are_one_epoch_twice(ragged_task: Task) -> None:
    method = FLoRAL(ragged_task.model, num_clusters=2, rank=1, router=Router(noise=1.0))
    client = method.initialise(ragged_task.clusters, seed=0).of_client(0)
    settings = ragged_task.settings
    draws = draws_of(ragged_task, method, local_epochs=2)
    assert draws.noise is not None
    first, second = (
        Draws(draws.order[epoch : epoch + 1], draws.noise[steps], None, draws.keys[steps])
        for epoch, steps in enumerate((slice(0, 2), slice(2, 4)))
    )
    once, first_loss = local_training(ragged_task, method, client, 0, settings, first)
    twice, second_loss = local_training(ragged_task, method, once, 0, settings, second)
    together, loss = trained(ragged_task, method, client, local_epochs=2)
    assert equal(together, twice)
    assert not torch.allclose(together.shared["0.weight"], once.shared["0.weight"])
    assert loss == pytest.approx((first_loss + second_loss) / 2)


def test_one_step_of_fedavg_by_hand() -> None:
    task = scalar_task((2.0, 1.0))
    method = FedAvg(task.model)
    client = method.initialise(task.clusters, 0).of_client(0)
    after, loss = trained(task, method, client)
    # loss (w x - y)^2 = 1, gradient 2 (w x - y) x = -4, w = 0 + 0.1 * 4
    assert loss == pytest.approx(1.0)
    assert float(after.shared["weight"]) == pytest.approx(0.4)


def test_the_loss_is_the_mean_over_the_steps() -> None:
    task = scalar_task((2.0, 1.0), (2.0, 1.0))
    method = FedAvg(task.model)
    client = method.initialise(task.clusters, 0).of_client(0)
    after, loss = trained(task, method, client)
    # second step: w = 0.4, loss (0.8 - 1)^2 = 0.04, gradient 2 * -0.2 * 2 = -0.8, w = 0.48
    assert loss == pytest.approx((1 + 0.04) / 2)
    assert float(after.shared["weight"]) == pytest.approx(0.48)


def test_one_simultaneous_step_of_floral_by_hand() -> None:
    task = scalar_task((1.0, 1.0))
    method = FLoRAL(task.model, num_clusters=2, rank=1, precondition=False)
    client = Roles(
        {"weight": torch.tensor([[0.0]])},
        {"weight.U": torch.tensor([[[1.0]], [[-1.0]]]), "weight.V": torch.tensor([[[0.5]], [[0.5]]])},
        {ROUTER: torch.tensor([0.0, 0.0])},
    )
    after, loss = trained(task, method, client)
    # pi = (1/2, 1/2), w_0 = 0.5, w_1 = -0.5, w_hat = 0: loss (0 - 1)^2 = 1, g = df / dw_hat = -2
    assert loss == pytest.approx(1.0)
    # u: g = -2
    assert float(after.shared["weight"]) == pytest.approx(0.2)
    # U_c: pi_c g V_c = -0.5, -0.5; V_c: pi_c g U_c = -1, 1
    assert after.clustered["weight.U"].flatten().tolist() == pytest.approx([1.05, -0.95])
    assert after.clustered["weight.V"].flatten().tolist() == pytest.approx([0.6, 0.4])
    # theta_c: pi_c g (w_c - w_hat) = -0.5, 0.5, with a learning rate of 1
    assert after.private[ROUTER].tolist() == pytest.approx([0.5, -0.5])


def test_one_preconditioned_step_of_floral_by_hand() -> None:
    task = scalar_task((1.0, 1.0))
    method = FLoRAL(task.model, num_clusters=2, rank=1, precondition=True)
    client = Roles(
        {"weight": torch.tensor([[0.0]])},
        {"weight.U": torch.tensor([[[2.0]], [[-1.0]]]), "weight.V": torch.tensor([[[0.5]], [[1.0]]])},
        {ROUTER: torch.tensor([0.0, 0.0])},
    )
    after, loss = trained(task, method, client)
    # pi = (1/2, 1/2), w_0 = 1, w_1 = -1, w_hat = 0, g = -2 as above; u and theta as without
    assert loss == pytest.approx(1.0)
    assert float(after.shared["weight"]) == pytest.approx(0.2)
    assert after.private[ROUTER].tolist() == pytest.approx([1.0, -1.0])
    # U_c: pi_c g V_c / (V_c^2 + 1e-5) = -0.5 / 0.25, -1 / 1; V_c: pi_c g U_c / (U_c^2 + 1e-5) = -2 / 4, 1 / 1
    moved_u, moved_v = 0.1 * 0.5 / 0.25001, 0.1 * 1 / 1.00001
    assert after.clustered["weight.U"].flatten().tolist() == pytest.approx([2 + moved_u, -1 + moved_v])
    moved_u, moved_v = 0.1 * 2 / 4.00001, 0.1 * 1 / 1.00001
    assert after.clustered["weight.V"].flatten().tolist() == pytest.approx([0.5 + moved_u, 1 - moved_v])


def test_the_step_descends_the_loss_and_the_penalty_and_the_loss_is_told_without_it() -> None:
    """The router alone: theta - eta d (f - lambda H) / d theta, with one adaptor at w = 1, one at 0."""
    task = scalar_task((1.0, 1.0))
    method = FLoRAL(task.model, num_clusters=2, rank=1, router=Router(entropy=0.4), precondition=False)
    client = Roles(
        {"weight": torch.tensor([[0.0]])},
        {"weight.U": torch.tensor([[[1.0]], [[0.0]]]), "weight.V": torch.tensor([[[1.0]], [[1.0]]])},
        {ROUTER: torch.tensor([3.0, 1.0]).log()},
    )
    after, loss = trained(task, method, client)
    # pi = (3/4, 1/4), w_hat = 3/4, loss 1/16, g = -1/2: pi_c g (w_c - w_hat) = -3/32, 3/32
    assert loss == pytest.approx(1 / 16)
    # -0.4 d H / d theta_c = 0.4 pi_c (log pi_c + H), H = log 4 - 3/4 log 3; for c = 0: 0.4 * 3/16 log 3
    slope = -3 / 32 + 0.4 * 3 / 16 * math.log(3)
    assert after.private[ROUTER].tolist() == pytest.approx([math.log(3) - slope, slope], abs=1e-6)


def test_noise_makes_the_steps_differ_between_seeds() -> None:
    task = scalar_task((2.0, 1.0))  # one sample: the order cannot differ
    for noise in (0.0, 1.0):
        method = FLoRAL(task.model, num_clusters=2, rank=1, router=Router(noise=noise))
        client = Roles(
            {"weight": torch.tensor([[0.0]])},
            {"weight.U": torch.tensor([[[1.0]], [[-1.0]]]), "weight.V": torch.tensor([[[0.5]], [[0.7]]])},
            {ROUTER: torch.tensor([0.0, 0.0])},
        )
        first, again, other = (trained(task, method, client, seed=seed) for seed in (0, 0, 1))
        assert equal(first[0], again[0])
        assert (first[1] == other[1]) == (noise == 0)
        assert evaluate(task, method, client, task.test[0]) == evaluate(task, method, client, task.test[0])
        # at evaluation pi = (1/2, 1/2): w_hat = (0.5 - 0.7) / 2 = -0.1, loss (-0.2 - 1)^2
        assert evaluate(task, method, client, task.test[0]).loss == pytest.approx(1.44)


def test_a_client_smaller_than_a_batch_still_learns() -> None:
    task = scalar_task((2.0, 1.0))
    method = FedAvg(task.model)
    client = method.initialise(task.clusters, 0).of_client(0)
    after, _ = trained(task, method, client, batch_size=64)
    assert float(after.shared["weight"]) == pytest.approx(0.4)


def test_training_leaves_what_it_started_from_alone(ragged_task: Task) -> None:
    method = FLoRAL(ragged_task.model, num_clusters=2, rank=1)
    client = method.initialise(ragged_task.clusters, 0).of_client(2)
    before = client.map(lambda tensor: tensor.detach().clone())
    trained(ragged_task, method, client, number=2, momentum=0.9)
    assert equal(before, client)


def test_one_hot_routers_stay_and_adaptors_of_other_clusters_do_not_move(ragged_task: Task) -> None:
    method = FLoRAL(ragged_task.model, num_clusters=3, rank=1, routing="optimal")
    client = method.initialise(ragged_task.clusters, 0).of_client(3)
    after, _ = trained(ragged_task, method, client, number=3)
    assert torch.equal(after.private[ROUTER], client.private[ROUTER])
    for name, tensor in after.clustered.items():
        moved = [not torch.equal(*pair) for pair in zip(tensor, client.clustered[name], strict=True)]
        # the paper's V is zero at the first step, so U starts to move at the second
        assert moved == [False, False, True]


def test_a_model_drops_in_training_and_not_in_the_test_whatever_mode_it_is_in() -> None:
    task = scalar_task((1.0, 3.0))
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    task = replace(task, model=nn.Sequential(nn.Dropout(1.0), layer))
    method = FedAvg(task.model)
    client = method.initialise(task.clusters, 0).of_client(0)
    choosing = IFCA(task.model, num_clusters=1)
    undecided = choosing.initialise(task.clusters, 0).of_client(0)
    for in_training in (True, False):
        task.model.train(in_training)
        assert evaluate(task, method, client, task.test[0]).loss == 4  # (1 - 3)^2
        task.model.train(in_training)
        assert trained(task, method, client)[1] == 9  # (0 - 3)^2
        task.model.train(in_training)
        assert candidate_losses(task, choosing, undecided, task.train[0]) == 4


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
