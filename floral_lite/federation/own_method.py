"""Checks of a user's own method, router and adaptors, before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from ..adaptors import Adaptor, batch_nora_layers
from ..errors import InputError, require
from ..methods import Method
from ..methods.base import ROUTER, added_up
from ..methods.routed import Routed
from ..roles import Roles, is_statistic, joined
from ..router import Router
from ..seeds import stream
from .checks import tested_outputs
from .draws import noise_of
from .forward import running_statistics
from .layers import chain

if TYPE_CHECKING:
    from .task import Task

SAMPLES = 3  # in the batch with which a method is asked about losses
OWN = ("local_mean", "local_variance")  # a client's own statistics of a norm that Batch-NorA adapts
Numbers = dict[str, Tensor]
Verbs = dict[str, Callable[[], Any]]


def ours(code: Callable[..., object]) -> bool:
    """Whether a class or a function is this package's, and not a user's own."""
    return code.__module__.startswith("floral_lite.")


def check_own(method: Method, state: Roles, task: Task, engine: str) -> None:
    """A user's own method returns what it should, and on the fast engine for a stack of clients too.

    With a method of this package only routers and adaptors of a user's own are checked. The method that it
    adapts with is checked, too.

    Args:
        method: asked with two clients whose numbers are drawn.
        state: the federation before its first round.
        task: the model and the clients.
        engine: "fast" or "loop".

    Raises:
        InputError: it does not, and something else than Algorithm 1 would be trained.
    """
    if method.adaptation is not None:
        check_own(method.adaptation, state, task, engine)
    if engine == "fast" and chain(task.model) is not None:
        check_adaptors(getattr(method, "plan", {}))
    if engine == "fast" and isinstance(method, Routed):
        check_router(method, asked_of_stacks(task))
    if ours(type(method)):
        return
    kind, generator = type(method).__name__, stream(0, "two clients")
    norms = batch_nora_layers(getattr(method, "plan", {}))
    known = running_statistics(task.model).keys() | {joined(layer, which) for layer in norms for which in OWN}
    for name in (name for role in state for name in role):
        require(
            not is_statistic(name) or name in known,
            f"{kind}.initialise gives {name}, which is what the statistics of norms are called, and these "
            "are not trained like others: give it another name",
        )
    two = state.of_client(0).map(lambda *pair: torch.stack(pair), state.of_client(-1))
    # the draws tell clients apart that begin alike
    two = two.map(lambda pair: pair + (0.1 * torch.rand(pair.shape, generator=generator)).to(pair))
    asked = partial(verbs, method, two, tested_outputs(task, 1, "train").shape[-1])
    for verb in ("begin", "precondition", "finish"):
        after = asked(0)[verb]()
        found = "other names than it was given" if isinstance(after, Roles) else f"a {type(after).__name__}"
        require(
            isinstance(after, Roles) and [role.keys() for role in after] == [role.keys() for role in two],
            f"{kind}.{verb} returns {found}; it must return Roles with the same names, such as "
            "client._replace(private={**client.private, ...})",
        )
        if verb == "begin":
            sent = (roles._replace(private={}).tensors() for roles in (after, two.at(0)))
            require(
                all(map(torch.equal, *sent)),
                f"{kind}.begin changes what is shared or clustered, but before the local steps only private "
                "parameters may change: write the others in finish",
            )
    if isinstance(method, Routed) and ours(type(method).parts):
        private = two.at(0).private
        require(
            torch.allclose(method.mixture(private), method.router.mixture(private[ROUTER])),
            f"{kind}.mixture gives other weights than {kind}.router, with which the networks are mixed: "
            "write the rule as mixture(router_logits, draws=None) of a subclass of Router, given as router=",
        )
    penalty = asked(0)["penalty"]()  # which must not look at what is not kept
    require(isinstance(penalty, Tensor | float | int), f"{kind}.penalty returns {penalty!r}; return a number")
    shape = tuple(asked(0)["losses"]().shape)
    require(
        shape in ((SAMPLES,), (1,)),
        f"{kind}.losses returns the shape {shape} for {SAMPLES} samples; it must return each sample's loss, "
        f"({SAMPLES},), as sample_loss does, or the batch's alone, (1,)",
    )
    for verb in asked_of_stacks(task) if engine == "fast" else ():
        check_stack(type(method).__name__, asked, verb)


def asked_of_stacks(task: Task) -> list[str]:
    """The verbs that the fast engine asks of a stack; under torch.vmap it asks the rest of single clients."""
    asked = ["mixture", "begin", "finish", "predict"]
    if chain(task.model) is not None:
        asked += ["networks", "candidates", "losses", "penalty", "precondition"]
    return asked


def check_stack(kind: str, asked: Callable[[Any], Verbs], verb: str) -> None:
    """For a stack of clients a method gives what it gives for each of them; of penalties the sum."""
    one, other = (numbers(asked(client)[verb]()) for client in (0, 1))
    wanted = {name: torch.stack([one[name], other[name]]) for name in one}
    if verb == "penalty":
        wanted = {name: both.sum(dim=0) for name, both in wanted.items()}
    wrong, cause = for_a_stack(lambda: asked(slice(None))[verb](), wanted)
    if wrong:
        raise InputError(
            f"{kind}.{verb} gives for a stack of two clients, whose tensors have one more "
            f"axis in front, something else than for each alone ({wrong}): count axes from the last one, let "
            "a client's number a meet a tensor of n axes as a.reshape(a.shape + (1,) * n), sum a penalty "
            "over the clients, or use engine='loop'"
        ) from cause


def check_adaptors(plan: Mapping[str, Adaptor]) -> None:
    """For a stack of clients an adaptor of a user's own adds what it adds for each of them."""
    generator = stream(0, "adaptors of one's own")
    for name, adaptor in plan.items():
        if ours(type(adaptor)):
            continue
        mixtures = torch.rand(2, 3, generator=generator).softmax(dim=-1)
        factors = {
            factor: torch.rand(2, 3, *shape, generator=generator) for factor, shape in adaptor.shapes.items()
        }
        alone = [
            adaptor.delta({factor: tensor[client] for factor, tensor in factors.items()}, mixtures[client])
            for client in (0, 1)
        ]
        wrong, cause = for_a_stack(partial(adaptor.delta, factors, mixtures), numbers(torch.stack(alone)))
        if wrong:
            raise InputError(
                f"{type(adaptor).__name__}.delta, the adaptor of {name}, gives for a stack of two clients, "
                f"whose tensors have one more axis in front, something else than for each alone ({wrong}): "
                "count axes from the last one, begin each term of an einsum with '...', or use engine='loop'"
            ) from cause


def check_router(method: Routed, asked: Collection[str]) -> None:
    """For a stack of clients a router of a user's own gives what it gives for each; of penalties the sum."""
    router, generator = method.router, stream(0, "a router of one's own")
    if type(router) is Router:
        return
    two, draws = torch.rand(2, method.num_clusters, generator=generator), noise_of(method, 2, generator)
    alone = [router.mixture(two[client], None if draws is None else draws[client]) for client in (0, 1)]
    for verb, ask, wanted in (
        ("mixture", partial(router.mixture, two, draws), torch.stack(alone)),
        ("penalty", partial(router.penalty, two), router.penalty(two[0]) + router.penalty(two[1])),
    ):
        wrong, cause = for_a_stack(ask, numbers(wanted)) if verb in asked else ("", None)
        if wrong:
            raise InputError(
                f"{type(router).__name__}.{verb} gives for a stack of two clients, whose logits are (2, C), "
                f"something else than for each alone ({wrong}): count axes from the last one, such as with "
                "dim=-1, sum a penalty over the clients, or use engine='loop'"
            ) from cause


def for_a_stack(ask: Callable[[], Any], wanted: Numbers) -> tuple[str, Exception | None]:
    """What is wrong with an answer for a stack, in words, and the error if there was one; "" if nothing."""
    try:
        found, again = numbers(ask()), numbers(ask())
    except (RuntimeError, IndexError, ValueError) as error:
        return str(error).partition("\n")[0], error
    drawn = difference(found, again)  # by itself, so that nothing can be compared
    return "" if drawn else difference(found, wanted), None


def verbs(method: Method, two: Roles, num_labels: int, which: Any) -> Verbs:
    """Each verb of a method, to be asked about one of two clients, by its number, or both, by slice(None)."""
    generator = stream(0, "verbs")
    client = two.at(which).map(torch.clone)  # in which a verb may write
    like, draws = client.tensors()[0], noise_of(method, 2, generator)
    draws = None if draws is None else draws.to(like.device)[which]
    # each network's logits
    outputs = [torch.rand(2, SAMPLES, num_labels, generator=generator) for _ in method.networks(two.at(0))]
    outputs = [one.to(like)[which] for one in outputs]
    choices = len(method.candidates(two.at(0)))
    losses = torch.rand(2, choices, generator=generator).to(like)[which] if choices else None
    start: Any = client.map(torch.zeros_like) if method.remembers_start else NotKept(type(method).__name__)
    alone = isinstance(which, int)
    return {
        "mixture": lambda: method.mixture(client.private) if alone else method.mixtures(client.private, 2),
        "begin": lambda: method.begin(client, losses),
        "finish": lambda: method.finish(client, start),
        "predict": lambda: method.predict(client, outputs, True),
        "networks": lambda: method.networks(client, draws),
        "candidates": lambda: method.candidates(client),
        "losses": lambda: method.losses(client, outputs, lambda one: one.square().mean(dim=-1), draws),
        "penalty": lambda: method.penalty(client, start),
        "precondition": lambda: method.precondition(client, client.map(torch.cos)),
    }


class NotKept:
    """What stands for `start` where a method does not remember it: nobody may look at it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def look(self, *_: object) -> NoReturn:
        """Raise InputError."""
        raise InputError(
            f"{self.kind} looks at start in penalty or finish, but what the client began the round with is "
            "kept only where it is asked for: write remembers_start = True into the class"
        )

    __getattr__ = __getitem__ = __iter__ = look


def numbers(result: Any, name: str = "") -> Numbers:
    """What a method returned, its tensors by name."""
    if isinstance(result, Roles):
        result = result._asdict()
    elif isinstance(result, list):
        result = dict(enumerate(result))
    if isinstance(result, Mapping):
        inside = [numbers(one, f"{name} {key}".strip()) for key, one in result.items()]
        return {name: tensor for one in inside for name, tensor in one.items()}
    return {name: torch.as_tensor(result if isinstance(result, float | int) else added_up(result))}


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
