"""A method of a user's own: what it may do wrong is told in a sentence, and what it may do agrees."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from floral_lite import Floral, InputError, Router, Task, methods, personal_model, train
from floral_lite.adaptors import KINDS, VectorAdaptor
from floral_lite.factored import Blend
from floral_lite.federation import Engine
from floral_lite.federation.record import plain
from floral_lite.methods import ROUTER, Method, Part
from floral_lite.methods.base import SampleLoss
from floral_lite.methods.partly_private import PartlyPrivate
from floral_lite.roles import Roles
from tests.federations import agree, make_task, normal


@pytest.fixture
def task() -> Task:
    """A chain of known layers, whose clients the fast engine gives to a method as a stack."""
    return make_task(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), normal(4))


class Shared(methods.FedAvg):
    name = "own"


class Halfway(Method):
    """A private model and a shared one, mixed by a number alpha of the client's own."""

    name = "halfway"

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        shared, num_clients = dict(self.model.named_parameters()), len(clusters)
        own = {f"own.{name}": tensor.expand(num_clients, *tensor.shape) for name, tensor in shared.items()}
        return Roles(shared, {}, own | {"alpha": torch.full((num_clients,), 0.5, dtype=torch.float64)})

    def weight(self, alpha: Tensor, num_axes: int) -> Tensor:
        return alpha.reshape(alpha.shape + (1,) * num_axes)

    def parts(self, client: Roles, draws: Tensor | None = None) -> dict[str, Part]:
        mixed: dict[str, Part] = {}
        for name, shared in client.shared.items():
            alpha = client.private["alpha"]
            alpha = self.weight(alpha, shared.dim() - alpha.dim())
            mixed[name] = alpha * client.private[f"own.{name}"] + (1 - alpha) * shared
        return mixed


class ForOneClient(Halfway):
    def weight(self, alpha: Tensor, num_axes: int) -> Tensor:
        return alpha


class Nothing(Shared):
    def initialise(self, clusters: Tensor, seed: int) -> Any:
        return super().initialise(clusters, seed).shared


class NoAxis(Shared):
    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        state = super().initialise(clusters, seed)
        return state._replace(private={"age": torch.zeros(3)})


class Whole(Shared):
    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        state = super().initialise(clusters, seed)
        return state._replace(private={"age": torch.zeros(len(clusters), dtype=torch.long)})


class NoMixture(Shared):
    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        state = super().initialise(clusters, seed)
        return state._replace(clustered={"more": torch.zeros(2, 3)})


class Sharper(methods.FLoRAL):
    def mixture(self, private: Mapping[str, Tensor]) -> Tensor:
        return (3 * private["router_logits"]).softmax(dim=-1)


class WithoutBias(Shared):
    def parts(self, client: Roles, draws: Tensor | None = None) -> dict[str, Part]:
        return {name: part for name, part in client.shared.items() if "bias" not in name}


class Listed(Shared):
    def parts(self, client: Roles, draws: Tensor | None = None) -> Any:
        return list(client.shared.values())


class OneMore(Shared):
    def parts(self, client: Roles, draws: Tensor | None = None) -> dict[str, Part]:
        return {**client.shared, "more": client.shared["0.bias"]}


class Transposed(Shared):
    def parts(self, client: Roles, draws: Tensor | None = None) -> dict[str, Part]:
        return {**client.shared, "2.weight": client.shared["2.weight"].mT}


class OneLoss(Shared):
    def losses(self, client: Roles, outputs: list[Tensor], sample_loss: Any, draws: Any = None) -> Tensor:
        return sample_loss(outputs[0]).mean()  # type: ignore[no-any-return]


class NoEnd(Shared):
    def finish(self, client: Roles, start: Roles) -> Any:
        client.shared["0.bias"].zero_()


class NoBegin(Shared):
    def begin(self, client: Roles, losses: Tensor | None) -> Any:
        return client.shared["0.bias"]


class Early(Shared):
    def begin(self, client: Roles, losses: Tensor | None) -> Roles:
        return client.map(torch.zeros_like)


class NoGradients(Shared):
    def precondition(self, client: Roles, gradients: Roles) -> Any:
        return gradients._replace(shared={})


class OneDraw(Shared):
    def draw(self, num_steps: int, generator: torch.Generator) -> Tensor:
        return torch.rand(3, generator=generator)


class DrawnArray(Shared):
    def draw(self, num_steps: int, generator: torch.Generator) -> Any:
        return np.ones((num_steps, 2))


class DrawnList(Shared):
    def draw(self, num_steps: int, generator: torch.Generator) -> Any:
        return [0.5] * num_steps


class FewDraws(Shared):
    """The two steps of the trial have a row each."""

    def draw(self, num_steps: int, generator: torch.Generator) -> Tensor:
        return torch.rand(2, generator=generator)


class Start(Shared):
    """Its penalty finds no tensor to be missing: only the number tells."""

    def penalty(self, client: Roles, start: Roles) -> Tensor | float:
        return sum((tensor - client.shared[name]).square().sum() for name, tensor in start.shared.items())


class Ended(Shared):
    def finish(self, client: Roles, start: Roles) -> Roles:
        return client._replace(
            shared={name: (t + start.shared[name]) / 2 for name, t in client.shared.items()}
        )


class OneStatistic(Shared):
    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        return super().initialise(clusters, seed)._replace(private={"local_mean": torch.zeros(len(clusters))})

    def parts(self, client: Roles, draws: Tensor | None = None) -> dict[str, Part]:
        return dict(client.shared)


class NoDraws(Shared):
    def parts(self, client: Roles) -> dict[str, Part]:  # type: ignore[override]
        return dict(client.shared)


class AllDraws(Shared):
    def parts(self, client: Roles, draws: Tensor | None) -> dict[str, Part]:
        return dict(client.shared)


class NoPenalty(Shared):
    def penalty(self, client: Roles, start: Roles) -> None:  # type: ignore[override]
        return None


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (NoDraws, r"NoDraws\.parts takes \(client.*write it as parts\(self, client, draws=None\)"),
        (AllDraws, r"AllDraws\.parts takes \(client.*write it as parts\(self, client, draws=None\)"),
        (NoPenalty, r"NoPenalty\.penalty returns None; return a number"),
        (OneStatistic, r"OneStatistic\.initialise gives local_mean, which is what the statistics"),
        (Nothing, r"Nothing\.initialise returns a dict; it must return Roles"),
        (NoAxis, r"the private age the shape \(3,\); it needs an axis of the 5 clients"),
        (Whole, r"Whole\.initialise gives age the type torch\.int64.*give tensor\.float\(\)"),
        (NoMixture, r"the clustered more the shape \(2, 3\), and NoMixture\.mixture has length 1"),
        (WithoutBias, r"WithoutBias\.parts leaves out 0\.bias"),
        (Listed, r"Listed\.parts returns a list; it must return a dictionary"),
        (OneMore, r"OneMore\.parts gives more, which is no parameter"),
        (Transposed, r"2\.weight the shape \(5, 3\) for one client; the model's has \(3, 5\)"),
        (OneLoss, r"OneLoss\.losses returns the shape \(\) for 3 samples; .* \(3,\), .* \(1,\)"),
        (NoEnd, r"NoEnd\.finish returns a NoneType; it must return Roles"),
        (NoBegin, r"NoBegin\.begin returns a Tensor; it must return Roles"),
        (Early, r"Early\.begin changes what is shared or clustered.* write the others in finish"),
        (NoGradients, r"NoGradients\.precondition returns other names"),
        (
            OneDraw,
            r"OneDraw\.draw returns a Tensor of shape \(3,\) for 2 steps; .* a row a step, \(2, \.\.\.\)",
        ),
        (DrawnArray, r"DrawnArray\.draw returns a ndarray of shape \(2, 2\) for 2 steps; .* a tensor"),
        (DrawnList, r"DrawnList\.draw returns a list of shape \(\) for 2 steps"),
        (FewDraws, r"FewDraws\.draw returns a Tensor of shape \(2,\) for [^2] steps"),
        (Start, r"Start looks at start.*remembers_start = True"),
        (Ended, r"Ended looks at start.*remembers_start = True"),
        (Sharper, r"Sharper\.mixture gives other weights than Sharper\.router.*subclass of Router"),
    ],
)
def test_what_a_method_of_ones_own_does_wrong_is_told(task: Task, kind: type[Method], message: str) -> None:
    with pytest.raises(InputError, match=message):
        train(task, kind(task.model), engine="loop")  # type: ignore[call-arg]


def test_a_router_of_ones_own_takes_what_the_package_gives_it(task: Task) -> None:
    class Sharp(Router):
        def mixture(self, router_logits: Tensor) -> Tensor:  # type: ignore[override]
            return (9 * router_logits).softmax(dim=-1)

    with pytest.raises(InputError, match=r"write it as mixture\(self, router_logits, draws=None\)"):
        methods.FLoRAL(task.model, rank=1, router=Sharp())


def test_a_verb_may_be_of_any_kind_and_call_its_arguments_as_it_likes(task: Task) -> None:
    class Static(Shared):
        @staticmethod
        def parts(mine: Roles, *others: Any) -> dict[str, Part]:  # type: ignore[override]
            return dict(mine.shared)

        def predict(self, mine: Roles, answers: list[Tensor], labels: bool) -> Tensor:  # type: ignore[override]
            return answers[0]

        def mixtures(self, own: dict[str, Tensor], many: int) -> Tensor:  # type: ignore[override]
            return self.mixture(own).expand(many, -1)

    assert train(task, Static(task.model), rounds=1).history.rounds


def test_a_method_without_a_name_is_told(task: Task) -> None:
    class Nameless(Method):
        initialise = Shared.initialise  # type: ignore[assignment]
        parts = Shared.parts  # type: ignore[assignment]
        model = task.model

    with pytest.raises(InputError, match=r"Nameless has no name.*name = 'nameless' into the class"):
        train(task, Nameless())


class Mean(Shared):
    def penalty(self, client: Roles, start: Roles) -> Tensor:
        return client.shared["0.weight"].square().mean()


class OneNorm(Shared):
    """Gradients of length one: of all clients of a stack together."""

    def precondition(self, client: Roles, gradients: Roles) -> Roles:
        return gradients.map(lambda gradient: gradient / (1 + gradient.norm()))


class Rounded(Shared):
    def finish(self, client: Roles, start: Roles) -> Roles:
        return client.map(lambda tensor: tensor / (1 + tensor.abs().max()))


class Begun(Shared):
    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        own = {"own": torch.ones(len(clusters), 2, dtype=torch.float64)}
        return super().initialise(clusters, seed)._replace(private=own)

    def begin(self, client: Roles, losses: Tensor | None) -> Roles:
        return client._replace(private={n: t / (1 + t.abs().max()) for n, t in client.private.items()})


class FromTheMean(Shared):
    """Outputs less their mean over the first axis."""

    def predict(self, client: Roles, outputs: list[Tensor], classifies: bool) -> Tensor:
        return outputs[0] - outputs[0].mean(dim=0)


class Offered(Shared):
    """Candidates less their mean over the first axis."""

    def candidates(self, client: Roles) -> list[dict[str, Part]]:
        return [{name: tensor - tensor.mean(dim=0) for name, tensor in client.shared.items()}]


class Largest(Shared):
    """Losses as shares of the largest: of all clients of a stack together."""

    def losses(self, client: Roles, outputs: list[Tensor], sample_loss: Any, draws: Any = None) -> Tensor:
        losses: Tensor = sample_loss(outputs[0])
        return losses / losses.detach().max()


class Softly(methods.Ensemble):
    """A softmax over the first axis, which in a stack is that of the clients."""

    def mixture(self, private: Mapping[str, Tensor]) -> Tensor:
        return private["router_logits"].softmax(dim=0)


IN_A_CHAIN = {
    ForOneClient: r"ForOneClient\.networks gives for a stack.*must match the size.*a\.reshape",
    Offered: r"Offered\.candidates gives for a stack.*has other numbers",
    Mean: r"Mean\.penalty gives for a stack.*sum a penalty over the clients",
    Largest: r"Largest\.losses gives for a stack.*has other numbers",
    OneNorm: r"OneNorm\.precondition gives for a stack.*has other numbers.*engine='loop'",
}
ALWAYS = {
    Begun: r"Begun\.begin gives for a stack.*has other numbers",
    FromTheMean: r"FromTheMean\.predict gives for a stack.*has other numbers",
    Rounded: r"Rounded\.finish gives for a stack.*has other numbers.*engine='loop'",
    Softly: r"Softly\.mixture gives for a stack.*has other numbers",
}


@pytest.mark.parametrize(("kind", "message"), (IN_A_CHAIN | ALWAYS).items())
def test_a_method_that_is_another_for_a_stack_is_told_and_the_loop_takes_it(
    task: Task, kind: type[Method], message: str
) -> None:
    method = kind(task.model)  # type: ignore[call-arg]
    with pytest.raises(InputError, match=message):
        train(task, method)
    train(task, method, engine="loop", rounds=1)


@pytest.mark.parametrize("kind", IN_A_CHAIN)
def test_what_is_asked_about_one_client_at_a_time_may_be_written_for_one(kind: type[Method]) -> None:
    """A network that is no chain of known layers goes through torch.vmap."""
    layers = (nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3))
    task = make_task(lambda: nn.Sequential(*layers), normal(4))
    method = kind(task.model)  # type: ignore[call-arg]
    agree(*(train(task, method, engine=engine) for engine in ("fast", "loop")))


def test_a_learned_mixture_of_a_private_and_a_shared_model_agrees(task: Task) -> None:
    method = Halfway(task.model)
    fast, loop = (train(task, method, engine=engine) for engine in ("fast", "loop"))
    agree(fast, loop)
    assert len(set(fast.state.private["alpha"].tolist())) > 1


def twice(parts: dict[str, Any]) -> dict[str, Any]:
    """The last layer's rows are scaled by a column of the first one, which a step would change too soon."""
    return {**parts, "2.weight": parts["2.weight"] * parts["0.weight"][..., :3, :1]}


class InParts(Shared):
    def parts(self, client: Roles, draws: Tensor | None = None) -> dict[str, Part]:
        return twice(super().parts(client))


class InNetworks(Shared):
    def networks(self, client: Roles, draws: Tensor | None = None) -> list[dict[str, Part]]:
        return [twice(self.parts(client))]


@pytest.mark.parametrize("kind", [InParts, InNetworks])
def test_a_weight_may_be_used_twice(task: Task, kind: type[Method]) -> None:
    method = kind(task.model)  # type: ignore[call-arg]
    agree(*(train(task, method, engine=engine) for engine in ("fast", "loop")))


class Noisy(Shared):
    """Sends what it learned with noise, which nobody can compare."""

    def finish(self, client: Roles, start: Roles) -> Roles:
        return client.map(lambda tensor: tensor + 1e-3 * torch.randn_like(tensor))


class Controlled(Shared):
    """SCAFFOLD: each client's control variate is private, the server's is shared."""

    remembers_start = True
    learning_rate = 0.1

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        model = super().initialise(clusters, seed).shared
        zeros = {f"c.{name}": torch.zeros_like(tensor) for name, tensor in model.items()}
        own = {name: tensor.expand(len(clusters), *tensor.shape) for name, tensor in zeros.items()}
        return Roles(model | zeros, {}, own | {"steps": torch.zeros(len(clusters), dtype=torch.float64)})

    def parts(self, client: Roles, draws: Tensor | None = None) -> dict[str, Part]:
        return {name: tensor for name, tensor in client.shared.items() if not name.startswith("c.")}

    def precondition(self, client: Roles, gradients: Roles) -> Roles:
        shared = {
            name: gradient
            if name.startswith("c.")  # zero: the loss does not see it
            else gradient + client.shared[f"c.{name}"] - client.private[f"c.{name}"]
            for name, gradient in gradients.shared.items()
        }
        one_more = gradients.private["steps"] - 1 / self.learning_rate
        return gradients._replace(shared=shared, private=gradients.private | {"steps": one_more})

    def finish(self, client: Roles, start: Roles) -> Roles:
        steps = client.private["steps"] - start.private["steps"]
        shared, private = dict(client.shared), dict(client.private)
        for name in self.parts(client):
            way = start.shared[name] - client.shared[name]
            rate = self.learning_rate * steps.reshape(steps.shape + (1,) * (way.dim() - steps.dim()))
            private[f"c.{name}"] = start.private[f"c.{name}"] - start.shared[f"c.{name}"] + way / rate
            change = private[f"c.{name}"] - start.private[f"c.{name}"]
            shared[f"c.{name}"] = start.shared[f"c.{name}"] + change
        return Roles(shared, {}, private)


class InTurns(PartlyPrivate):
    """FedRep: of a round's steps the head takes the first half, the body the second."""

    name = "in-turns"

    def draw(self, num_steps: int, generator: torch.Generator) -> Tensor:
        return torch.arange(num_steps) < num_steps / 2

    def parts(self, client: Roles, draws: Tensor | None = None) -> dict[str, Part]:
        given = super().parts(client)
        if draws is None:
            return given
        chosen: dict[str, Part] = {}
        for name, part in given.items():
            assert isinstance(part, Tensor)
            on = draws if name in self.private else ~draws
            on = on.reshape(on.shape + (1,) * (part.dim() - on.dim()))
            chosen[name] = torch.where(on, part, part.detach())
        return chosen


class Fair(Method):
    """q-FedAvg with L = 1 / eta: one cluster, whose average has weights of the clients' own."""

    name = "fair"
    remembers_start = True
    q, lipschitz = 2.0, 10.0

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        one = {name: tensor[None] for name, tensor in self.model.named_parameters()}
        numbers = torch.ones(len(clusters), dtype=torch.float64)
        return Roles({}, one, {"loss": numbers, "weight": numbers})

    def parts(self, client: Roles, draws: Tensor | None = None) -> dict[str, Part]:
        axis = client.private["loss"].dim()
        return {name: tensor.squeeze(axis) for name, tensor in client.clustered.items()}

    def candidates(self, client: Roles) -> list[dict[str, Part]]:
        return [self.parts(client)]

    def begin(self, client: Roles, losses: Tensor | None) -> Roles:
        assert losses is not None
        return client._replace(private=client.private | {"loss": losses[..., 0]})

    def finish(self, client: Roles, start: Roles) -> Roles:
        loss = client.private["loss"]
        moved = {name: tensor - start.clustered[name] for name, tensor in client.clustered.items()}
        # h = q F^(q - 1) |L moved|^2 + L F^q, and the server steps by sum_k F^q L moved / sum_k h
        squares = torch.stack([way.square().flatten(loss.dim()).sum(dim=-1) for way in moved.values()])
        far = self.lipschitz**2 * squares.sum(dim=0)
        weight = self.q * loss ** (self.q - 1) * far + self.lipschitz * loss**self.q
        share = self.lipschitz * loss**self.q / weight
        sent = {
            name: start.clustered[name] + share.reshape(share.shape + (1,) * (way.dim() - share.dim())) * way
            for name, way in moved.items()
        }
        return Roles({}, sent, {"loss": loss, "weight": weight})

    def mixture(self, private: dict[str, Tensor]) -> Tensor:
        return private["weight"][..., None]


class Falling(Shared):
    """A learning rate that is halved after every round."""

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        state = super().initialise(clusters, seed)
        return state._replace(shared=state.shared | {"rounds": torch.zeros(1, dtype=torch.float64)})

    def parts(self, client: Roles, draws: Tensor | None = None) -> dict[str, Part]:
        return {name: tensor for name, tensor in client.shared.items() if name != "rounds"}

    def precondition(self, client: Roles, gradients: Roles) -> Roles:
        factor = 0.5 ** client.shared["rounds"]
        return gradients.map(
            lambda g: factor.reshape(factor.shape[:-1] + (1,) * (g.dim() - factor.dim() + 1)) * g
        )

    def finish(self, client: Roles, start: Roles) -> Roles:
        return client._replace(shared=client.shared | {"rounds": client.shared["rounds"] + 1})


def test_noise_of_a_method_s_own_is_taken(task: Task) -> None:
    train(task, Noisy(task.model), rounds=1)


class Prior(Shared):
    """It knows how many labels there are."""

    def losses(
        self, client: Roles, outputs: Sequence[Tensor], sample_loss: SampleLoss, draws: Tensor | None = None
    ) -> Tensor:
        return sample_loss(outputs[0] + torch.tensor([0.0, 0.5, 1.0]))


def test_losses_may_know_the_number_of_labels(task: Task) -> None:
    agree(*(train(task, Prior(task.model), engine=engine) for engine in ("fast", "loop")))


class WithoutSoftmax(Shared):
    def mixture(self, private: Mapping[str, Tensor]) -> Tensor:
        return torch.tensor([-0.5])


@pytest.mark.parametrize("engine", ["fast", "loop"])
def test_weights_of_clusters_that_are_negative_are_told(task: Task, engine: Engine) -> None:
    with pytest.raises(InputError, match=r"mixture of client \d is \[-0\.5\] in round 1.*softmax\(dim=-1\)"):
        train(task, WithoutSoftmax(task.model), engine=engine, rounds=1)


class Tuned(Shared):
    """Its clients train on before they are tested, by a method that is another one for a stack."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.adaptation = OneNorm(model)


def test_what_adapts_a_model_for_a_test_is_checked_too(task: Task) -> None:
    with pytest.raises(InputError, match=r"OneNorm\.precondition gives for a stack"):
        train(task, Tuned(task.model))


def test_clients_may_keep_control_variates(task: Task) -> None:
    method = Controlled(task.model)
    fast, loop = (train(task, method, engine=engine) for engine in ("fast", "loop"))
    agree(fast, loop)
    # each client's own steps of each round that it was sampled in
    steps = fast.state.private["steps"]
    assert steps.gt(0).all()
    assert torch.equal(steps.round(), steps.round(decimals=6))
    assert fast.state.shared["c.0.weight"].any()


def test_head_and_body_may_take_turns(task: Task) -> None:
    method = InTurns(task.model, ["2.weight", "2.bias"])
    agree(*(train(task, method, engine=engine) for engine in ("fast", "loop")))


def test_a_client_may_choose_its_weight_in_the_average() -> None:
    task = make_task(lambda: nn.Linear(4, 3), normal(4), batch_size=100, rounds=1, participation=1.0)
    method = Fair(task.model)
    fast, loop = (train(task, method, engine=engine) for engine in ("fast", "loop"))
    agree(fast, loop)
    top, bottom = [torch.zeros_like(weight) for weight in task.model.parameters()], torch.zeros(())
    for inputs, targets in task.train:  # a round of one step, with the whole shard: moved = -gradient / L
        loss = nn.functional.cross_entropy(task.model(inputs), targets)
        gradients = torch.autograd.grad(loss, [*task.model.parameters()])
        loss, num_samples = loss.detach(), len(targets)
        squares = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        bottom = bottom + num_samples * (2 * loss * squares + 10 * loss**2)
        for total, gradient in zip(top, gradients, strict=True):
            total += num_samples * loss**2 * gradient
    for (name, weight), total in zip(task.model.named_parameters(), top, strict=True):
        torch.testing.assert_close(fast.state.clustered[name][0], weight.detach() - total / bottom)


def test_a_learning_rate_may_fall() -> None:
    still = {"shuffle": False, "participation": 1.0}
    task = make_task(lambda: nn.Linear(4, 3), normal(4), **still)
    fast, loop = (train(task, Falling(task.model), engine=engine) for engine in ("fast", "loop"))
    agree(fast, loop)
    assert fast.state.shared.pop("rounds") == 3
    for rate in (0.1, 0.05, 0.025):
        method = methods.FedAvg(task.model)
        task = replace(
            task, model=personal_model(task, method, train(task, method, rounds=1, learning_rate=rate), 0)
        )
    for name, weight in task.model.named_parameters():
        torch.testing.assert_close(fast.state.shared[name], weight.detach())


class Gumbel(Router):
    """Noise of another distribution than the uniform one."""

    def mixture(self, router_logits: Tensor, draws: Tensor | None = None) -> Tensor:
        if draws is not None:
            router_logits = router_logits - (-draws.to(router_logits).clamp(min=1e-6).log()).log()
        return router_logits.softmax(dim=-1)


def test_a_rule_of_ones_own_gets_draws_where_the_router_has_noise(task: Task) -> None:
    quiet, noisy = (
        train(task, methods.FLoRAL(task.model, 2, rank=1, router=Gumbel(noise=noise)), rounds=1).state
        for noise in (0.0, 1.0)
    )
    plain = train(task, methods.FLoRAL(task.model, 2, rank=1), rounds=1).state
    assert torch.equal(quiet.private[ROUTER], plain.private[ROUTER])
    assert not torch.equal(noisy.private[ROUTER], plain.private[ROUTER])


def test_private_parameters_are_named_as_the_model_names_them(task: Task) -> None:
    assert InTurns(task.model, "2.bias").private == {"2.bias"}
    with pytest.raises(
        InputError, match=r"no parameter to train is called '2\.bais'; did you mean '2\.bias'"
    ):
        InTurns(task.model, ["2.bais"])
    task.model.get_parameter("0.bias").requires_grad_(False)
    with pytest.raises(InputError, match=r"no parameter to train is called '0\.bias'"):
        InTurns(task.model, ["0.bias", "2.bias"])


class ForOne(VectorAdaptor):
    """What it adds is written without the axis that a stack of clients has in front."""

    def delta(self, factors: Mapping[str, Tensor], mixture: Tensor) -> Tensor:
        return (mixture[:, None] * factors["L"]).sum(dim=0)


def test_an_adaptor_that_is_another_for_a_stack_is_told_and_the_loop_takes_it(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = []
    for kind in (ForOne, VectorAdaptor):
        entry = {"bias": partial(lambda kind, layer, *_: kind("own", tuple(layer.bias.shape)), kind)}
        monkeypatch.setitem(KINDS, nn.Linear, entry)
        method = methods.FLoRAL(task.model, num_clusters=2, rank=1, router={"noise": 1})
        if kind is ForOne:
            with pytest.raises(InputError, match=r"ForOne\.delta, the adaptor of 0\.bias, .*engine='loop'"):
                train(task, method)
        ends.append(train(task, method, engine="loop" if kind is ForOne else "fast"))
    agree(*ends)


def test_an_adaptor_without_factors_stands_beside_a_large_weight_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where factors would be run beside it."""
    entry = {"weight": lambda layer, *_: VectorAdaptor("own", tuple(layer.weight.shape))}
    monkeypatch.setitem(KINDS, nn.Linear, entry)
    task = make_task(lambda: nn.Sequential(nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 3)), normal(40))
    method = methods.FLoRAL(task.model, num_clusters=2, rank=1, router={"noise": 1})
    agree(*(train(task, method, engine=engine) for engine in ("fast", "loop")))


class OverClients(Router):
    """A softmax over the first axis, which in a stack is that of the clients."""

    def mixture(self, router_logits: Tensor, draws: Tensor | None = None) -> Tensor:
        return router_logits.softmax(dim=0)


class MeanSquare(Router):
    """A penalty that of a stack is no sum."""

    def penalty(self, router_logits: Tensor) -> Tensor:
        return router_logits.square().mean()


@pytest.mark.parametrize(("kind", "verb"), [(OverClients, "mixture"), (MeanSquare, "penalty")])
def test_a_router_that_is_another_for_a_stack_is_told_and_the_loop_takes_it(
    task: Task, kind: type[Router], verb: str
) -> None:
    method = methods.FLoRAL(task.model, num_clusters=2, rank=1, router=kind())
    with pytest.raises(
        InputError, match=rf"{kind.__name__}\.{verb} gives for a stack.*dim=-1.*engine='loop'"
    ):
        train(task, method)
    end = train(task, method, engine="loop", rounds=1).history.evaluated[-1]
    # what is told of each client is asked of it alone, too
    assert end.mixture is not None
    assert torch.tensor(end.mixture).sum(dim=1) == pytest.approx(1)


class Gates(Router):
    """Weights that need not sum to 1, in which nothing of the paper holds."""

    def mixture(self, router_logits: Tensor, draws: Tensor | None = None) -> Tensor:
        return router_logits.sigmoid()


class Favourite(Router):
    """The number of an adaptor in place of weights."""

    def mixture(self, router_logits: Tensor, draws: Tensor | None = None) -> Tensor:
        return router_logits.argmax(dim=-1)


@pytest.mark.parametrize(
    ("kind", "told"),
    [(Gates, "has sums 1.*must be at least 0 and sum to 1"), (Favourite, "a weight for each")],
)
def test_a_router_off_the_simplex_is_refused(task: Task, kind: type[Router], told: str) -> None:
    for take in (methods.FLoRAL, methods.Ensemble):
        with pytest.raises(InputError, match=rf"{kind.__name__}\.mixture .*{told}"):
            take(task.model, num_clusters=2, router=kind())
    with pytest.raises(InputError, match=rf"{kind.__name__}\.mixture .*{told}"):
        Floral(task.model, num_clusters=2, rank=1, router=kind())


class Sharpened(Router):
    """A rule that counts axes from the last one."""

    def mixture(self, router_logits: Tensor, draws: Tensor | None = None) -> Tensor:
        squares = super().mixture(router_logits, draws).square()
        return squares / squares.sum(dim=-1, keepdim=True)


def test_a_router_of_ones_own_agrees(task: Task) -> None:
    method = methods.FLoRAL(task.model, num_clusters=2, rank=1, router=Sharpened(noise=0.5))
    agree(*(train(task, method, engine=engine) for engine in ("fast", "loop")))
    assert method.options()["router"] == Router(noise=0.5).options() | {"rule": "Sharpened"}


class Softened(Router):
    """A rule by which even a one-hot router gives all adaptors some weight."""

    def mixture(self, router_logits: Tensor, draws: Tensor | None = None) -> Tensor:
        mixture = super().mixture(router_logits, draws)
        return (mixture + 1 / mixture.shape[-1]) / 2


@pytest.mark.parametrize("take", [methods.FLoRAL, methods.Ensemble])
def test_a_fixed_router_that_a_rule_of_ones_own_softens_keeps_all_clusters(task: Task, take: Any) -> None:
    method = take(task.model, num_clusters=2, routing="optimal", router=Softened())
    ends = [train(task, method, engine=engine) for engine in ("fast", "loop")]
    agree(*ends)
    assert torch.tensor(ends[0].history.evaluated[-1].mixture).min() == pytest.approx(0.25)


class SoftEnsemble(methods.Ensemble):
    """Its clients' routers begin one-hot, and all models have some weight for each of them."""

    def mixture(self, private: dict[str, Tensor]) -> Tensor:
        mixture = super().mixture(private)
        return (mixture + 1 / mixture.shape[-1]) / 2

    def parts(self, client: Roles, draws: Tensor | None = None) -> dict[str, Part]:
        mixture = self.mixture(client.private)
        return {name: Blend(models, mixture) for name, models in client.clustered.items()}


class HardEnsemble(methods.Ensemble):
    """It says itself that a client keeps to its one cluster."""

    def only_cluster(self, private: dict[str, Tensor]) -> Tensor:
        return private[ROUTER].argmax(dim=-1)


class SofterEnsemble(SoftEnsemble, HardEnsemble):
    """It inherits from another class of one's own what does not hold for it."""


class Undecided(methods.FLoRAL):
    """After a round a client's router, which began one-hot, is uniform."""

    def finish(self, client: Roles, start: Roles) -> Roles:
        return client._replace(private={ROUTER: torch.zeros_like(client.private[ROUTER])})


@pytest.mark.parametrize("take", [SoftEnsemble, HardEnsemble, SofterEnsemble, Undecided])
def test_a_subclass_keeps_all_clusters_that_it_gives_weight(task: Task, take: Any) -> None:
    method = take(task.model, num_clusters=2, routing="optimal")
    agree(*(train(task, method, engine=engine) for engine in ("fast", "loop")))


class OneHead(methods.Ensemble):
    """C models with one head: each takes a view of it, of its own."""

    def models(self, client: Roles) -> list[dict[str, Part]]:
        axis = client.private[ROUTER].dim() - 1
        head = client.clustered["2.weight"]
        return [{**model, "2.weight": head.select(axis, 0)} for model in super().models(client)]


def test_a_weight_of_which_networks_take_several_views_steps_once(task: Task) -> None:
    """Not in the backward pass of each, the second of which would see it moved."""
    fast, loop = (
        train(task, OneHead(task.model, 3, mix="outputs"), engine=engine, rounds=2, weight_decay=0.1)
        for engine in ("fast", "loop")
    )
    agree(fast, loop)


def half(client: Roles, gradients: Roles) -> Roles:
    """Half of each gradient."""
    return gradients.map(lambda slope: slope / 2)


def tenfold(
    client: Roles, outputs: list[Tensor], sample_loss: SampleLoss, draws: Tensor | None = None
) -> Tensor:
    """Ten times each loss."""
    return 10 * sample_loss(outputs[0])


@pytest.mark.parametrize(("verb", "own"), [("precondition", half), ("losses", tenfold)])
def test_a_verb_that_is_put_on_an_object_is_followed(task: Task, verb: str, own: Any) -> None:
    method = methods.FedAvg(task.model)
    setattr(method, verb, own)
    agree(*(train(task, method, engine=engine, rounds=1) for engine in ("fast", "loop")))


class Counting(Shared):
    """It counts the rounds of each client, in place."""

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        return super().initialise(clusters, seed)._replace(private={"rounds": torch.zeros(len(clusters), 1)})

    def begin(self, client: Roles, losses: Tensor | None) -> Roles:
        client.private["rounds"].add_(1)
        return client


class CountingAhead(Counting):
    """The same, with models that are trained on before a test."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.adaptation = Counting(model)


@pytest.mark.parametrize("take", [Counting, CountingAhead])
@pytest.mark.parametrize("stateful", [True, False])
@pytest.mark.parametrize("way", [{"engine": "loop"}, {}, {"max_memory": 1}])
def test_what_begin_writes_in_place_is_the_client_s_alone(
    task: Task, take: type[Method], stateful: bool, way: Any
) -> None:
    """With max_memory=1 clients are trained one by one."""
    method, everyone = take(task.model), {"participation": 1.0, "rounds": 3, "evaluate_every": 1}
    state = train(task, method, stateful=stateful, **everyone, **way).state
    assert state.private["rounds"].flatten().tolist() == [3.0 if stateful else 1.0] * task.num_clients


class Pulled(Shared):
    """With a setting of its own, and one that it keeps under another name."""

    def __init__(self, model: nn.Module, strength: float, other: int = 1) -> None:
        self.model, self.strength, self.kept = model, strength, other


class StrongProx(methods.FedProx):
    """With a setting of its own beside the ones that it hands on."""

    def __init__(self, model: nn.Module, strength: float, **handed_on: float) -> None:
        super().__init__(model, **handed_on)
        self.strength = strength


class ModelLast(methods.FedProx):
    """Its constructor takes the model last."""

    def __init__(self, rates: dict[tuple[str, str], float], model: nn.Module) -> None:
        super().__init__(model, proximal=0.5)
        self.rates = rates


class TwoModels(methods.Ensemble):
    """It settles what the method under it leaves open."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, num_clusters=2, routing="optimal")


def test_a_subclass_records_its_own_settings_and_those_it_hands_on() -> None:
    model = nn.Linear(4, 2)
    assert StrongProx(model, 3.0, proximal=0.5).options() == {"strength": 3.0, "proximal": 0.5}
    ensemble = methods.Ensemble(model, num_clusters=2, routing="optimal")
    assert TwoModels(model).options() == ensemble.options()
    rates = {("0", "weight"): 0.1}
    assert ModelLast(rates, model).options() == {"rates": rates, "proximal": 0.5}
    # keys that are no words, and sets of words, whose order is another in every process
    assert plain(ModelLast(rates, model).options())["rates"] == "{('0', 'weight'): 0.1}"
    assert plain({"private": {"c", "a", "b"}}) == {"private": ["a", "b", "c"]}


def test_a_run_is_not_resumed_with_another_setting_of_ones_own(task: Task, tmp_path: Path) -> None:
    method = Pulled(task.model, 0.1)
    assert method.options() == {"strength": 0.1}
    assert train(task, method, rounds=1, checkpoints=tmp_path).history.config["strength"] == 0.1
    with pytest.raises(InputError, match=r"strength is 100\.0, but the run that is to be resumed has 0\.1"):
        train(task, Pulled(task.model, 100.0), rounds=2, checkpoints=tmp_path)
