"""Short batches are filled up with rows that do not count, whoever looks at them: both engines agree."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from floral_lite import InputError, Task, methods, train
from floral_lite.methods import Method
from floral_lite.roles import Roles

from .federations import agree, make_task, normal


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def same_on_both_engines(task: Task, make: Callable[[nn.Module], Method] = methods.FedAvg) -> None:
    fast, loop = (train(task, make(task.model), engine=engine) for engine in ("fast", "loop"))
    agree(fast, loop)


class Worst(methods.FedAvg):
    """Minimises the largest loss of a batch."""

    def losses(self, client: Roles, outputs: list[Tensor], sample_loss: Any, draws: Any = None) -> Tensor:
        return sample_loss(outputs[0]).amax(dim=-1, keepdim=True)  # type: ignore[no-any-return]


class Tilted(methods.FedAvg):
    """Gives the larger losses of a batch more weight."""

    def losses(self, client: Roles, outputs: list[Tensor], sample_loss: Any, draws: Any = None) -> Tensor:
        losses = sample_loss(outputs[0])
        return losses.shape[-1] * losses.detach().softmax(dim=-1) * losses  # type: ignore[no-any-return]


class Centred(methods.FedAvg):
    """Predicts beside the mean of a batch."""

    def predict(self, client: Roles, outputs: list[Tensor], classifies: bool) -> Tensor:
        return outputs[0] - outputs[0].mean(dim=-2, keepdim=True)


@pytest.mark.parametrize("make", [Worst, Tilted, Centred])
def test_a_method_that_looks_at_a_whole_batch(make: Callable[[nn.Module], Method]) -> None:
    same_on_both_engines(make_task(small, normal(4)), make)


class OverLargest(nn.Linear):
    """Divides by the largest number of a batch."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs / inputs.abs().max())


class Reordered(nn.Module):
    """Its first parameter is of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.order = nn.Parameter(torch.tensor([3, 1, 0, 2]), requires_grad=False)
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs[:, self.order])
        return outputs


@pytest.mark.parametrize("build", [lambda: OverLargest(4, 3), Reordered])
def test_a_network_that_looks_at_a_whole_batch_or_begins_with_integers(
    build: Callable[[], nn.Module],
) -> None:
    same_on_both_engines(make_task(build, normal(4), sizes=(9, 7, 5, 3, 7)))


class Zoom:
    """Divides each sample by what was drawn for it."""

    def draws(self, num_samples: int, generator: torch.Generator) -> Tensor:
        return 0.5 + torch.rand(num_samples, generator=generator, dtype=torch.float64)

    def __call__(self, inputs: Tensor, draws: Tensor) -> Tensor:
        return inputs / draws[:, None]


def test_nothing_is_augmented_as_was_never_drawn() -> None:
    same_on_both_engines(make_task(small, normal(4), augment=Zoom()))


class InPlace(nn.Module):
    """Drops hidden units in place, or not."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.hidden, self.out, self.inplace = nn.Linear(4, 6), nn.Linear(6, 3), inplace

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.hidden(inputs)
        if self.inplace:
            functional.dropout(hidden, 0.5, self.training, inplace=True)
        else:
            hidden = functional.dropout(hidden, 0.5, self.training)
        outputs: Tensor = self.out(hidden)
        return outputs


def test_dropout_in_place_drops() -> None:
    task, other = (make_task(partial(InPlace, inplace), normal(4)) for inplace in (True, False))
    for engine in ("fast", "loop"):
        one, two = (train(each, methods.FedAvg(each.model), engine=engine) for each in (task, other))
        agree(one, two)


class Tuned(methods.FLoRAL):
    """FLoRAL whose clients train on for a round before they are tested, with a routing of its own."""

    def __init__(self, model: nn.Module, routing: Any, then: Any) -> None:
        super().__init__(model, rank=1, num_clusters=3, routing=routing)
        self.adaptation = methods.FLoRAL(model, rank=1, num_clusters=3, routing=then)


@pytest.mark.parametrize("routing", [("optimal", "optimal"), ("learned", "optimal"), ("optimal", "learned")])
def test_one_hot_routers_may_train_on_before_they_are_tested(routing: tuple[str, str]) -> None:
    same_on_both_engines(make_task(small, normal(4)), lambda model: Tuned(model, *routing))


class Kept(nn.Module):
    """A network that keeps its batch norm in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.norm, self.out = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.norm(self.hidden(inputs)))
        return outputs

    def train(self, mode: bool = True) -> "Kept":
        super().train(mode)
        self.norm.eval()
        return self


def test_a_batch_of_one_is_no_fault_of_a_norm_in_evaluation() -> None:
    same_on_both_engines(make_task(Kept, normal(4), sizes=(5, 9, 4, 8, 5)))


class Own(nn.Module):
    """A network with a part of the name that Ditto gives a client's own model."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
        self.out = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.own(inputs))
        return outputs


def test_a_part_of_a_network_may_be_called_own() -> None:
    same_on_both_engines(make_task(Own, normal(4), sizes=(6, 8, 4, 8, 6)), methods.Ditto)


def test_the_head_of_a_parametrised_network_is_its_whole_last_layer() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), parametrizations.weight_norm(nn.Linear(6, 3)))
    method = methods.FedPer(model)
    assert list(method.head) == ["2"]
    assert len(method.initialise(torch.zeros(2, dtype=torch.long), 0).private) == 3


class Renamed(methods.FedAvg):
    """Has an option with the name of a setting."""

    name = "renamed"

    def options(self) -> dict[str, Any]:
        return {"momentum": 0.7}


def test_an_option_with_the_name_of_a_setting_is_refused() -> None:
    task = make_task(small, normal(4))
    with pytest.raises(InputError, match=r"Renamed\.options has 'momentum'.*call it 'renamed_momentum'"):
        train(task, Renamed(task.model))
