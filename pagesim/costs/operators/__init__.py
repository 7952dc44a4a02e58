"""Operator tables of AIConfigurator: what single operators take on a GPU, and a model's iteration of them."""

from __future__ import annotations

from pagesim.costs.operators.assemble import imported_profile, operator_profile
from pagesim.costs.operators.chip import Chip, chip_of
from pagesim.costs.operators.iteration import Operators
from pagesim.costs.operators.tables import (
    NOTICE,
    OperatorTable,
    OperatorTables,
    bundled_gpus,
    bundled_tables,
)

__all__ = [
    "NOTICE",
    "Chip",
    "OperatorTable",
    "OperatorTables",
    "Operators",
    "bundled_gpus",
    "bundled_tables",
    "chip_of",
    "imported_profile",
    "operator_profile",
]
