"""Chunk store: which chunks of KV a tier holds, which of them are being written or read, and which may go."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence, Set

from pagesim.kvcache.tiers.eviction import ChunkKey, Eviction, Use

__all__ = ["ChunkKey", "ChunkStore", "Use"]

WRITING = -1
"""In place of a count of readers: the chunk is being written."""

TRACKED = 64_000
"""vLLM's default of chunks that are counted for a threshold (``max_tracker_size``)."""


class ChunkStore:
    """The chunks of one tier, each under its key, and the readers of each.

    A chunk is *written* from ``offer`` until ``written``, then *ready*: it can be read, and goes when room is
    needed for others, unless it is *pinned* by readers.

    Source: vLLM 0.33.0, v1/kv_offload/cpu/manager.py.

    Args:
        capacity: chunks.
        eviction: decides which chunk goes; empty.
        threshold: how often a chunk must be offered before it is taken; 0 and 1 take it at once.
        tracked: of how many chunks it is known how often they were offered: of those offered last.

    Attributes:
        evicted: chunks that went since the beginning.
        victims: those that went for what was offered last.
        writing: chunks that are being written.
    """

    __slots__ = (
        *("_chunks", "_evictable", "_eviction", "_offered", "_threshold", "_tracked"),
        *("capacity", "evicted", "victims", "writing"),
    )

    def __init__(
        self, capacity: int, eviction: Eviction, *, threshold: int = 0, tracked: int = TRACKED
    ) -> None:
        if capacity < 0:
            raise ValueError(f"capacity is {capacity}; it cannot be negative")
        self.capacity = capacity
        self.evicted = 0
        self.victims: list[ChunkKey] = []
        self.writing = 0
        self._eviction = eviction
        self._threshold = threshold
        self._tracked = tracked
        self._offered: OrderedDict[ChunkKey, int] = OrderedDict()  # how often, where there is a threshold
        self._chunks: dict[ChunkKey, int] = {}  # the readers of each, or WRITING
        self._evictable: set[ChunkKey] = set()  # those that are ready and have no reader

    # Questions

    @property
    def used(self) -> int:
        """Chunks that it holds, those that are being written included."""
        return len(self._chunks)

    @property
    def evictable(self) -> int:
        """Chunks that are ready and have no reader."""
        return len(self._evictable)

    @property
    def pinned(self) -> int:
        """Chunks that have readers."""
        return self.used - self.evictable - self.writing

    @property
    def free(self) -> int:
        """Chunks for which there is room without an eviction."""
        return self.capacity - self.used

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._chunks

    def is_writing(self, key: ChunkKey) -> bool:
        """Say whether a chunk that it holds is being written."""
        return self._chunks[key] == WRITING

    def is_ready(self, key: ChunkKey) -> bool:
        """Say whether a chunk is there and not being written."""
        return self._chunks.get(key, WRITING) != WRITING

    @property
    def idle_keys(self) -> Set[ChunkKey]:
        """Chunks that are ready and have no reader: the store's own set, which is not to be changed."""
        return self._evictable

    def writing_keys(self) -> set[ChunkKey]:
        """Return the chunks that are being written; looked for among all."""
        return {key for key, readers in self._chunks.items() if readers == WRITING}

    def readers(self) -> Counter[ChunkKey]:
        """Return how many readers the chunks have that have any; looked for among all."""
        return Counter({key: readers for key, readers in self._chunks.items() if readers > 0})

    # Changes

    def offer(self, use: Use, keys: Sequence[ChunkKey]) -> list[ChunkKey] | None:
        """Offer chunks to be written, and evict others for those of them that it does not hold.

        What it holds already counts as touched.

        Args:
            use: of the request that offers them.
            keys: in the order of its tokens.

        Returns:
            Those that are to be written now; None where there is no room for all of them, and none is.
        """
        chunks, threshold = self._chunks, self._threshold
        self.victims = []
        missing = [key for key in keys if key not in chunks]
        if threshold >= 2:
            missing = self._offered_enough(keys, missing)
        ready = [key for key in keys if chunks.get(key, WRITING) != WRITING]
        self._eviction.missed(use, missing)
        use.reused.update(key for key in ready if key not in use.inserted)
        known = {*missing, *ready}
        self._touch(use, [key for key in keys if key in known])
        if missing and not self._make_room(len(missing), set(keys)):
            return None
        chunks.update(dict.fromkeys(missing, WRITING))
        self.writing += len(missing)
        use.inserted.update(missing)
        self._eviction.inserted(use, missing)
        return missing

    def written(self, keys: Collection[ChunkKey]) -> None:
        """Say that chunks have been written: they are ready."""
        self._chunks.update(dict.fromkeys(keys, 0))
        self.writing -= len(keys)
        self._evictable.update(keys)

    def pin(self, use: Use, keys: Sequence[ChunkKey]) -> None:
        """Let a request read chunks that are ready, until ``unpin``."""
        for key in keys:
            self._evictable.discard(key)
            self._chunks[key] += 1
        self._touch(use, keys)
        use.reused.update(key for key in keys if key not in use.inserted)

    def unpin(self, keys: Iterable[ChunkKey]) -> None:
        """Say that a request has read chunks."""
        for key in keys:
            self._chunks[key] -= 1
            if not self._chunks[key]:
                self._evictable.add(key)

    def give_up(self, keys: Iterable[ChunkKey]) -> None:
        """Let those of these chunks go that are ready and have no reader."""
        for key in keys:
            if key in self._evictable:
                self._evictable.remove(key)
                del self._chunks[key]
                self._eviction.forgotten(key)

    def finish(self, use: Use) -> None:
        """Say that a request is over: what it used counts as touched once more, its tail first."""
        there = [key for key in sorted(use.seen, reverse=True) if key in self._chunks]
        self._eviction.finished(use, there, self._evictable)

    # Inside

    def _offered_enough(self, keys: Sequence[ChunkKey], missing: Iterable[ChunkKey]) -> list[ChunkKey]:
        offered = self._offered
        others = len(offered)  # those that may be forgotten: tracked, and not offered now
        for key in keys:
            if key in offered:
                offered[key] += 1
                offered.move_to_end(key)
                others -= 1
        for key in keys:
            if key not in offered and (len(offered) < self._tracked or others):
                if len(offered) >= self._tracked:
                    offered.popitem(last=False)
                    others -= 1
                offered[key] = 1
        return [key for key in missing if offered.get(key, 0) >= self._threshold]

    def _touch(self, use: Use, keys: Iterable[ChunkKey]) -> None:
        fresh = [key for key in keys if key not in use.seen]
        use.seen.update(fresh)
        if fresh:
            there = [key for key in fresh if key in self._chunks]
            self._eviction.touched(use, there, self._evictable)

    def _make_room(self, chunks: int, spared: Collection[ChunkKey]) -> bool:
        """Evict what must go for so many more chunks, none of the spared; say whether there is room then."""
        lacking = chunks - self.free
        if lacking <= 0:
            return True
        if lacking > len(self._evictable):
            return False
        victims = self._eviction.choose(lacking, self._evictable, spared)
        if victims is None:
            return False
        for key in victims:
            self._evictable.remove(key)
            del self._chunks[key]
        self.evicted += len(victims)
        self.victims = victims
        return True

    def check_integrity(self) -> None:
        """Raise AssertionError unless every chunk is counted once, and the eviction knows all of them."""
        chunks = self._chunks
        assert len(chunks) <= self.capacity, "more chunks than there is room for"
        assert self._evictable == {key for key, readers in chunks.items() if readers == 0}, (
            "chunks that may go are miscounted"
        )
        assert all(readers >= WRITING for readers in chunks.values()), "a reader went twice"
        assert self.writing == len(self.writing_keys()), "chunks that are being written are miscounted"
        assert self._eviction.knows() == chunks.keys(), "the eviction knows other chunks than there are"
