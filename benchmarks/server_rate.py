"""A server that takes the base's average, but goes only a part of the way to the adaptors' average.

    python benchmarks/server_rate.py mnist-rotate --seeds 4 --data DIR --out book/results

Algorithm 1 takes both averages as they are. The authors' public code (zeligism/FLoRAL) does otherwise,
and three parts of it are tried:

- Its server's optimizer (`get_param_groups`) has the rate 1 for the base, but for the adaptors the *clients'*
  learning rate: 0.1 on MNIST. This script does the same, except with --biases alone.
- It has its own initialisation, and a router with noise and floor: --all-of-it.
- Its adaptors (`LinearLoRA`, `ConvLoRA`) keep the biases that torch draws for the outer of two layers,
  uniform in +-1 / sqrt(its inputs): the rank, times the part of a kernel's sides that U has. The paper's
  adaptors add nothing at first. --biases draws them, for Local Adaptor too: together with --all-of-it, or
  alone, with Algorithm 1's server.

Writes server-rate-TASK.json, authors-TASK.json, authors-biases-TASK.json or biases-TASK.json: the test
accuracy and the mixtures' mismatch after all rounds, otherwise with the settings of the first table. A case
that is there already is not run again. The accuracy is over all test images; on MNIST it is the table's mean
over clients to 0.03 points.
"""

import itertools
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from measure import RESULTS, save, saved
from torch import Tensor

from floral_lite import Run, methods, tasks, train_runs
from floral_lite.adaptors import Adaptor, LowRankAdaptor
from floral_lite.errors import require
from floral_lite.roles import Roles
from floral_lite.router import Router
from floral_lite.seeds import stream

LOCAL = "local"  # in place of a routing: Local Adaptor
# the budget and the routing of the first table's rows; the last one needs --biases
ROWS: dict[str, tuple[float, Any]] = {
    "floral-10-optimal": (0.1, "optimal"),
    "floral-10-learned": (0.1, "learned"),
    "floral-1-optimal": (0.01, "optimal"),
    "floral-1-learned": (0.01, "learned"),
    "local-adaptor": (0.01, LOCAL),
}


def drawn_biases(plan: Mapping[str, Adaptor], like: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """The adaptors' biases, as torch draws them for the outer of an adaptor's two layers."""
    drawn = {}
    for name, adaptor in plan.items():
        bias = f"{name.rpartition('.')[0]}.bias.L"
        if isinstance(adaptor, LowRankAdaptor) and bias in like:
            uniform = torch.rand(like[bias].shape, generator=stream(seed, "biases", name))
            # uniform in +-1 / sqrt(r k_U), where a convolution's U has the sides k_U of the kernel
            inputs = prod(adaptor.shapes["U"][1:])
            drawn[bias] = ((2 * uniform - 1) / inputs**0.5).to(like[bias])
    return drawn


class PartOfTheWay(methods.FLoRAL):
    """FLoRAL whose adaptors go only a share of the way to their clients' average."""

    remembers_start = True
    share = 1.0
    draws_biases = False

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        """The adaptors' biases are drawn, if asked for."""
        state = super().initialise(clusters, seed)
        if self.draws_biases:
            state.clustered.update(drawn_biases(self.plan, state.clustered, seed))
        return state

    def only_cluster(self, private: dict[str, Tensor]) -> Tensor | None:
        """As for FLoRAL, said here since the engine trusts no inherited one: a one-hot router stays so."""
        return super().only_cluster(private)

    def finish(self, client: Roles, start: Roles) -> Roles:
        """All clients start alike, so their average then goes this share of the way to the usual one."""
        # a + eta (a^k - a)
        moved = {
            name: torch.lerp(start.clustered[name], tensor, self.share)
            for name, tensor in client.clustered.items()
        }
        return client._replace(clustered=moved)


class DrawnLocalAdaptor(methods.LocalAdaptor):
    """Local Adaptor whose biases are drawn, for each client anew."""

    def initialise(self, clusters: Tensor, seed: int) -> Roles:
        """All else as usual."""
        state = super().initialise(clusters, seed)
        state.private.update(drawn_biases(self.plan, state.private, seed))
        return state


def main(
    name: Annotated[str, typer.Argument(help="a task of images")],
    seeds: Annotated[int, typer.Option(help="1, 2, ...")] = 4,
    data: Annotated[Path | None, typer.Option(help="folder of downloaded image sets")] = None,
    rounds: Annotated[int | None, typer.Option(help="the task's own if none")] = None,
    all_of_it: Annotated[bool, typer.Option("--all-of-it", help="initialisation and router too")] = False,
    biases: Annotated[bool, typer.Option("--biases", help="adaptors' biases as torch draws them")] = False,
    rows: Annotated[str, typer.Option(help="of the first table")] = ",".join(ROWS),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps")] = "cpu",
    checkpoints: Annotated[Path | None, typer.Option(help="folder: a run that is cut off goes on")] = None,
    out: Annotated[Path, typer.Option(help="folder of the JSON file")] = RESULTS,
) -> None:
    """Run what is missing, and save after each run."""
    torch.set_num_threads(1)
    for row in rows.split(","):
        require(row in ROWS, f"{row} is no row: name some of {', '.join(ROWS)}")
    case = {(False, False): "server-rate", (True, False): "authors", (True, True): "authors-biases"}
    file = f"{case.get((all_of_it, biases), 'biases')}-{name}"
    theirs: dict[str, Any] = {"init": "authors", "router": Router(noise=1.0, floor=0.01)} if all_of_it else {}
    results = saved(file, out)
    length = rounds or tasks.TASKS[name].settings.rounds
    done = {(line["seed"], line["rho"], line["routing"]) for line in results if line["rounds"] == length}
    for seed, row in itertools.product(range(1, seeds + 1), rows.split(",")):
        rho, routing = ROWS[row]
        if (seed, rho, routing) in done or (routing == LOCAL and not biases):
            continue
        task = tasks.load(name, seed=seed, data=data)
        settings = task.settings.with_changes(rounds=length, evaluate_every=length)
        share = 1.0 if biases and not all_of_it else settings.learning_rate
        method: methods.Method
        if routing == LOCAL:  # its adaptors never come to a server
            method = DrawnLocalAdaptor(task.model, budget=rho, init="authors" if all_of_it else "paper")
        else:
            clusters: Any = task.details["task_clusters"]
            method = PartOfTheWay(task.model, budget=rho, num_clusters=clusters, routing=routing, **theirs)
            method.share, method.draws_biases = share, biases
        unfinished = None if checkpoints is None else checkpoints / f"{file}-{row}-{seed}"
        run = Run(task, method, seed)
        (federation,) = train_runs([run], settings, device=device, checkpoints=unfinished)
        last = federation.history.rounds[-1]
        line = {"seed": seed, "rho": rho, "routing": routing, "share": share, "rounds": length}
        found = {"accuracy": round(100 * (last.test_accuracy or 0.0), 3), "mismatch": last.mismatch}
        results.append({**line, **found})
        print(name, *results[-1].values(), flush=True)
        save(file, results, out, task=name)


if __name__ == "__main__":
    typer.run(main)
