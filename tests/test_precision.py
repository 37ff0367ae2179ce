"""What rounds products on NVIDIA GPUs, and that it is put back."""

from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import nn

from floral_lite import InputError, methods, train
from floral_lite.federation import Engine, loop
from floral_lite.federation import engine as fast
from floral_lite.federation.precision import arithmetic

from .federations import make_task, normal, single


@pytest.fixture(autouse=True)
def own_switches(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As if there were a GPU; torch's switches are after each test as they were before."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


def switches() -> tuple[object, ...]:
    cudnn = torch.backends.cudnn
    return torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.deterministic


@pytest.mark.parametrize("users", ["highest", "high", "medium"])
def test_the_users_switches_are_put_back(users: str) -> None:
    torch.set_float32_matmul_precision(users)
    before = switches()
    with arithmetic("tf32"):
        assert switches() == ("high", True, True)
        with arithmetic("float32"):
            assert switches() == ("highest", False, True)
        assert switches() == ("high", True, True)
    assert switches() == before


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="this torch has no such switches yet")
@pytest.mark.parametrize(("name", "value"), [("cuda.matmul", "tf32"), ("cudnn.conv", "ieee")])
def test_switches_that_cannot_be_put_back_are_refused(name: str, value: str) -> None:
    place = attrgetter(name)(torch.backends)
    before = place.fp32_precision
    place.fp32_precision = value
    try:
        with pytest.raises(InputError, match=r"an fp32_precision of torch\.backends.* precision='tf32'"):
            arithmetic("float32").__enter__()
    finally:
        place.fp32_precision = before


def test_averages_are_never_rounded_to_tf32(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the clients' weights would not sum to 1."""
    seen: list[str] = []
    einsum = torch.einsum

    def spy(equation: str, *tensors: torch.Tensor) -> torch.Tensor:
        if equation in ("k,k...->...", "kc,kc...->c..."):
            seen.append(torch.get_float32_matmul_precision())
        return einsum(equation, *tensors)

    monkeypatch.setattr(torch, "einsum", spy)
    task = single(make_task(lambda: nn.Linear(4, 3), normal(4)))
    train(task, methods.FLoRAL(task.model, 2, rank=1), engine=engine, rounds=1, precision="tf32")
    assert seen
    assert set(seen) == {"highest"}


def test_tuning_before_a_test_is_rounded_as_training_is(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    module, name = (loop, "local_training") if engine == "loop" else (fast, "train_together")
    original = getattr(module, name)

    def spy(*arguments: Any, **options: Any) -> Any:
        seen.append(torch.get_float32_matmul_precision())
        return original(*arguments, **options)

    monkeypatch.setattr(module, name, spy)
    task = single(make_task(lambda: nn.Linear(4, 3), normal(4)))
    train(task, methods.FineTuned(task.model), engine=engine, rounds=1, precision="tf32")
    # four are trained, then five tuned; or a stack of each
    assert seen == ["high"] * (9 if engine == "loop" else 2)
