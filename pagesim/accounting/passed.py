"""Passed slots: those of shared blocks that one sequence does not attend to any more while another one does.

A slot that several sequences name counts once, as that of the one which is furthest behind. What the others
count as out of their window there must be known, so that it is not counted beside it.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Mapping
from typing import NamedTuple

import numpy as np

from pagesim.accounting.sums import Column, each_of
from pagesim.kvcache import ChunkedLocal, HybridManager, Rule, SlidingWindow
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


_MOST_PENDING = 1 << 18
"""Iterations of sharers that are kept to be worked out together: so memory stays bounded."""


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

    Of blocks that running requests name the names of those that hold memory and do not run count for nothing.

    Args:
        scheduler: of memory that shares blocks between sequences.
    """

    __slots__ = ("_ahead", "_notes", "_pending", "_scheduler", "_spans", "memory")

    def __init__(self, scheduler: Scheduler) -> None:
        memory = scheduler.memory
        assert isinstance(memory, HybridManager)
        self.memory = memory
        self._scheduler = scheduler
        self._spans = [memory.groups[first] for first, _ in memory.window_spans]
        self._notes = array("q")  # iteration, first group, last group, slots
        # Of fast-forwards, by span and sharer: first iteration, steps, and the fields of `_Sharer`.
        self._ahead = [array("q") for _ in self._spans]
        self._pending = 0  # iterations of all of these

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
            for before, _, place, first, last in self._passing(span, processed, 0):
                passed = group.rule.skipped(before) - place * group.block_size
                self._notes.fromlist([iteration, first, last, min(passed, group.block_size)])

    def fast_forwarded(self, first: int, steps: int) -> None:
        """Note the row of a fast-forward, before memory grows.

        Args:
            first: the number of its first iteration.
            steps: how many there are.
        """
        memory = self.memory
        processed = {request: memory.length(request) for request in self._sharing()}
        for span, ahead in enumerate(self._ahead if processed else ()):
            for sharer in self._passing(span, processed, steps):
                ahead.fromlist([first, steps, *sharer])
                self._pending += steps
        if self._pending > _MOST_PENDING:
            self._fold()

    def take(self, first: int, iterations: int) -> Column | None:
        """Return the slots in each of so many iterations, by group, ``[I, G]``, and forget them.

        None where there are none.
        """
        if not (self._notes or any(self._ahead)):
            return None
        notes = np.array(self._notes, np.int64).reshape(-1, 4)
        changes = np.zeros((iterations, len(self.memory.groups) + 1), np.int64)
        ahead = [np.column_stack(self._spread(span)) for span in range(len(self._spans))]
        at, low, high, slots = np.concatenate([notes, *ahead]).T
        np.add.at(changes, (at - first, low), slots)
        np.add.at(changes, (at - first, high), -slots)
        self._notes, self._pending = array("q"), 0
        return np.cumsum(changes, axis=1)[:, :-1]

    def _fold(self) -> None:
        """Make notes of the fast-forwards, one an iteration for all sharers in the same groups."""
        for span in range(len(self._spans)):
            *where, slots = self._spread(span)
            rows, places = np.unique(np.stack(where, 1), axis=0, return_inverse=True)
            sums = np.zeros(len(rows), np.int64)
            np.add.at(sums, places.ravel(), slots)
            self._notes.frombytes(np.column_stack([rows, sums]).tobytes())
        self._pending = 0

    def _spread(self, span: int) -> tuple[Column, Column, Column, Column]:
        """Return of the fast-forwards what ``_notes`` has of plans, iteration by iteration; forget it."""
        group = self._spans[span]
        ahead = np.array(self._ahead[span], np.int64).reshape(-1, 2 + len(_Sharer._fields))
        self._ahead[span] = array("q")
        first, steps, before, rate, place, low, high = ahead.T
        size, start = group.block_size, place * group.block_size
        begin = _first_step(group.rule, before, rate, start)
        end = _first_step(group.rule, before, rate, start + size - 1) + self.memory.lag
        end = np.where(rate > 0, np.minimum(end, steps), steps)
        which, step = each_of(np.maximum(end - begin, 0))
        step += begin[which]
        slots = skipped(group.rule, before[which] + rate[which] * step) - start[which]
        return first[which] + step, low[which], high[which], np.minimum(slots, size)

    def _sharing(self) -> list[EngineRequest]:
        """Return the running requests that may share blocks of a window or a chunk."""
        if not (self._spans and self.memory.shared_blocks):
            return []
        parked = self._parked()
        holders = self.memory.sharers()
        return [each for each in holders if isinstance(each, EngineRequest) and each not in parked]

    def _parked(self) -> set[EngineRequest]:
        """Return the requests that hold memory and do not run."""
        return {request for each in self._scheduler.parked() for request in each}

    def _passing(self, span: int, processed: Mapping[EngineRequest, int], steps: int) -> list[_Sharer]:
        """Return the sharers of blocks but their owners, as far as slots are out of their window in a row.

        Args:
            span: see `HybridManager.window_spans`.
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
        for request in self._parked() if names else ():
            whole = -(-memory.length(request) // size)
            for _, block, _, _, _ in memory.shared_up_to(request, span, whole):
                if block in names:
                    names[block] -= 1
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
