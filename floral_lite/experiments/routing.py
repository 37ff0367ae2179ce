"""What came of the rules for the routers: the share of the gap that each closes, and when it has decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .tables import Filled

if TYPE_CHECKING:
    import pandas as pd

    from .results import Result

# A run has decided when its mismatch stays below this: a sixth of that of uniform mixtures of four clusters.
DECIDED = 0.25


def judged(filled: Filled) -> pd.DataFrame:
    """The table of routing rules in numbers: means over the seeds that are there.

    Args:
        filled: of the table "routing"; nothing is closed where learned or optimal routing was not run.

    Returns:
        One line for each column and row that has results (its index): seeds (how many), accuracy in per
        cent, its standard deviation sd, closed (the share in per cent of the gap between learned and
        optimal routing), rand (adjusted Rand index of the last mixtures against the true clusters) and
        decided (the first evaluated round from which on the mismatch is below 0.25; none where a seed
        never comes there).

    Example:
        >>> from floral_lite.experiments import collect, stored_results
        >>> few = collect("routing", stored_results(), ["mnist-label-shift-reduced"])
        >>> bool(judged(few)["closed"].idxmax()[1] == "floral-1-optimal")
        True
    """
    import pandas as pd  # here: it takes longer to load than this whole package

    from ..report import recovered

    lines = [
        {
            "column": column,
            "row": row,
            "accuracy": one.score,
            "rand": recovered(one.clients["mixture"], one.clusters),
            "decided": decided(one),
        }
        for (row, column), entry in filled.entries.items()
        for one in entry.results
        if one.status == "done"
    ]
    runs = pd.DataFrame(lines, columns=["column", "row", "accuracy", "rand", "decided"])
    each = runs.groupby(["column", "row"], sort=False)
    made: pd.DataFrame = each.agg(seeds=("accuracy", "size"), accuracy=("accuracy", "mean"))
    made["sd"] = each["accuracy"].std()
    # closed = (rule - learned) / (optimal - learned)
    columns = made["accuracy"].unstack("row").reindex(columns=["floral-1-learned", "floral-1-optimal"])
    low, high = (columns[row].reindex(made.index, level="column") for row in columns)
    made["closed"] = 100 * (made["accuracy"] - low) / (high - low)
    made["rand"] = each["rand"].mean()
    made["decided"] = each["decided"].apply(lambda seen: seen.mean(skipna=False))
    return made


def decided(result: Result) -> float:
    """The first evaluated round from which on the mismatch stays below `DECIDED`; NaN where it never does."""
    rounds = result.rounds["round"]
    undecided = [
        number
        for number, mismatch in zip(rounds, result.rounds["mismatch"], strict=True)
        if mismatch > DECIDED
    ]
    later = [number for number in rounds if not undecided or number > undecided[-1]]
    return float(later[0]) if later else float("nan")
