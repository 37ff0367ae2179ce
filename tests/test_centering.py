"""Centering: what it preserves, what it moves, and what the truncation loses."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from floral_lite import Floral, InputError
from floral_lite.adaptors import LowRankAdaptor, VectorAdaptor
from floral_lite.centering import center

C = 3
UNIFORM, SKEWED, RAGGED = torch.tensor([[1 / 3] * 3, [0.7, 0.1, 0.2], [0.5, 0, 0.5]], dtype=torch.float64)

Layer = tuple[Callable[[], nn.Module], dict[str, Any], tuple[int, ...]]


def convolutions(make: Callable[[], nn.Module], shape: tuple[int, ...], *kinds: str) -> dict[str, Layer]:
    return {kind: (make, {"convolution": kind}, shape) for kind in kinds}


CHANNEL = ("channel", "channel_in", "channel_out", "reshaped")
LAYERS: dict[str, Layer] = {
    "linear": (lambda: nn.Linear(6, 5), {}, (7, 6)),
    "embedding": (lambda: nn.Embedding(9, 4), {}, ()),
    **convolutions(lambda: nn.Conv2d(4, 3, (3, 2)), (2, 4, 5, 5), *CHANNEL, "balanced", "filter"),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), {}, (2, 4, 5, 5)),
    "1d": (lambda: nn.Conv1d(4, 3, 3, stride=2), {}, (2, 4, 7)),
    "3d": (lambda: nn.Conv3d(2, 3, 2), {}, (2, 2, 3, 3, 3)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 3, 3, stride=2), {}, (2, 4, 3, 3)),
    "transposed in": (
        lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), {"convolution": "channel_in"}, (2, 4, 3, 3)
    ),
    "batch norm": (lambda: nn.Sequential(nn.BatchNorm2d(4)), {}, (2, 4, 5, 5)),
    "layer norm": (lambda: nn.LayerNorm(6), {}, (7, 6)),
    "group norm": (lambda: nn.GroupNorm(2, 4), {}, (2, 4, 5, 5)),
}  # fmt: skip
LOW_RANK = [name for name in LAYERS if "norm" not in name]


def trained(name: str, rank: int, num_clusters: int = C) -> tuple[Floral, Tensor]:
    """A layer in float64 whose adaptors are all away from zero, and inputs for it."""
    make, options, shape = LAYERS[name]
    model = Floral(make(), rank=rank, num_clusters=num_clusters, **options).double().eval()
    with torch.no_grad():
        for tensor in model.clustered().values():
            tensor.normal_()
    return model, torch.randn(shape).double() if shape else torch.arange(9)


def differences(model: Floral, probability: Tensor) -> Tensor:
    """U_c V_c^T - E_c[U_c V_c^T] of the weight, one large matrix a cluster, by plain loops."""
    factors = [tensor.detach() for name, tensor in model.clustered().items() if name[-2:] in (".U", ".V")]
    u, v = (tensor.reshape(len(tensor), -1, tensor.shape[-1]) for tensor in factors)
    products = [u[c] @ v[c].T for c in range(len(u))]
    mean = sum(p * product for p, product in zip(probability, products, strict=True))
    return torch.stack([product - mean for product in products])


def mixtures() -> list[Tensor]:
    """Points of the simplex: corners, the centre, and the inside."""
    inside = torch.distributions.Dirichlet(torch.ones(C).double()).sample((3,))
    return [*torch.eye(C).double(), UNIFORM, *inside]


@pytest.mark.parametrize("probability", [None, SKEWED, RAGGED], ids=["default", "skewed", "ragged"])
@pytest.mark.parametrize("name", LAYERS)
def test_at_full_rank_every_client_keeps_its_function_and_the_mean_is_zero(
    name: str, probability: Tensor | None
) -> None:
    # larger than the matrix, so that nothing can be cut
    model, inputs = trained(name, rank=40)
    points = mixtures()

    def outputs() -> list[Tensor]:
        results = []
        for mixture in points:
            with torch.no_grad():
                model.router_logits.copy_(mixture.log())
            results.append(model(inputs).detach())
        return results

    before, base = outputs(), [parameter.detach().clone() for parameter in model.base.parameters()]
    parameters = [model.personal_parameters(mixture) for mixture in points]
    lost = model.center(probability)
    assert lost == pytest.approx(dict.fromkeys(model.plan, 0.0), abs=1e-12)
    scale = max(float(output.abs().max()) for output in before)
    torch.testing.assert_close(outputs(), before, rtol=0, atol=1e-12 * scale)
    for mixture, expected in zip(points, parameters, strict=True):
        torch.testing.assert_close(model.personal_parameters(mixture), expected, rtol=0, atol=1e-10)
    # E_c[a_c] = 0, so the mean client has the base itself
    of_the_mean = model.personal_parameters(UNIFORM if probability is None else probability)
    for parameter, (key, tensor) in zip(base, model.base.named_parameters(), strict=True):
        torch.testing.assert_close(of_the_mean[key], tensor, rtol=0, atol=1e-10)
        assert not torch.equal(parameter, tensor)


def test_the_example_of_the_appendix() -> None:
    """u = 5, a = (4, 6) becomes u = 10, a = (-1, 1)."""
    model = Floral(nn.LayerNorm(1), rank=1, num_clusters=2)
    with torch.no_grad():
        model.base.weight.fill_(5)
        model.clustered()["weight.L"].copy_(torch.tensor([[4.0], [6.0]]))
    model.center()
    assert model.base.weight.item() == 10
    assert model.clustered()["weight.L"].flatten().tolist() == [-1, 1]


@pytest.mark.parametrize("probability", [UNIFORM, SKEWED], ids=["uniform", "skewed"])
def test_biases_and_norms_are_centered_exactly_whatever_the_rank(probability: Tensor) -> None:
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 9, 5), nn.LayerNorm(5)
    )
    model = Floral(net, rank=1, num_clusters=C).double()
    with torch.no_grad():
        for name, tensor in model.clustered().items():
            tensor.normal_()
            if name.endswith("L"):
                tensor[:, 0] = 0  # a mean that is zero in places has to move, too
    vectors = [name for name, adaptor in model.plan.items() if not isinstance(adaptor, LowRankAdaptor)]
    assert vectors == ["0.bias", "1.weight", "1.bias", "3.bias", "4.weight", "4.bias"]
    points = mixtures()
    before = [model.personal_parameters(mixture) for mixture in points]
    old = {name: tensor.detach().clone() for name, tensor in model.clustered().items()}
    lost = model.center(probability)
    for mixture, expected in zip(points, before, strict=True):
        after = model.personal_parameters(mixture)
        for name in vectors:
            torch.testing.assert_close(after[name], expected[name], rtol=0, atol=1e-14)
    for name in vectors:
        assert lost[name] == 0
        mean = sum(probability[c] * old[f"{name}.L"][c] for c in range(C))
        torch.testing.assert_close(
            model.clustered()[f"{name}.L"].detach(), old[f"{name}.L"] - mean, rtol=0, atol=1e-14
        )


@pytest.mark.parametrize("probability", [UNIFORM, SKEWED], ids=["uniform", "skewed"])
@pytest.mark.parametrize("name", LOW_RANK)
def test_the_kept_part_is_the_best_of_its_rank_and_its_error_is_what_is_reported(
    name: str, probability: Tensor
) -> None:
    model, _ = trained(name, rank=1)
    rank = model.clustered()["weight.U"].shape[-1]  # of `filter`: c_out times the rank
    whole = differences(model, probability)
    lost = model.center(probability)
    kept = differences(model, torch.zeros(C))
    u, sigma, v = torch.linalg.svd(whole, full_matrices=False)
    best = u[..., :rank] * sigma[:, None, :rank] @ v[:, :rank]
    torch.testing.assert_close(kept, best, rtol=0, atol=1e-10)
    # Eckart and Young: the error is the tail of the singular values
    errors = torch.stack([(whole[c] - kept[c]).norm() for c in range(C)])
    torch.testing.assert_close(errors, torch.stack([sigma[c, rank:].norm() for c in range(C)]))
    # relative, over all C: sqrt(sum of squares of what is lost / of what there was)
    assert lost["weight"] == pytest.approx(float(errors.norm() / whole.norm()), rel=1e-9)
    assert 0.01 < lost["weight"] < 1
    # nothing else of this rank is as close, however its other factor is fitted
    for c in range(C):
        for _ in range(20):
            columns = u[c, :, :rank] + 0.1 * torch.randn(whole.shape[1], rank).double()
            fitted = columns @ torch.linalg.lstsq(columns, whole[c]).solution
            assert float((whole[c] - fitted).norm()) > float(errors[c])


def test_after_a_truncation_the_personal_models_differ_by_what_is_reported() -> None:
    """A difference of C adaptors has rank up to C r, and only r of it is kept."""
    model, inputs = trained("linear", rank=2)
    corners = torch.eye(C).double()
    before = torch.stack([model.personal_parameters(corner)["weight"].detach() for corner in corners])
    differing = differences(model, UNIFORM)
    assert torch.linalg.matrix_rank(differing).tolist() == [5, 5, 5]
    with torch.no_grad():
        model.router_logits.copy_(corners[1].log())
    output = model(inputs).detach()
    lost = model.center()["weight"]
    after = torch.stack([model.personal_parameters(corner)["weight"].detach() for corner in corners])
    assert lost > 0.1
    assert float((after - before).norm() / differing.norm()) == pytest.approx(lost, rel=1e-9)
    assert not torch.allclose(model(inputs), output, rtol=0.01)


@pytest.mark.parametrize(
    ("p", "q"), [(2.0, 2.0), (1.0, math.inf), (math.inf, 1.0), (4.0, 4 / 3), (1.25, 5.0)]
)
@pytest.mark.parametrize("name", ["linear", "embedding", "balanced", "transposed"])
def test_p_and_q_split_the_singular_values_and_leave_the_product(name: str, p: float, q: float) -> None:
    model, _ = trained(name, rank=2)
    expected = torch.linalg.svdvals(differences(model, SKEWED))[:, :2]
    standard, _ = trained(name, rank=2)
    standard.load_state_dict(model.state_dict())
    assert model.center(SKEWED, p=p, q=q) == standard.center(SKEWED)
    none = torch.zeros(C)
    torch.testing.assert_close(differences(model, none), differences(standard, none), rtol=0, atol=1e-12)
    # U Sigma^(1/p) and V Sigma^(1/q), with orthonormal U and V
    for factor, power in (("U", p), ("V", q)):
        tensor = model.clustered()[f"weight.{factor}"].detach().reshape(C, -1, 2)
        gram = tensor.mT @ tensor
        torch.testing.assert_close(gram, torch.diag_embed(expected ** (2 / power)), rtol=1e-9, atol=1e-9)


def test_it_happens_in_place_and_as_the_function_says() -> None:
    model, _ = trained("linear", rank=2)
    base, clustered = dict(model.base.named_parameters()), model.clustered()
    centered = center(model.plan, base, clustered, SKEWED)
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    assert all(torch.equal(before[f"base.{name}"], base[name]) for name in base)
    places = [parameter.data_ptr() for parameter in model.parameters()]
    assert model.center(SKEWED) == centered.lost
    # the same parameters at the same place, so that optimizers go on
    assert places == [parameter.data_ptr() for parameter in model.parameters()]
    assert all(parameter is base[name] for name, parameter in model.base.named_parameters())
    assert all(tensor is clustered[name] for name, tensor in model.clustered().items())
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in model.parameters())
    for name, tensor in centered.base.items():
        assert torch.equal(base[name], tensor)
        assert not torch.equal(before[f"base.{name}"], tensor)
    assert all(torch.equal(clustered[name], tensor) for name, tensor in centered.clustered.items())
    assert torch.equal(model.router_logits, before["router_logits"])


def test_a_second_time_changes_nothing() -> None:
    model, _ = trained("linear", rank=5)
    model.center(SKEWED)
    once = [parameter.detach().clone() for parameter in model.base.parameters()]
    products = differences(model, torch.zeros(C))
    model.center(SKEWED)
    for parameter, expected in zip(model.base.parameters(), once, strict=True):
        torch.testing.assert_close(parameter.detach(), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(differences(model, torch.zeros(C)), products, rtol=0, atol=1e-12)


@pytest.mark.parametrize("init", ["paper", "authors"])
def test_fresh_adaptors_stay_as_they_are_and_can_learn(init: Any) -> None:
    """U Sigma^(1/2) and V Sigma^(1/2) of a product that is zero would both be zero, and never learn."""
    model = Floral(nn.Linear(6, 5), rank=2, num_clusters=C, init=init)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert model.center() == {"weight": 0.0, "bias": 0.0}
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_an_only_adaptor_moves_into_the_base() -> None:
    model, inputs = trained("linear", rank=2, num_clusters=1)
    before = model(inputs).detach()
    model.center()
    torch.testing.assert_close(model(inputs), before)
    torch.testing.assert_close(model.base(inputs), before)


def test_the_vector_of_the_padding_stays_as_it_is() -> None:
    model = Floral(nn.Embedding(9, 4, padding_idx=2), rank=2, num_clusters=C).double()
    with torch.no_grad():
        for name, tensor in model.clustered().items():
            tensor.normal_()
            if name.endswith("V"):
                tensor[:, 2] = 0
    model.center(SKEWED)
    for corner in torch.eye(C).double():
        assert float(model.personal_parameters(corner)["weight"][2].detach().abs().max()) < 1e-12


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["linear", "balanced", "batch norm"])
def test_lower_precisions_keep_the_function_to_their_own_rounding(name: str, precision: torch.dtype) -> None:
    model, _ = trained(name, rank=8)
    model = model.to(precision)
    points = mixtures()
    before = [model.personal_parameters(mixture.to(precision)) for mixture in points]
    centered = center(model.plan, dict(model.base.named_parameters()), model.clustered(), SKEWED)
    assert {tensor.dtype for tensor in (centered.base | centered.clustered).values()} == {precision}
    lost = model.center(SKEWED)
    assert max(lost.values()) < 1e-5
    assert {parameter.dtype for parameter in model.parameters()} == {precision}
    for mixture, expected in zip(points, before, strict=True):
        after = model.personal_parameters(mixture.to(precision))
        for key, tensor in expected.items():
            scale = 10 * torch.finfo(precision).eps * float(tensor.detach().abs().max())
            torch.testing.assert_close(after[key], tensor, rtol=0, atol=scale)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"p": 2.0, "q": 3.0}, r"p is 2\.0 and q is 3\.0; 1/p \+ 1/q must be 1"),
        ({"p": 2.0, "q": 2.001}, r"q is 2\.001; 1/p \+ 1/q must be 1"),
        ({"p": 0.5, "q": -1.0}, r"p is 0\.5 and q is -1\.0"),
        ({"p": math.inf}, "p is inf"),
        ({"p": 0, "q": 1.0}, "p is 0 and q is"),
        ({"p": 1.0, "q": 0}, r"p is 1\.0 and q is 0"),
        ({"probability": torch.tensor([0.5, 0.6, 0.1])}, r"probability has sums 1\.2"),
        ({"probability": torch.tensor([1.5, -0.5, 0.0])}, r"probability has .* a smallest entry -0\.5"),
        ({"probability": torch.ones(3, 1)}, r"shape \(3, 1\)"),
        ({"probability": [0.5, 0.5]}, r"shape \(2,\); give p\(c\) of each of 3 adaptors"),
        ({"probability": "uniform"}, r"probability is 'uniform' .*; give a tensor"),
        ({"probability": torch.tensor([math.nan, 0.5, 0.5])}, "probability has sums nan"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_and_nothing_is_changed(
    arguments: dict[str, Any], message: str
) -> None:
    model, _ = trained("linear", rank=2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(InputError, match=message):
        model.center(**arguments)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_failure_halfway_changes_nothing() -> None:
    """The second layer has no singular values, the first was done already."""
    model = Floral(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), rank=1, num_clusters=C)
    with torch.no_grad():
        for tensor in model.clustered().values():
            tensor.normal_()
        model.clustered()["1.weight.U"].fill_(math.nan)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(torch.linalg.LinAlgError):
        model.center()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True)


def test_a_parameter_whose_numbers_share_memory_is_centered_too() -> None:
    """Torch writes into no such tensor, and the layer before it would have been written already."""
    model = Floral(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), rank=2, num_clusters=C)
    with torch.no_grad():
        for tensor in model.clustered().values():
            tensor.normal_()
    model.base.get_parameter("1.weight").data = torch.ones(1, 3).expand(2, 3)
    base, clustered = dict(model.base.named_parameters()), model.clustered()
    centered = center(model.plan, base, clustered)
    assert model.center() == centered.lost
    assert all(torch.equal(base[name], tensor) for name, tensor in centered.base.items())
    assert all(torch.equal(clustered[name], tensor) for name, tensor in centered.clustered.items())


@pytest.mark.parametrize("p", [2.0, 1.0])
@pytest.mark.parametrize(
    ("rank", "num_clusters", "probability"), [(2, 1, [1.0]), (3, 2, [1.0, 0.0]), (5, 2, [0.5, 0.5])]
)
# the filter's factors have four columns, and its matrix (8, 2) has two singular values
@pytest.mark.parametrize("layer", [nn.Linear(4, 3), nn.Conv2d(1, 4, 2)], ids=["linear", "filter"])
def test_what_is_centered_to_nothing_can_learn_again(
    layer: nn.Module, rank: int, num_clusters: int, probability: list[float], p: float
) -> None:
    model = Floral(layer, rank=rank, num_clusters=num_clusters, convolution="filter").double()
    with torch.no_grad():
        for parameter in model.adaptors.parameters():
            parameter.normal_()
    inputs = torch.randn(5, 1, 4, 4, dtype=torch.float64)
    before = model(inputs)
    model.center(probability, p, q=2.0 if p == 2 else math.inf)
    torch.testing.assert_close(model(inputs), before)
    model(inputs).square().sum().backward()
    v = model.get_parameter("adaptors.weight.V")
    assert v.grad is not None
    # every column of every V is there, or is moved by the next step
    columns, slopes = v.detach().flatten(1, -2), v.grad.flatten(1, -2)
    assert ((columns.norm(dim=1) > 1e-6) | (slopes.norm(dim=1) > 1e-6)).all()


class Doubled:
    """An adaptor of one's own, of another form."""

    kind, shape, shapes, num_parameters = "doubled", (3,), {"half": (3,)}, 3

    def initialise(self, num_clusters: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {"half": torch.zeros(num_clusters, 3)}

    def delta(self, factors: Mapping[str, Tensor], mixture: Tensor) -> Tensor:
        return 2 * mixture @ factors["half"]


def test_an_adaptor_of_another_form_is_told() -> None:
    with pytest.raises(InputError, match=r"bias has an adaptor of type Doubled, .*leave the adaptors"):
        center({"bias": Doubled()}, {"bias": torch.ones(3)}, {"bias.half": torch.ones(2, 3)})


class Twice(VectorAdaptor):
    """A vector that adds twice itself."""

    def delta(self, factors: Mapping[str, Tensor], mixture: Tensor) -> Tensor:
        return 2 * super().delta(factors, mixture)


def test_a_vector_that_adds_something_else_is_told() -> None:
    with pytest.raises(InputError, match=r"bias has an adaptor of type Twice"):
        center({"bias": Twice("twice", (3,))}, {"bias": torch.ones(3)}, {"bias.L": torch.eye(3)[:2]})


@pytest.mark.parametrize("size", [1.0, 1e6])
def test_adaptors_that_are_alike_leave_nothing_however_large_they_are(size: float) -> None:
    """What rounding leaves of their difference grows with them, and must not count as one."""
    model, _ = trained("linear", rank=2)
    clustered = model.clustered()
    with torch.no_grad():
        for tensor in clustered.values():
            tensor.copy_(tensor[0].clone())
        clustered["weight.U"].mul_(size)
    model.center(SKEWED)
    assert not clustered["weight.V"].any()
    torch.testing.assert_close(clustered["weight.U"].detach().norm(dim=1), torch.ones(C, 2).double())


def test_two_that_are_alike_leave_nothing_beside_a_small_one() -> None:
    """What rounding leaves grows with the largest adaptor, not with the first."""
    model, _ = trained("linear", rank=2)
    clustered = model.clustered()
    with torch.no_grad():
        clustered["weight.U"][0] *= 1e-6
        for tensor in clustered.values():
            tensor[2] = tensor[1]
    model.center(torch.tensor([0, 0.3, 0.7], dtype=torch.float64))
    assert not clustered["weight.V"][1:].any()
    assert clustered["weight.V"][0].any()


@pytest.mark.parametrize("num_clusters", [2, 3, 7])
def test_nothing_is_lost_where_all_adaptors_are_alike(num_clusters: int) -> None:
    model = Floral(nn.Linear(20, 10), rank=3, num_clusters=num_clusters)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in model.clustered().values():
            tensor.copy_(torch.randn(tensor.shape[1:], generator=generator).expand_as(tensor))
    assert model.center() == {"weight": 0, "bias": 0}
