"""Preconditioning: the two factors of an adaptor learn at the rate of the weight that they stand for."""

from collections.abc import Callable, Mapping
from typing import Any, get_args

import torch
from torch import Tensor

from .adaptors import Adaptor, Convolution, LowRankAdaptor, factors_of
from .errors import real_number, require
from .floral import Floral

EPSILON = 1e-5
# The kinds that run as a chain of two convolutions.
CHAINS = {*get_args(Convolution)} - {"reshaped"}


@torch.no_grad()
def precondition(
    adaptors: Mapping[str, Adaptor],
    clustered: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    epsilon: float = EPSILON,
) -> dict[str, Tensor]:
    """The preconditioned gradients of adaptors.

    To first order a plain step moves U V^T along U U^T G + G V V^T, so its size depends on how the
    product is split between the factors. The preconditioned one moves it along P_U G + G P_V, with
    the projections on the factors' columns: the split does not matter any more, where the columns
    are independent and their squares far above epsilon. The kinds that run as a chain of two
    convolutions are scaled by the preconditioner's Frobenius norm instead; adaptors without U and
    V, vectors say, stay as they are.

    Args:
        adaptors: the plan.
        clustered: the adaptors' tensors by name ("0.weight.U"), each (C, ...), or (k, C, ...) of k clients.
        gradients: of the loss, by the same names; what is left out is skipped.
        epsilon: added to the diagonal, > 0, which keeps the step finite while V is 0.

    Returns:
        New gradients for all names that were given, in their own precision.

    Raises:
        InputError: epsilon is not positive.

    Source: appendix 'Preconditioning LoRAs', after Tong, Ma and Chi, 2021.
    """
    _check_epsilon(epsilon)
    result = dict(gradients)
    for name, adaptor in adaptors.items():
        if isinstance(adaptor, LowRankAdaptor):
            scale = _by_norm if adaptor.kind in CHAINS else by_matrix
            u, v = adaptor.matrices(factors_of(name, adaptor, clustered))
            for factor, matrix, other in ((f"{name}.U", u, v), (f"{name}.V", v, u)):
                if factor in gradients:
                    gradient = gradients[factor]
                    scaled = scale(gradient.reshape(matrix.shape), other, epsilon)
                    result[factor] = scaled.reshape(gradient.shape)
    return result


def preconditioner(
    model: Floral, epsilon: float = EPSILON
) -> Callable[[torch.optim.Optimizer, Any, Any], None]:
    """A hook that preconditions a model's gradients before each step of any torch optimizer.

    It touches only those adaptors that its optimizer trains; the router may have another optimizer.

    Args:
        model: whose adaptors the optimizer trains.
        epsilon: see `precondition`.

    Raises:
        InputError: the model is no Floral, epsilon is not positive, or a step is given a closure.

    Source: appendix 'Preconditioning LoRAs', after Tong, Ma and Chi, 2021.

    Example:
        >>> model = Floral(torch.nn.Linear(8, 4), rank=2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> handle = optimizer.register_step_pre_hook(preconditioner(model))
    """
    _check_epsilon(epsilon)
    require(
        isinstance(getattr(model, "_orig_mod", model), Floral),  # torch.compile's wrapper is used like it
        f"model is of type {type(model).__name__}; give the Floral itself: the .module of a wrapped one, and "
        "of several each to a hook of its own",
    )

    def before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        require(
            not any(args[1:]) and not kwargs.get("closure"),
            "the step was given a closure, whose gradients come after this hook: call it first, then step()",
        )
        tensors = model.clustered()
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        gradients = {
            name: tensor.grad
            for name, tensor in tensors.items()
            if tensor.grad is not None and id(tensor) in own
        }
        for name, gradient in precondition(model.plan, tensors, gradients, epsilon).items():
            gradients[name].copy_(gradient)

    return before_step


def _check_epsilon(epsilon: float) -> None:
    require(
        real_number("epsilon", epsilon) > 0,
        f"epsilon is {epsilon}; it keeps singular factors invertible, so it must be positive",
    )


def _gram(factor: Tensor, epsilon: float) -> Tensor:
    """V^T V + eps I of factors (..., n, R), in double precision: in single, eps is lost beside a large V."""
    precision = torch.float32 if factor.device.type == "mps" else torch.float64
    factor = factor.to(precision)
    gram = factor.mT @ factor
    gram.diagonal(dim1=-2, dim2=-1).add_(epsilon)
    return gram


def by_matrix(gradient: Tensor, other: Tensor, epsilon: float = EPSILON) -> Tensor:
    """The preconditioner of matrices, shapes (..., m, R) and (..., n, R)."""
    # G_U <- G_U (V^T V + eps I)^-1; inv_ex does not wait for the device
    gram = _gram(other, epsilon)
    if gram.shape[-1] == 1:  # a number
        return (gradient / gram).to(gradient)
    inverse: Tensor = torch.linalg.inv_ex(gram).inverse
    return (gradient.contiguous().to(gram) @ inverse).to(gradient)


def _by_norm(gradient: Tensor, other: Tensor, epsilon: float) -> Tensor:
    """The preconditioner of chains of convolutions, shapes (..., m, R) and (..., n, R)."""
    # G_U <- G_U / ||V^T V + eps I||_F
    gram = _gram(other, epsilon)
    norm: Tensor = torch.linalg.matrix_norm(gram, keepdim=True)
    return (gradient / norm).to(gradient)
