"""Passed slots: those of shared blocks that one sequence does not attend to any more while another one does.

A slot that several sequences name counts once, as that of the one which is furthest behind. What the others
count as out of their window there must be known, so that it is not counted beside it.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import NamedTuple

import numpy as np

from pagesim.accounting.sums import Column, each_of
from pagesim.kvcache import ChunkedLocal, CountedHybridPrefixKV, HybridKV, Rule, SlidingWindow
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.request import EngineRequest


def skipped(rule: Rule, processed: Column) -> Column:
    """Return `Rule.skipped` of each of some numbers of tokens."""
    if isinstance(rule, SlidingWindow):
        return np.maximum(processed - rule.window + 1, 0)
    if isinstance(rule, ChunkedLocal):
        tokens: Column = processed // rule.chunk * rule.chunk
        return tokens
    return np.zeros_like(processed)


class _Sharer(NamedTuple):
    """A sequence that names a block, some slots of which it does not attend to any more in a row.

    Attributes:
        processed: tokens before its step in the row's first iteration; those of the owner are the fewest.
        rate: tokens that a step adds.
        place: of the block in its table.
        first, last: from which KV group to which it is such a block in each, the last not included.
    """

    processed: int
    rate: int
    place: int
    first: int
    last: int


class PassedSlots:
    """Notes, row by row, what the names of blocks beyond their owners' count as out of window.

    Args:
        scheduler: of memory that shares blocks between sequences.
    """

    __slots__ = ("_notes", "_spans", "memory")

    def __init__(self, scheduler: Scheduler) -> None:
        memory = scheduler.memory
        assert isinstance(memory, CountedHybridPrefixKV | HybridKV)
        self.memory = memory
        self._spans = [memory.groups[first] for first, _ in memory.window_spans]
        self._notes = array("q")  # iteration, first group, last group, slots

    def planned(self, iteration: int, chunks: Mapping[EngineRequest, int]) -> None:
        """Note the row of a plan.

        Args:
            iteration: its number.
            chunks: tokens that requests compute of their prompts.
        """
        processed = {}
        for request in self._sharing():
            computed = chunks.get(request, request.growth if request.decodes else 0)
            processed[request] = self.memory.length(request) - computed
        for span, group in enumerate(self._spans if processed else ()):
            slots: Counter[tuple[int, int]] = Counter()
            for before, _, place, first, last in self._passing(span, processed, 0):
                passed = group.rule.skipped(before) - place * group.block_size
                slots[first, last] += min(passed, group.block_size)
            for (first, last), passed in slots.items():
                self._notes.fromlist([iteration, first, last, passed])

    def fast_forwarded(self, first: int, steps: int) -> None:
        """Note the row of a fast-forward, before memory grows.

        Args:
            first: the number of its first iteration.
            steps: how many there are.
        """
        memory = self.memory
        processed = {request: memory.length(request) for request in self._sharing()}
        for span, group in enumerate(self._spans if processed else ()):
            passing = self._passing(span, processed, steps)
            if not passing:
                continue
            before, rate, place, low, high = np.array(passing, np.int64).T
            size, start = group.block_size, place * group.block_size
            begin = _first_step(group.rule, before, rate, start)
            end = _first_step(group.rule, before, rate, start + size - 1) + memory.lag
            end = np.where(rate > 0, np.minimum(end, steps), steps)
            which, step = each_of(np.maximum(end - begin, 0))
            step += begin[which]
            slots = skipped(group.rule, before[which] + rate[which] * step) - start[which]
            slots = np.minimum(slots, size)
            # One note an iteration for all sharers in the same groups.
            for groups in {(each.first, each.last) for each in passing}:
                mine = (low[which] == groups[0]) & (high[which] == groups[1])
                sums = np.bincount(step[mine], slots[mine], steps).astype(np.int64)
                (at,) = np.nonzero(sums)
                notes = np.empty((len(at), 4), np.int64)
                notes[:, 0], notes[:, 1:3], notes[:, 3] = first + at, groups, sums[at]
                self._notes.frombytes(notes.tobytes())

    def take(self, first: int, iterations: int) -> Column:
        """Return the slots in each of so many iterations, by group, ``[I, G]``, and forget them."""
        at, low, high, slots = np.array(self._notes, np.int64).reshape(-1, 4).T
        self._notes = array("q")
        changes = np.zeros((iterations, len(self.memory.groups) + 1), np.int64)
        np.add.at(changes, (at - first, low), slots)
        np.add.at(changes, (at - first, high), -slots)
        return np.cumsum(changes, axis=1)[:, :-1]

    def _sharing(self) -> list[EngineRequest]:
        """Return the requests that may share blocks of a window or a chunk."""
        if not (self._spans and self.memory.shared_blocks):
            return []
        return [holder for holder in self.memory.sharers() if isinstance(holder, EngineRequest)]

    def _passing(self, span: int, processed: Mapping[EngineRequest, int], steps: int) -> list[_Sharer]:
        """Return the sharers of blocks but their owners, as far as slots are out of their window in a row.

        Args:
            span: see `HybridKV.window_spans`.
            processed: tokens of each request that shares blocks before its step in the row's first iteration.
            steps: of a fast-forward, before which memory has not grown; 0 for a plan.
        """
        memory, group = self.memory, self._spans[span]
        rule, size, lag = group.rule, group.block_size, memory.lag
        sharers: dict[Hashable, list[_Sharer]] = {}
        names: dict[Hashable, int] = {}
        for request, before in processed.items():
            rate = request.growth if request.decodes else 0
            end = rule.skipped(before + rate * (steps - 1) if steps else before)
            if not end:
                continue
            # What is given back in a fast-forward's first step has one name less in all of it.
            gone = rule.skipped(max(0, before - lag * rate)) // size if steps and rate else 0
            for place, block, count, first, last in memory.shared_up_to(request, span, (end - 1) // size):
                if block not in names:
                    names[block] = count
                    sharers[block] = []
                if place < gone:
                    names[block] -= 1
                else:
                    sharers[block].append(_Sharer(before, rate, place, first, last))
        # Those that are further ahead give a block back before those behind; what rests in a fast-forward
        # does so for its only step.
        found: list[_Sharer] = []
        for block, passing in sharers.items():
            if passing and len(passing) == names[block]:
                passing.remove(min(passing))
            found += passing
        return found


def _first_step(rule: Rule, processed: Column, rate: Column, tokens: Column) -> Column:
    """Return the first further step at which more than so many tokens are skipped; 0 of what rests."""
    if isinstance(rule, SlidingWindow):
        needed = tokens + rule.window
    else:
        assert isinstance(rule, ChunkedLocal)
        needed = (tokens // rule.chunk + 1) * rule.chunk
    steps: Column = np.maximum(-(-(needed - processed) // np.maximum(rate, 1)), 0)
    return np.where(rate > 0, steps, 0)
