"""Sweeps: many runs in parallel processes, each stored when it finishes; and searches over rates."""

from pagesim.experiments.sweeps.search import CapacityTables, capacity
from pagesim.experiments.sweeps.sweep_tables import SweepTables
from pagesim.experiments.sweeps.sweeping import sweep

__all__ = ["CapacityTables", "SweepTables", "capacity", "sweep"]
