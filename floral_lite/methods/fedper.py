"""FedPer: a shared body, and a head of each client's own."""

from collections.abc import Sequence

from torch import nn

from ..errors import require
from ..roles import joined
from .base import some_trainable
from .partly_private import PartlyPrivate


class FedPer(PartlyPrivate):
    """The body is shared, the head is private and never sent.

    Simplified: heads start alike (the paper draws one for each client). As there, body and head take their
    steps together, with the same learning rate. With `stateful=False` heads begin every round anew.

    Args:
        model: its first parameters are every client's.
        head: names of the layers that are private, as in `model.named_modules()`, or the one layer's, which
            may be its number; the last layer that has parameters to train if None.

    Raises:
        InputError: a layer is not there or has no parameters, the head is the whole model or nothing, or all
            parameters are frozen.

    Source: Arivazhagan et al., 2019, 'Federated Learning with Personalization Layers'; objective (PFL).

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> state = FedPer(model).initialise(torch.tensor([0, 1, 0]), seed=0)
        >>> list(state.shared)
        ['0.weight', '0.bias']
        >>> {name: tuple(tensor.shape) for name, tensor in state.private.items()}
        {'2.weight': (3, 2, 3), '2.bias': (3, 2)}
    """

    name = "fedper"

    def __init__(self, model: nn.Module, head: Sequence[str] | str | int | None = None) -> None:
        parameters = some_trainable(model)
        layers = list(dict.fromkeys(map(owner, parameters)))
        if head is None:
            head = layers[-1:]
        # --option head=7 comes as a number
        self.head = list(head) if isinstance(head, Sequence) and not isinstance(head, str) else [str(head)]
        private: set[str] = set()
        for layer in self.head:
            # a model that is one layer has parameters without a prefix
            inside = {name for name in parameters if name.startswith(joined(layer, ""))}
            require(
                len(inside) > 0,
                f"head names {layer!r}, which is no layer with parameters to train; give some of "
                f"{', '.join(layers)}, or a module that holds some",
            )
            private |= inside
        require(
            0 < len(private) < len(parameters),
            f"head is {self.head}, {'all' if private else 'nothing'} of the model's parameters; give some of "
            "its layers, or use method 'fedavg' to share all and 'local' to share nothing",
        )
        super().__init__(model, private)


def owner(name: str) -> str:
    """The layer that a parameter is of: of what a parametrization trains in its place, too.

    Example:
        >>> owner("2.bias"), owner("2.parametrizations.weight.original0")
        ('2', '2')
    """
    layer, parametrized, _ = f".{name}".partition(".parametrizations.")
    return (layer if parametrized else layer.rpartition(".")[0]).removeprefix(".")
