"""All tables by name: the paper's, its synthetic figures, and its relatives."""

from .. import methods
from ..errors import unknown
from .paper import ADAPTORS, CONVLORA, METHOD_COLUMNS, METHODS, OPTIMAL_1, RHO_AND_C
from .schema import Column, Row, Table

# An adaptor of rank 1 is above either budget in these small layers: the minimum rank decides.
SYNTHETIC = Table(
    "synthetic",
    "Test loss of the methods on synthetic regressions (adaptors of rank 1)",
    tuple(row for row in METHODS.rows if not row.name.startswith("floral-10")),
    (Column("synthetic-linear", "Synthetic linear"), Column("synthetic-mlp", "Synthetic MLP")),
)

# Optimal routing, so that the norms alone differ. The authors' initialisation, since with the paper's a
# client of seed 1 diverges in the first round, with affine norms and with Batch-NorA.
_AFFINE = {**OPTIMAL_1, "init": "authors"}
_NORA = {**_AFFINE, "norms": "batch_nora"}
_AVERAGED = {"statistics": "averaged"}
BATCH_NORA = Table(
    "batch-nora",
    "Test loss with batch norms: their adaptors, and whose statistics",
    (
        Row("fedavg", "FedAvg, local statistics", "fedavg"),
        Row("fedavg-averaged", "FedAvg, averaged statistics", "fedavg", changes=_AVERAGED),
        Row("fedbn", "FedBN: norms of one's own", "fedbn"),
        Row("floral-1-affine", "Affine, local statistics", "floral", _AFFINE),
        Row("floral-1-affine-averaged", "Affine, averaged statistics", "floral", _AFFINE, changes=_AVERAGED),
        Row("floral-1-nora", "Batch-NorA, local statistics", "floral", _NORA),
        Row("floral-1-nora-averaged", "Batch-NorA, averaged statistics", "floral", _NORA, changes=_AVERAGED),
        Row(
            "floral-1-no-norms",
            "No norm adaptors, local statistics",
            "floral",
            {**_AFFINE, "norms": "none"},
        ),
    ),
    (Column("synthetic-mlp-norm", "Synthetic MLP + BN"),),
)

# Not the paper's: all other methods of the package as they come, on the paper's tasks. Those have no norms,
# which FedBN needs.
RELATIVES = Table(
    "relatives",
    "Accuracy of the paper's relatives, with their own defaults",
    (
        METHODS.row("fedavg"),
        METHODS.row("floral-10-learned"),
        Row("ensemble-weights", "Ensemble of weights, learned", "ensemble", {"routing": "learned"}),
        *(
            Row(name, name, name)
            for name in methods.METHODS
            if name not in {"fedbn", *(row.method for row in METHODS.rows)}
        ),
    ),
    METHOD_COLUMNS,
)

TABLES: dict[str, Table] = {
    table.name: table for table in (METHODS, RHO_AND_C, CONVLORA, ADAPTORS, SYNTHETIC, BATCH_NORA, RELATIVES)
}


def find_table(name: str) -> Table:
    """The table of that name.

    Raises:
        InputError: there is none.
    """
    if name not in TABLES:
        raise unknown("table", name, TABLES)
    return TABLES[name]
