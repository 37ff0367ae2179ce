"""The engine on an NVIDIA GPU; all is skipped where there is none."""

import random
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from floral_lite import Federation, Task, methods, models, personal_model, train, train_runs
from floral_lite.data import FlipAndCrop
from floral_lite.federation import Run, Settings, federated_rounds
from floral_lite.methods import Method
from floral_lite.roles import Roles
from floral_lite.tasks import from_arrays

from .federations import Jitter, agree, identical, make_task, normal
from .test_engine import HOOKED, METHODS, NETWORKS, task_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")

BOTH = METHODS | HOOKED


def images(build: Callable[[], nn.Module] = models.cnn, **changes: object) -> Task:
    """Two clusters of two clients with forty images of noise each."""
    generator = torch.Generator().manual_seed(0)
    return from_arrays(
        torch.rand(200, 3, 32, 32, generator=generator),
        torch.arange(200) % 10,
        model=build,
        num_clients=4,
        num_clusters=2,
        transform="rotate",
        augment=FlipAndCrop(),
        settings=Settings(rounds=3, batch_size=16, learning_rate=0.05).with_changes(**changes),
    )


def brought_back(there: Federation) -> Federation:
    """With its parameters on the CPU."""
    return there._replace(state=there.state.map(torch.Tensor.cpu))


def on_cuda(task: Task, method: Method) -> Federation:
    """Trained there and brought back."""
    return brought_back(train(task, method, device="cuda", seed=1))


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


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.5}, {"clip_norm": 0.2}])
@pytest.mark.parametrize("options", [{}, {"routing": "closed-form"}, {"routing": "clustered"}, {"rank": 20}])
def test_floral_on_cuda_agrees_under_every_setting(
    settings: dict[str, object], options: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    """Layers wide enough for factors beside them; a GPU inverts large matrices in a way of its own."""
    task = make_task(
        lambda: nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 48)), normal(48), **settings
    )
    method = methods.FLoRAL(task.model, 3, **{"rank": 2} | options)  # type: ignore[arg-type]
    agree(on_cuda(task, method), train(task, method, engine="loop", seed=1), 1e-8)
    assert "not recorded" not in caplog.text


def test_seeds_side_by_side_on_cuda_come_to_what_each_comes_to_alone() -> None:
    task = task_of("wide")
    runs = [Run(task, methods.FLoRAL(task.model, 3, rank=1), seed) for seed in (1, 2)]
    together = [brought_back(one) for one in train_runs(runs, task.settings, device="cuda")]
    for run, one in zip(runs, together, strict=True):
        agree(one, train(task, run.method, engine="loop", seed=run.seed), 1e-9)


class Looking(methods.FedAvg):
    """The host looks at a number in every step, which no CUDA graph can record.

    It is none of the gradients' numbers, at which no step could look under torch.vmap.
    """

    def precondition(self, client: Roles, gradients: Roles) -> Roles:
        assert torch.zeros((), device=gradients.tensors()[0].device).item() == 0
        return gradients


def test_a_step_that_cannot_be_recorded_is_run_as_it_comes(caplog: pytest.LogCaptureFixture) -> None:
    task, stream = task_of("mlp"), torch.cuda.current_stream()
    method = Looking(task.model)
    agree(on_cuda(task, method), train(task, method, engine="loop", seed=1), 1e-9)
    assert caplog.text.count("not recorded") == 1
    assert torch.cuda.current_stream() == stream


def test_where_recording_fails_layers_still_draw_and_so_does_the_user() -> None:
    task = make_task(lambda: nn.Sequential(nn.Linear(4, 6), Jitter(), nn.Linear(6, 3)), normal(4))
    with torch.random.fork_rng(devices=[torch.cuda.current_device()]):
        torch.cuda.manual_seed(1)
        first = torch.rand(3, device="cuda")
        on_cuda(task, Looking(task.model))
        torch.cuda.manual_seed(1)
        assert torch.equal(torch.rand(3, device="cuda"), first)


class Skipped(nn.Linear):
    """Is left out every other time, as Python's generator says."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs) if not self.training or random.random() < 0.5 else inputs


def test_a_step_that_python_decides_on_is_run_as_it_comes(caplog: pytest.LogCaptureFixture) -> None:
    task = make_task(lambda: nn.Sequential(Skipped(4, 4), nn.Linear(4, 3)), normal(4))
    before = random.getstate()
    on_cuda(task, methods.FedAvg(task.model))
    assert caplog.text.count("from Python's or NumPy's generator") == 1
    random.setstate(before)


def test_a_loss_with_weights_of_labels_is_taken_there() -> None:
    weight = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    task = make_task(lambda: nn.Linear(4, 3), normal(4), loss=nn.CrossEntropyLoss(weight=weight))
    method = methods.FLoRAL(task.model, 3, rank=1)
    agree(on_cuda(task, method), train(task, method, engine="loop", seed=1), 1e-9)


def test_a_client_is_taken_out_of_a_run_on_cuda() -> None:
    """Also where the whole base is frozen, of which the method has its own."""
    task = make_task(lambda: nn.Linear(4, 3).requires_grad_(False), normal(4))
    method = methods.FLoRAL(task.model, 3, rank=1)
    there = train(task, method, device="cuda", seed=1)
    here = train(task, method, engine="loop", seed=1)
    inputs = task.test[3].inputs
    one, other = (personal_model(task, method, each, client=3)(inputs) for each in (there, here))
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("build", [models.cnn, models.vgg8])
def test_the_papers_networks_agree_with_the_loop_to_rounding(
    build: Callable[[], nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    task = images(lambda: build().double())
    method = methods.FLoRAL(task.model, num_clusters=2, budget=0.01)
    # preconditioning divides by 1e-5 + |V|^2, and V begins at zero
    agree(on_cuda(task, method), train(task, method, engine="loop", seed=1), 1e-6)
    assert "not recorded" not in caplog.text


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_a_seed_gives_the_same_bits_again(precision: str) -> None:
    task = images(precision=precision)
    method = methods.FLoRAL(task.model, num_clusters=2, budget=0.01)
    first, second = (train(task, method, device="cuda", seed=1).state.tensors() for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))


def test_a_resumed_run_draws_what_the_uninterrupted_one_does(tmp_path: Path) -> None:
    """In it the steps are recorded in a later round; layers that draw see nothing of that."""
    task = make_task(lambda: nn.Sequential(nn.Linear(4, 6), Jitter(), nn.Linear(6, 3)), normal(4), rounds=4)
    method = methods.FLoRAL(task.model, num_clusters=3, rank=1)
    whole = on_cuda(task, method)
    train(task, method, device="cuda", seed=1, rounds=2, checkpoints=tmp_path)
    resumed = train(task, method, device="cuda", seed=1, checkpoints=tmp_path)
    identical(brought_back(resumed), whole)


def test_the_host_waits_once_a_round_for_the_losses() -> None:
    task = images(rounds=6, evaluate_every=0)
    rounds = federated_rounds(
        task, methods.FLoRAL(task.model, num_clusters=2, budget=0.01), task.settings, device="cuda"
    )
    for _ in range(4):
        next(rounds)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            next(rounds)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [f"{one.filename}:{one.lineno}" for one in told if "called a sync" in str(one.message)]
    assert len(waits) == 1, waits


def test_a_model_on_cuda_is_drawn_anew_as_on_the_cpu() -> None:
    """And the GPU's own generator is left as it was."""
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    expected = models.reinitialised(model, 0, 1).state_dict()
    before = torch.cuda.get_rng_state()
    fresh = models.reinitialised(model.cuda(), 0, 1)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert {parameter.device.type for parameter in (*fresh.parameters(), *model.parameters())} == {"cuda"}
    for name, tensor in fresh.state_dict().items():
        assert torch.equal(tensor.cpu(), expected[name]), name
