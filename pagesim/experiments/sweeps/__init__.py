"""Sweeps: many runs on many processes, each stored when it is over; and searches over rates."""

from pagesim.experiments.sweeps.search import CapacityTables, capacity
from pagesim.experiments.sweeps.sweep_tables import SweepTables
from pagesim.experiments.sweeps.sweeping import sweep

__all__ = ["CapacityTables", "SweepTables", "capacity", "sweep"]
