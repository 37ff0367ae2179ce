"""One forward pass whatever C is: weights mixed before use, or adaptors run as factors.

Which costs less depends on the inputs, so it is decided where the model uses the weight. A
TorchFunctionMode is a with-block in which torch hands every call of a torch function to
`__torch_function__` first. The model runs with placeholders in the place of its adapted
parameters; they are recognised by identity, and the mixture is put in.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .adaptors import LowRankAdaptor, Statistics, batch_nora, batch_statistics
from .errors import check_choice
from .factored import FACTORED, AdaptedParameter

Route = Literal["auto", "merged", "factored"]


class Mixing(TorchFunctionMode):
    """While it is entered, torch functions that are given an adapted parameter use the mixture instead.

    The model itself must hold `placeholders`: they have the shapes of its parameters and contain
    NaN, so that a use that this mode does not see cannot go unnoticed.

    Args:
        mixtures: the adapted parameters, by name.
        statistics: the client's own statistics of each batch norm under Batch-NorA, by name of its gamma.
        route: "merged" or "factored" instead of whichever costs less.
    """

    def __init__(
        self,
        mixtures: Mapping[str, AdaptedParameter],
        statistics: Mapping[str, Statistics],
        route: Route = "auto",
    ) -> None:
        super().__init__()
        check_choice("mixing", route, Route)
        self.route = route
        self.placeholders = {
            name: mixture.base.new_full((), torch.nan).expand(mixture.base.shape)
            for name, mixture in mixtures.items()
        }
        self._mixtures = {id(self.placeholders[name]): mixture for name, mixture in mixtures.items()}
        self._statistics = {id(self.placeholders[name]): own for name, own in statistics.items()}

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run the factors where that costs less; elsewhere put the sums in the place of the parameters."""
        kwargs = kwargs or {}
        if function is functional.batch_norm and id(kwargs["weight"]) in self._statistics:
            return self._batch_nora(*args, **kwargs)
        weight = self._mixtures.get(id(args[1])) if len(args) > 1 else None
        if weight is not None and function in FACTORED and self.route != "merged":
            output_axis, choice = FACTORED[function]
            # a weight may also be read backwards, as an embedding's is by the linear layer that it is tied to
            if isinstance(weight.adaptor, LowRankAdaptor) and weight.adaptor.rows[0] == output_axis:
                inputs, *rest = self._merged((args[0], *args[2:]))
                cost, run = choice(weight, inputs, *rest, **self._merged(kwargs))
                if self.route == "factored" or cost < prod(weight.adaptor.shape):
                    return run()
        return function(*self._merged(args), **self._merged(kwargs))

    def _merged(self, value: Any) -> Any:
        """The same arguments with the sums in the place of their placeholders."""
        if isinstance(value, Tensor):
            mixture = self._mixtures.get(id(value))
            return value if mixture is None else mixture.merged()
        if type(value) in (list, tuple):
            return type(value)(self._merged(item) for item in value)
        if type(value) is dict:
            return {name: self._merged(item) for name, item in value.items()}
        return value

    def _batch_nora(
        self,
        inputs: Tensor,
        mean: Tensor,
        variance: Tensor,
        weight: Tensor,
        bias: Tensor,
        training: bool,
        momentum: float,
        eps: float,
    ) -> Tensor:
        """Batch norm with its adaptor; in training both running statistics then take in the batch."""
        main, local = Statistics(mean, variance), self._statistics[id(weight)]
        gamma, beta = self._mixtures[id(weight)], self._mixtures[id(bias)]
        used = batch_statistics(inputs) if training else main
        outputs = batch_nora(inputs, used, local, gamma.base, beta.base, gamma.delta(), beta.delta(), eps)
        if training:
            for running in (main, local):
                functional.batch_norm(inputs.detach(), *running, training=True, momentum=momentum, eps=eps)
        return outputs
