"""What every kind of adaptor can do, and a check that one of a user's own does."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from ..errors import require
from ..signatures import check_signatures


class Adaptor(Protocol):
    """What every kind of adaptor can do; the registry KINDS says which parameters get which.

    Make one of your own a frozen dataclass: seeds whose adaptors are not equal are trained one by one. Where
    all its tensors start at zero, the C adaptors are alike and stay so, as those of biases would.

    Example:
        >>> import math
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Kronecker:  # A (2, 2) times B (m / 2, n / 2)
        ...     shape: tuple[int, int]
        ...     kind = "kronecker"
        ...
        ...     @property
        ...     def shapes(self):
        ...         return {"A": (2, 2), "B": (self.shape[0] // 2, self.shape[1] // 2)}
        ...
        ...     @property
        ...     def num_parameters(self):
        ...         return sum(map(math.prod, self.shapes.values()))
        ...
        ...     def initialise(self, num_clusters, generator):
        ...         A = torch.randn(num_clusters, 2, 2, generator=generator)
        ...         return {"A": A, "B": torch.zeros(num_clusters, *self.shapes["B"])}
        ...
        ...     def delta(self, factors, mixture):
        ...         A, B = factors["A"], factors["B"]
        ...         added = torch.einsum("...c,...cij,...ckl->...ikjl", mixture, A, B)
        ...         return added.reshape(*mixture.shape[:-1], *self.shape)
        >>> adaptor = Kronecker((4, 6))  # what KINDS' function returns for such a weight
        >>> adaptor.num_parameters
        10
        >>> factors = adaptor.initialise(3, torch.Generator().manual_seed(0))
        >>> adaptor.delta(factors, torch.tensor([0.2, 0.3, 0.5])).abs().sum()
        tensor(0.)
    """

    @property
    def kind(self) -> str:
        """What it is called."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the parameter that it is added to."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors of one adaptor by name, with their shapes."""

    @property
    def num_parameters(self) -> int:
        """Of one adaptor."""

    def initialise(self, num_clusters: int, generator: torch.Generator) -> dict[str, Tensor]:
        """C adaptors that add nothing yet, each tensor with a leading axis C."""

    def delta(self, factors: Mapping[str, Tensor], mixture: Tensor) -> Tensor:
        """What the mixture of the C adaptors adds to the parameter, in the parameter's shape.

        Args:
            factors: the tensors by name, each (C, ...).
            mixture: pi, shape (C,), on the simplex.

        Further axes in front of all are clients: count axes from the last one, or write "..." in an einsum.
        """


def check_own(name: str, adaptor: Adaptor) -> None:
    """Raise InputError where an adaptor of a user's own makes or adds other tensors than it says.

    Args:
        name: of the parameter that it is added to.
        adaptor: what the registry's function made for it.
    """
    kind = type(adaptor).__name__
    if type(adaptor).__module__.startswith("floral_lite."):
        return
    check_signatures(adaptor, Adaptor)
    for told in ("kind", "shapes", "num_parameters"):
        value = getattr(adaptor, told, None)
        require(
            value is not None and not callable(value),
            f"{kind}.{told} is {value}; make it an attribute, or write @property above it",
        )
    factors, again = (adaptor.initialise(2, torch.Generator().manual_seed(0)) for _ in range(2))
    made = {factor: tuple(tensor.shape) for factor, tensor in factors.items()}
    wanted = {factor: (2, *shape) for factor, shape in adaptor.shapes.items()}
    require(
        made == wanted,
        f"{kind}.initialise, for {name} and two clusters, makes {made}; its shapes ask for {wanted}",
    )
    require(
        all(torch.equal(tensor, again[factor]) for factor, tensor in factors.items()),
        f"{kind}.initialise draws other numbers each time: take torch.randn(..., generator=generator), say",
    )
    single = {factor: tensor.float() for factor, tensor in factors.items()}
    added: object = adaptor.delta(single, torch.full((2,), 0.5))
    found = tuple(added.shape) if isinstance(added, Tensor) else added
    shape = tuple(adaptor.shape)
    require(found == shape, f"{kind}.delta, for {name}, gives {found}; its shape is {shape}")
