"""The paper's experiments: tables and figures as data, a runner, and what came of it."""

from .catalogue import TABLES, find_table
from .cells import Cell, cells
from .printed import latex, markdown
from .results import Result, load_results
from .rounds import curves
from .routing import judged
from .runner import fill
from .schema import Column, Row, Table, Value
from .stored import stored_results
from .tables import collect, frame

__all__ = [
    "TABLES",
    "Cell",
    "Column",
    "Result",
    "Row",
    "Table",
    "Value",
    "cells",
    "collect",
    "curves",
    "fill",
    "find_table",
    "frame",
    "judged",
    "latex",
    "load_results",
    "markdown",
    "stored_results",
]
