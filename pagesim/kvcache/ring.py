"""Rings: how many blocks decoding sequences allocate or free at each step, modulo a period of steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate

from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.setup.compiled import mypyc_attr


def opening_step(base: int, block_size: int) -> int:
    """Return the step, modulo the block size, at which a sequence allocates its blocks.

    A sequence of ``base + steps`` tokens opens a block with each token after a multiple of the block size.
    """
    return (1 - base) % block_size


@mypyc_attr(allow_interpreted_subclasses=True)
class Ring:
    """Block counts by step, modulo a period.

    A decoding sequence enters once and leaves once, no matter how many tokens it generates. Its length on
    entry determines the steps at which it opens a block.

    Args:
        period: steps; a multiple of the block size of every sequence that enters.

    Attributes:
        counts: blocks at each step of the period, ``[period]``.
        period: steps of the period.
        whole: blocks of all steps of the period together.
    """

    __slots__ = ("counts", "period", "whole")

    def __init__(self, period: int) -> None:
        self.counts = [0] * period
        self.period = period
        self.whole = 0

    def enter(self, base: int, blocks: int = 1, block_size: int = 0) -> None:
        """Count blocks at each step at which a sequence opens one.

        Args:
            base: length of the sequence minus the steps run; after ``steps`` steps it is ``base + steps``.
            blocks: blocks to count for each block that it opens; may be negative.
            block_size: tokens per block, a divisor of the period; 0 for the period itself.
        """
        counts, period = self.counts, self.period
        size = block_size or period
        for step in range((1 - base) % size, period, size):  # from `opening_step` on, without a call
            counts[step] += blocks
        self.whole += blocks * period // size

    def leave(self, base: int, blocks: int = 1, block_size: int = 0) -> None:
        """Undo ``enter`` with the same arguments."""
        self.enter(base, -blocks, block_size)

    def at(self, step: int) -> int:
        """Return the blocks of one step."""
        return self.counts[step % self.period]

    def total(self, after: int, steps: int) -> int:
        """Return the total blocks of the ``steps`` steps that follow step ``after``."""
        counts, period = self.counts, self.period
        first = (after + 1) % period
        if steps == 1:
            return counts[first]
        blocks, end = steps // period * self.whole, first + steps % period
        if end > first:
            blocks += sum(counts[first:end])
        return blocks + sum(counts[: end - period]) if end > period else blocks

    def in_turn(self, after: int) -> list[int]:
        """Return the blocks of each of the ``period`` steps that follow step ``after``, ``[period]``."""
        first = (after + 1) % self.period
        return self.counts[first:] + self.counts[:first]

    def steps_that_fit(self, after: int, steps: int, room: int) -> int:
        """Return how many of the ``steps`` steps after step ``after`` fit into ``room`` blocks in total."""
        period, whole = self.period, self.whole
        if (steps // period + 1) * whole <= room:
            return steps  # almost always
        if room < 0:
            return 0
        rounds, room = divmod(room, whole)
        fit = rounds * period + bisect_right(list(accumulate(self.in_turn(after))), room)
        return fit if fit < steps else steps


@mypyc_attr(allow_interpreted_subclasses=True)
class Buckets:
    """Decoding requests, grouped by the steps, modulo a period, at which their blocks change.

    A step that allocates or frees numbered blocks only visits the requests of its bucket.

    Args:
        period: steps of the period.
    """

    __slots__ = ("_buckets", "_in_order", "_period", "_steps_of")

    def __init__(self, period: int) -> None:
        self._period = period
        self._buckets: list[dict[SequenceGroup, None]] = [{} for _ in range(period)]
        self._in_order = True  # whether every bucket is sorted by the order of its requests
        self._steps_of: dict[SequenceGroup, Sequence[int]] = {}

    def enter(self, request: SequenceGroup, steps: Sequence[int]) -> None:
        """Add a request to the buckets of these steps, each of which is below the period."""
        self._steps_of[request] = steps
        for step in steps:
            bucket = self._buckets[step]
            if bucket and next(reversed(bucket)).order > request.order:
                self._in_order = False
            bucket[request] = None

    def leave(self, request: SequenceGroup) -> None:
        """Remove a request from its buckets."""
        for step in self._steps_of.pop(request):
            self._buckets[step].pop(request, None)

    def requests(self) -> Iterable[SequenceGroup]:
        """Return the requests that have entered and not left."""
        return self._steps_of

    def at(self, step: int) -> Collection[SequenceGroup]:
        """Return the requests whose blocks change at a step, in their order."""
        if not self._in_order:
            self._buckets = [
                dict.fromkeys(sorted(bucket, key=lambda request: request.order)) for bucket in self._buckets
            ]
            self._in_order = True
        return self._buckets[step % self._period]
