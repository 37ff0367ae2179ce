"""The curves of a table's figure: one number of each row over the rounds, across the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ..errors import check_names, require
from .catalogue import find_table
from .schema import Curve
from .tables import collect

if TYPE_CHECKING:
    import pandas as pd


def curves(
    name: str,
    folder: Path | str,
    columns: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    seeds: int = 4,
    value: str | None = None,
) -> pd.DataFrame:
    """The curves of a table's runs.

    Args:
        name: of the table.
        folder: of results.
        columns: tasks; those of the table if None.
        rows: names of rows; all if None.
        seeds: look at seeds 1..n.
        value: "test_loss", "test_accuracy" (in [0, 1]), "train_loss" or "mismatch"; the table's own if None.

    Returns:
        One line for each column, row and evaluated round: column, row, their labels, round, and the mean
        over the seeds that are there, the smallest and the largest of them (mean, low, high) and how
        many (seeds). Rows without results are left out.

    Raises:
        InputError: there is no such table, row, column or value, or no result.
    """
    import pandas as pd  # here: it takes longer to load than this whole package

    value = find_table(name).curve if value is None else value
    check_names("value", [value], get_args(Curve))
    filled = collect(name, folder, columns, rows, seeds)
    keys = ["column", "row", "column_label", "row_label", "round"]
    lines = [
        (entry.column.name, entry.row.name, entry.column.label, entry.row.label, *numbers)
        for entry in filled.entries.values()
        for result in entry.results
        for numbers in zip(result.rounds["round"], result.rounds[value], strict=True)
    ]
    everything = pd.DataFrame(lines, columns=[*keys, "value"]).dropna()
    require(
        len(everything) > 0,
        f"{folder} has no {value} for the figure {name} in the columns {[c.name for c in filled.columns]}; "
        f"fill it with `floral-lite table {name} --out {folder}`, or choose other columns or another value",
    )
    grouped = everything.groupby(keys, sort=False)["value"]
    frame: pd.DataFrame = grouped.agg(mean="mean", low="min", high="max", seeds="size").reset_index()
    return frame
