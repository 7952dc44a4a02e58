"""Blocks held only by requests that are not running, row by row and between iterations."""

from __future__ import annotations

from array import array
from itertools import chain, pairwise

import numpy as np

from pagesim.accounting.sums import Column
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.request import EngineRequest
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class HeldWithoutRunning:
    """Counts what requests hold without running, for each entry of `Scheduler.parks`.

    Args:
        scheduler: scheduler and its block manager.

    Attributes:
        names: entries, as in `Scheduler.parks`.
        requests: requests that held memory without running at the last count.
        blocks: blocks held only by these requests, by entry; one that several entries' requests hold counts
            in the first of these entries.
    """

    __slots__ = ("_gaps", "_scheduler", "_until", "blocks", "names", "requests")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.names = scheduler.parks
        self.requests: list[EngineRequest] = []
        self.blocks = [0] * len(self.names)
        self._gaps = array("q")
        self._until = 0  # end of the recorded time

    def count(self) -> None:
        """Count the requests and their blocks again."""
        requests = self._scheduler.held_without_running()
        if not any(requests):
            if self.requests:
                self.requests, self.blocks = [], [0] * len(self.names)
            return
        self.requests = list(chain(*requests))
        exclusive = self._scheduler.memory.exclusive_blocks
        from_here = [sum(exclusive([*chain(*requests[at:])])) for at in range(len(requests) + 1)]
        self.blocks = [blocks - of_later for blocks, of_later in pairwise(from_here)]

    def further_names(self) -> int:
        """Return these requests' references to blocks minus the number of blocks that only they hold."""
        held = self._scheduler.memory.held_blocks
        return sum([held(request) for request in self.requests]) - sum(self.blocks)

    def written_until(self, end: int) -> None:
        """Register that rows cover what is held without running until ``end``, in ticks."""
        if end > self._until:
            self._until = end

    def changes(self, now: int) -> None:
        """Record what was held without running since the last row; it is about to change at ``now``."""
        if now > self._until:
            self.count()
            self._gaps.fromlist([self._until, now, *self.blocks])
            self._until = now

    def take_gaps(self) -> Column:
        """Return and drop the periods between iterations: start, end and the blocks of each entry."""
        gaps = np.array(self._gaps, np.int64).reshape(-1, 2 + len(self.names))
        self._gaps = array("q")
        return gaps
