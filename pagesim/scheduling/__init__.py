"""Schedulers: who runs in the next iteration. They know arrivals and lengths, never seconds or FLOPs."""

from pagesim.scheduling.base import Plan, Scheduler
from pagesim.scheduling.continuous import ContinuousBatching
from pagesim.scheduling.group import Group
from pagesim.scheduling.static import StaticBatching

__all__ = ["ContinuousBatching", "Group", "Plan", "Scheduler", "StaticBatching"]
