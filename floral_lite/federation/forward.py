"""A client's outputs: the model run with the client's own parameters and statistics."""

from contextlib import nullcontext

from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from ..dropout import Dropout
from ..factored import Blend, Mixture
from ..methods import Method
from ..mixing import Mixing, Route
from ..roles import Roles, is_statistic


def running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """The running means and variances of a model's batch norms, by name."""
    norms = {name for name, layer in model.named_modules() if isinstance(layer, _NormBase)}
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if is_statistic(name) and name.rpartition(".")[0] in norms
    }


def forward(
    model: nn.Module,
    method: Method,
    client: Roles,
    inputs: Tensor,
    noise: Tensor | None = None,
    key: Tensor | None = None,
    route: Route = "merged",
) -> tuple[Tensor, Roles]:
    """Run the model for one client.

    Args:
        model: in training or evaluation mode.
        method: says what the model's parameters are made of.
        client: its parameters and statistics.
        inputs: shape (B, ...).
        noise: what the method drew for this step; None in evaluation.
        key: that dropout's masks follow from; None in evaluation.
        route: whether mixtures are merged first or run as factors, see `mixing.py`.

    Returns:
        The outputs, and the client with its statistics as a training batch moves them.
    """
    # batch norms write into their statistics: they get copies, and of other buffers some that nobody reads
    client = Roles(
        *(
            {name: tensor.detach().clone() if is_statistic(name) else tensor for name, tensor in role.items()}
            for role in client
        )
    )
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    buffers |= {name: role[name] for role in client for name in buffers if name in role}
    parts = method.parts(client, noise)
    mixtures = {name: part for name, part in parts.items() if isinstance(part, Mixture)}
    parameters = {
        name: part.merged() if isinstance(part, Blend) else part
        for name, part in parts.items()
        if not isinstance(part, Mixture)
    }
    mixing = Mixing(mixtures, method.local_statistics(client), route)
    with nullcontext() if key is None else Dropout(key), mixing:
        outputs = functional_call(model, parameters | mixing.placeholders | buffers, (inputs,))
    return outputs, client
