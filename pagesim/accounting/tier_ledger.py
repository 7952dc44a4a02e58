"""Ledger of a tier: where its capacity is, chunk by chunk."""

from __future__ import annotations

from collections.abc import Set

from pagesim.kvcache.tiers import ENTRIES, ChunkRun, ChunkStore, TierCounts

__all__ = ["ENTRIES", "tier_entries"]


def tier_entries(store: ChunkStore, on_device: Set[ChunkRun]) -> dict[str, int]:
    """Return a tier's entries, which sum to its capacity.

    Args:
        store: of the tier.
        on_device: the chunks, one by one, that the device holds, or can find among its free blocks.
    """
    return TierCounts("", store, lambda: on_device).entries()
