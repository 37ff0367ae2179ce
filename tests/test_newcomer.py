"""A newcomer's mixture: Bayes' rule, the router's own gradient, and what cannot be told without labels."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional
from torch.testing import assert_close

from floral_lite import InputError, Shard, Task, methods, tasks, train
from floral_lite.methods import ROUTER
from floral_lite.newcomer import fit_router, match_labels, match_prototypes, minimise_entropy, prototypes
from floral_lite.router import closed_form, entropy, one_hot_logits, uniform_logits

GENERATOR = torch.Generator().manual_seed(0)
C, N, L, D = 3, 5, 4, 6
OUTPUTS = torch.randn(2, C, N, L, generator=GENERATOR, dtype=torch.float64)  # of two newcomers
LABELS = torch.randint(L, (2, N), generator=GENERATOR)
FEATURES = torch.randn(2, N, D, generator=GENERATOR, dtype=torch.float64)
PROTOTYPES = torch.randn(C, L, D, generator=GENERATOR, dtype=torch.float64)


def relabelled(outputs: Tensor, num_clusters: int) -> Tensor:
    """The outputs (N, L) of clusters that call label y by the name y + c."""
    return torch.stack([outputs.roll(c, dims=-1) for c in range(num_clusters)])


def test_labels_give_bayes_rule_sample_by_sample() -> None:
    probabilities = OUTPUTS[0].softmax(dim=-1)
    belief = torch.full((C,), 1 / C, dtype=torch.float64)
    for i, label in enumerate(LABELS[0].tolist()):
        belief = belief * probabilities[:, i, label]  # p(c | so far) p(y | x, c)
        belief = belief / belief.sum()
    torch.testing.assert_close(match_labels(OUTPUTS[0], LABELS[0]), belief)


def test_labels_give_the_closed_form_with_as_large_a_rate_as_there_are_samples() -> None:
    losses = torch.stack([functional.cross_entropy(outputs, LABELS[0]) for outputs in OUTPUTS[0]])
    torch.testing.assert_close(match_labels(OUTPUTS[0], LABELS[0]), closed_form(losses, N))


def test_entropies_are_summed_over_samples() -> None:
    summed = entropy(OUTPUTS[0].softmax(dim=-1)).sum(dim=1)
    torch.testing.assert_close(minimise_entropy(OUTPUTS[0]), closed_form(summed, 1.0))


def test_without_labels_clusters_that_only_rename_them_are_alike_and_with_labels_they_are_not() -> None:
    outputs = 3 * relabelled(OUTPUTS[0, 0], C)
    torch.testing.assert_close(minimise_entropy(outputs), torch.full((C,), 1 / C, dtype=torch.float64))
    labels = outputs[1].argmax(dim=-1)  # as cluster 1 calls them
    assert match_labels(outputs, labels).argmax() == 1


def test_renamed_prototypes_are_as_near() -> None:
    one = PROTOTYPES[:1]
    renamed = torch.cat([one.roll(c, dims=1) for c in range(C)])
    # all are as near, and the first is taken, wherever it stands
    torch.testing.assert_close(match_prototypes(FEATURES[0], renamed), torch.eye(C, dtype=torch.float64)[0])
    far = torch.cat([one + 100, renamed])
    assert match_prototypes(FEATURES[0], far).argmax() == 1
    # a cluster without any label is never near, and keeps nobody from the others
    assert match_prototypes(FEATURES[0], torch.cat([one + torch.inf, renamed])).argmax() == 1


def test_near_is_meant_of_squared_distances() -> None:
    # 3^2 > 2^2 + 2^2, though 3 < 2 + 2
    clusters = torch.tensor([[[3.0, 0.0]], [[2.0, 2.0]]])
    assert match_prototypes(torch.zeros(1, 2), clusters).tolist() == [0, 1]


@pytest.mark.parametrize("rule", ["labels", "entropy", "prototypes"])
def test_several_newcomers_at_once_are_each_as_alone(rule: str) -> None:
    together = {
        "labels": lambda k: match_labels(OUTPUTS[k], LABELS[k]),
        "entropy": lambda k: minimise_entropy(OUTPUTS[k]),
        "prototypes": lambda k: match_prototypes(FEATURES[k], PROTOTYPES),
    }[rule]
    alone = [together(k) for k in range(2)]
    torch.testing.assert_close(together(slice(None)), torch.stack(alone))


def test_the_nearest_prototype_of_each_sample_counts() -> None:
    # cluster 0 is far on average and near with the right prototype, cluster 1 the other way round
    clusters = torch.tensor([[[0.0], [100.0]], [[3.0], [3.0]]])
    assert match_prototypes(torch.tensor([[0.5], [99.0]]), clusters).tolist() == [1.0, 0.0]


def test_prototypes_are_means_of_all_samples_weighted_by_mixtures() -> None:
    features = [FEATURES[0], FEATURES[1]]
    labels = [torch.tensor([0, 0, 1, 1, 1]), torch.tensor([1, 1, 1, 1, 2])]
    mixtures = torch.tensor([[0.25, 0.75], [1.0, 0.0]], dtype=torch.float64)
    found = prototypes(features, labels, mixtures, num_labels=4)
    assert found.shape == (2, 4, D)
    # label 1 of cluster 0: three samples of weight 1/4 and four of weight 1
    wanted = (0.25 * features[0][2:].sum(dim=0) + features[1][:4].sum(dim=0)) / (3 * 0.25 + 4)
    torch.testing.assert_close(found[0, 1], wanted)
    torch.testing.assert_close(found[1, 1], features[0][2:].mean(dim=0))
    assert found[1, 2].isinf().all()  # nobody has it
    assert found[:, 3].isinf().all()
    # and what nobody has is near to nobody
    assert match_prototypes(features[1][4:], found).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("integers", [torch.uint8, torch.int16, torch.int32])
def test_labels_may_be_integers_of_any_type(integers: torch.dtype) -> None:
    labels = LABELS.to(integers)
    assert torch.equal(match_labels(OUTPUTS, labels), match_labels(OUTPUTS, LABELS))
    mixtures = torch.eye(2, C, dtype=torch.float64)
    assert torch.equal(prototypes(FEATURES, labels, mixtures, L), prototypes(FEATURES, LABELS, mixtures, L))


def test_a_step_on_the_router_is_the_papers_gradient() -> None:
    models = torch.randn(C, D, generator=GENERATOR, dtype=torch.float64)
    best = torch.randn(D, generator=GENERATOR, dtype=torch.float64)
    logits = torch.randn(C, generator=GENERATOR, dtype=torch.float64)
    found = fit_router(lambda pi: 0.5 * (pi @ models - best).square().sum(), logits, 1, 0.3)
    pi = logits.softmax(dim=0)
    # d f / d theta_c = pi_c <g, w_c - w_hat>
    gradient = pi * ((models - pi @ models) @ (pi @ models - best))
    torch.testing.assert_close(found, (logits - 0.3 * gradient).softmax(dim=0))


def test_fifty_steps_of_rate_one_are_taken_unless_told() -> None:
    loss = torch.arange(C, dtype=torch.float64).square().dot
    told = fit_router(loss, torch.zeros(C, dtype=torch.float64), steps=50, learning_rate=1.0)
    assert torch.equal(fit_router(loss, torch.zeros(C, dtype=torch.float64)), told)


def test_routers_of_a_stack_are_each_as_alone_and_what_was_given_stays() -> None:
    models = torch.randn(C, D, generator=GENERATOR, dtype=torch.float64)
    best = torch.randn(2, D, generator=GENERATOR, dtype=torch.float64)
    start = torch.zeros(2, C, dtype=torch.float64)
    both = fit_router(lambda pi: (pi @ models - best).square().sum(), start, 7)
    for k in range(2):
        own = fit_router(lambda pi, k=k: (pi @ models - best[k]).square().sum(), start[k], 7)
        torch.testing.assert_close(both[k], own)
    assert not start.any()
    assert not both.requires_grad
    assert not start.requires_grad
    torch.testing.assert_close(fit_router(lambda pi: pi.sum(), start, 0), torch.full_like(start, 1 / C))


def test_steps_are_taken_where_gradients_are_off_too() -> None:
    models = torch.arange(C, dtype=torch.float64)
    wanted = fit_router(lambda pi: (pi @ models).square(), torch.zeros(C, dtype=torch.float64), 5)
    with torch.no_grad():
        found = fit_router(lambda pi: (pi @ models).square(), torch.zeros(C, dtype=torch.float64), 5)
    assert torch.equal(found, wanted)


def test_a_one_hot_router_stays() -> None:
    start = one_hot_logits(torch.tensor(1), C)
    assert fit_router(lambda pi: pi @ torch.tensor([0.0, 1.0, 2.0]), start, 5).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: fit_router(torch.sum, torch.zeros(2), steps=-1), "steps is -1"),
        (lambda: fit_router(torch.sum, torch.zeros(2), steps=2.5), "steps is 2.5; it must be a whole"),
        (lambda: fit_router(torch.sum, torch.zeros(2), learning_rate=torch.inf), "and finite"),
        (lambda: fit_router(torch.sum, torch.zeros(2), learning_rate=0), "learning_rate is 0"),
        (lambda: fit_router(lambda pi: pi, torch.zeros(2)), r"gives tensor\(\[0\.5000, 0\.5000\]"),
        (
            lambda: fit_router(lambda pi: pi.sum().log() - torch.inf, torch.zeros(2)),
            r"gives tensor\(-inf, .* it must be a finite scalar",
        ),
        (lambda: match_labels(OUTPUTS[0, 0], LABELS[0]), "must be"),
        (lambda: match_labels(OUTPUTS[0], LABELS[0, 1:]), r"labels has the shape \(4,\)"),
        (lambda: match_labels(OUTPUTS[0], LABELS[0] + L), "labels go from"),
        (lambda: match_labels(OUTPUTS[0], LABELS[0] - L), "labels go from"),
        (lambda: match_labels(OUTPUTS[0], LABELS[0].double()), "integers"),
        (lambda: minimise_entropy(OUTPUTS[0, :, :0]), "at least one sample"),
        (lambda: minimise_entropy(OUTPUTS[0] * torch.nan), "outputs has NaN"),
        (
            lambda: minimise_entropy(OUTPUTS[0].where(OUTPUTS[0] < OUTPUTS[0].max(), torch.nan)),
            "outputs has NaN",
        ),
        (lambda: match_labels(OUTPUTS[0] * torch.nan, LABELS[0]), "outputs has NaN"),
        (lambda: match_prototypes(FEATURES[0], PROTOTYPES[:, :0]), "none of them 0"),
        (lambda: match_prototypes(FEATURES[0, :, 1:], PROTOTYPES), "features have the shape"),
        (lambda: match_prototypes(FEATURES[0, 0], PROTOTYPES), "features have the shape"),
        (lambda: match_prototypes(FEATURES[0], PROTOTYPES[0]), "prototypes"),
        (lambda: match_prototypes(FEATURES[0, :0], PROTOTYPES), "N at least 1"),
        # one of two newcomers
        (
            lambda: match_prototypes(torch.stack([FEATURES[0], FEATURES[1] * torch.nan]), PROTOTYPES),
            "no prototype is at a finite",
        ),
        (
            lambda: match_prototypes(torch.stack([FEATURES[0], FEATURES[1] + torch.inf]), PROTOTYPES),
            "no prototype is at a finite",
        ),
        (lambda: match_prototypes(FEATURES[0], PROTOTYPES + torch.inf), "no prototype is at a finite"),
        (
            lambda: prototypes([FEATURES[0], FEATURES[0, :, 1:]], [LABELS[0]] * 2, torch.ones(2, 1), L),
            "d that of all others",
        ),
        (
            lambda: prototypes(
                [FEATURES[0], FEATURES[0, :0]], [LABELS[0], LABELS[0, :0]], torch.ones(2, 1), L
            ),
            "N at least 1",
        ),
        (lambda: prototypes([FEATURES[0, :, 0]], [LABELS[0]], torch.ones(1, 1), L), r"must be \(N, d\)"),
        (lambda: prototypes([FEATURES[0]], [], torch.ones(1, 1), L), "labels of 0"),
        (lambda: prototypes([], [], torch.ones(0, 1), L), "features are of 0 clients"),
        (lambda: prototypes([FEATURES[0]], [LABELS[0]], torch.ones(1, 2), L), "mixtures"),
        (lambda: prototypes([FEATURES[0]], [LABELS[0]], torch.tensor(1.0), L), r"shape \(\); it must be"),
        (
            lambda: prototypes([FEATURES[0]], [LABELS[0]], torch.ones(1), L),
            r"shape \(1,\); it must be \(K, C",
        ),
        (lambda: prototypes([FEATURES[0]], [LABELS[0] + 1], torch.ones(1, 1), L), "labels go from"),
        (lambda: prototypes([FEATURES[0]], [LABELS[0]], torch.ones(1, 1), -1), "labels go from"),
        (lambda: prototypes([FEATURES[0]], [LABELS[0].double()], torch.ones(1, 1), L), "integers"),
        (lambda: prototypes([FEATURES[0]], [LABELS[0, 1:]], torch.ones(1, 1), L), "a label for each"),
    ],
)
def test_what_does_not_fit_is_refused(call: object, says: str) -> None:
    with pytest.raises(InputError, match=says):
        call()  # type: ignore[operator]


def mixed_loss(task: Task, models: list[dict[str, Tensor]], shard: Shard) -> Callable[[Tensor], Tensor]:
    """The loss on a shard of a mixture of models, as a function of the mixture."""
    stacks = {name: torch.stack([model[name] for model in models]) for name in models[0]}

    def loss(mixture: Tensor) -> Tensor:
        mixed = {name: torch.einsum("c,c...->...", mixture, stack) for name, stack in stacks.items()}
        return task.loss(functional_call(task.model, mixed, (shard.inputs,)), shard.targets)

    return loss


def test_on_turned_digits_inputs_tell_the_cluster_and_on_renamed_ones_only_labels_do() -> None:
    told: dict[str, dict[str, float]] = {}
    for name in ("digits-rotate", "digits-label-shift"):
        task = tasks.load(name, seed=3, num_clients=12)
        first = replace(task, train=task.train[:8], test=task.test[:8], clusters=task.clusters[:8])
        method = methods.FLoRAL(task.model, 4, budget=0.1, routing="optimal")
        state = train(first, method, seed=3, rounds=15, evaluate_every=0).state
        client = state.of_client(0)
        rows = one_hot_logits(torch.arange(4), 4)
        models = [method.personalise(client._replace(private={ROUTER: row})) for row in rows]
        known = prototypes(
            [shard.inputs.flatten(1) for shard in first.train],
            [shard.targets for shard in first.train],
            method.mixtures(state.private, 8),
            num_labels=10,
        )
        hits: dict[str, list[bool]] = {"labels": [], "gradient": [], "prototypes": []}
        for newcomer in range(8, 12):
            cluster, (inputs, targets) = int(task.clusters[newcomer]), task.train[newcomer]
            outputs = torch.stack([functional_call(task.model, model, (inputs,)) for model in models])

            found = {
                "labels": match_labels(outputs, targets),
                "gradient": fit_router(
                    mixed_loss(task, models, task.train[newcomer]), uniform_logits(1, 4)[0], 10
                ),
                "prototypes": match_prototypes(inputs.flatten(1), known),
            }
            for rule, mixture in found.items():
                hits[rule].append(bool(mixture.argmax() == cluster))
        told[name] = {rule: sum(right) / 4 for rule, right in hits.items()}
    assert told["digits-rotate"] == {"labels": 1, "gradient": 1, "prototypes": 1}
    assert told["digits-label-shift"]["labels"] == told["digits-label-shift"]["gradient"] == 1
    assert told["digits-label-shift"]["prototypes"] < 0.8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_over_many_samples_are_not_lost_in_half_precision(dtype: torch.dtype) -> None:
    features = [torch.full((5, 1), 3.0, dtype=dtype)] * 400
    labels = [torch.zeros(5, dtype=torch.long)] * 400
    assert prototypes(features, labels, torch.ones(400, 1), 1).item() == 3
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(4, 300, 10, generator=generator).to(dtype)
    targets = torch.randint(10, (300,), generator=generator)
    torch.testing.assert_close(match_labels(outputs, targets), match_labels(outputs.float(), targets))
    torch.testing.assert_close(minimise_entropy(outputs), minimise_entropy(outputs.float()))
    # 300 squared is more than float16 holds
    far = torch.full((2, 4), 300.0, dtype=dtype)
    assert match_prototypes(far, torch.zeros(2, 1, 4, dtype=dtype)).sum() == 1


def test_infinite_outputs_are_refused_where_they_leave_no_probability() -> None:
    for infinite in (torch.inf, -torch.inf):
        outputs = torch.zeros(2, 1, 2)
        outputs[:, 0, 0] = infinite
        with pytest.raises(InputError, match=r"infinite|-inf"):
            match_labels(outputs, torch.tensor([0]))
    with pytest.raises(InputError, match="infinite"):
        minimise_entropy(torch.tensor([[[torch.inf, 0.0]], [[0.0, 1.0]]]))
    outputs = torch.zeros(2, 1, 2)
    outputs[0, 0, 0] = -torch.inf  # the first model rules the label out
    assert match_labels(outputs, torch.tensor([0])).tolist() == [0, 1]
    both = torch.stack([outputs, outputs])
    both[1, 1, 0, 0] = -torch.inf  # of the second newcomer all models do
    with pytest.raises(InputError, match="every model rules some label out"):
        match_labels(both, torch.tensor([[0], [0]]))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_labels_may_be_unsigned(dtype: torch.dtype) -> None:
    labels, outputs = (
        torch.tensor([0, 1, 1]),
        torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(0)),
    )
    assert torch.equal(match_labels(outputs, labels.to(dtype)), match_labels(outputs, labels))
    with pytest.raises(InputError, match="labels go from 0 to 2"):
        match_labels(outputs, torch.tensor([0, 1, 2]).to(dtype))


@pytest.mark.parametrize("loss", [lambda _: 1.0, lambda _: torch.tensor(1.0), lambda pi: pi.detach().sum()])
def test_a_loss_without_a_gradient_is_refused(loss: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(InputError, match=r"loss gives .*made of the mixture"):
        fit_router(loss, torch.zeros(2))


def test_numbers_may_be_of_numpy_or_in_lists() -> None:
    outputs, features, labels, mixtures = OUTPUTS.float()[0], FEATURES.float(), LABELS, torch.eye(C)[:2]
    found = prototypes(features, labels, mixtures, L)
    for given in (Tensor.numpy, Tensor.tolist, list):
        assert_close(match_labels(given(outputs), given(labels[0])), match_labels(outputs, labels[0]))
        assert_close(minimise_entropy(given(outputs)), minimise_entropy(outputs))
        assert_close(prototypes(given(features), given(labels), given(mixtures), L), found)
        assert_close(match_prototypes(given(features[0]), given(found)), match_prototypes(features[0], found))
        start = given(torch.zeros(2))
        assert_close(fit_router(lambda pi: pi[0], start, 1), fit_router(lambda pi: pi[0], torch.zeros(2), 1))


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: match_labels(OUTPUTS[0], None), r"labels is None .*give a tensor"),  # type: ignore[arg-type]
        (lambda: minimise_entropy([[[1.0, 2.0]], [[1.0]]]), "outputs is .*all rows of one length"),
        (lambda: prototypes(FEATURES, LABELS, torch.eye(2), "4"), "num_labels is '4'"),  # type: ignore[arg-type]
        (lambda: fit_router(lambda pi: pi[0], 2), "logits is one number"),  # type: ignore[arg-type]
        (lambda: fit_router(lambda pi: 9 * pi[0], torch.zeros(2), 1, 1e39), r"learning_rate is 1e\+39"),
        (lambda: fit_router(lambda pi: pi[0], torch.tensor([0, torch.nan]), 0), "not finite"),
    ],
)
def test_what_gives_no_mixture_is_told(ask: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ask()
