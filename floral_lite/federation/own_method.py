"""Whether a method does what a federation takes it to do: told in a sentence, before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import InputError, require
from ..methods import Method
from ..methods.base import added_up
from ..roles import Roles
from ..seeds import stream
from .layers import chain

if TYPE_CHECKING:
    from .settings import Settings
    from .task import Task

# of the batch with which a method is asked about losses
SAMPLES = 3
Numbers = dict[str, Tensor]
# a verb of a method, of a client and the number of it, or of both and slice(None)
Verb = Callable[[Roles, Any], Any]


def check_own(method: Method, state: Roles, task: Task, settings: Settings, engine: str) -> None:
    """A method of a user's own returns what it should, and on the fast engine for a stack of clients too.

    Nothing is asked of the package's own methods.

    Args:
        method: asked with two clients whose numbers are drawn.
        state: the federation before its first round.
        task: the model and the clients.
        settings: how the clients descend.
        engine: "fast" or "loop".

    Raises:
        InputError: it does not, and would train something else than Algorithm 1.
    """
    if known(method):
        return
    kind = type(method).__name__
    averaged = state._replace(private={}).map(lambda tensor: torch.stack([tensor, tensor]))
    private = Roles({}, {}, state.private).at([0, -1]).private
    two = moved(averaged._replace(private=private))
    check_start(method, two.at(0))
    given = what_is_given(method, two)
    for verb in ("begin", "precondition", "finish"):
        after = given[verb](two.at(0).map(torch.clone), 0)
        require(
            isinstance(after, Roles) and [role.keys() for role in after] == [role.keys() for role in two],
            f"{kind}.{verb} returns {'other names than it was given' if after else after}; it must return "
            "Roles with the same names, such as client._replace(private={**client.private, ...})",
        )
    shape = tuple(given["losses"](two.at(0), 0).shape)
    require(
        shape in ((SAMPLES,), (1,)),
        f"{kind}.losses returns the shape {shape} for {SAMPLES} samples; it must return each sample's loss, "
        f"({SAMPLES},), as sample_loss does, or the batch's alone, (1,)",
    )
    if engine == "fast":
        check_stack(kind, given, two, asked_of_stacks(task, settings))


def asked_of_stacks(task: Task, settings: Settings) -> list[str]:
    """What the fast engine asks a method about a stack; the rest it asks about each client, by torch.vmap."""
    verbs = ["mixtures", "begin", "finish", "predict"]
    if chain(task.model) is not None:
        verbs += ["networks", "candidates", "losses", "penalty"]
        if not settings.momentum and settings.clip_norm is None:
            verbs += ["precondition"]
    return verbs


def check_start(method: Method, client: Roles) -> None:
    """`penalty` and `finish` look at what the client started from only where the method remembers it."""
    if method.remembers_start:
        return
    for verb in (method.penalty, method.finish):
        with_start = numbers(verb(client, moved(client)))
        if difference(with_start, numbers(verb(client, moved(client)))):
            continue  # it draws something
        try:
            uses = bool(difference(with_start, numbers(verb(client, Roles({}, {}, {})))))
        except KeyError:
            uses = True
        require(
            not uses,
            f"{type(method).__name__}.{verb.__name__} looks at start, what the client began the round with, "
            "which is kept only where it is asked for: write remembers_start = True into the class",
        )


def check_stack(kind: str, given: dict[str, Verb], two: Roles, verbs: list[str]) -> None:
    """For a stack of clients a method says what it says of each of them."""
    for verb in verbs:
        call, asked = given[verb], f"{kind}.{verb.replace('mixtures', 'mixture')}"
        way_out = (
            "count axes from the last one, let a client's number a meet a tensor of n axes as "
            "a.reshape(a.shape + (1,) * n), or use engine='loop'"
        )
        apart = [numbers(call(two.at(place).map(torch.clone), place)) for place in range(2)]
        wanted = {name: torch.stack([one[name] for one in apart]) for name in apart[0]}
        if verb == "penalty":
            way_out = (
                "a stack's penalty is the sum of its clients', each of its own axes; or use engine='loop'"
            )
            wanted = {name: tensor.sum(dim=0) for name, tensor in wanted.items()}
        try:
            found = numbers(call(two.map(torch.clone), slice(None)))
            drawn = difference(found, numbers(call(two.map(torch.clone), slice(None))))
        except (RuntimeError, IndexError, ValueError) as error:
            raise InputError(
                f"{asked} works for one client, and not for a stack, whose tensors have one more axis in "
                f"front ({str(error).splitlines()[0]}): {way_out}"
            ) from error
        wrong = "" if drawn else difference(found, wanted)
        require(
            not wrong,
            f"{asked} gives for a stack of two clients, whose tensors have one more axis in front, something "
            f"else than for each alone ({wrong}): {way_out}",
        )


def what_is_given(method: Method, two: Roles) -> dict[str, Verb]:
    """Each verb of the method, with what else it takes."""
    generator = stream(0, "stack")
    draws, like = method.draw(2, generator), two.tensors()[0]
    draws = None if draws is None else draws.to(like.device)
    # each network's logits of four labels, of both clients
    outputs = [torch.rand(2, SAMPLES, 4, generator=generator).to(like) for _ in method.networks(two.at(0))]
    choices = len(method.candidates(two.at(0)))
    losses = torch.rand(2, choices, generator=generator).to(like)

    def told(client: Roles, which: Any) -> list[Tensor]:
        return [one[which] for one in outputs]

    def mixtures(client: Roles, which: Any) -> Tensor:
        return (
            method.mixture(client.private) if isinstance(which, int) else method.mixtures(client.private, 2)
        )

    return {
        "mixtures": mixtures,
        "begin": lambda client, which: method.begin(client, losses[which] if choices else None),
        "finish": lambda client, which: method.finish(client, start_of(method, client)),
        "predict": lambda client, which: method.predict(client, told(client, which), True),
        "networks": lambda client, which: method.networks(client, None if draws is None else draws[which]),
        "candidates": lambda client, which: method.candidates(client),
        "losses": lambda client, which: method.losses(
            client,
            told(client, which),
            lambda one: one.square().mean(dim=-1),
            None if draws is None else draws[which],
        ),
        "penalty": lambda client, which: method.penalty(client, start_of(method, client)),
        "precondition": lambda client, which: method.precondition(client, client.map(torch.cos)),
    }


def known(method: Method) -> bool:
    """Whether it is one of the package's own."""
    return type(method).__module__.startswith("floral_lite.")


def start_of(method: Method, client: Roles) -> Roles:
    """What `penalty` and `finish` are given beside the client."""
    return client.map(torch.zeros_like) if method.remembers_start else Roles({}, {}, {})


def moved(roles: Roles) -> Roles:
    """Each number a little larger, by a share that is drawn: clients that began alike differ."""
    generator = stream(0, "moved")
    return roles.map(
        lambda tensor: (
            tensor + 0.1 * torch.rand(tensor.shape, generator=generator).to(tensor)
            if tensor.is_floating_point()
            else tensor
        )
    )


def numbers(result: Any, name: str = "") -> Numbers:
    """What a method returned, its tensors by name."""
    if isinstance(result, Roles):
        return numbers({f"{role} {key}": t for role, of in result._asdict().items() for key, t in of.items()})
    if isinstance(result, Mapping):
        found = [numbers(one, f"{name}{key}") for key, one in result.items()]
    elif isinstance(result, list):
        found = [numbers(one, f"{place}: ") for place, one in enumerate(result)]
    elif result is None:
        found = []
    else:
        return {name: torch.as_tensor(result if isinstance(result, float | int) else added_up(result))}
    return {name: tensor for one in found for name, tensor in one.items()}


def difference(one: Numbers, other: Numbers) -> str:
    """In words, the first difference of two results beyond what is rounded; "" if there is none."""
    if one.keys() != other.keys():
        return f"{', '.join(one.keys() ^ other.keys())} in one of them only"
    for name, tensor in one.items():
        if tensor.shape != other[name].shape:
            return f"{name} has shape {tuple(tensor.shape)} and not {tuple(other[name].shape)}".strip()
        share = 0.1 if tensor.dtype in (torch.float16, torch.bfloat16) else 1e-3
        if not torch.allclose(tensor.double(), other[name].double(), rtol=share, equal_nan=True):
            return f"{name} has other numbers".strip()
    return ""
