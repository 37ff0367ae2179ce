"""What a user chooses about adaptors: how large they are, how they start, which layers get them."""

from dataclasses import dataclass
from typing import Literal

from ..errors import check_choice, require
from .budget import check_budget, check_rank

Initialisation = Literal["paper", "authors"]
Convolution = Literal["balanced", "channel", "channel_in", "channel_out", "filter", "reshaped"]
Norms = Literal["affine", "batch_nora", "none"]


@dataclass(frozen=True)
class Options:
    """The choices that hold for every adaptor of a model.

    Args:
        rank: r >= 1 of every low-rank adaptor; give this or the budget. A weight with fewer rows m or
            columns n, such as a head with two outputs, gets min(m, n), enough for any matrix.
            (convolution="filter" takes c_out times that.)
        budget: rho in (0, 1], one adaptor's parameters relative to its weight's; each layer's rank follows,
            at least 1. Vectors (biases, norms) are adapted whole and do not count.
        init: "paper" makes U random and V zero, as the text says; "authors" makes V random
            and U zero, as the authors' code does. Either way L = 0 at the start.
        convolution: how a kernel is read as a matrix, see `conv.py`.
        biases: adapt biases too.
        norms: "affine" adapts gamma and beta; "batch_nora" does so with the appendix's
            reparametrisation for BatchNorm; "none" leaves norms alone.

    Raises:
        InputError: rank or budget is missing or out of range, or a choice does not exist.
    """

    rank: int | None = None
    budget: float | None = None
    init: Initialisation = "paper"
    convolution: Convolution = "balanced"
    biases: bool = True
    norms: Norms = "affine"

    def __post_init__(self) -> None:
        require(
            (self.rank is None) != (self.budget is None),
            f"rank is {self.rank} and budget is {self.budget}; "
            "give exactly one of them: rank=8 or budget=0.01",
        )
        if self.rank is not None:
            object.__setattr__(self, "rank", check_rank(self.rank))
        if self.budget is not None:
            object.__setattr__(self, "budget", check_budget(self.budget))
        require(isinstance(self.biases, bool), f"biases is {self.biases!r}; it is True or False")
        for name, choices in (("init", Initialisation), ("convolution", Convolution), ("norms", Norms)):
            check_choice(name, getattr(self, name), choices)
