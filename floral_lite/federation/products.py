"""A linear layer's products, of many clients at once.

A layer is then one batched product, and its backward pass takes the weight's step of SGD while it
computes the gradient: W <- W - eta g^T x is one product, and the gradient is never written down.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..factored import Blend
from .settings import Settings


class Product(torch.autograd.Function):
    """x W^T + b of every client, whose backward pass also takes W's step of SGD."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, settings: Settings) -> Tensor:
        """Inputs (k, B, n), weight (k, m, n), bias (k, m)."""
        ctx.save_for_backward(inputs)
        ctx.weight, ctx.settings, ctx.has_bias = weight, settings, bias is not None
        return product(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        """The gradients of inputs and bias; W has none left to hand on."""
        (inputs,) = ctx.saved_tensors
        rate, decay = ctx.settings.learning_rate, ctx.settings.weight_decay
        weight = ctx.weight.to(gradient.dtype)  # under autocast the products are in bfloat16
        of_inputs = torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None
        # W <- (1 - eta lambda) W - eta g^T x
        if gradient.dtype == ctx.weight.dtype:
            ctx.weight.baddbmm_(gradient.mT, inputs, beta=1 - rate * decay, alpha=-rate)
        else:
            step = torch.bmm(gradient.mT, inputs.to(gradient.dtype))
            ctx.weight.mul_(1 - rate * decay).sub_(step, alpha=rate)
        return of_inputs, None, gradient.sum(dim=1) if ctx.has_bias else None, None


class BlendedProduct(torch.autograd.Function):
    """x (sum_c pi_c W_c)^T + b of every client, whose backward pass also takes the step of all W_c."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, models: Tensor, mixture: Tensor, bias: Tensor | None, settings: Settings
    ) -> Tensor:
        """Inputs (k, B, n), models (k, C, m, n), mixture (k, C), bias (k, m)."""
        merged = Blend(models, mixture).merged()
        ctx.save_for_backward(inputs, mixture, merged)
        ctx.models, ctx.settings, ctx.has_bias = models, settings, bias is not None
        return product(inputs, merged, bias)

    @staticmethod
    def backward(
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, None, Tensor | None, Tensor | None, None]:
        """The gradients of inputs, mixture and bias."""
        inputs, mixture, merged = ctx.saved_tensors
        rate, decay = ctx.settings.learning_rate, ctx.settings.weight_decay
        of_inputs = torch.bmm(gradient, merged.to(gradient)) if ctx.needs_input_grad[0] else None
        models = ctx.models.flatten(2)
        # dL/dW_c = pi_c G and dL/dpi_c = <G, W_c>, with G = g^T x
        of_merged = torch.bmm(gradient.mT, inputs.to(gradient)).flatten(1).to(models)
        of_mixture = torch.bmm(models, of_merged[:, :, None])[:, :, 0] if ctx.needs_input_grad[2] else None
        # W_c <- (1 - eta lambda) W_c - eta pi_c G
        models.baddbmm_(mixture[:, :, None], of_merged[:, None], beta=1 - rate * decay, alpha=-rate)
        return of_inputs, None, of_mixture, gradient.sum(dim=1) if ctx.has_bias else None, None


def product(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """X W^T + b of every client; one large product where all have the same W."""
    if weight.stride(0) == 0:
        outputs = functional.linear(inputs, weight[0])
        return outputs if bias is None else outputs + bias[:, None]
    if bias is None:
        return torch.bmm(inputs, weight.mT)
    return torch.baddbmm(bias[:, None], inputs, weight.mT)
