"""Counts of a tier: where its capacity is, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Set

from pagesim.kvcache.tiers.chunks import ChunkRun
from pagesim.kvcache.tiers.store import ChunkStore

ENTRIES = ("pending", "pinned", "duplicate", "kept", "free")
"""Of each tier, in chunks: being written; read by a load or a copy on to another tier; of what is neither,
what the device holds as well, and what it does not; and room."""


class TierCounts:
    """What a tier has, as it is when it is asked; the entries sum to its capacity.

    Args:
        name: what users call the tier.
        store: its chunks.
        on_device: returns the chunks, one by one, that the device holds, or can find among its free
            blocks. It is called for ``duplicate`` and ``kept`` alone, which cost a look at all of them.

    Attributes:
        name: see there.
        store: see there.
    """

    __slots__ = ("_on_device", "name", "store")

    def __init__(self, name: str, store: ChunkStore, on_device: Callable[[], Set[ChunkRun]]) -> None:
        self.name = name
        self.store = store
        self._on_device = on_device

    @property
    def capacity(self) -> int:
        """Chunks that there is room for."""
        return self.store.capacity

    @property
    def pending(self) -> int:
        """Chunks that are being written."""
        return self.store.writing

    @property
    def pinned(self) -> int:
        """Chunks that are read by a load, or by a copy on to another tier."""
        return self.store.pinned

    @property
    def duplicate(self) -> int:
        """Of the others, chunks that the device has as well."""
        on_device, chunks = self._on_device(), self.store.chunks()
        return sum(readers == 0 and chunk in on_device for chunk, readers in chunks.items())

    @property
    def kept(self) -> int:
        """Of the others, chunks that the device has not."""
        return self.store.evictable - self.duplicate

    @property
    def free(self) -> int:
        """Chunks for which there is room."""
        return self.store.free

    def entries(self) -> dict[str, int]:
        """Return the `ENTRIES`."""
        duplicate = self.duplicate
        kept = self.store.evictable - duplicate
        return dict(zip(ENTRIES, (self.pending, self.pinned, duplicate, kept, self.free), strict=True))
