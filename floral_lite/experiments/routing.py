"""What came of the rules for the routers: the share of the gap that each closes, and when it has decided."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan, sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from .tables import Filled

if TYPE_CHECKING:
    import pandas as pd

    from .results import Result

# A run has decided when its mismatch stays below this: a sixth of that of uniform mixtures of four clusters.
# Clustered routing that finds four clusters begins at 0.2: its mixtures have 0.9 at the right adaptor.
DECIDED = 0.25


def judged(filled: Filled) -> pd.DataFrame:
    """The table of routing rules in numbers: means over the seeds that are there.

    Args:
        filled: of the table "routing"; nothing is closed where learned or optimal routing was not run.

    Returns:
        One line for each column and row that has results (its index): seeds (how many), accuracy in per
        cent, its standard deviation sd, closed (the share in per cent of the gap between learned and
        optimal routing, on the seeds that all three have) and its standard error closed_error, both none
        where the gap is within two of its own standard errors of 0, rand (adjusted Rand index of the last
        mixtures against the true clusters) and decided (the first evaluated round from which on the
        mismatch is below 0.25; none where a seed never comes there). Of clustered routing decided says
        nothing: where that finds four clusters it begins at 0.2.

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
    shares = [
        closed(*(scores(filled, one, column) for one in (row, "floral-1-learned", "floral-1-optimal")))
        for column, row in made.index
    ]
    made["closed"] = [share for share, _ in shares]
    made["closed_error"] = [error for _, error in shares]
    made["rand"] = each["rand"].mean()
    made["decided"] = each["decided"].apply(lambda seen: seen.mean(skipna=False))
    return made


def scores(filled: Filled, row: str, column: str) -> dict[int, float]:
    """By seed, of the runs that were done; none where the table has no such row."""
    entry = filled.entries.get((row, column))
    results = entry.results if entry else ()
    return {one.seed: one.score for one in results if one.score is not None}


def closed(
    rule: Mapping[int, float], learned: Mapping[int, float], optimal: Mapping[int, float]
) -> tuple[float, float]:
    """The share of the gap between learned and optimal routing that a rule closes, in per cent.

    Of the seeds that all three have, so that it does not compare one seed with the mean of others.

    Args:
        rule: accuracies by seed, and so:
        learned: with the paper's rule,
        optimal: with the true clusters.

    Returns:
        The share, the mean of rule - learned over that of optimal - learned, and its standard error (NaN
        with one seed). Both are NaN where the gap is not clear, that is where its mean over all seeds of
        learned and optimal routing is within two standard errors of 0, or where the rule's seeds have none.

    Example:
        >>> closed({1: 80.0, 2: 90.0}, learned={1: 60.0, 2: 70.0}, optimal={1: 85.0, 2: 95.0, 3: 99.0})
        (80.0, 0.0)
    """
    gaps = {seed: optimal[seed] - learned[seed] for seed in learned if seed in optimal}
    common = [seed for seed in gaps if seed in rule]
    clear = len(gaps) > 1 and abs(fmean(gaps.values())) > 2 * standard_error([*gaps.values()])
    gap = fmean(gaps[seed] for seed in common) if clear and common else 0.0
    if gap == 0:
        return nan, nan
    share = fmean(rule[seed] - learned[seed] for seed in common) / gap
    left = [rule[seed] - learned[seed] - share * gaps[seed] for seed in common]  # of mean 0
    return 100 * share, 100 * standard_error(left) / abs(gap)


def standard_error(values: list[float]) -> float:
    """Of the mean of independent values; NaN of one."""
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else nan


def decided(result: Result) -> float:
    """The first evaluated round from which on the mismatch stays below `DECIDED`; NaN where it never does."""
    rounds = result.rounds["round"]
    mismatches = zip(rounds, result.rounds["mismatch"], strict=True)
    last_undecided = max((number for number, mismatch in mismatches if mismatch > DECIDED), default=0)
    return next((float(number) for number in rounds if number > last_undecided), nan)
