"""Floral: any model, with a mixture of low-rank adaptors added to its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from . import adaptors
from .adaptors import Convolution, Initialisation, Norms, Options, Statistics
from .centering import center
from .copies import copied, overwrite
from .errors import require
from .factored import AdaptedParameter
from .given import precise, tensor_of
from .mixing import Mixing, Route
from .roles import joined
from .router import Router, check_rule, check_simplex, uniform_logits

if TYPE_CHECKING:
    from .describe import Description


# A forward pass puts other tensors into the base while it lasts. Passes of several threads take turns, since
# one that began within another would put those back at its end, for good.
TURN = RLock()


class Floral(nn.Module):
    """A base model u, C adaptors a_c on its parameters, and one client's router theta.

    Every adapted linear layer computes
    y = (W + sum_c pi_c U_c V_c^T) x + b + sum_c pi_c b_c, with pi = softmax(theta).
    The adaptors add nothing at the start, so the wrapped model first computes what the base does.
    Only a call of the Floral has them: for other methods of the base, such as generate, take `merge()`.

    It runs under torch.compile (with Batch-NorA it is left uncompiled), torch.func, autocast,
    deepcopy and pickle. Two things it cannot follow, so switch them off: activation checkpointing
    inside the base (what is recomputed later misses the adaptors; with use_reentrant=True there
    is no error, only wrong gradients), and a custom torch.autograd.Function that is given an
    adapted weight (its gradients are missing or NaN). Threads that call one model take turns; what
    looks at its parameters, as `merge` and `save` do, must wait until none does.

    Args:
        model: the base model; it is wrapped, not copied.
        rank: r >= 1 of every low-rank adaptor, at most min(m, n), see Options; give this or the budget.
        num_clusters: C >= 1, adaptors a layer.
        budget: rho in (0, 1], one adaptor's parameters relative to its weight's, with rank 1 at least.
        init: "paper" (U random, V zero) or "authors" (V random, U zero).
        convolution: "balanced", "channel", "channel_in", "channel_out", "filter" or "reshaped".
        biases: adapt biases too.
        norms: "affine", "batch_nora" or "none".
        router: temperature, floor, noise and entropy of the router; the paper's if None.
        generator: the source of the random factors; a fresh one with seed 0 if None.

    Attributes:
        mixing: "auto" mixes weights or runs factors, whichever costs less; "merged" and
            "factored" do the one or the other where both exist; attention and compiled models
            are always merged. The results are equal to rounding.

    Raises:
        InputError: a choice is out of range, a layer cannot be adapted, or there is nothing to adapt.

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
        convolution: Convolution = "balanced",
        biases: bool = True,
        norms: Norms = "affine",
        router: Router | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        require(
            router is None or isinstance(router, Router),
            f"router is {router!r}; give a Router, such as Router(floor=0.01)",
        )
        generator = generator or torch.Generator().manual_seed(0)
        self.num_clusters = adaptors.check_num_clusters(num_clusters)
        self.options = Options(rank, budget, init, convolution, biases, norms)
        self.router = router or Router()
        check_rule(self.router, self.num_clusters)
        self.mixing: Route = "auto"
        self.plan = adaptors.plan(model, self.options)
        self.base = model
        self.training = model.training  # a model that is evaluated has a router without noise
        self.adaptors, self.statistics = nn.Module(), nn.Module()
        for name, tensor in adaptors.initialise(self.plan, num_clusters, generator).items():
            parameter_name, factor = name.rsplit(".", 1)
            tensor = tensor.to(model.get_parameter(parameter_name))
            _submodule(self.adaptors, parameter_name).register_parameter(factor, nn.Parameter(tensor))
        for layer_name in adaptors.batch_nora_layers(self.plan):
            layer, own = model.get_submodule(layer_name), _submodule(self.statistics, layer_name)
            own.register_buffer("mean", layer.get_buffer("running_mean").clone())
            own.register_buffer("variance", layer.get_buffer("running_var").clone())
        like = model.get_parameter(next(iter(self.plan)))
        self.router_logits = nn.Parameter(precise(uniform_logits(1, num_clusters)[0].to(like)))

    @property
    def num_adaptor_parameters(self) -> int:
        """Parameters of one of the C adaptors, over all layers."""
        return adaptors.num_parameters(self.plan)

    def mixture(self, given: Tensor | Sequence[float] | None = None) -> Tensor:
        """The mixture pi, shape (C,): the router's softmax(theta), without noise, or the one that is given.

        Raises:
            InputError: the given one is of no numbers, has another shape, or is not on the simplex.
        """
        if given is None:
            return self.router.mixture(self.router_logits)
        given = tensor_of("mixture", given, self.router_logits.dtype)
        require(
            given.shape == (self.num_clusters,),
            f"mixture has shape {tuple(given.shape)}; it must have a weight for each of the "
            f"{self.num_clusters} adaptors",
        )
        check_simplex("mixture", given)
        return given.to(self.router_logits)

    def penalty(self) -> Tensor:
        """What training adds to the loss for the router's entropy: -lambda H(pi), a scalar."""
        return self.router.penalty(self.router_logits)

    def clustered(self) -> dict[str, Tensor]:
        """The adaptors' tensors by name ("0.weight.U"), each (C, ...): what clients train together."""
        return dict(self.adaptors.named_parameters())

    def personal_parameters(self, mixture: Tensor | Sequence[float] | None = None) -> dict[str, Tensor]:
        """The base's parameters with a mixture of adaptors added: u + sum_c pi_c a_c.

        Args:
            mixture: pi, shape (C,), on the simplex; the model's own router if None.

        Raises:
            InputError: the mixture has another shape, or is not on the simplex.
        """
        base = dict(self.base.named_parameters())
        return adaptors.personalise(self.plan, base, self.clustered(), self.mixture(mixture))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The base model's forward pass with the personal parameters: f(sum_c pi_c w_c)."""
        draws = torch.rand_like(self.router_logits) if self.training and self.router.noise else None
        mixture = self.router.mixture(self.router_logits, draws)
        if torch.compiler.is_compiling() and not adaptors.batch_nora_layers(self.plan):
            # the compiler sees all of the mixing at once: no need to watch the calls
            base = dict(self.base.named_parameters())
            personal = adaptors.personalise(self.plan, base, self.clustered(), mixture)
            return functional_call(self.base, personal, args, kwargs, tie_weights=False)
        return self._watched(mixture, args, kwargs)

    # torch.compiler.disable loads the whole compiler on import; torch's own form waits for the first call
    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _watched(self, mixture: Tensor, args: Any, kwargs: Any) -> Any:
        """The forward pass under a mode that decides, call by call, how to mix; compilers cannot trace it."""
        with TURN:
            base, clustered = dict(self.base.named_parameters()), self.clustered()
            mixtures = {
                name: AdaptedParameter(
                    base[name], adaptor, adaptors.factors_of(name, adaptor, clustered), mixture
                )
                for name, adaptor in self.plan.items()
            }
            own = dict(self.statistics.named_buffers())
            statistics = {
                joined(layer, "weight"): Statistics(
                    own[joined(layer, "mean")], own[joined(layer, "variance")]
                )
                for layer in adaptors.batch_nora_layers(self.plan)
            }
            with Mixing(mixtures, statistics, self.mixing) as mixing:
                # tied, a module under two names would lose its parameters; adapted ones have one owner
                return functional_call(self.base, mixing.placeholders, args, kwargs, tie_weights=False)

    @torch.no_grad()
    def merge(self, mixture: Tensor | Sequence[float] | None = None) -> nn.Module:
        """A plain copy of the base with the mixture of adaptors written into its parameters.

        Args:
            mixture: pi, shape (C,), on the simplex; the model's own router if None.

        Returns:
            A module of the base's own class, which costs what the base costs.

        Raises:
            InputError: the mixture has another shape, or is not on the simplex.
        """
        merged = copied(self.base)
        personal = self.personal_parameters(mixture)
        for name, parameter in merged.named_parameters():
            parameter.copy_(personal[name])
        return merged

    @torch.no_grad()
    def center(
        self, probability: Tensor | Sequence[float] | None = None, p: float = 2.0, q: float = 2.0
    ) -> dict[str, float]:
        """Move the mean of the adaptors into the base, in place; see `centering.center`.

        Returns:
            For each adapted parameter, the relative error of cutting back to the old rank.
        """
        base, clustered = dict(self.base.named_parameters()), self.clustered()
        centered = center(self.plan, base, clustered, probability, p, q)
        for name, parameter in base.items():
            overwrite(parameter, centered.base[name])
        for name, tensor in clustered.items():
            overwrite(tensor, centered.clustered[name])
        return centered.lost

    def describe(self) -> Description:
        """What each adaptor is and costs, a row a parameter, and the totals; see `describe.py`."""
        from .describe import describe  # it needs pandas, which takes its time to load

        return describe(self.base, self.plan, self.num_clusters, self.options.budget)


def _submodule(root: nn.Module, path: str) -> nn.Module:
    """The module at a dotted path below `root`, made of empty modules where there is none yet."""
    for part in filter(None, path.split(".")):
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    return root
