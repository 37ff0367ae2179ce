"""The client's half over Flower: its local steps on its own data, its router in its own file."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from torch import Tensor

from ..errors import DivergenceError, require
from ..federation.aggregate import NOTHING
from ..federation.clients import size
from ..federation.draws import draw
from ..federation.local import evaluate, local_training
from ..federation.precision import arithmetic
from ..federation.rounds import own_generators
from ..federation.runs import Run, check_batches, check_run, initial_state
from ..methods import ROUTER, Method
from ..roles import Roles, along_first
from .asking import ASK, CLUSTER, answer, told_router
from .messages import ARRAYS, CONFIG, METRICS, check, from_arrays, to_arrays
from .state import OwnFile, Private

# Makes the run out of the app's configuration, to which a client adds its SuperNode's `--node-config`.
Make = Callable[[Mapping[str, Any]], Run]


class Client:
    """One client in one message: Flower starts a process for each.

    Args:
        run: task, method and seed; the task's settings say how to train.
        client: the client's number k in [0, K).
        folder: where the client keeps what is its own.
        message: what the server sends.
    """

    def __init__(self, run: Run, client: int, folder: Path | str, message: Message) -> None:
        """Read the message.

        Raises:
            BadMessage: it has other tensors than the task's model and the method, or asks for no round.
            InputError: a batch of the client's own data has one sample, and the model a batch norm.
        """
        self.task, self.method, self.seed = run
        self.settings = run.task.settings
        config = message.content.config_records[CONFIG]
        self.client, self.number = client, int(config["round"])  # type: ignore[arg-type]
        check(self.number >= 1, f"the server asks for round {self.number}; rounds begin with 1")
        self.file = OwnFile(folder, str(config["federation"]), client)
        self.device = next(self.task.model.parameters()).device
        check_batches(self.task, self.settings.batch_size)
        state = initial_state(run, self.settings, self.device, slice(client, client + 1))
        self.first: Private = state.of_client(0).private
        if CLUSTER in config:
            self.first = told_router(self.first, int(config[CLUSTER]))  # type: ignore[arg-type]
        self.sent = from_arrays(message.content.array_records[ARRAYS], state).map(self.here)

    def here(self, tensor: Tensor) -> Tensor:
        """The tensor where the model is."""
        return tensor.to(self.device)

    def kept(self, number: int) -> Private:
        """What the client has of its own when a round begins."""
        return {name: self.here(tensor) for name, tensor in self.file.load(number, self.first).items()}

    def start(self, kept: Private) -> Roles:
        """What a local training begins with: what was sent, and what is kept, or the first if stateless."""
        return self.sent._replace(private=kept if self.settings.stateful else self.first)

    def trained(self, start: Roles, method: Method, number: int) -> tuple[Roles, float]:
        """The local steps of a round, with the batches that the engines take."""
        num_samples = size(self.task.train, self.client)
        draws = draw(self.task, method, num_samples, self.settings, self.seed, number, self.client)
        with own_generators(self.device, self.seed, number, self.client), arithmetic(self.settings.precision):
            return local_training(self.task, method, start, self.client, self.settings, draws)

    def train(self, weighted: bool) -> RecordDict:
        """A round: local steps, then send what is averaged, and keep what is not.

        Args:
            weighted: send N^k u^k and pi_c^k N^k a_c^k in place of u^k and a_c^k.

        Raises:
            DivergenceError: the parameters or the loss are no longer finite. What is kept stays as it was.
        """
        kept = self.kept(self.number)
        after, loss = self.trained(self.start(kept), self.method, self.number)
        # a one-hot router may have -inf
        finite = [
            bool((tensor < torch.inf if name == ROUTER else tensor.isfinite()).all())
            for role in after
            for name, tensor in role.items()
        ]
        # a square may be infinite where its gradient is not
        if not (all(finite) and math.isfinite(loss)):
            raise DivergenceError(
                f"in round {self.number} client {self.client} came to parameters or a loss ({loss}) that are "
                "not finite; it keeps what it had before: give all clients a tenth of the learning rates"
            )
        num_samples = size(self.task.train, self.client)
        mixture = self.method.mixture(after.private).detach().double().cpu()
        # pi_c^k N^k, where the engines count it
        weights = num_samples * mixture.masked_fill(mixture < NOTHING, 0)
        metrics = MetricRecord(
            {
                "round": self.number,
                "num-examples": num_samples,
                "weights": weights.tolist(),
                "weighted": int(weighted),
                "train-loss": loss,
            }
        )
        sent = without_others(after, self.sent, weights)
        sent = weigh(sent, num_samples, weights) if weighted else sent
        self.file.save(self.number, kept, after.private)
        return RecordDict({ARRAYS: to_arrays(sent), METRICS: metrics})

    def evaluate(self) -> RecordDict:
        """The personal model on the client's own test shard; only loss, accuracy and its size are sent."""
        kept = self.kept(self.number + 1)
        own = self.sent._replace(private=kept)
        if self.method.adaptation is not None:
            own, _ = self.trained(self.start(kept), self.method.adaptation, self.number + 1)
        shard = self.task.test[self.client]
        with own_generators(self.device, self.seed, self.number + 1, self.client), arithmetic("float32"):
            score = evaluate(self.task, self.method, own, shard)
        metrics: dict[str, Any] = {"round": self.number, "num-examples": len(shard), "loss": score.loss}
        if score.accuracy is not None:
            metrics["accuracy"] = score.accuracy
        return RecordDict({METRICS: MetricRecord(metrics)})


def without_others(after: Roles, before: Roles, weights: Tensor) -> Roles:
    """The trained parameters, with what was sent in clusters in which the client has no weight.

    Nobody averages those slices, so clipping, on either side, must not count how weight decay, say, has moved
    them. (They still travel: Flower's modifiers subtract what was sent, tensor by tensor.)
    """
    others = weights == 0
    clustered = {
        name: torch.where(along_first(others.to(tensor.device), tensor), before.clustered[name], tensor)
        for name, tensor in after.clustered.items()
    }
    return after._replace(clustered=clustered)


def weigh(client: Roles, num_samples: float, weights: Tensor) -> Roles:
    """The pre-weighted form: N^k u^k and pi_c^k N^k a_c^k, whose sums over clients make the averages."""
    return Roles(
        {name: num_samples * tensor for name, tensor in client.shared.items()},
        {name: along_first(weights.to(tensor), tensor) * tensor for name, tensor in client.clustered.items()},
        {},
    )


def client_app(
    make: Make, folder: Path | str, *, weighted: bool = False, mods: Sequence[Any] = ()
) -> ClientApp:
    """A Flower ClientApp that trains one client of a federation.

    The client's number is the SuperNode's `partition-id`, which a simulation sets by itself. A SuperNode
    with a `folder` in its `--node-config` keeps its own file there. Of an error Flower tells the server the
    text, so what `make` and the task raise must not name what is private.

    Args:
        make: makes the run out of the app's configuration and the SuperNode's, which may say where its
            data are. A client that has only its own data gives a task whose `train` and `test` are
            `Population(K, lambda k: mine)`.
        folder: where the client keeps its router and all else that is private, in one file a federation.
        weighted: send parameters multiplied by their weights, as secure aggregation needs them; the
            server is started with the same.
        mods: Flower's modifiers of the training, such as `LocalDpMod`. With them a client does not answer
            what clustered routing asks: they would not see its gradient.

    Raises:
        InputError: `LocalDpMod`, or another modifier that clips, is given to a weighted client: it would clip
            products, not an update.

    Example:
        >>> from floral_lite import Run, methods, tasks
        >>> def make(config):
        ...     task = tasks.load("digits-rotate")
        ...     return Run(task, methods.FLoRAL(task.model))
        >>> app = client_app(make, folder="own")
    """
    clips = (fixedclipping_mod, adaptiveclipping_mod)
    require(
        not (weighted and any(isinstance(mod, LocalDpMod) or mod in clips for mod in mods)),
        "weighted is True, and mods has LocalDpMod, or another that clips the difference from what was sent, "
        "which for products with weights is no update; leave one of the two out",
    )
    app = ClientApp()

    def own_run(context: Context) -> tuple[Run, int]:
        run = make({**context.run_config, **context.node_config})
        check_run(run)
        return run, find_number(context, run.task.num_clients)

    def client(message: Message, context: Context) -> Client:
        return Client(*own_run(context), str(context.node_config.get("folder", folder)), message)

    @app.train(ASK.removeprefix("train."))
    def asked(message: Message, context: Context) -> Message:
        """A gradient, before anything is trained."""
        return Message(answer(*own_run(context), message, weighted, mods), reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        """Say which client this is."""
        told = MetricRecord({"client": find_number(context)})
        return Message(RecordDict({METRICS: told}), reply_to=message)

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        """One round."""
        return Message(client(message, context).train(weighted), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        """The test after a round."""
        return Message(client(message, context).evaluate(), reply_to=message)

    return app


def find_number(context: Context, num_clients: int | None = None) -> int:
    """The client's number k, which its SuperNode is started with."""
    number = context.node_config.get("partition-id")
    require(
        isinstance(number, int) and number >= 0 and (num_clients is None or number < num_clients),
        f"partition-id is {number!r}; start the SuperNode with --node-config 'partition-id=0', a number "
        + ("from 0 on" if num_clients is None else f"from 0 to {num_clients - 1}"),
    )
    return int(number)  # type: ignore[arg-type]
