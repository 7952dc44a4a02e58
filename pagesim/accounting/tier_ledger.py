"""Ledger of a tier: where its capacity is, chunk by chunk."""

from __future__ import annotations

from collections.abc import Set

from pagesim.kvcache.tiers import ChunkKey, ChunkStore

__all__ = ["ENTRIES", "tier_entries"]

ENTRIES = ("pending", "pinned", "duplicate", "kept", "free")
"""Of each tier, in chunks: being written; read by a load or a copy on to another tier; of what is neither,
what the device holds as well, and what it does not; and room."""


def tier_entries(store: ChunkStore, on_device: Set[ChunkKey]) -> dict[str, int]:
    """Return a tier's entries, which sum to its capacity.

    Args:
        store: of the tier.
        on_device: the chunks that the device holds, or can find among its free blocks.
    """
    duplicate = len(store.idle_keys & on_device)
    pending = store.writing
    entries = (pending, store.pinned, duplicate, store.evictable - duplicate, store.free)
    return dict(zip(ENTRIES, entries, strict=True))
