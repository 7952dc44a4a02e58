"""Blocks that only requests hold that do not run, row by row and between iterations."""

from __future__ import annotations

from array import array
from itertools import chain

import numpy as np

from pagesim.accounting.sums import Column
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.request import EngineRequest
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class HeldWithoutRunning:
    """What requests hold that do not run, for each of `Scheduler.parks`.

    Args:
        scheduler: with its memory.

    Attributes:
        names: those of `Scheduler.parks`.
        requests: that held memory and did not run when they were counted last.
        blocks: that only they had, of each name.
    """

    __slots__ = ("_gaps", "_scheduler", "_until", "blocks", "names", "requests")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.names = scheduler.parks
        self.requests: list[EngineRequest] = []
        self.blocks = [0] * len(self.names)
        self._gaps = array("q")
        self._until = 0  # up to when it is written down

    def count(self) -> None:
        """Count anew."""
        requests = self._scheduler.held_without_running()
        if not any(requests):
            if self.requests:
                self.requests, self.blocks = [], [0] * len(self.names)
            return
        self.requests = list(chain(*requests))
        exclusive = self._scheduler.memory.exclusive_blocks
        self.blocks = [sum(exclusive(each)) if each else 0 for each in requests]

    def further_names(self) -> int:
        """Return how often these requests name a block beyond once each that only they have."""
        held = self._scheduler.memory.held_blocks
        return sum([held(request) for request in self.requests]) - sum(self.blocks)

    def written_until(self, end: int) -> None:
        """Learn that a row says until then, in ticks, what is held without running."""
        if end > self._until:
            self._until = end

    def changes(self, now: int) -> None:
        """Write down what was held without running since the last row; it changes now."""
        if now > self._until:
            self.count()
            self._gaps.fromlist([self._until, now, *self.blocks])
            self._until = now

    def take_gaps(self) -> Column:
        """Hand over the times between iterations: from when to when, and the blocks of each name."""
        gaps = np.array(self._gaps, np.int64).reshape(-1, 2 + len(self.names))
        self._gaps = array("q")
        return gaps
