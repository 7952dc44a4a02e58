"""Operator tables of AIConfigurator: what single operators take on a GPU, read where they are installed."""

from __future__ import annotations

from pagesim.costs.operators.held_out import Score, held_out
from pagesim.costs.operators.store import NOTICE, Found, Store
from pagesim.costs.operators.system_tables import Tables

__all__ = ["NOTICE", "Found", "Score", "Store", "Tables", "held_out"]
