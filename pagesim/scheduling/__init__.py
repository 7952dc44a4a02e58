"""Schedulers: who runs in the next iteration. They know arrivals and lengths, never seconds or FLOPs."""

from pagesim.scheduling.base import Plan, Scheduler
from pagesim.scheduling.continuous import ContinuousBatching
from pagesim.scheduling.group import Arrivals, Group
from pagesim.scheduling.preemptive import Preemption
from pagesim.scheduling.static import StaticBatching

__all__ = ["Arrivals", "ContinuousBatching", "Group", "Plan", "Preemption", "Scheduler", "StaticBatching"]
