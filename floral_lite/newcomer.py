"""A client that was not there in training: its mixture from a few samples, with labels or without.

The models stay as they are; only the newcomer's C mixture weights are found: by steps on a router, or in
closed form from a number l_i(c) for each sample and cluster, pi_c prop exp(-sum_i l_i(c)). Numbers may be
tensors, NumPy's arrays, or lists of either, such as `[model(x) for model in models]`.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .errors import real_number, require, whole_number
from .given import Numbers, check_labels, precise, tensor_of
from .objectives import check_mixtures
from .router import closed_form, entropy


@torch.enable_grad()
def fit_router(
    loss: Callable[[Tensor], Tensor], logits: Numbers, steps: int = 50, learning_rate: float = 1.0
) -> Tensor:
    """Gradient steps on a router alone: theta <- theta - eta d loss(softmax(theta)) / d theta.

    It turns gradients on, so that it can be called under no_grad.

    Args:
        loss: of a mixture (..., C), a scalar: of labelled samples, or the entropy of predictions. Several
            newcomers at once need the sum of their losses: then no step depends on the other newcomers.
        logits: theta to start from, such as `torch.zeros(C)`, shape (..., C), in the models' precision.
        steps: how many, >= 0.
        learning_rate: eta > 0, finite.

    Returns:
        The mixtures pi, shape (..., C); the logits that were given stay as they are.

    Raises:
        InputError: steps or learning_rate is out of range, or the loss or a mixture is not finite.

    Source: section 'Practical Implementation', 'Learning the mixture weights', with all else held still.

    Example:
        >>> models = torch.tensor([0.0, 1.0])  # the newcomer's best model is 0.8
        >>> mixture = fit_router(lambda pi: (pi @ models - 0.8) ** 2, torch.zeros(2), steps=200)
        >>> mixture.round(decimals=3)
        tensor([0.2000, 0.8000])
    """
    require(whole_number("steps", steps) >= 0, f"steps is {steps}; it must be at least 0")
    require(
        0 < real_number("learning_rate", learning_rate) < math.inf,
        f"learning_rate is {learning_rate}; it must be positive, and finite: try 1",
    )
    logits = tensor_of("logits", logits)
    logits = logits if logits.is_floating_point() else logits.float()
    require(logits.dim() > 0, "logits is one number; it must be (..., C), such as torch.zeros(C)")
    for _ in range(steps):
        logits = logits.detach().requires_grad_()
        value = loss(torch.softmax(logits, dim=-1))
        require(
            getattr(value, "requires_grad", False) and value.dim() == 0 and bool(value.isfinite()),
            f"loss gives {value!r}; it must be a finite scalar made of the mixture, with its gradient: sum "
            "over the newcomers, and lower learning_rate if it is not finite",
        )
        (gradient,) = torch.autograd.grad(value, logits)
        logits = logits - learning_rate * gradient
    mixture = torch.softmax(logits.detach(), dim=-1)
    require(
        bool(mixture.isfinite().all()),
        f"learning_rate is {learning_rate}, and a step is not finite: lower it",
    )
    return mixture


def match_labels(outputs: Numbers, labels: Numbers) -> Tensor:
    """Bayes' rule, from a uniform prior over clusters: pi_c prop prod_i p(y_i | x_i, w_c).

    It is the closed form of a router that was reset, with the sum of the cross-entropies: eta is N.

    Args:
        outputs: logits of the C clusters' models on the newcomer's samples, shape (..., C, N, L).
        labels: in [0, L), integers, shape (..., N).

    Returns:
        pi, shape (..., C).

    Raises:
        InputError: the shapes do not fit, a label is out of range, outputs has NaN or infinity, or every
            model rules a label out.

    Source: appendix 'Router Update', with a uniform prior.

    Example:
        >>> outputs = torch.tensor([[[9.0, 1.0]], [[1.0, 3.0]]]).log()  # 90% and 25% for label 0
        >>> match_labels(outputs, torch.tensor([0]))
        tensor([0.7826, 0.2174])
    """
    outputs, labels = _checked(outputs), tensor_of("labels", labels)
    wanted = (*outputs.shape[:-3], outputs.shape[-2])
    require(
        labels.shape == wanted,
        f"labels has the shape {tuple(labels.shape)}; outputs {tuple(outputs.shape)} need {wanted}",
    )
    check_labels(labels, outputs.shape[-1])
    index = labels.long()[..., None, :, None].expand(*outputs.shape[:-1], 1)
    # l_i(c) = -log p(y_i | x_i, w_c)
    losses = -outputs.log_softmax(dim=-1).gather(-1, index).squeeze(-1).sum(dim=-1)
    require(
        bool(losses.isfinite().any(dim=-1).all()),
        "every model rules some label out, by a logit of -inf: give a finite one",
    )
    return closed_form(losses, 1.0)


def minimise_entropy(outputs: Numbers) -> Tensor:
    """Without labels: pi_c prop exp(-sum_i H_i(c)), H_i(c) being the entropy of what model c predicts.

    It bets that the right model is the surest one. Where clusters differ only in the labels that they give to
    the same inputs, all models are equally sure, and nothing is learned.

    Args:
        outputs: logits of the C clusters' models on the newcomer's samples, shape (..., C, N, L).

    Returns:
        pi, shape (..., C).

    Raises:
        InputError: outputs has fewer than three axes, or an empty one, or NaN or infinity.

    Source: the objective of Wang et al., 2021 (Tent), here of a choice among C models; not the paper's.

    Example:
        >>> sure, unsure = [[9.0, 0.0]], [[0.0, 0.0]]
        >>> minimise_entropy(torch.tensor([sure, unsure])).round(decimals=2)
        tensor([0.6700, 0.3300])
    """
    outputs = _checked(outputs)
    return closed_form(entropy(outputs.softmax(dim=-1)).sum(dim=-1), 1.0)


def prototypes(
    features: Sequence[Numbers], labels: Sequence[Numbers], mixtures: Numbers, num_labels: int
) -> Tensor:
    """Each cluster's mean features of each label, over the clients of the federation.

    Args:
        features: of each client's samples, K arrays (N^k, d), all of the same network.
        labels: of the same samples, K arrays (N^k,) of integers in [0, num_labels).
        mixtures: pi^k; client k counts with pi_c^k in cluster c; shape (K, C).
        num_labels: L.

    Returns:
        Shape (C, L, d); infinite, and so never near, where a cluster has no such label.

    Raises:
        InputError: lists and mixtures are not of the same clients, a label is out of range, or a row of the
            mixtures is not on the simplex.

    Source: the class prototypes of Tan et al., 2022 (FedProto), here for each cluster; not the paper's.

    Example:
        >>> features = [torch.tensor([[1.0], [3.0]]), torch.tensor([[7.0]])]
        >>> labels = [torch.tensor([0, 0]), torch.tensor([1])]
        >>> prototypes(features, labels, torch.eye(2), num_labels=2).squeeze(-1)
        tensor([[2., inf],
                [inf, 7.]])
    """
    inputs = [precise(tensor_of("features", own)) for own in features]
    targets = [tensor_of("labels", own) for own in labels]
    require(
        len(inputs) == len(targets) > 0,
        f"features are of {len(inputs)} clients, labels of {len(targets)}; give both of every client",
    )
    mixtures = tensor_of("mixtures", mixtures)
    require(mixtures.dim() == 2, f"mixtures has the shape {tuple(mixtures.shape)}; it must be (K, C)")
    check_mixtures(mixtures, len(inputs), mixtures.shape[-1])
    require(
        all(
            own.dim() == 2 and own.shape[1] == inputs[0].shape[-1] and own.shape[:1] == of_own.shape != (0,)
            for own, of_own in zip(inputs, targets, strict=True)
        ),
        "features of a client must be (N, d), N at least 1 and d that of all others, with a label for each "
        "of the N samples",
    )
    for of_own in targets:
        check_labels(of_own, whole_number("num_labels", num_labels))
    sums = inputs[0].new_zeros(mixtures.shape[1], num_labels, inputs[0].shape[1])
    counts = inputs[0].new_zeros(mixtures.shape[1], num_labels)
    for own, of_own, mixture in zip(inputs, targets, mixtures, strict=True):
        here = torch.nn.functional.one_hot(of_own.long(), num_labels).to(own)  # (N^k, L)
        # sum_k pi_c^k sum_{i : y_i = y} h(x_i), and how many that are
        sums += mixture[:, None, None] * (here.T @ own)
        counts += mixture[:, None] * here.sum(dim=0)
    return torch.where(counts[..., None] > 0, sums / counts[..., None], torch.inf)


def match_prototypes(features: Numbers, prototypes: Numbers) -> Tensor:
    """Without labels: the cluster whose prototypes are nearest, min_c mean_i min_y ||h(x_i) - p_cy||^2.

    Args:
        features: h(x_i) of the newcomer's samples, shape (..., N, d).
        prototypes: p_cy, see `prototypes`, shape (C, L, d).

    Returns:
        A one-hot pi, shape (..., C).

    Raises:
        InputError: the shapes do not fit, or nothing is at a finite distance.

    Source: ours, not the paper's.

    Example:
        >>> clusters = torch.tensor([[[0.0], [1.0]], [[5.0], [6.0]]])  # C = 2, two labels, d = 1
        >>> match_prototypes(torch.tensor([[4.0], [5.5]]), clusters)
        tensor([0., 1.])
    """
    features, prototypes = tensor_of("features", features), tensor_of("prototypes", prototypes)
    require(
        prototypes.dim() == 3
        and prototypes.numel() > 0
        and features.dim() >= 2
        and features.shape[-2] > 0
        and features.shape[-1] == prototypes.shape[-1],
        f"features have the shape {tuple(features.shape)} and prototypes {tuple(prototypes.shape)}; "
        "they must be (..., N, d), N at least 1, and (C, L, d), none of them 0",
    )
    apart = precise(features)[..., None, :, None, :] - prototypes[:, None]  # (..., C, N, L, d)
    nearest = apart.square().sum(dim=-1).amin(dim=-1).mean(dim=-1)
    require(
        bool(nearest.amin(dim=-1).isfinite().all()),
        "no prototype is at a finite distance: features are not finite, or no cluster has any label",
    )
    return torch.nn.functional.one_hot(nearest.argmin(dim=-1), len(prototypes)).to(features)


def _checked(given: Numbers) -> Tensor:
    """The outputs, at least in single precision; InputError unless they are of a sample, and finite."""
    outputs = tensor_of("outputs", given)
    require(
        outputs.dim() >= 3 and outputs.numel() > 0,
        f"outputs has the shape {tuple(outputs.shape)}; it must be (..., C, N, L) with at least one sample",
    )
    # -inf rules a label out, but where all are, or one is +inf or NaN, the probabilities are NaN
    require(
        bool(outputs.amax(dim=-1).isfinite().all()),
        "outputs has NaN or infinite numbers: a model has diverged, or a sample has NaN",
    )
    return precise(outputs)
