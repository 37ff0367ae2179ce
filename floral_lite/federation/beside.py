"""The low-rank adaptors of a linear layer, run beside its weight for many clients at once.

Their backward pass takes the factors' step of SGD. The gradient of U is g^T (pi x V), and the preconditioner
multiplies it by a small matrix A from the right: so A is applied to the samples first, g^T (pi x V A), and
neither gradient, as large as the factor itself, is ever written down.
"""

from typing import Any

import torch
from torch import Tensor

from ..precondition import by_matrix
from .products import Descent


def side_by_side(factor: Tensor) -> Tensor:
    """The columns of all clusters of a factor (k, C, n, R) side by side: (k, n, C R)."""
    return factor.mT.flatten(1, 2).mT


def laid_side_by_side(factor: Tensor) -> Tensor:
    """A factor (k, C, ..., R), in memory as (k, C, R, ...), so that `side_by_side` is a view."""
    # and each column in one piece: products with few columns run several times as fast
    return factor.movedim(-1, 2).contiguous().movedim(2, -1)


def in_memory_side_by_side(factor: Tensor) -> bool:
    """Whether it lies so, and what is written into `side_by_side` is written into the factor."""
    return factor.mT.is_contiguous()


def beside(outputs: Tensor, inner: Tensor, u: Tensor, mixture: Tensor) -> Tensor:
    """Outputs + x sum_c V_c (pi_c U_c)^T of every client.

    Args:
        outputs: of the layer itself, shape (k, B, m).
        inner: x V_c of all clusters side by side, shape (k, B, C R).
        u: the factors U, shape (k, C, m, R).
        mixture: pi, shape (k, C).
    """
    weighted = side_by_side(mixture[:, :, None, None].to(u.dtype) * u)
    return torch.baddbmm(outputs, inner, weighted.mT)


class SteppingBeside(torch.autograd.Function):
    """The same of inputs x (k, B, n) and factors V (k, C, n, R); the backward pass takes the step of U and V.

    Both must lie side by side in memory.
    """

    @staticmethod
    def forward(
        ctx: Any,
        outputs: Tensor,
        inputs: Tensor,
        u: Tensor,
        v: Tensor,
        mixture: Tensor,
        descents: list[Descent],
        preconditioned: bool,
    ) -> Tensor:
        """See `beside`; the descents are of U and V."""
        inner = torch.bmm(inputs, side_by_side(v))
        ctx.save_for_backward(inputs, inner, mixture)
        ctx.descents, ctx.preconditioned = descents, preconditioned
        return beside(outputs, inner, u, mixture)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of outputs, inputs and mixture; U and V have none left to hand on."""
        u, v = (descent.weight for descent in ctx.descents)
        # under autocast the products are in bfloat16
        inputs, inner, mixture, of_sum = (tensor.to(u.dtype) for tensor in (*ctx.saved_tensors, gradient))
        outer = torch.bmm(of_sum, side_by_side(u))
        by_cluster = (len(u), -1, u.shape[1], u.shape[3])  # (k, B, C, R)
        # dL/dpi_c = <g U_c, x V_c>
        of_mixture = (outer * inner).view(by_cluster).sum(dim=(1, 3))
        weights = mixture.repeat_interleave(u.shape[3], dim=1)[:, None]
        inner, outer = weights * inner, weights * outer
        of_inputs = torch.bmm(outer, side_by_side(v).mT) if ctx.needs_input_grad[1] else None
        if ctx.preconditioned:
            # x V_c <- x V_c (V_c^T V_c + eps I)^-1, and g U_c the same
            inner, outer = (
                by_matrix(small.view(by_cluster).movedim(2, 1), factor).movedim(1, 2).flatten(2)
                for small, factor in ((inner, v), (outer, u))
            )
        # of U^T the gradient is (x V)^T g, of V^T (g U)^T x
        for descent, left, right in zip(ctx.descents, (inner, outer), (of_sum, inputs), strict=True):
            descent.of(lambda factor: side_by_side(factor).mT).step(left.mT, right)
        return gradient, of_inputs, None, None, of_mixture, None, None
