"""Observed: an executor, and somebody who hears of every iteration that it carries out."""

from __future__ import annotations

from collections.abc import Callable

from pagesim.costs import DecodeRun
from pagesim.scheduling import Plan
from pagesim.sim.executors.predicted import Executor

Beside = Callable[[Plan, int], None]
"""Hears of a plan and of the ticks that it took."""


class Observed:
    """Carries iterations out one by one as another executor does; none is leapt over.

    Args:
        executor: what carries them out.
        beside: hears of each.
    """

    def __init__(self, executor: Executor, beside: Beside) -> None:
        self.executor = executor
        self.beside = beside

    def execute(self, plan: Plan) -> int:
        ticks = self.executor.execute(plan)
        self.beside(plan, ticks)
        return ticks

    def decode_run(self, sequences: int, context: int) -> DecodeRun | None:
        return None  # in a run of iterations none could be heard of
