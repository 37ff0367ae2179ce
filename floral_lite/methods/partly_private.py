"""What local training, FedPer and FedBN have in common: some parameters are private, the rest shared."""

from collections.abc import Collection

from torch import Tensor, nn

from ..errors import check_names, require
from ..roles import Roles
from .base import Method, Part, some_trainable, trainable


class PartlyPrivate(Method):
    """Named parameters are private; the others are shared.

    Args:
        model: its first parameters are every client's.
        private: names of the private parameters, as in `model.named_parameters()`, or the one name.

    Raises:
        InputError: the model trains no parameter of such a name.

    Source: objective (PFL).
    """

    def __init__(self, model: nn.Module, private: Collection[str]) -> None:
        self.model = model
        self.private = {private} if isinstance(private, str) else set(private)
        self.trained = set(trainable(model))
        check_names("parameter to train", sorted(self.private), self.trained)

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        """The model as it is, and for each client a copy of what is private."""
        parameters = some_trainable(self.model)
        changed = sorted(parameters.keys() ^ self.trained)
        require(
            not changed,
            f"{changed[:2]} were frozen or unfrozen after the method was made, which chose then what is "
            "private: make the method anew",
        )
        shared = {name: tensor for name, tensor in parameters.items() if name not in self.private}
        private = {
            name: tensor.detach().expand(len(clusters), *tensor.shape)
            for name, tensor in parameters.items()
            if name in self.private
        }
        return Roles(shared, {}, private)

    def parts(self, client: Roles, draws: Tensor | None = None) -> dict[str, Part]:
        """w^k: the shared parameters and the client's own; running statistics are not among them."""
        return {**client.shared, **{name: client.private[name] for name in self.private}}
