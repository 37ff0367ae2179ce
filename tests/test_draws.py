"""What chance gives a client in a round: the same to every engine, and another one elsewhere."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from floral_lite import Settings, Task, methods
from floral_lite.data import FlipAndCrop
from floral_lite.federation.draws import Draws, batches, draw
from floral_lite.methods import Method
from floral_lite.seeds import stream

from .federations import make_task, normal


def a_task(augment: FlipAndCrop | None = None) -> Task:
    return make_task(
        lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(8, 3)),
        normal(1, 3, 3),
        augment=augment,
    )


def noisy(task: Task) -> Method:
    return methods.FLoRAL(task.model, 3, rank=1, router={"noise": 1.0})


def tensors(draws: Draws) -> list[Tensor]:
    return [tensor for tensor in draws if tensor is not None]


@given(st.integers(1, 30), st.integers(1, 8), st.integers(1, 3))
def test_every_epoch_has_every_sample_once_and_every_step_its_own_chance(
    num_samples: int, batch_size: int, local_epochs: int
) -> None:
    task = a_task(FlipAndCrop(padding=1))
    settings = Settings(batch_size=batch_size, local_epochs=local_epochs)
    drawn = draw(task, noisy(task), num_samples, settings, 0, 1, 2)
    assert torch.equal(drawn.order.sort(dim=1).values, torch.arange(num_samples).expand(local_epochs, -1))
    cut = batches(drawn.order, batch_size)
    assert torch.equal(torch.cat(cut), drawn.order.flatten())
    assert [len(rows) for rows in cut] == local_epochs * [
        min(batch_size, num_samples - start) for start in range(0, num_samples, batch_size)
    ]
    assert drawn.noise is not None
    assert drawn.noise.shape == (len(cut), 3)
    assert drawn.augment is not None
    assert drawn.augment.shape == (local_epochs, num_samples, 3)
    assert drawn.keys.shape == (len(cut),)
    assert len(drawn.keys.unique()) == len(cut)
    assert ((drawn.noise >= 0) & (drawn.noise < 1)).all()


def test_what_nobody_needs_is_not_drawn() -> None:
    task = a_task()
    drawn = draw(task, methods.FedAvg(task.model), 5, Settings(), 0, 1, 2)
    assert drawn.noise is None
    assert drawn.augment is None


def test_the_same_seed_round_and_client_draw_the_same() -> None:
    task = a_task(FlipAndCrop(padding=1))
    settings = Settings(batch_size=4, local_epochs=2)
    before = torch.get_rng_state()
    first, again = (tensors(draw(task, noisy(task), 20, settings, 1, 2, 3)) for _ in range(2))
    assert len(first) == 4
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("key", [(9, 2, 3), (1, 9, 3), (1, 2, 9)], ids=["seed", "round", "client"])
def test_another_seed_round_or_client_draws_other_numbers(key: tuple[int, int, int]) -> None:
    task = a_task(FlipAndCrop(padding=1))
    settings = Settings(batch_size=4, local_epochs=2)
    first, other = (tensors(draw(task, noisy(task), 20, settings, *each)) for each in ((1, 2, 3), key))
    assert not any(torch.equal(*pair) for pair in zip(first, other, strict=True))


def test_unshuffled_samples_come_as_they_lie_and_all_else_is_drawn() -> None:
    task = a_task(FlipAndCrop(padding=1))
    settings = Settings(batch_size=4, local_epochs=2, shuffle=False)
    first, other = (draw(task, noisy(task), 6, settings, *each) for each in ((1, 2, 3), (9, 8, 7)))
    assert first.order.tolist() == other.order.tolist() == 2 * [[0, 1, 2, 3, 4, 5]]
    assert not any(torch.equal(*pair) for pair in zip(tensors(first)[1:], tensors(other)[1:], strict=True))


def test_epochs_and_steps_differ() -> None:
    task = a_task(FlipAndCrop(padding=1))
    order, noise, augment, _ = draw(task, noisy(task), 20, Settings(batch_size=4, local_epochs=2), 0, 1, 2)
    assert noise is not None
    assert augment is not None
    assert not torch.equal(order[0], order[1])
    assert not torch.equal(augment[0], augment[1])
    assert len(noise.unique(dim=0)) == 10


def test_batches_come_first_so_that_nothing_else_changes_them() -> None:
    """The order is the first that a client's stream gives, whatever method and augmentation draw after it."""
    plain, augmented = a_task(), a_task(FlipAndCrop(padding=1))
    orders = [
        draw(task, method, 20, Settings(batch_size=size), 1, 2, 3).order
        for task, method, size in (
            (plain, methods.FedAvg(plain.model), 4),
            (plain, noisy(plain), 7),
            (augmented, noisy(augmented), 4),
        )
    ]
    expected = torch.randperm(20, generator=stream(1, "batches", 2, 3))
    assert all(torch.equal(order[0], expected) for order in orders)


def test_draws_come_in_the_order_in_which_those_of_the_stored_results_came() -> None:
    augment = FlipAndCrop(padding=1)
    task = a_task(augment)
    drawn = draw(task, noisy(task), 20, Settings(batch_size=4, local_epochs=2), 1, 2, 3)
    generator = stream(1, "batches", 2, 3)
    orders = [torch.randperm(20, generator=generator) for _ in range(2)]
    expected = (
        torch.stack(orders),
        augment.draws(40, generator).reshape(2, 20, 3),
        noisy(task).draw(10, generator),
        torch.randint(2**62, (10,), generator=generator),
    )
    found = (drawn.order, drawn.augment, drawn.noise, drawn.keys)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_more_samples_than_before_are_no_other_clients() -> None:
    """The draws of a client follow from its own number of samples, not from its shard."""
    task = a_task()
    smaller = replace(task, train=[type(shard)(*(t[:1] for t in shard)) for shard in task.train])
    one, other = (draw(t, noisy(t), 6, Settings(batch_size=4), 1, 2, 3) for t in (task, smaller))
    assert all(torch.equal(*pair) for pair in zip(tensors(one), tensors(other), strict=True))
