"""The paper's ablations in small, on the bundled digits: optimal routing, and one thing changed at a time.

    python benchmarks/ablations.py digits-rotate counts --out book/results
    python benchmarks/ablations.py digits-rotate weights --out book/results

"counts" changes the budget and the number of adaptors, with all and with few of the images, on the task's own
net. "weights" changes the kind of ConvLoRA, which layers have adaptors, and whether biases have them, on a
small convolutional net with two clients a cluster. Writes ablations-TASK-PART.json: for each case its
choices, the parameters of one adaptor, and each seed's accuracy at the end, a mean over the clients.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Literal

import torch
import typer
from measure import RESULTS, save
from torch import nn

from floral_lite import Run, Settings, Task, methods, tasks, train_runs
from floral_lite.adaptors import Convolution
from floral_lite.data import diagonal_clusters
from floral_lite.experiments.cells import LAYERS
from floral_lite.models import seeded

BOTH = ("conv", "linear")
FEW = 0.2  # the smaller share of the images
ROUNDS = {1.0: 40, FEW: 100}  # with few images a round has fewer steps


@dataclass(frozen=True)
class Case:
    """A federation's choices; FedAvg where nothing has an adaptor.

    Attributes:
        rho: the budget.
        adaptors: C.
        fraction: share of the images.
        kind: the kind of ConvLoRA.
        layers: whose weights have adaptors.
        biases: whether biases have adaptors.
    """

    rho: float
    adaptors: int
    fraction: float = 1.0
    kind: Convolution = "balanced"
    layers: tuple[str, ...] = BOTH
    biases: bool = True


def counts(clusters: int, clients: int) -> list[Case]:
    """Budgets and numbers of adaptors: from one for all to one for each client."""
    numbers = (1, 2, clusters, 2 * clusters, clients)
    return [Case(rho, C, share) for share in ROUNDS for rho in (0.01, 0.1, 0.3) for C in numbers]


def weights(clusters: int) -> list[Case]:
    """What has an adaptor, and of which kind."""
    found = [Case(0.01, clusters, layers=(), biases=biases) for biases in (False, True)]
    for rho in (0.01, 0.3):
        found += [Case(rho, clusters, kind=kind) for kind in ("channel_in", "channel_out")]
        found += [
            Case(rho, clusters, layers=layers, biases=biases)
            for layers in (("conv",), ("linear",), BOTH)
            for biases in (False, True)
        ]
    return found


def network() -> nn.Module:
    """Two convolutions and two linear layers, as the paper's net for CIFAR-10, for images of 8 x 8 pixels."""
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
    # with torch's own first weights training waits long on a plateau
    for layer in net:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.get_parameter("bias"))
    return net


def make_run(task: Task, case: Case, seed: int) -> Run:
    """The case's method on the task: client k has adaptor k mod C."""
    if not case.layers and not case.biases:
        return Run(task, methods.FedAvg(task.model), seed)
    # only optimal routing looks at the clusters, and takes these for the true ones
    task = replace(task, clusters=diagonal_clusters(task.num_clients, case.adaptors))
    method = methods.FLoRAL(
        task.model,
        case.adaptors,
        budget=case.rho,
        routing="optimal",
        convolution=case.kind,
        biases=case.biases,
    )
    # whether biases have adaptors is a choice of its own, for all layers at once
    kept = tuple(LAYERS[name] for name in case.layers)
    method.plan = {
        name: adaptor
        for name, adaptor in method.plan.items()
        if name.endswith("bias") or isinstance(task.model.get_submodule(name.rpartition(".")[0]), kept)
    }
    return Run(task, method, seed)


def measure(loaded: list[Task], case: Case, settings: Settings) -> dict[str, object]:
    """A line of the results."""
    runs = [make_run(task, case, seed) for seed, task in enumerate(loaded)]
    last = [each.history.rounds[-1] for each in train_runs(runs, settings)]
    plan = getattr(runs[0].method, "plan", {})
    return {
        **asdict(case),
        "rounds": settings.rounds,
        "parameters": sum(adaptor.num_parameters for adaptor in plan.values()),
        "accuracy": [round(fmean(entry.client_accuracy or [0.0]), 4) for entry in last],
    }


def main(
    task: str,
    part: Literal["counts", "weights"],
    seeds: Annotated[int, typer.Option(help="Federations a case.")] = 4,
    rounds: Annotated[int | None, typer.Option(help="Those of the part if not given.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the JSON file.")] = RESULTS,
) -> None:
    """Train the cases of a part."""
    torch.set_num_threads(1)
    recipe = tasks.TASKS[task]
    results = []
    if part == "counts":
        for case in counts(recipe.num_clusters, recipe.num_clients):
            loaded = tasks.load_seeds(task, range(seeds), data_fraction=case.fraction)
            num = rounds or ROUNDS[case.fraction]
            results.append(
                measure(loaded, case, recipe.settings.with_changes(rounds=num, evaluate_every=num))
            )
    else:
        num = rounds or 20
        settings = recipe.settings.with_changes(rounds=num, evaluate_every=num, batch_size=60)
        loaded = [
            replace(one, model=seeded(network, seed))
            for seed, one in enumerate(
                tasks.load_seeds(task, range(seeds), num_clients=2 * recipe.num_clusters)
            )
        ]
        results = [measure(loaded, case, settings) for case in weights(recipe.num_clusters)]
    base = sum(tensor.numel() for tensor in loaded[0].model.parameters())
    more = {"task": task, "clusters": recipe.num_clusters, "seeds": list(range(seeds)), "base": base}
    print(save(f"ablations-{task}-{part}", results, out, **more))


if __name__ == "__main__":
    typer.run(main)
