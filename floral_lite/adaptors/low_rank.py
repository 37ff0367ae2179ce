"""The low-rank adaptor: a weight is read as a matrix, and U_c V_c^T is added to it."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..errors import require
from .budget import check_rank, largest_rank
from .options import Initialisation, Options


@dataclass(frozen=True)
class LowRankAdaptor:
    """Adds sum_c pi_c U_c V_c^T to a weight, read as a matrix of m rows and n columns.

    The weight's axes are dealt to the two factors: U has the axes of the rows, V those of
    the columns, and both end in the rank. A linear layer has one axis each; the kinds of
    convolution LoRA differ in which factor gets which side of the kernel.

    A subclass may start its factors otherwise, but must add the same product: where it costs less, the
    factors run beside the weight and `delta` is not called.

    Args:
        kind: what it is called: "linear", "embedding", or the kind of convolution.
        shape: of the weight.
        rows: the axes of U, the weight's output axis first, then a kernel's in rising order.
        columns: the axes of V, the weight's input axis first, then the same.
        rank: R >= 1, columns of the two factors; `fit_rank` gives it where there may be a budget.
        init: which factor starts at random, see Options.

    Raises:
        InputError: the rank is no whole number of at least 1, an axis is in neither factor or in both, or
            the axes after the first are not in rising order.

    Source: section 'Parameter-Efficient Adaptors', and appendix 'Adaptors', 'Convolution layer'.

    Example:
        >>> kernel = LowRankAdaptor("balanced", (64, 32, 3, 3), rows=(0, 3), columns=(1, 2), rank=2)
        >>> kernel.shapes, kernel.num_parameters  # (c_out k_2 + c_in k_1) r
        ({'U': (64, 3, 2), 'V': (32, 3, 2)}, 576)
    """

    kind: str
    shape: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    rank: int
    init: Initialisation = "paper"

    def __post_init__(self) -> None:
        check_rank(self.rank)
        for name in ("shape", "rows", "columns"):
            given = getattr(self, name)
            require(isinstance(given, tuple), f"{name} is {given!r}; it must be a tuple, such as (0,)")
        require(
            bool(self.rows and self.columns)
            and sorted(self.rows + self.columns) == list(range(len(self.shape))),
            f"rows are {self.rows} and columns {self.columns}; each axis of the shape {self.shape}, counted "
            "from 0, must be in one of them, and both need one: a vector takes a VectorAdaptor",
        )
        # where the factors run as layers of their own, their kernels have the weight's order
        for name in ("rows", "columns"):
            first, *rest = getattr(self, name)
            require(rest == sorted(rest), f"{name} are {getattr(self, name)}; write {(first, *sorted(rest))}")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise InputError where a subclass adds something else than U V^T."""
        super().__init_subclass__(**kwargs)
        require(
            "delta" not in vars(cls),
            f"{cls.__name__} has a delta of its own, but U and V of a LowRankAdaptor are also used without "
            "it: write a class with the verbs of adaptors.Adaptor, which does not inherit from it",
        )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors of one adaptor: U (*rows, R) and V (*columns, R)."""
        sides = {"U": self.rows, "V": self.columns}
        return {name: (*(self.shape[axis] for axis in axes), self.rank) for name, axes in sides.items()}

    @property
    def num_parameters(self) -> int:
        """Of one adaptor: (m + n) R."""
        return sum(map(prod, self.shapes.values()))

    @property
    def equivalent_rank(self) -> int:
        """Rank of one L as a matrix (c_out, everything else), for factors in general position.

        A kernel side of size k in U multiplies the rank by k, up to the matrix's own size.
        """
        out_channels = self.shape[self.rows[0]]
        kernel_of_u = prod(self.shape[axis] for axis in self.rows[1:])
        return min(out_channels, prod(self.shape) // out_channels, self.rank * kernel_of_u)

    def initialise(self, num_clusters: int, generator: torch.Generator) -> dict[str, Tensor]:
        """C fresh adaptors, each with U V^T = 0: U (C, *rows, R) and V (C, *columns, R)."""
        # of another type, such as a user's default one, other numbers would be drawn
        kind = torch.float32
        factors = {name: torch.zeros(num_clusters, *shape, dtype=kind) for name, shape in self.shapes.items()}
        if self.init == "paper":
            # variance 1 / m, so that U^T U is about I: the first step on V then moves L along the
            # gradient of W projected on the columns of U, whatever the layer's size
            bound = (3 / prod(self.shape[axis] for axis in self.rows)) ** 0.5
            factors["U"].uniform_(-bound, bound, generator=generator)
        else:
            # V uniform with variance 2 / n
            bound = (6 / prod(self.shape[axis] for axis in self.columns)) ** 0.5
            factors["V"].uniform_(-bound, bound, generator=generator)
        return factors

    def delta(self, factors: Mapping[str, Tensor], mixture: Tensor) -> Tensor:
        """What the mixture of adaptors adds to the weight, in the weight's shape.

        Args:
            factors: U (C, *rows, R) and V (C, *columns, R).
            mixture: pi, shape (C,), on the simplex.

        Further axes in front of all three are clients; each gets a weight of its own.
        """
        # L = sum_c pi_c U_c V_c^T: z counts the clusters, r the rank, the other letters the weight's axes
        axes = "abcdefg"[: len(self.shape)]
        rows, columns = ("".join(axes[axis] for axis in side) for side in (self.rows, self.columns))
        return torch.einsum(
            f"...z,...z{rows}r,...z{columns}r->...{axes}",
            mixture.to(factors["U"].dtype),
            factors["U"],
            factors["V"],
        )

    def matrices(self, factors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The factors as matrices, U (C, m, R) and V (C, n, R); further axes in front are clients."""
        u, v = factors["U"], factors["V"]
        return u.flatten(-1 - len(self.rows), -2), v.flatten(-1 - len(self.columns), -2)

    def factors(self, u: Tensor, v: Tensor) -> dict[str, Tensor]:
        """Matrices U (C, m, R) and V (C, n, R) in the shapes of the factors; `matrices` reversed."""
        shapes = self.shapes
        return {"U": u.reshape(len(u), *shapes["U"]), "V": v.reshape(len(v), *shapes["V"])}


def fit_rank(options: Options, rows: int, columns: int, times: int = 1) -> int:
    """The rank that was asked for, but at most min(m, n); or the largest that the budget allows.

    Args:
        options: with a rank or a budget.
        rows: m of the weight, read as a matrix.
        columns: n.
        times: a rank costs so many times m + n.
    """
    if options.budget is not None:
        return largest_rank(rows * columns, times * (rows + columns), options.budget)
    assert options.rank is not None  # Options asks for one of the two
    # beyond min(m, n) U^T U has no inverse, and the preconditioner would magnify rounding by 1 / eps
    return min(options.rank, rows, columns)
