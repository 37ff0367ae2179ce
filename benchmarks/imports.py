"""How much longer does `import floral_lite` take than `import torch`?

    python benchmarks/imports.py

Fresh processes import the two in turns; the difference is taken within each turn.
"""

import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from measure import RESULTS, interleaved, save


def measure_imports(ours: str, below: str, repeats: int) -> dict[str, Any]:
    """Seconds of a process that does nothing but import, for each of two modules, and the difference."""

    def importing(module: str) -> None:
        subprocess.run([sys.executable, "-c", f"import {module}"], check=True)

    actions = {module: partial(importing, module) for module in (below, ours)}
    interleaved(actions, 1)  # the first processes read from the disk, and write bytecode
    times = interleaved(actions, repeats)
    extra = [first - second for first, second in zip(times[ours], times[below], strict=True)]
    return {
        "seconds": times,
        "median": {module: statistics.median(times[module]) for module in actions},
        "median_difference": statistics.median(extra),
    }


def main(
    repeats: Annotated[int, typer.Option(help="processes of each kind", min=1)] = 9,
    out: Annotated[Path, typer.Option(help="where imports.json goes")] = RESULTS,
) -> None:
    """Measure, print and save."""
    results = measure_imports("floral_lite", "torch", repeats)
    for name, value in results["median"].items():
        print(f"import {name:12} {value:.2f} s")
    print(f"difference         {results['median_difference']:.2f} s")
    print(save("imports", results, out))


if __name__ == "__main__":
    typer.run(main)
