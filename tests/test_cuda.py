"""The engine on an NVIDIA GPU; all is skipped where there is none."""

import warnings

import pytest
import torch

from floral_lite import Federation, Task, methods, models, train
from floral_lite.data import FlipAndCrop
from floral_lite.federation import Settings, federated_rounds
from floral_lite.methods import Method
from floral_lite.tasks import from_arrays

from .federations import agree
from .test_engine import HOOKED, METHODS, NETWORKS, task_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")

BOTH = METHODS | HOOKED


def images(model: str = "cnn", **changes: object) -> Task:
    """Two clusters of two clients with forty images of noise each."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (200, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return from_arrays(
        pixels,
        torch.arange(200) % 10,
        model=getattr(models, model),
        num_clients=4,
        num_clusters=2,
        transform="rotate",
        augment=FlipAndCrop(),
        settings=Settings(rounds=3, batch_size=16, learning_rate=0.05).with_changes(**changes),
    )


def on_cuda(task: Task, method: Method) -> Federation:
    """Trained there and brought back."""
    there = train(task, method, device="cuda", seed=1)
    return there._replace(state=there.state.map(torch.Tensor.cpu))


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("name", BOTH)
def test_every_method_on_cuda_agrees_with_the_loop_on_the_cpu(
    name: str, turn: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The networks take turns."""
    network = list(NETWORKS)[(3 * list(BOTH).index(name) + turn) % len(NETWORKS)]
    task = task_of(network)
    method = BOTH[name](task.model)
    agree(on_cuda(task, method), train(task, method, engine="loop", seed=1), 1e-9)
    assert "not recorded" not in caplog.text


@pytest.mark.parametrize("model", ["cnn", "vgg8"])
def test_the_papers_networks_agree_with_the_loop_to_rounding(
    model: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = images(model)
    method = methods.FLoRAL(task.model, num_clusters=2, budget=0.01)
    # in float32 a rounding error that turns one pixel's maximum over grows with every step
    agree(on_cuda(task, method), train(task, method, engine="loop", seed=1), 2e-3)
    assert "not recorded" not in caplog.text


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_a_seed_gives_the_same_bits_again(precision: str) -> None:
    task = images(precision=precision)
    method = methods.FLoRAL(task.model, num_clusters=2, budget=0.01)
    first, second = (train(task, method, device="cuda", seed=1).state.tensors() for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))


def test_the_host_waits_once_a_round_for_the_losses() -> None:
    task = images(rounds=6, evaluate_every=0)
    rounds = federated_rounds(
        task, methods.FLoRAL(task.model, num_clusters=2, budget=0.01), task.settings, device="cuda"
    )
    for _ in range(4):
        next(rounds)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            next(rounds)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(waits) == 1, [str(wait.filename) + str(wait.lineno) for wait in waits]
