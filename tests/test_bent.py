"""What users bend: layers, losses, methods and options of their own, in both engines."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import floral_lite
from floral_lite import InputError, Router, Settings, Task, methods, personal_model, plots, tasks, train
from floral_lite.adaptors import KINDS, Options, VectorAdaptor
from floral_lite.cli import named
from floral_lite.federation import aggregate
from floral_lite.federation.aggregate import Sums
from floral_lite.roles import Roles
from floral_lite.tasks import recipe


def two_clients(model: Callable[[], nn.Module], dtype: torch.dtype = torch.float32) -> Task:
    """Two clients with points (5,) of two labels."""
    random = np.random.default_rng(0)
    x = torch.tensor(random.normal(size=(12, 5)), dtype=dtype)
    y = (x.sum(dim=1) > 0).long()
    settings = Settings(rounds=2, batch_size=4)
    return tasks.from_clients({"a": (x, y), "b": (x.flip(0), y.flip(0))}, model=model, settings=settings)


class OwnNorm(nn.Module):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * inputs.mean(dim=0)
        return inputs - self.mean


def test_a_layer_that_keeps_statistics_of_its_own_is_refused() -> None:
    with pytest.raises(InputError, match=r"changes its buffer 0\.mean"):
        two_clients(lambda: nn.Sequential(OwnNorm(), nn.Linear(5, 2)))


def test_making_a_task_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    two_clients(lambda: nn.Sequential(nn.Dropout(), nn.Linear(5, 2)))
    assert torch.equal(torch.get_rng_state(), before)


class Shifted(nn.Linear):
    def __init__(self) -> None:
        super().__init__(5, 2)
        self.running_mean = nn.Parameter(torch.zeros(5))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs + self.running_mean)


def test_a_parameter_with_the_name_of_a_statistic_is_refused() -> None:
    with pytest.raises(InputError, match="parameter running_mean"):
        two_clients(Shifted)


class InPlace(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        inputs -= 3.0
        return super().forward(inputs)


def test_a_forward_in_place_leaves_the_data_as_they_are() -> None:
    task = two_clients(lambda: InPlace(5, 2))
    kept = [shard.inputs.clone() for shard in [*task.train, *task.test]]
    for method in (
        methods.FedAvg(task.model),
        methods.IFCA(task.model, 2),
        methods.FLoRAL(task.model, 2, routing="clustered"),
    ):
        train(task, method, engine="loop")
    for shard, inputs in zip([*task.train, *task.test], kept, strict=True):
        assert torch.equal(shard.inputs, inputs)


class Decaying(methods.FedAvg):
    name = "decaying"

    def losses(
        self,
        client: Roles,
        outputs: list[Tensor],
        sample_loss: Callable[[Tensor], Tensor],
        draws: object = None,
    ) -> Tensor:
        weight = client.shared["weight"]
        return sample_loss(outputs[0]) + weight.square().flatten(weight.dim() - 2).sum(dim=-1)[..., None]


def test_a_method_whose_loss_sees_a_weight_is_the_same_in_both_engines() -> None:
    task = two_clients(lambda: nn.Linear(5, 2).double(), torch.float64)
    method = Decaying(task.model)
    fast, loop = (train(task, method, engine=engine) for engine in ("fast", "loop"))
    torch.testing.assert_close(fast.state.shared, loop.state.shared, rtol=1e-9, atol=1e-9)


def test_weights_that_underflow_leave_a_slice_as_it_is() -> None:
    state = Roles({}, {"a": torch.tensor([[1.0], [2.0]])}, {})
    moved = Roles({}, {"a": torch.tensor([[5.0], [6.0]])}, {})
    mixture, num_samples = torch.tensor([[1e-44, 1.0], [1e-44, 1.0]]), torch.tensor([3.0, 4.0])
    sums = Sums(state, num_samples=7)
    sums.add(range(2), moved.map(lambda tensor: tensor.expand(2, 2, 1)), num_samples, mixture)
    for average in (aggregate(state, range(2), [moved, moved], num_samples, mixture), sums.average()):
        assert average.clustered["a"].flatten().tolist() == pytest.approx([1.0, 6.0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_accuracy_in_half_precision_is_a_share_of_the_samples(dtype: torch.dtype) -> None:
    task = two_clients(lambda: nn.Linear(5, 2).to(dtype), dtype)
    sizes = [len(shard) for shard in task.test]
    for client, accuracy in enumerate(
        train(task, methods.FedAvg(task.model)).history.evaluated[-1].client_accuracy
    ):
        assert accuracy * sizes[client] == pytest.approx(round(accuracy * sizes[client]), abs=1e-5)


def test_a_client_s_model_is_of_the_method_that_was_trained() -> None:
    task = two_clients(lambda: nn.Linear(5, 2))
    federation = train(task, methods.Local(task.model))
    personal_model(task, methods.Local(task.model), federation, 0)
    with pytest.raises(InputError, match="method is 'fedavg', but what was trained has 'local'"):
        personal_model(task, methods.FedAvg(task.model), federation, 0)


def test_a_module_s_loss_is_checked_as_its_function_is() -> None:
    x, y = torch.randn(9, 5), torch.randn(9)
    with pytest.raises(InputError, match="give targets of shape"):
        tasks.from_clients({"a": (x, y), "b": (x, y)}, model=nn.Linear(5, 1), loss=nn.MSELoss())


def test_outputs_without_an_axis_are_refused() -> None:
    class Squeezed(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs).squeeze()

    x, y = torch.randn(9, 5), torch.randn(9)
    with pytest.raises(InputError, match=r"use \.squeeze\(-1\)"):
        tasks.from_clients({"a": (x, y)}, model=Squeezed(5, 1), loss=nn.functional.mse_loss)


def test_a_router_of_one_s_own_is_not_saved_as_another(tmp_path: Path) -> None:
    class Top(Router):
        pass

    model = floral_lite.Floral(nn.Linear(5, 2), rank=1, num_clusters=2, router=Top())
    with pytest.raises(InputError, match="router is of type Top"):
        floral_lite.save(model, tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_floral_in_half_precision_is_loaded_as_it_was_saved(tmp_path: Path, dtype: torch.dtype) -> None:
    model = floral_lite.Floral(nn.Linear(5, 2), rank=1).to(dtype)
    floral_lite.save(model, tmp_path / "model")
    again = floral_lite.load(tmp_path / "model", nn.Linear(5, 2).to(dtype))
    assert again.router_logits.dtype == dtype
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)


def test_a_run_without_moments_goes_on(tmp_path: Path) -> None:
    task = two_clients(lambda: nn.Linear(5, 2))
    method, changes = methods.Local(task.model), {"server_optimizer": "adam", "server_learning_rate": 0.01}
    whole = train(task, method, rounds=4, **changes)
    for rounds in (2, 4):
        half = train(task, method, rounds=rounds, checkpoints=tmp_path, **changes)
    for name, tensor in whole.state.private.items():
        assert torch.equal(half.state.private[name], tensor)


def test_a_clipped_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    task = tasks.load("digits-rotate", num_clients=8)
    method = methods.FLoRAL(task.model, budget=0.1)
    whole = train(task, method, rounds=12, clip_norm=0.5)
    for rounds in (2, 12):
        half = train(task, method, rounds=rounds, clip_norm=0.5, checkpoints=tmp_path)
    for one, other in zip(half.state.tensors(), whole.state.tensors(), strict=True):
        assert torch.equal(one, other)


def test_a_run_in_half_precision_goes_on_to_the_bit(tmp_path: Path) -> None:
    """Its routers and the server's moments are in single precision."""
    task = two_clients(lambda: nn.Linear(5, 2).bfloat16(), torch.bfloat16)
    method, changes = methods.FLoRAL(task.model, 2, rank=1), {"server_optimizer": "adam"}
    whole = train(task, method, rounds=4, **changes)
    for rounds in (2, 4):
        half = train(task, method, rounds=rounds, checkpoints=tmp_path, **changes)
    for one, other in zip(half.moments["square"].tensors(), whole.moments["square"].tensors(), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(half.state.tensors(), whole.state.tensors(), strict=True):
        assert torch.equal(one, other)


def test_numbers_of_numpy_are_kept_as_numbers(tmp_path: Path) -> None:
    task = two_clients(lambda: nn.Linear(5, 2))
    method = methods.FLoRAL(task.model, 2, budget=np.float32(0.1), router=Router(temperature=np.float64(2.0)))  # type: ignore[arg-type]
    for rounds in (1, 2):
        federation = train(task, method, rounds=rounds, checkpoints=tmp_path)
    assert federation.history.config["budget"] == float(np.float32(0.1))
    assert federation.history.config["router"]["temperature"] == 2


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTM(1, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out(self.cell(inputs[..., None])[0][:, -1])  # type: ignore[no-any-return]


class Packed(Recurrent):
    """Reads as many numbers of a sample as are positive, one at least."""

    def forward(self, inputs: Tensor) -> Tensor:
        lengths = (inputs > 0).sum(dim=1).clamp(min=1)
        sequences = nn.utils.rnn.pack_padded_sequence(inputs[..., None], lengths, True, enforce_sorted=False)
        return self.out(self.cell(sequences)[1][0][-1])  # type: ignore[no-any-return]


class Counting(nn.Linear):
    """Counts in a tensor of its own, which is no buffer."""

    def __init__(self) -> None:
        super().__init__(5, 2)
        self.calls = torch.zeros(())

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(inputs)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    ("model", "told"), [(Recurrent, "lstm"), (Packed, "equal size"), (Counting, "in-place operation")]
)
def test_a_layer_that_vmap_does_not_know_is_told_with_the_way_out(model: type[nn.Module], told: str) -> None:
    task = two_clients(model)
    message = rf"{model.__name__} cannot run for many clients at once, use engine='loop': .*{told}"
    with pytest.raises(InputError, match=message):
        train(task, methods.FedAvg(task.model))
    assert len(train(task, methods.FedAvg(task.model), engine="loop").history.rounds) == 2


def test_a_layer_norm_in_bfloat16_on_a_cpu_is_told_and_the_loop_takes_it() -> None:
    task = two_clients(lambda: nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 2)))
    method, rounder = methods.FedAvg(task.model), {"precision": "bfloat16", "rounds": 1}
    with pytest.raises(InputError, match=r"use engine='loop': .*expected scalar type BFloat16"):
        train(task, method, **rounder)
    assert len(train(task, method, engine="loop", **rounder).history.rounds) == 1


def among_two(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that vmap cannot follow."""
    return nn.functional.cross_entropy(outputs[targets < 2], targets[targets < 2])


class Own(nn.Linear):
    """No chain of known layers."""


@pytest.mark.parametrize("layer", [nn.Linear, Own])
def test_a_loss_that_vmap_does_not_know_is_told_and_the_loop_takes_it(layer: type[nn.Linear]) -> None:
    task = replace(two_clients(lambda: layer(5, 2)), loss=among_two)
    for method in (methods.FedAvg(task.model), methods.Ditto(task.model)):
        with pytest.raises(InputError, match=r"among_two cannot run for many clients at once, use engine='l"):
            train(task, method)
        assert len(train(task, method, engine="loop").history.rounds) == 2


class DropsAlways(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(inputs, 0.5))


def test_dropout_that_does_not_stop_in_evaluation_is_told() -> None:
    task = two_clients(lambda: DropsAlways(5, 2))
    with pytest.raises(InputError, match=r"DropsAlways draws random numbers in evaluation.*self\.training"):
        train(task, methods.FedAvg(task.model))


def test_bytes_become_the_model_s_floats() -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 1, 4, 4), dtype=np.uint8)
    labels = np.arange(20, dtype=np.uint16) % 2
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).double()
    task = tasks.from_arrays(images, labels, model=model, num_clients=2)
    assert task.train[0].inputs.dtype == torch.float64
    assert float(task.train[0].inputs.max()) <= 1


def test_clustered_routing_needs_a_weight_to_look_at() -> None:
    task = two_clients(lambda: nn.Linear(5, 2))
    task.model.get_parameter("weight").requires_grad_(False)
    with pytest.raises(InputError, match="all of them are frozen"):
        train(task, methods.FLoRAL(task.model, 2, routing="clustered"))


class Scale(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(shape))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.scale * inputs


@pytest.mark.parametrize("method", [methods.Ensemble, methods.IFCA, methods.FedEM])
def test_models_that_differ_in_some_of_their_weights_make_an_ensemble(
    method: type[methods.Ensemble],
) -> None:
    task = two_clients(lambda: nn.Sequential(Scale(1, 5), nn.Linear(5, 2)))
    state = train(task, method(task.model, 2)).state.clustered
    assert not torch.equal(*state["1.weight"])


def test_models_that_would_stay_alike_are_refused() -> None:
    task = two_clients(lambda: nn.Sequential(Scale(1, 5), nn.LayerNorm(5)))
    methods.Ensemble(task.model, 1).initialise(task.clusters, seed=0)
    with pytest.raises(InputError, match=r"start alike.*reset_parameters"):
        train(task, methods.Ensemble(task.model, 2))


def test_a_number_has_an_adaptor_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, Scale, {"scale": lambda *_: VectorAdaptor("scale", ())})
    task = two_clients(lambda: nn.Sequential(nn.Linear(5, 2), Scale()).double(), torch.float64)
    for method in (methods.FLoRAL(task.model, 2), methods.LocalAdaptor(task.model)):
        assert "1.scale" in method.plan
        fast, loop = (train(task, method, engine=engine) for engine in ("fast", "loop"))
        for one, other in zip(fast.state.tensors(), loop.state.tensors(), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("given", ["False", "no", 1, None])
def test_a_switch_is_true_or_false(given: object) -> None:
    with pytest.raises(InputError, match=r"biases is .*; it is True or False"):
        Options(rank=1, biases=given)  # type: ignore[arg-type]
    for method in (methods.FLoRAL, methods.LocalAdaptor):
        with pytest.raises(InputError, match=r"precondition is .*; it is True or False"):
            method(nn.Linear(5, 2), precondition=given)  # type: ignore[arg-type]


def test_the_command_line_reads_python_s_words() -> None:
    assert named({}, "--option", ["a=True", "b=False", "c=None", "d=false", "e=word"]) == {
        "a": True,
        "b": False,
        "c": None,
        "d": False,
        "e": "word",
    }


@pytest.mark.parametrize("given", [{"num_clients": 8.0}, {"num_clusters": 2.5}, {"seed": 1.5}, {"seed": "1"}])
def test_a_task_s_numbers_are_whole(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(InputError, match=f"{name} is .*whole number"):
        tasks.load("digits-rotate", **given)


def test_a_client_s_number_is_whole() -> None:
    task = two_clients(lambda: nn.Linear(5, 2))
    method = methods.Local(task.model)
    with pytest.raises(InputError, match=r"client is 0\.5; it must be a whole number"):
        personal_model(task, method, train(task, method), 0.5)  # type: ignore[arg-type]


def test_a_fraction_of_a_fraction_is_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0.05 * 0.568 < 0.0284  # as floats
    shares = []
    monkeypatch.setattr(recipe, "num_kept", lambda size, share: shares.append(share) or size)
    tenth = replace(tasks.TASKS["digits-rotate"], data_fraction=0.05)
    recipe.make_tasks("one", tenth, [0], 0.568, None, None, None)
    assert set(shares) == {0.0284}


def test_figures_of_a_run_that_was_never_tested_say_so() -> None:
    task = two_clients(lambda: nn.Linear(5, 2))
    history = replace(train(task, methods.FLoRAL(task.model, 2)).history, rounds=[])
    for draw in (plots.run_figure, plots.mixtures):
        with pytest.raises(InputError, match="no round was evaluated yet"):
            draw(history)
