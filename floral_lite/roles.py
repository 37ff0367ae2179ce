"""The three roles of a federation's parameters: shared, clustered, private."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn.functional import mse_loss


class Roles(NamedTuple):
    """Named tensors, sorted by who averages them. Every method is a choice of these three.

    =========  ================================  ==================
    role       who averages it                   weight of client k
    =========  ================================  ==================
    shared     all sampled clients               N^k
    clustered  the clients of cluster c, softly  pi_c^k N^k
    private    nobody                            none
    =========  ================================  ==================

    The same container holds the federation's state, one client's parameters and their gradients.

    Attributes:
        shared: name -> tensor S.
        clustered: name -> tensor (C, *S), one slice a cluster.
        private: name -> tensor (K, *S) in a federation's state, (*S) for a single client.
    """

    shared: dict[str, Tensor]
    clustered: dict[str, Tensor]
    private: dict[str, Tensor]

    def of_client(self, client: int) -> Roles:
        """The parameters that client k works with: everything, but of the private ones only its own."""
        return self._replace(private={name: tensor[client] for name, tensor in self.private.items()})

    def map(self, function: Callable[..., Tensor], *others: Roles) -> Roles:
        """The function applied to every tensor, and to those of the same names in others."""
        return Roles(
            *(
                {name: function(tensor, *(other[name] for other in same)) for name, tensor in role.items()}
                for role, *same in zip(self, *others, strict=True)
            )
        )

    def at(self, index: Any) -> Roles:
        """Every tensor at an index of its first axis, such as some clients of a stack."""
        return self.map(lambda tensor: tensor[index])

    def tensors(self) -> list[Tensor]:
        """All tensors, in the order of the roles."""
        return [tensor for role in self for tensor in role.values()]

    def with_tensors(self, tensors: Iterable[Tensor]) -> Roles:
        """The same names with other tensors, in the order of `tensors()`."""
        remaining = iter(tensors)
        return self.map(lambda _: next(remaining))

    def copy_(self, other: Roles) -> None:
        """Write another's numbers into these tensors."""
        for tensor, numbers in zip(self.tensors(), other.tensors(), strict=True):
            tensor.copy_(numbers)


def along_first(numbers: Tensor, like: Tensor) -> Tensor:
    """Numbers (*N) in the shape (*N, 1, ..., 1): each of them meets one slice of `like`, (*N, *S).

    Example:
        >>> import torch
        >>> along_first(torch.tensor([0.0, 2.0]), torch.ones(2, 3)) * torch.ones(2, 3)
        tensor([[0., 0., 0.],
                [2., 2., 2.]])
    """
    return numbers.reshape(numbers.shape + (1,) * (like.dim() - numbers.dim()))


def num_bytes(tensors: dict[str, Tensor]) -> int:
    """The size of named tensors on the wire, in bytes.

    Example:
        >>> import torch
        >>> num_bytes({"0.weight": torch.zeros(10, 3), "0.bias": torch.zeros(10)})
        160
    """
    return sum(tensor.nbytes for tensor in tensors.values())


def joined(layer: str, own: str) -> str:
    """A parameter's name: its layer's, a dot, and its own; no dot where the model itself is the layer.

    Example:
        >>> joined("0", "weight"), joined("", "weight")
        ('0.weight', 'weight')
    """
    return f"{layer}.{own}" if layer else own


def is_statistic(name: str) -> bool:
    """Whether a tensor of that name is a batch norm's running statistic, which is tracked, not trained.

    Example:
        >>> is_statistic("1.running_mean"), is_statistic("1.weight")
        (True, False)
    """
    return name.rpartition(".")[2] in ("running_mean", "running_var", "local_mean", "local_variance")


def squared_distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Tensor | float:
    """||w - w'||^2 of named parameters; running statistics are none.

    Example:
        >>> import torch
        >>> squared_distance({"w": torch.tensor([3.0, 0.0])}, {"w": torch.tensor([0.0, 4.0])})
        tensor(25.)
    """
    # the mean squared error without the mean: the same number, in fewer passes over memory
    return sum(mse_loss(one[name], other[name], reduction="sum") for name in one if not is_statistic(name))
