"""Clients that were not there in training: how good is each rule for their mixtures?

    python benchmarks/newcomers.py digits-rotate --out book/results

16 of 24 clients train a federation. Then each of the 8 others draws a few of its training samples, and every
rule makes a mixture from these samples. Writes newcomers-TASK.json: for each rule and number of samples the
accuracy on the newcomer's test shard, and how often its largest weight is at its cluster's adaptor. Both are
means over the draws, for each seed and newcomer.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer
from measure import RESULTS, save
from torch import Tensor
from torch.nn import functional

from floral_lite import Run, Task, methods, newcomer, tasks, train_runs
from floral_lite.federation import Federation, Shard
from floral_lite.methods import ROUTER
from floral_lite.router import entropy, one_hot_logits, uniform_logits

NUM_CLIENTS, NUM_TRAINED, NUM_CLUSTERS, NUM_DRAWS = 24, 16, 4, 4
NEWCOMERS = range(NUM_TRAINED, NUM_CLIENTS)
SAMPLES = (1, 5, 20)
# fine-tuning of all parameters: full-batch steps of gradient descent from the uniform mixture
TUNING_STEPS, TUNING_RATE = 30, 0.1
Models = Mapping[str, Tensor]


class Entry(NamedTuple):
    """What a rule comes to with so many samples.

    Attributes:
        rule: its name.
        num_samples: of each newcomer; 0 for mixtures that need none.
        accuracies: of each newcomer.
        right: of each newcomer, its share of right clusters; None for what is no rule for mixtures.
    """

    rule: str
    num_samples: int
    accuracies: list[float]
    right: list[float] | None


def federation_of(task: Task) -> Task:
    """The clients who train."""
    return replace(
        task,
        train=task.train[:NUM_TRAINED],
        test=task.test[:NUM_TRAINED],
        clusters=task.clusters[:NUM_TRAINED],
    )


def models_of(method: methods.Method, federation: Federation) -> Models:
    """The models w_c = u + a_c, by name, each (C, *S)."""
    client = federation.state.of_client(0)
    each = [
        method.personalise(client._replace(private={ROUTER: row}))
        for row in one_hot_logits(torch.arange(NUM_CLUSTERS), NUM_CLUSTERS)
    ]
    return {name: torch.stack([model[name] for model in each]) for name in each[0]}


def one_model(models: Models, cluster: int) -> Models:
    """w_c, by name, each (1, *S)."""
    return {name: tensor[cluster : cluster + 1] for name, tensor in models.items()}


def middle_of(models: Models) -> Models:
    """The uniform mixture, by name, each (1, *S)."""
    return {name: tensor.mean(dim=0, keepdim=True) for name, tensor in models.items()}


def mixed(models: Models, mixtures: Tensor) -> dict[str, Tensor]:
    """sum_c pi_c w_c for mixtures (D, C), each (D, *S)."""
    return {name: torch.einsum("dc,c...->d...", mixtures, tensor) for name, tensor in models.items()}


def hidden(parameters: Models, inputs: Tensor) -> Tensor:
    """The hidden layers of D of the digits' networks, each on its own inputs (D, N, ...)."""
    rows = inputs.flatten(2) @ parameters["1.weight"].mT + parameters["1.bias"][:, None]
    return torch.relu(rows)


def run(parameters: Models, inputs: Tensor) -> Tensor:
    """Their outputs, (D, N, 10)."""
    return hidden(parameters, inputs) @ parameters["3.weight"].mT + parameters["3.bias"][:, None]


def mean_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """The sum over D models of their mean cross-entropies on their own samples."""
    return functional.cross_entropy(outputs.flatten(0, 1), labels.flatten()) * len(labels)


def rules(models: Models, of_labels: Mapping[str, Tensor], drawn: Shard) -> dict[str, Tensor]:
    """The mixture (D, C) that each rule makes of D draws of samples (D, N, ...)."""
    num_draws = len(drawn)
    start = uniform_logits(num_draws, NUM_CLUSTERS)
    every = [one_model(models, c) for c in range(NUM_CLUSTERS)]
    outputs = torch.stack([run(model, drawn.inputs) for model in every], dim=1)
    units = hidden(middle_of(models), drawn.inputs)

    def supervised(mixtures: Tensor) -> Tensor:
        return mean_loss(run(mixed(models, mixtures), drawn.inputs), drawn.targets)

    def unsure(mixtures: Tensor) -> Tensor:
        predicted = run(mixed(models, mixtures), drawn.inputs).softmax(dim=-1)
        return entropy(predicted).mean(dim=1).sum()

    return {
        "labels, gradient": newcomer.fit_router(supervised, start),
        "labels, closed form": newcomer.match_labels(outputs, drawn.targets),
        "entropy, gradient": newcomer.fit_router(unsure, start),
        "entropy, closed form": newcomer.minimise_entropy(outputs),
        "prototypes, pixels": newcomer.match_prototypes(drawn.inputs.flatten(2), of_labels["pixels"]),
        "prototypes, hidden": newcomer.match_prototypes(units, of_labels["hidden"]),
    }


def tuned(models: Models, drawn: Shard) -> Models:
    """All parameters trained on the samples, from the uniform mixture, for each of D draws."""
    parameters = mixed(models, torch.full((len(drawn), NUM_CLUSTERS), 1 / NUM_CLUSTERS))
    for _ in range(TUNING_STEPS):
        parameters = {name: tensor.requires_grad_() for name, tensor in parameters.items()}
        loss = mean_loss(run(parameters, drawn.inputs), drawn.targets)
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        parameters = {
            name: (tensor - TUNING_RATE * gradient).detach()
            for (name, tensor), gradient in zip(parameters.items(), gradients, strict=True)
        }
    return parameters


def draw(task: Task, num_samples: int) -> Shard:
    """Samples from each newcomer's own, several draws of each, one after the other: (D, num_samples, ...)."""
    inputs, targets = [], []
    for client in NEWCOMERS:
        shard, generator = task.train[client], torch.Generator().manual_seed(1000 * client + num_samples)
        for _ in range(NUM_DRAWS):
            rows = torch.randperm(len(shard), generator=generator)[:num_samples]
            inputs.append(shard.inputs[rows])
            targets.append(shard.targets[rows])
    return Shard(torch.stack(inputs), torch.stack(targets))


def accuracies(task: Task, parameters: Models) -> list[float]:
    """Each newcomer's accuracy on its test shard, a mean over its models, which are in a row among the D."""
    means = []
    for client, own in zip(NEWCOMERS, range(0, len(next(iter(parameters.values()))), NUM_DRAWS), strict=True):
        inputs, targets = task.test[client]
        models = {name: tensor[own : own + NUM_DRAWS] for name, tensor in parameters.items()}
        outputs = run(models, inputs[None])
        means.append(round(float((outputs.argmax(dim=-1) == targets).double().mean()), 4))
    return means


def measure(task: Task, method: methods.Method, federation: Federation) -> list[Entry]:
    """For each rule and number of samples, every newcomer's accuracy and its share of right clusters."""
    models = models_of(method, federation)
    middle = middle_of(models)
    mixtures = method.mixtures(federation.state.private, NUM_TRAINED)
    shards = [task.train[k] for k in range(NUM_TRAINED)]
    views: dict[str, Callable[[Tensor], Tensor]] = {
        "pixels": lambda x: x.flatten(1),
        "hidden": lambda x: hidden(middle, x[None])[0],
    }
    of_labels = {
        name: newcomer.prototypes(
            [view(shard.inputs) for shard in shards], [shard.targets for shard in shards], mixtures, 10
        )
        for name, view in views.items()
    }
    # the mixture of each newcomer's cluster, and the adaptor that it uses most
    trained = task.clusters[:NUM_TRAINED]
    own = torch.stack([mixtures[trained == task.clusters[client]].mean(dim=0) for client in NEWCOMERS])
    own = own.repeat_interleave(NUM_DRAWS, dim=0)
    best = own.argmax(dim=-1)
    references = {
        "uniform": torch.full_like(own, 1 / NUM_CLUSTERS),
        "true cluster": one_hot_logits(best, NUM_CLUSTERS).softmax(dim=-1),
        "its mixture": own,
    }
    found: list[Entry] = [
        Entry(rule, 0, accuracies(task, mixed(models, pi)), None) for rule, pi in references.items()
    ]
    for num in SAMPLES:
        drawn = draw(task, num)
        for rule, pi in rules(models, of_labels, drawn).items():
            hits = (pi.argmax(dim=-1) == best).double().view(-1, NUM_DRAWS).mean(dim=1)
            found.append(Entry(rule, num, accuracies(task, mixed(models, pi)), hits.tolist()))
        found.append(Entry("all parameters", num, accuracies(task, tuned(models, drawn)), None))
    return found


def main(
    task: str,
    seeds: Annotated[int, typer.Option(help="Federations for each kind of routing.")] = 6,
    first: Annotated[int, typer.Option(help="The first seed.")] = 10,
    rounds: Annotated[int | None, typer.Option(help="The task's own if not given.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the JSON file.")] = RESULTS,
) -> None:
    """Train federations, and try all rules on the clients that were left out."""
    torch.set_num_threads(1)
    results = []
    for routing in ("optimal", "learned"):
        loaded = tasks.load_seeds(task, range(first, first + seeds), num_clients=NUM_CLIENTS)
        runs = [
            Run(
                federation_of(one), methods.FLoRAL(one.model, NUM_CLUSTERS, budget=0.1, routing=routing), seed
            )
            for seed, one in enumerate(loaded, start=first)
        ]
        settings = loaded[0].settings.with_changes(evaluate_every=0)
        trained = train_runs(runs, settings if rounds is None else settings.with_changes(rounds=rounds))
        measured = [
            measure(one, member.method, each) for one, member, each in zip(loaded, runs, trained, strict=True)
        ]
        for of_seeds in zip(*measured, strict=True):
            line = {
                "routing": routing,
                "rule": of_seeds[0].rule,
                "samples": of_seeds[0].num_samples,
                "accuracy": [each.accuracies for each in of_seeds],
            }
            if of_seeds[0].right is not None:
                line["right cluster"] = [each.right for each in of_seeds]
            results.append(line)
    more = {"task": task, "seeds": list(range(first, first + seeds)), "draws": NUM_DRAWS}
    print(save(f"newcomers-{task}", results, out, **more))


if __name__ == "__main__":
    typer.run(main)
