"""Chunk store: which chunks of KV a tier holds, which of them are being written or read, and which may go."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from pagesim.kvcache.tiers.chunks import ChunkRun, count, joined, singles
from pagesim.kvcache.tiers.eviction import Eviction, MayGo, RequestUse
from pagesim.kvcache.tiers.spans import Spans, of_runs
from pagesim.setup.compiled import mypyc_attr

WRITING: Final = -1
"""In place of a count of readers: the chunk is being written."""

TRACKED: Final = 64_000
"""vLLM's default of chunks that are counted for a threshold (``max_tracker_size``)."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ChunkStore:
    """The chunks of one tier, and the readers of each.

    A chunk is *written* from ``offer`` until ``written``, then *ready*: it can be read, and goes when room is
    needed for others, unless it is *pinned* by readers.

    Source: vLLM 0.33.0, v1/kv_offload/cpu/manager.py.

    Args:
        capacity: chunks.
        eviction: decides which chunk goes; empty.
        threshold: how often a chunk must be offered before it is taken; 0 and 1 take it at once.
        tracked: of how many chunks it is known how often they were offered: of those offered last.

    Attributes:
        evictable: chunks that are ready and have no reader.
        evicted: chunks that went since the beginning.
        used: chunks that it holds, those that are being written included.
        victims: chunks that went for what was offered last, as `Eviction.choose` returns them.
        writing: chunks that are being written.
    """

    __slots__ = (
        *("_eviction", "_held", "_offered", "_threshold", "_tracked"),
        *("capacity", "evictable", "evicted", "used", "victims", "writing"),
    )

    def __init__(
        self, capacity: int, eviction: Eviction, *, threshold: int = 0, tracked: int = TRACKED
    ) -> None:
        if capacity < 0:
            raise ValueError(f"capacity is {capacity}; it cannot be negative")
        self.capacity = capacity
        self.evictable = self.evicted = self.used = self.writing = 0
        self.victims: list[ChunkRun] = []
        self._eviction = eviction
        self._threshold = threshold
        self._tracked = tracked
        self._offered: OrderedDict[ChunkRun, int] = OrderedDict()  # how often, where there is a threshold
        self._held: Spans[int] = Spans()  # readers of each chunk, or `WRITING`

    # Questions

    @property
    def pinned(self) -> int:
        """Chunks that have readers."""
        return self.used - self.evictable - self.writing

    @property
    def free(self) -> int:
        """Chunks for which there is room without an eviction."""
        return self.capacity - self.used

    def counts(self) -> tuple[int, int, int]:
        """Return ``writing``, ``pinned`` and ``free``."""
        used, writing = self.used, self.writing
        return writing, used - self.evictable - writing, self.capacity - used

    def cut(self, run: ChunkRun) -> list[tuple[int, int, int | None]]:
        """Cut a run where its chunks differ: their readers, `WRITING`, or None where they are not there."""
        return self._held.cut(run)

    def __contains__(self, run: ChunkRun) -> bool:
        return not self._held.missing(run)

    def ready(self, run: ChunkRun) -> list[ChunkRun]:
        """Return the parts of a run that are there and not being written."""
        cut = self.cut(run)
        return [(run[0], first, end) for first, end, readers in cut if readers is not None and readers >= 0]

    def idle(self, run: ChunkRun) -> list[ChunkRun]:
        """Return the parts of a run that are ready and have no reader."""
        return [(run[0], first, end) for first, end, readers in self.cut(run) if readers == 0]

    def chunks(self) -> Counter[ChunkRun]:
        """Return how many readers each of its chunks has, or `WRITING`, one by one."""
        return Counter({each: readers for run, readers in self._held for each in singles([run])})

    # Changes

    def offer(self, use: RequestUse, runs: Sequence[ChunkRun]) -> list[ChunkRun] | None:
        """Offer chunks to be written, and evict others for those of them that it does not hold.

        What it holds already counts as touched.

        Args:
            use: of the request that offers them.
            runs: in the order of its tokens.

        Returns:
            Those that are to be written now; None where there is no room for all of them, and none is.
        """
        missing = [part for run in runs for part in self._held.missing(run)]
        ready = [part for run in runs for part in self.ready(run)]
        self.victims = []
        if self._threshold >= 2:
            missing = self._offered_enough(singles(runs), missing)
        eviction, new = self._eviction, count(missing)
        eviction.missed(use, missing)
        if ready:
            eviction.reused(use, ready)
        if ready or missing:
            eviction.touched(use, ready)
        lacking = new - (self.capacity - self.used)
        if lacking > 0 and not self._make_room(lacking, runs):
            eviction.refused(use, missing)
            return None
        if new:
            for run in missing:
                self._held.put(run, WRITING)
            self.used += new
            self.writing += new
            eviction.inserted(use, missing)
        return missing

    def written(self, runs: Sequence[ChunkRun]) -> None:
        """Say that chunks have been written, all of one offer or of several: they are ready."""
        for run in runs:
            self._held.put(run, 0)
        chunks = count(runs)
        self.writing -= chunks
        self.evictable += chunks
        self._eviction.idle(runs)

    def pin(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        """Let a request read chunks that are ready, until ``unpin``."""
        self._read(runs, 1)
        if runs:
            self._eviction.touched(use, runs)
        self._eviction.reused(use, runs)

    def unpin(self, runs: Iterable[ChunkRun]) -> None:
        """Say that a request has read chunks."""
        self._read(runs, -1)

    def give_up(self, runs: Iterable[ChunkRun]) -> None:
        """Let those of these chunks go that are ready and have no reader."""
        for run in runs:
            for each in self.idle(run):
                self._eviction.forgotten(each)
                self._held.remove(each)
                self.used -= each[2] - each[1]
                self.evictable -= each[2] - each[1]

    def finish(self, use: RequestUse) -> None:
        """Say that a request is over: what it used counts as touched once more, its tail first."""
        self._eviction.finished(use)

    # Inside

    def _offered_enough(self, offered: Sequence[ChunkRun], missing: Sequence[ChunkRun]) -> list[ChunkRun]:
        """Count chunks that are offered; return those of the missing that were offered often enough."""
        known = self._offered
        others = len(known)  # those that may be forgotten: tracked, and not offered now
        for each in offered:
            if each in known:
                known[each] += 1
                known.move_to_end(each)
                others -= 1
        for each in offered:
            if each not in known and (len(known) < self._tracked or others):
                if len(known) >= self._tracked:
                    known.popitem(last=False)
                    others -= 1
                known[each] = 1
        return joined(each for each in singles(missing) if known.get(each, 0) >= self._threshold)

    def _read(self, runs: Iterable[ChunkRun], change: int) -> None:
        for run in runs:
            for first, end, before in self._held.cut(run):
                if before is None or before < max(0, -change):
                    raise KeyError(f"chunks {first} to {end} of {run} are not ready, or have no reader")
                readers = before + change
                self._held.put((run[0], first, end), readers)
                if before == 0:
                    self.evictable -= end - first
                    self._eviction.pinned([(run[0], first, end)])
                elif readers == 0:
                    self.evictable += end - first
                    self._eviction.idle([(run[0], first, end)])

    def _make_room(self, lacking: int, spared: Sequence[ChunkRun]) -> bool:
        """Evict so many chunks, none of the spared; say whether there were as many."""
        if lacking > self.evictable:
            return False
        victims = self._eviction.choose(lacking, self._idle_but(spared))
        if victims is None:
            return False
        for run in victims:
            self._held.remove(run)
        self.used -= lacking
        self.evictable -= lacking
        self.evicted += lacking
        self.victims = victims
        return True

    def _idle_but(self, spared: Sequence[ChunkRun]) -> MayGo:
        """Return what says which chunks may go where some are spared."""
        kept = of_runs(spared)

        return lambda run: [part for each in self.idle(run) for part in kept.missing(each)]

    def check_integrity(self) -> None:
        """Raise AssertionError unless every chunk is counted once, and the eviction knows all of them."""
        chunks = self.chunks()
        assert len(chunks) == self.used <= self.capacity, "more chunks than there is room for, or miscounted"
        assert self.evictable == sum(readers == 0 for readers in chunks.values()), (
            "chunks that may go are miscounted"
        )
        assert all(readers >= WRITING for readers in chunks.values()), "a reader went twice"
        assert self.writing == sum(readers == WRITING for readers in chunks.values()), (
            "chunks that are being written are miscounted"
        )
        assert self._eviction.knows() == chunks.keys(), "the eviction knows other chunks than there are"
