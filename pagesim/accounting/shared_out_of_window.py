"""Slots of shared blocks that one sequence does not attend to any more while another one does.

A slot that several sequences name counts once, as that of the one which is furthest behind. What the others
count as out of their window there must be known, so that it is not counted beside it.
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
    """A sequence that names a block, some slots of which it does not attend to any more in a row.

    Attributes:
        processed: tokens before its step in the row's first iteration; those of the owner are the fewest.
        rate: tokens that a step adds.
        place: of the block in its table.
    """

    processed: int
    rate: int
    place: int


class SharedOutOfWindow:
    """Notes, row by row, what the names of blocks beyond their owners' count as out of window.

    Of blocks that running requests name the names of those that hold memory and do not run count for nothing.

    Args:
        scheduler: of memory that shares blocks between sequences.
    """

    __slots__ = ("_memory", "_scheduler", "_slots")

    def __init__(self, scheduler: Scheduler) -> None:
        assert isinstance(scheduler.memory, HybridManager)
        self._memory = scheduler.memory
        self._scheduler = scheduler
        self._slots: Counter[tuple[int, int]] = Counter()  # by iteration and group

    def planned(self, iteration: int, chunks: Mapping[EngineRequest, int]) -> None:
        """Note the row of a plan.

        Args:
            iteration: its number.
            chunks: tokens that requests compute of their prompts.
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
        """Note the row of a fast-forward, before memory grows.

        Args:
            first: the number of its first iteration.
            steps: how many there are.
        """
        processed = {
            request: (self._memory.length(request), int(request.decodes)) for request in self._sharing()
        }
        self._note(first, steps, processed)

    def take(self, first: int, iterations: int) -> Column | None:
        """Return the slots in each of so many iterations, by group, ``[I, G]``, and forget them.

        None where there are none.
        """
        if not self._slots:
            return None
        found = np.zeros((iterations, len(self._memory.groups)), np.int64)
        at, group = np.array(list(self._slots), np.int64).T
        found[at - first, group] = list(self._slots.values())
        self._slots.clear()
        return found

    def _sharing(self) -> list[EngineRequest]:
        """Return the running requests that may share blocks of a window or a chunk."""
        if not (self._memory.window_groups and self._memory.shared_blocks):
            return []
        others = self._held_without_running()
        requests = (each for each in self._memory.requests if isinstance(each, EngineRequest))
        return [each for each in requests if each not in others]

    def _held_without_running(self) -> set[EngineRequest]:
        """Return the requests that hold memory and do not run."""
        return set(chain(*self._scheduler.held_without_running()))

    def _note(self, first: int, steps: int, processed: Mapping[EngineRequest, tuple[int, int]]) -> None:
        """Note the slots of a row.

        Args:
            first: its first iteration.
            steps: its iterations.
            processed: of each request that shares blocks, its tokens before its step in the first iteration,
                and those that each further step adds.
        """
        memory, slots = self._memory, self._slots
        for group in memory.window_groups if processed else ():
            size, rule = memory.groups[group].block_size, memory.groups[group].rule
            for before, rate, place in self._beyond_owners(group, steps, processed):
                start = place * size
                begin = bisect_right(range(steps), start, key=lambda step: rule.skipped(before + rate * step))
                for step in range(begin, steps):
                    if rate and rule.skipped(before + rate * (step - memory.steps_in_flight)) >= start + size:
                        break  # it gives the block back
                    skipped = rule.skipped(before + rate * step) - start
                    slots[first + step, group] += min(skipped, size)

    def _beyond_owners(
        self, group: int, steps: int, processed: Mapping[EngineRequest, tuple[int, int]]
    ) -> list[_Sharer]:
        """Return the sharers of blocks but their owners, as far as slots are out of their window in a row.

        Args:
            group: one of ``HybridManager.window_groups``.
            steps: iterations of the row.
            processed: of each request that shares blocks, its tokens before its step in the first iteration,
                and those that each further step adds.
        """
        memory = self._memory
        rule, size = memory.groups[group].rule, memory.groups[group].block_size
        sharers: dict[int, list[_Sharer]] = {}
        names: dict[int, int] = {}
        for request, (before, rate) in processed.items():
            end = rule.skipped(before + rate * (steps - 1))
            if not end:
                continue
            # What is given back in a fast-forward's first step has one name less in all of it.
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
        # Those that are further ahead give a block back before those behind.
        found: list[_Sharer] = []
        for block, each in sharers.items():
            if each and len(each) == names[block]:
                each.remove(min(each))
            found += each
        return found
