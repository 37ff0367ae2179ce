"""A table of what a model's adaptors are and what they cost."""

from collections.abc import Mapping
from math import prod

import pandas as pd
from torch import nn

from .adaptors import Adaptor, LowRankAdaptor, num_parameters


class Description(pd.DataFrame):
    """A table that prints all of its columns, with shares in percent and nothing where there is nothing."""

    @property
    def _constructor(self) -> type["Description"]:
        """A part of the table prints like the whole."""
        return Description

    def __repr__(self) -> str:
        """As wide as it is."""
        return self._words().to_string()

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        return self._words().to_html(notebook=True)

    def _words(self) -> pd.DataFrame:
        """What is printed in the place of each entry."""
        table: pd.DataFrame = pd.DataFrame(self.astype(object).where(self.notna(), ""))
        if "share" in table:
            table["share"] = [share if share == "" else f"{share:.1%}" for share in table["share"]]
        return table


def describe(
    model: nn.Module, adaptors: Mapping[str, Adaptor], num_clusters: int, budget: float | None = None
) -> Description:
    """What each adaptor is and costs, one row a parameter of the base, and the totals.

    Args:
        model: the base model, d parameters.
        adaptors: the plan.
        num_clusters: C.
        budget: rho, for the row of what it allows; None leaves that row out.

    Returns:
        A table with the columns

        - kind: of the adaptor;
        - shape: of the base's parameter;
        - rank: R, columns of U and V;
        - equivalent_rank: of one L as a matrix (c_out, everything else);
        - base: parameters of the base there;
        - parameters: of the row's adaptors: one a layer, all of them in the totals;
        - share: parameters / base.

        The totals: what the base has and no adaptor is on; one adaptor over all layers; all
        C of them; C rho d, what the budget allows; (C - 1) d, what an ensemble of C models
        adds. An adaptor exceeds its budget where even rank 1 does, and by its vectors.

    Source: section 'Experiments', discussion of the extra parameters.

    Example:
        >>> from floral_lite import Floral
        >>> table = Floral(nn.Linear(100, 50), budget=0.1, num_clusters=4).describe()
        >>> [int(table.loc["weight", part]) for part in ("rank", "parameters")]  # 500 / 150 = 3.3
        [3, 450]
    """
    base = {name: parameter.numel() for name, parameter in model.named_parameters()}
    num_base = sum(base.values())
    rows = {
        name: {
            "kind": adaptor.kind,
            "shape": " x ".join(map(str, adaptor.shape)),
            "rank": adaptor.rank if isinstance(adaptor, LowRankAdaptor) else None,
            "equivalent_rank": adaptor.equivalent_rank if isinstance(adaptor, LowRankAdaptor) else None,
            "base": prod(adaptor.shape),
            "parameters": adaptor.num_parameters,
        }
        for name, adaptor in adaptors.items()
    }
    one = num_parameters(adaptors)
    allowed = None if budget is None else round(num_clusters * budget * num_base)
    totals = {
        "not adapted": (num_base - sum(base[name] for name in adaptors), 0),
        "one adaptor": (num_base, one),
        f"all C = {num_clusters} adaptors": (num_base, num_clusters * one),
        "the budget, C rho d": (num_base, allowed),
        "an ensemble, (C - 1) d": (num_base, (num_clusters - 1) * num_base),
    }
    rows |= {
        name: {"base": size, "parameters": parameters}
        for name, (size, parameters) in totals.items()
        if parameters is not None
    }
    table = pd.DataFrame.from_dict(rows, orient="index")
    table["share"] = table["parameters"] / table["base"]
    table[["kind", "shape"]] = table[["kind", "shape"]].fillna("")
    counts = ["rank", "equivalent_rank", "base", "parameters"]
    described: Description = Description(table.astype(dict.fromkeys(counts, "Int64")))
    return described
