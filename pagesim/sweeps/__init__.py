"""Sweeps: many runs on many processes, each stored when it is over; and searches over rates."""

from pagesim.sweeps.search import CapacityTables, capacity
from pagesim.sweeps.sweeping import sweep
from pagesim.sweeps.tables import SweepTables

__all__ = ["CapacityTables", "SweepTables", "capacity", "sweep"]
