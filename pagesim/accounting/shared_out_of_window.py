"""Slots of shared blocks that are out of window for one sequence but not yet for another.

A slot shared by several sequences counts once, for the sequence that is furthest behind. The slots that the
other sequences count as out of window must be known, so that they are not counted twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np

from pagesim.accounting.sums import Column
from pagesim.kvcache import HybridManager
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.request import EngineRequest


class _Sharer(NamedTuple):
    """A sequence with a block in its table of which some slots leave its window within a row.

    Attributes:
        processed: tokens before its step in the row's first iteration; fewest for the block's owner.
        rate: tokens added per step.
        place: index of the block in its block table.
    """

    processed: int
    rate: int
    place: int


class SharedOutOfWindow:
    """Records, row by row, the out-of-window slots counted by sequences other than a block's owner.

    References from requests that hold memory without running are ignored.

    Args:
        scheduler: scheduler whose block manager shares blocks between sequences.
    """

    __slots__ = ("_memory", "_scheduler", "_slots")

    def __init__(self, scheduler: Scheduler) -> None:
        assert isinstance(scheduler.memory, HybridManager)
        self._memory = scheduler.memory
        self._scheduler = scheduler
        self._slots: Counter[tuple[int, int]] = Counter()  # by iteration and group

    def planned(self, iteration: int, chunks: Mapping[EngineRequest, int]) -> None:
        """Record the row of a planned iteration.

        Args:
            iteration: number of the iteration.
            chunks: prompt tokens that each request computes.
        """
        processed = {}
        for request in self._sharing():
            computed = chunks.get(request, int(request.decodes))
            length = self._memory.length(request)
            if self._scheduler.speculation is not None:
                length = self._scheduler.stored_length(request)
            processed[request] = length - computed, 0
        self._note(iteration, 1, processed)

    def fast_forwarded(self, first: int, steps: int) -> None:
        """Record the row of a fast-forward, before memory grows.

        Args:
            first: number of its first iteration.
            steps: number of iterations.
        """
        processed = {
            request: (self._memory.length(request), int(request.decodes)) for request in self._sharing()
        }
        self._note(first, steps, processed)

    def take(self, first: int, iterations: int) -> Column | None:
        """Return and drop the slots recorded for ``iterations`` iterations, by group, ``[I, G]``.

        Returns None if there are none.
        """
        if not self._slots:
            return None
        found = np.zeros((iterations, len(self._memory.groups)), np.int64)
        at, group = np.array(list(self._slots), np.int64).T
        found[at - first, group] = list(self._slots.values())
        self._slots.clear()
        return found

    def _sharing(self) -> list[EngineRequest]:
        """Return the running requests that may share blocks in window or chunked-local groups."""
        if not (self._memory.window_groups and self._memory.shared_blocks):
            return []
        others = self._held_without_running()
        requests = (each for each in self._memory.requests if isinstance(each, EngineRequest))
        return [each for each in requests if each not in others]

    def _held_without_running(self) -> set[EngineRequest]:
        """Return the requests that hold memory without running."""
        return set(chain(*self._scheduler.held_without_running()))

    def _note(self, first: int, steps: int, processed: Mapping[EngineRequest, tuple[int, int]]) -> None:
        """Record the slots of a row.

        Args:
            first: number of its first iteration.
            steps: number of iterations.
            processed: tokens before the step in the first iteration and tokens added per further step, for
                each request that shares blocks.
        """
        memory, slots = self._memory, self._slots
        for group in memory.window_groups if processed else ():
            size, rule = memory.groups[group].block_size, memory.groups[group].rule
            for before, rate, place in self._beyond_owners(group, steps, processed):
                start = place * size
                begin = bisect_right(range(steps), start, key=lambda step: rule.skipped(before + rate * step))
                for step in range(begin, steps):
                    if rate and rule.skipped(before + rate * (step - memory.steps_in_flight)) >= start + size:
                        break  # it has released the block
                    skipped = rule.skipped(before + rate * step) - start
                    slots[first + step, group] += min(skipped, size)

    def _beyond_owners(
        self, group: int, steps: int, processed: Mapping[EngineRequest, tuple[int, int]]
    ) -> list[_Sharer]:
        """Return the sharers, except owners, for which slots of a shared block leave the window in a row.

        Args:
            group: one of ``HybridManager.window_groups``.
            steps: iterations of the row.
            processed: tokens before the step in the first iteration and tokens added per further step, for
                each request that shares blocks.
        """
        memory = self._memory
        rule, size = memory.groups[group].rule, memory.groups[group].block_size
        sharers: dict[int, list[_Sharer]] = {}
        names: dict[int, int] = {}
        for request, (before, rate) in processed.items():
            end = rule.skipped(before + rate * (steps - 1))
            if not end:
                continue
            # A block released in a fast-forward's first step has one reference less throughout the row.
            gone = rule.skipped(max(0, before - memory.steps_in_flight * rate)) // size if rate else 0
            for place, block, count in memory.shared_up_to(request, group, (end - 1) // size):
                if block not in names:
                    names[block] = count
                    sharers[block] = []
                if place < gone:
                    names[block] -= 1
                else:
                    sharers[block].append(_Sharer(before, rate, place))
        for request in self._held_without_running() if names else ():
            whole = -(-memory.length(request) // size)
            for _, block, _ in memory.shared_up_to(request, group, whole):
                if block in names:
                    names[block] -= 1
        # Sequences further ahead release a block before those behind.
        found: list[_Sharer] = []
        for block, each in sharers.items():
            if each and len(each) == names[block]:
                each.remove(min(each))
            found += each
        return found
