"""Floral: any model, with a mixture of low-rank adaptors added to its parameters."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from . import adaptors, router
from .adaptors import Initialisation


class Floral(nn.Module):
    """A base model u, C adaptors a_c on its parameters, and one client's router theta.

    Every adapted linear layer computes
    y = (W + sum_c pi_c U_c V_c^T) x + b + sum_c pi_c b_c, with pi = softmax(theta).
    The adaptors add nothing at the start, so the wrapped model first computes what the base does.

    Args:
        model: the base model; it is wrapped, not copied.
        rank: r >= 1 of every low-rank adaptor; give this or the budget.
        num_clusters: C >= 1, adaptors a layer.
        budget: rho in (0, 1], one adaptor's parameters relative to its layer's.
        init: "paper" (U random, V zero) or "authors" (V random, U zero).
        generator: the source of the random factor; a fresh one with seed 0 if None.

    Raises:
        InputError: num_clusters, rank or budget is out of range, or there is nothing to adapt.

    Source: section 'Practical Implementation', 'FLoRAL problem and algorithm'.

    Example:
        >>> base = nn.Linear(64, 10)
        >>> model = Floral(base, budget=0.1, num_clusters=4)
        >>> x = torch.ones(1, 64)
        >>> bool(torch.equal(model(x), base(x)))
        True
        >>> model.num_adaptor_parameters  # (64 + 10) * 1 + 10
        84
    """

    def __init__(
        self,
        model: nn.Module,
        rank: int | None = None,
        num_clusters: int = 4,
        *,
        budget: float | None = None,
        init: Initialisation = "paper",
        generator: torch.Generator | None = None,
    ) -> None:
        """Plan the adaptors, then register their tensors and the router."""
        super().__init__()
        generator = generator or torch.Generator().manual_seed(0)
        self.base = model
        self.plan = adaptors.plan(model, rank, budget, init)
        self.adaptors = nn.Module()
        for name, tensor in adaptors.initialise(self.plan, num_clusters, generator).items():
            parameter_name, factor = name.rsplit(".", 1)
            tensor = tensor.to(model.get_parameter(parameter_name))
            _submodule(self.adaptors, parameter_name).register_parameter(factor, nn.Parameter(tensor))
        like = next(model.parameters())
        self.router_logits = nn.Parameter(router.uniform_logits(1, num_clusters)[0].to(like))

    @property
    def num_adaptor_parameters(self) -> int:
        """Parameters of one of the C adaptors, over all layers."""
        return adaptors.num_parameters(self.plan)

    def mixture(self) -> Tensor:
        """The router's pi = softmax(theta), shape (C,)."""
        return router.mixture(self.router_logits)

    def personal_parameters(self, mixture: Tensor | None = None) -> dict[str, Tensor]:
        """The base's parameters with a mixture of adaptors added: u + sum_c pi_c a_c.

        Args:
            mixture: pi, shape (C,), on the simplex; the model's own router if None.
        """
        return adaptors.personalise(
            self.plan,
            dict(self.base.named_parameters()),
            dict(self.adaptors.named_parameters()),
            self.mixture() if mixture is None else mixture,
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The base model's forward pass with the personal parameters: f(sum_c pi_c w_c)."""
        return functional_call(self.base, self.personal_parameters(), args, kwargs)

    @torch.no_grad()
    def merge(self, mixture: Tensor | None = None) -> nn.Module:
        """A plain copy of the base with the mixture of adaptors written into its parameters.

        Args:
            mixture: pi, shape (C,); the model's own router if None.
        """
        merged = copy.deepcopy(self.base)
        personal = self.personal_parameters(mixture)
        for name, parameter in merged.named_parameters():
            parameter.copy_(personal[name])
        return merged


def _submodule(root: nn.Module, path: str) -> nn.Module:
    """The module at a dotted path below `root`, made of empty modules where there is none yet."""
    for part in path.split("."):
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    return root
