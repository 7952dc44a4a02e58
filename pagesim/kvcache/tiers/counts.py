"""Counts of a tier: how its capacity is divided, in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from pagesim.kvcache.tiers.chunks import ChunkRun, count
from pagesim.kvcache.tiers.store import ChunkStore
from pagesim.setup.compiled import mypyc_attr

ENTRIES = ("pending", "pinned", "duplicate", "kept", "free")
"""Counts of a tier in chunks: being written; read by a load or by a copy to another tier; neither, and also
held by the device; neither, and not held by the device; and free."""

UNLIMITED: Final = (1 << 62) - 1
"""The capacity in chunks of a tier without a limit."""


@mypyc_attr(allow_interpreted_subclasses=True)
class TierCounts:
    """The current content of a tier; the entries sum to its capacity.

    Args:
        name: the tier's name for users.
        store: the tier's chunks.
        on_device: returns the chunks that the device holds or has cached in its free blocks, each once.

    Attributes:
        name: the tier's name for users.
        store: the tier's chunks.
    """

    __slots__ = ("_on_device", "name", "store")

    def __init__(self, name: str, store: ChunkStore, on_device: Callable[[], Iterable[ChunkRun]]) -> None:
        self.name = name
        self.store = store
        self._on_device = on_device

    def entries(self) -> dict[str, int]:
        """Return the `ENTRIES`."""
        store = self.store
        duplicate = sum([count(store.idle(run)) for run in self._on_device()])
        counts = (store.writing, store.pinned, duplicate, store.evictable - duplicate, store.free)
        return dict(zip(ENTRIES, counts, strict=True))
