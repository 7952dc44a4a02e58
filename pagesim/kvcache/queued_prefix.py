"""Prefix caching by the run, where it is known at once which blocks are taken."""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.kvcache.prefix import CountedPrefixKV
from pagesim.kvcache.run_index import Prefix
from pagesim.kvcache.runs import Run
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class QueuedPrefixKV(CountedPrefixKV):
    """As its parent, block by block in the order of the queue.

    Where blocks have numbers, or are watched, or all queue up behind one another, the order matters in which
    they are taken, and each run is looked at when a block of it is.

    Args:
        num_blocks, block_size, cpu_blocks: as of the parent.
        reuses_unhashed_first: whether free blocks that cannot be found are taken before all others (vLLM
            0.33); if not, all blocks queue up behind one another (0.11 and 0.19).
    """

    waits_to_index = False

    def __init__(
        self, num_blocks: int, block_size: int, cpu_blocks: int = 0, *, reuses_unhashed_first: bool = True
    ) -> None:
        super().__init__(num_blocks, block_size, cpu_blocks)
        self.reuses_unhashed_first = reuses_unhashed_first
        self._blank = self._all_blocks()  # free blocks that hold nothing, taken before those of the queue
        self._tells_taken = self.names_blocks  # whether ``_took`` is told of what is taken
        self._evictions: list[tuple[int, int]] = []
        self._evicted_from = self._evicted_to = 0  # of the last in a row, by ``blocks_taken``

    def take_evictions(self) -> Sequence[tuple[int, int]]:
        self._note_evictions(0)
        evictions, self._evictions = self._evictions, []
        return evictions

    def set_aside(self, blocks: int) -> None:
        before = self._aside
        if blocks > before:
            self._aside = 0
            self._take(blocks - before)
            self.free_blocks += blocks - before  # as before, but out of the queue
            self._aside = blocks

    # What a form of this memory adds to

    def _all_blocks(self) -> Run:
        """Return the run of all blocks, which are free."""
        return Run(self.num_blocks)

    def _takes_now(self) -> None:
        """Learn that blocks are about to be taken, if ``_took`` is told of them."""
        return

    def _took(self, run: Run, blocks: int) -> None:
        """Learn that so many blocks were taken off the end of a run, the last of them first."""
        return

    def _take_aside(self, blocks: int) -> None:
        """Take so many of the blocks that were set aside, the first of them first."""
        self._aside -= blocks

    # As `CountedPrefixKV`

    def _take(self, blocks: int) -> None:
        if self._tells_taken:
            self._takes_now()
        self.free_blocks -= blocks
        if self._aside:
            aside = min(blocks, self._aside)
            self._take_aside(aside)
            blocks -= aside
        blank = self._blank
        if blank.count and blocks:
            count = min(blocks, blank.count)
            blank.count -= count
            self.blocks_taken += count
            if self._tells_taken:
                self._took(blank, count)
            blocks -= count
        if blocks:
            self._take_queued(blocks)

    def _give_back_unhashed(self, prefix: Prefix, blocks: int) -> None:
        if not blocks:
            return
        self.free_blocks += blocks
        run = self._blank
        if not self.reuses_unhashed_first:
            run = Run(0)
            self._queue.push(run)
        if self.names_blocks:
            self._index.name(prefix, run, prefix.hashed, blocks)
        run.count += blocks

    def _left_queue(self, run: Run, blocks: int) -> None:
        if run.content is not None:
            self._cached -= blocks
            self._queued -= blocks
            if not self.reuses_unhashed_first:
                if self.blocks_taken != self._evicted_to:
                    self._note_evictions(self.blocks_taken)
                self._evicted_to = self.blocks_taken + blocks
        self.blocks_taken += blocks
        if self._tells_taken:
            self._took(run, blocks)

    # Inside

    def _note_evictions(self, taken: int) -> None:
        """Note the last evictions in a row; the next come when so many blocks have been taken."""
        first, end = self._evicted_from, self._evicted_to
        if first < end:
            self._evictions.append((first + 1, end - first))
        self._evicted_from = self._evicted_to = taken
