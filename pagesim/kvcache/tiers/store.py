"""Chunk store: the chunks of KV in a tier, and which are being written, being read, or evictable."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from pagesim.kvcache.tiers.chunks import ChunkRun, count, joined, singles
from pagesim.kvcache.tiers.eviction import Eviction, MayGo, RequestUse
from pagesim.kvcache.tiers.spans import Spans, of_runs
from pagesim.setup.compiled import mypyc_attr

WRITING: Final = -1
"""The value in place of a number of readers while a chunk is being written."""

TRACKED: Final = 64_000
"""vLLM's default for the number of chunks whose offers are counted (``max_tracker_size``)."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ChunkStore:
    """The chunks of one tier, and the number of readers of each.

    A chunk is being written from ``offer`` until ``written``, and is *ready* from then on. A ready chunk can
    be read, and is evicted when room is needed for others unless readers *pin* it.

    Source: vLLM 0.33.0, v1/kv_offload/cpu/manager.py.

    Args:
        capacity: capacity in chunks.
        eviction: empty eviction order that decides which chunk is evicted.
        threshold: how many times a chunk must be offered to be stored; 0 and 1 store it at the first offer.
        tracked: number of chunks whose offers are counted: the most recently offered ones.

    Attributes:
        evictable: number of ready chunks without readers.
        evicted: number of chunks evicted so far.
        used: number of chunks in the store, including those being written.
        victims: chunks evicted for the last offer, as `Eviction.choose` returns them.
        writing: number of chunks being written.
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
        self._offered: OrderedDict[ChunkRun, int] = OrderedDict()  # offers per chunk, with a threshold
        self._held: Spans[int] = Spans()  # readers of each chunk, or `WRITING`

    # Questions

    @property
    def pinned(self) -> int:
        """Number of chunks that have readers."""
        return self.used - self.evictable - self.writing

    @property
    def free(self) -> int:
        """Number of chunks that fit without an eviction."""
        return self.capacity - self.used

    def counts(self) -> tuple[int, int, int]:
        """Return ``writing``, ``pinned`` and ``free``."""
        used, writing = self.used, self.writing
        return writing, used - self.evictable - writing, self.capacity - used

    def cut(self, run: ChunkRun) -> list[tuple[int, int, int | None]]:
        """Split a run by state: the number of readers, `WRITING`, or None for missing chunks."""
        return self._held.cut(run)

    def __contains__(self, run: ChunkRun) -> bool:
        return not self._held.missing(run)

    def ready(self, run: ChunkRun) -> list[ChunkRun]:
        """Return the parts of a run that are present and not being written."""
        cut = self.cut(run)
        return [(run[0], first, end) for first, end, readers in cut if readers is not None and readers >= 0]

    def idle(self, run: ChunkRun) -> list[ChunkRun]:
        """Return the parts of a run that are ready and have no reader."""
        return [(run[0], first, end) for first, end, readers in self.cut(run) if readers == 0]

    def chunks(self) -> Counter[ChunkRun]:
        """Return the number of readers, or `WRITING`, of each chunk."""
        return Counter({each: readers for run, readers in self._held for each in singles([run])})

    # Changes

    def offer(self, use: RequestUse, runs: Sequence[ChunkRun]) -> list[ChunkRun] | None:
        """Offer chunks to be written, evicting others to make room for the missing ones.

        Chunks that are ready already count as touched.

        Args:
            use: record of the request that offers them.
            runs: runs of chunks, in token order.

        Returns:
            The chunks to write now. None, with nothing to write, if there is no room for all of them.
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
        """Mark chunks that have been written, from one or more whole offers, as ready."""
        for run in runs:
            self._held.put(run, 0)
        chunks = count(runs)
        self.writing -= chunks
        self.evictable += chunks
        self._eviction.idle(runs)

    def pin(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        """Pin ready chunks that a request reads, until ``unpin``."""
        self._read(runs, 1)
        if runs:
            self._eviction.touched(use, runs)
        self._eviction.reused(use, runs)

    def unpin(self, runs: Iterable[ChunkRun]) -> None:
        """Unpin chunks that a request has read."""
        self._read(runs, -1)

    def give_up(self, runs: Iterable[ChunkRun]) -> None:
        """Discard those of these chunks that are ready and have no reader."""
        for run in runs:
            for each in self.idle(run):
                self._eviction.forgotten(each)
                self._held.remove(each)
                self.used -= each[2] - each[1]
                self.evictable -= each[2] - each[1]

    def finish(self, use: RequestUse) -> None:
        """End a request that has finished; the chunks that it used are touched once more, its tail first."""
        self._eviction.finished(use)

    # Inside

    def _offered_enough(self, offered: Sequence[ChunkRun], missing: Sequence[ChunkRun]) -> list[ChunkRun]:
        """Count offers of chunks; return the missing chunks that were offered often enough."""
        known = self._offered
        others = len(known)  # tracked chunks that may be forgotten, as they are not offered now
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
        """Evict ``lacking`` chunks, none of the spared ones; return whether there were enough."""
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
        """Return a function that returns the evictable parts of a run, except the spared chunks."""
        kept = of_runs(spared)

        return lambda run: [part for each in self.idle(run) for part in kept.missing(each)]

    def check_integrity(self) -> None:
        """Raise AssertionError unless every chunk is counted once and known to the eviction."""
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
