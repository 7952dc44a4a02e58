"""Chunk store: which chunks of KV a tier holds, which of them are being written or read, and which may go."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from pagesim.kvcache.tiers.eviction import ChunkKey, Eviction, Use

__all__ = ["ChunkKey", "ChunkStore", "Use"]

WRITING = -1
"""In place of a count of readers: the chunk is being written."""


class ChunkStore:
    """The chunks of one tier, each under its key, and the readers of each.

    A chunk is *written* from ``offer`` until ``written``, then *ready*: it can be read, and goes when room is
    needed for others, unless it is *pinned* by readers.

    Source: vLLM 0.33.0, v1/kv_offload/cpu/manager.py.

    Args:
        capacity: chunks.
        eviction: decides which chunk goes; empty.
        threshold: how often a chunk must be offered before it is taken; 0 and 1 take it at once.

    Attributes:
        evicted: chunks that went since the beginning.
    """

    __slots__ = ("_chunks", "_evictable", "_eviction", "_offered", "_threshold", "capacity", "evicted")

    def __init__(self, capacity: int, eviction: Eviction, *, threshold: int = 0) -> None:
        if capacity < 0:
            raise ValueError(f"capacity is {capacity}; it cannot be negative")
        self.capacity = capacity
        self.evicted = 0
        self._eviction = eviction
        self._threshold = threshold
        self._offered: dict[ChunkKey, int] = {}  # how often, where there is a threshold
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
    def writing(self) -> int:
        """Chunks that are being written; counted here, chunk by chunk."""
        return sum([readers == WRITING for readers in self._chunks.values()])

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
        for key in missing:
            chunks[key] = WRITING
        use.inserted.update(missing)
        self._eviction.inserted(use, missing)
        return missing

    def written(self, keys: Iterable[ChunkKey]) -> None:
        """Say that chunks have been written: they are ready."""
        for key in keys:
            self._chunks[key] = 0
            self._free(key)

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
                self._free(key)

    def finish(self, use: Use) -> None:
        """Say that a request is over: what it used counts as touched once more, its tail first."""
        there = [key for key in sorted(use.seen, reverse=True) if key in self._chunks]
        self._eviction.finished(use, there, self._evictable)

    # Inside

    def _offered_enough(self, keys: Sequence[ChunkKey], missing: Iterable[ChunkKey]) -> list[ChunkKey]:
        for key in keys:
            self._offered[key] = self._offered.get(key, 0) + 1
        return [key for key in missing if self._offered[key] >= self._threshold]

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
        return True

    def _free(self, key: ChunkKey) -> None:
        self._evictable.add(key)
        self._eviction.freed(key)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every chunk is counted once, and the eviction knows all of them."""
        chunks = self._chunks
        assert len(chunks) <= self.capacity, "more chunks than there is room for"
        assert self._evictable == {key for key, readers in chunks.items() if readers == 0}, (
            "chunks that may go are miscounted"
        )
        assert all(readers >= WRITING for readers in chunks.values()), "a reader went twice"
        assert self._eviction.knows() == chunks.keys(), "the eviction knows other chunks than there are"
