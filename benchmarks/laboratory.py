"""The laboratory under a restless hand: seconds to the first new point, threads and memory over restarts.

    python benchmarks/laboratory.py

The slider is moved in Python; a browser adds the way there and back. Where other jobs share the machine, the
processor's seconds say more than the clock's.
"""

import gc
import statistics
import threading
import time
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from measure import RESULTS, process_bytes, save

from floral_lite.widgets import Laboratory


def restart(laboratory: Laboratory, budget: float) -> tuple[float, float]:
    """Seconds, of the clock and of the processor, from a new value of the slider to the curves of its run."""
    begin, busy = time.perf_counter(), time.process_time()
    laboratory.controls["budget"].value = budget
    if not laboratory.training.running:  # the run before had ended, and then a slider begins nothing
        laboratory.run()
    while f"rho = {budget:.0%}" not in laboratory.table.value:
        time.sleep(0.002)
    return time.perf_counter() - begin, time.process_time() - busy


def measure(restarts: int) -> dict[str, Any]:
    """Move the slider so many times, and look at memory and threads every ten times."""
    laboratory = Laboratory()
    laboratory.run()
    until = time.monotonic() + 60
    while not laboratory.table.value and time.monotonic() < until:
        time.sleep(0.01)
    budgets = cycle((0.2, 0.05, 0.1))
    times, looks = [], []
    for number in range(restarts + 1):
        if number % 10 == 0:
            gc.collect()
            look = {"restarts": number, "bytes": process_bytes("VmRSS"), "threads": threading.active_count()}
            look["objects"] = len(gc.get_objects())
            looks.append(look)
            print(look, flush=True)
        if number < restarts:
            times.append(restart(laboratory, next(budgets)))
            time.sleep(0.2)
    laboratory.stop()
    laboratory.training.wait(60)
    return {
        "seconds_to_first_point": {
            kind: {"median": statistics.median(values), "smallest": min(values), "largest": max(values)}
            for kind, values in zip(("clock", "processor"), zip(*times, strict=True), strict=True)
        },
        "looks": looks,
        "threads_after_stop": threading.active_count(),
    }


def main(
    restarts: Annotated[int, typer.Option(help="how often the slider is moved", min=1)] = 50,
    threads: Annotated[int, typer.Option(help="torch's threads", min=1)] = 2,
    out: Annotated[Path, typer.Option(help="where laboratory.json goes")] = RESULTS,
) -> None:
    """Measure, print and save."""
    torch.set_num_threads(threads)
    results = measure(restarts)
    print(results["seconds_to_first_point"])
    print(save("laboratory", results, out))


if __name__ == "__main__":
    typer.run(main)
