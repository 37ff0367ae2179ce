"""A linear layer's products, of many clients at once.

A layer is then one batched product, and its backward pass takes the weight's step of SGD while it
computes the gradient: W <- W - eta g^T x is one product, and the gradient is never written down.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ..factored import Blend
from .settings import Settings


class Descent(NamedTuple):
    """How a weight takes its step in the backward pass.

    Attributes:
        weight: changed in place, as its velocity is.
        velocity: of its momentum; None without any.
        settings: learning rate, momentum and weight decay.
    """

    weight: Tensor
    velocity: Tensor | None
    settings: Settings

    def of(self, view: Callable[[Tensor], Tensor]) -> "Descent":
        """The same for a view of the weight, and of its velocity."""
        velocity = None if self.velocity is None else view(self.velocity)
        return self._replace(weight=view(self.weight), velocity=velocity)

    def step(self, left: Tensor, right: Tensor) -> None:
        """A step of SGD with the gradient left @ right, of shapes (k, m, B) and (k, B, n)."""
        rate, decay = self.settings.learning_rate, self.settings.weight_decay
        if self.velocity is None:  # W <- (1 - eta lambda) W - eta g
            moved, keep, share = self.weight, 1 - rate * decay, -rate
        else:  # v <- mu v + g
            moved, keep, share = self.velocity, self.settings.momentum, 1.0
        if left.dtype == moved.dtype:
            moved.baddbmm_(left, right, beta=keep, alpha=share)
        else:  # under autocast the products are in bfloat16
            moved.mul_(keep).add_(torch.bmm(left, right), alpha=share)
        if self.velocity is not None:  # v <- v + lambda W, W <- W - eta v
            if decay:
                self.velocity.add_(self.weight, alpha=decay)
            self.weight.sub_(self.velocity, alpha=rate)


class Product(torch.autograd.Function):
    """x W^T + b of every client, whose backward pass also takes W's step, if W has one to take."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, descent: Descent | None
    ) -> Tensor:
        """Inputs (k, B, n), weight (k, m, n), bias (k, m)."""
        # autograd refuses saved tensors that have changed since, so a weight that steps is not saved
        ctx.save_for_backward(inputs, weight if descent is None else None)
        ctx.descent = descent
        return product(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """The gradients of inputs, weight and bias; a W that has stepped has none left to hand on."""
        inputs, weight = ctx.saved_tensors
        weight = (weight if ctx.descent is None else ctx.descent.weight).to(gradient.dtype)
        of_inputs = of_weight = None
        if ctx.needs_input_grad[0]:
            of_inputs = gradient @ (weight if weight.stride(0) else weight[0])
        # g^T x, laid in memory as the weight is, which autograd's own gradient would not be
        if ctx.descent is not None:
            ctx.descent.step(gradient.mT, inputs.to(gradient.dtype))
        elif ctx.needs_input_grad[1]:
            of_weight = torch.bmm(gradient.mT, inputs.to(gradient.dtype))
        return of_inputs, of_weight, gradient.sum(dim=1) if ctx.needs_input_grad[2] else None, None


class BlendedProduct(torch.autograd.Function):
    """x (sum_c pi_c W_c)^T + b of every client, whose backward pass also takes the step of all W_c."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, models: Tensor, mixture: Tensor, bias: Tensor | None, descent: Descent
    ) -> Tensor:
        """Inputs (k, B, n), models (k, C, m, n), mixture (k, C), bias (k, m)."""
        merged = Blend(models, mixture).merged()
        ctx.save_for_backward(inputs, mixture, merged)
        ctx.descent = descent
        return product(inputs, merged, bias)

    @staticmethod
    def backward(
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, None, Tensor | None, Tensor | None, None]:
        """The gradients of inputs, mixture and bias."""
        inputs, mixture, merged = ctx.saved_tensors
        of_inputs = torch.bmm(gradient, merged.to(gradient)) if ctx.needs_input_grad[0] else None
        descent = ctx.descent.of(lambda models: models.flatten(2))
        # dL/dW_c = pi_c G and dL/dpi_c = <G, W_c>, with G = g^T x
        of_merged = torch.bmm(gradient.mT, inputs.to(gradient)).flatten(1).to(descent.weight)
        of_mixture = None
        if ctx.needs_input_grad[2]:
            of_mixture = torch.bmm(descent.weight, of_merged[:, :, None])[:, :, 0]
        descent.step(mixture[:, :, None].to(of_merged.dtype), of_merged[:, None])
        return of_inputs, None, of_mixture, gradient.sum(dim=1) if ctx.needs_input_grad[3] else None, None


def product(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """X W^T + b of every client; one large product where all have the same W."""
    if weight.stride(0) == 0:
        outputs = functional.linear(inputs, weight[0])
        return outputs if bias is None else outputs + bias[:, None]
    if bias is None:
        return torch.bmm(inputs, weight.mT)
    return torch.baddbmm(bias[:, None], inputs, weight.mT)
