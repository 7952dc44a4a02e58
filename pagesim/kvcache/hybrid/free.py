"""Free blocks: what no sequence has, in the order in which it is taken; counted, and not named."""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Any

from pagesim.kvcache.runs import FreeQueue, Queued
from pagesim.setup.compiled import mypyc_attr

if TYPE_CHECKING:
    from pagesim.kvcache.hybrid.piece import Piece

STEP = 1 << 40
"""What `Queued.at` grows by with a step of growth: more than there are holders."""


@mypyc_attr(allow_interpreted_subclasses=True)
class FreeBlocks:
    """The free blocks of a memory; see `Blocks`, which names them.

    Blocks that can be found stand in a queue in the order in which they were given back. Those do not that
    decoding sequences give back one by one: of a *passing* piece it is known when each place was given back,
    and from that where in the queue it would be.

    Attributes:
        at: the time, see `Queued.at`.
        blank: free blocks that cannot be found, taken first.
        cached: free blocks that can.
        queue: of these, in the order in which they are taken, but for passing ones.
        shared: names of blocks in tables beyond the first.
        version: how often it changed what can be found, or how it is kept.
    """

    __slots__ = ("_entries", "_passing", "at", "blank", "cached", "queue", "shared", "version")

    def __init__(self, blocks: int) -> None:
        self.at = STEP - 1
        self.blank = blocks
        self.cached = 0
        self.queue = FreeQueue()
        self.shared = self.version = 0
        self._passing: list[tuple[int, int, int, int, Piece]] = []
        self._entries = 0

    def let_pass(self, step: int) -> None:
        """Set the time to that after so many steps of growth."""
        self.at = step * STEP + STEP - 1

    def push(self, queued: Queued) -> None:
        """Put at the end of the queue what is given back now."""
        queued.at = self.at
        self.queue.push(queued)

    def push_passing(self, piece: Piece) -> None:
        """Say that the places of a piece are given back, or will be, one by one."""
        self._entries += 1
        # What one sequence gives back in a step comes group by group.
        at = piece.place_at(piece.start)
        piece.entry = self._entries
        heappush(self._passing, (at, piece.index.number, piece.first, self._entries, piece))

    def take(self, blocks: int) -> None:
        """Take so many free blocks, which there are."""
        if blocks <= self.blank:
            self.blank -= blocks
        else:
            blocks, self.blank = blocks - self.blank, 0
            self.cached -= blocks
            self.evict(blocks)

    def evict(self, blocks: int) -> None:
        """Evict so many of the blocks that can be found, of which there are as many; they count no more."""
        self.version += 1
        queue, passing = self.queue, self._passing
        while blocks:
            first: Any = queue.behind
            if passing and passing[0][0] < first.at:
                blocks -= self._evict_passing(blocks)
            else:
                blocks -= first.index.evict(first, blocks)

    def _evict_passing(self, most: int) -> int:
        """Evict at most so many blocks of the place that was given back first; return how many."""
        at, number, first, entry, piece = self._passing[0]
        if piece.entry != entry:
            heappop(self._passing)
            return 0
        index, groups = piece.index, piece.last - first
        if most < groups:
            rest = index.copy(piece, piece.start, 1, first + most, piece.last, [])
            rest.at = at
            self.queue.push_ahead(rest, self.queue.behind)
        index.shrink(piece, piece.start + 1, piece.count - 1)
        if piece.count:
            self._entries += 1
            piece.entry = self._entries
            heapreplace(self._passing, (at + index.stride, number, first, self._entries, piece))
        else:
            piece.entry = None
            heappop(self._passing)
        return min(most, groups)
