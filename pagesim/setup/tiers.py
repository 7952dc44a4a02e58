"""Tiers made ready: the chain of stores that descriptions of tiers ask for."""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.costs.specs import TierSpec
from pagesim.kvcache.tiers import EVICTIONS, ChunkStore, Tier, TierChain

__all__ = ["make_chain"]

UNLIMITED = 1 << 62
"""Chunks of a tier without a limit."""


def make_chain(tiers: Sequence[TierSpec], chunk_bytes: int) -> TierChain:
    """Return an empty chain of these tiers.

    Args:
        tiers: that next to the device first.
        chunk_bytes: of a chunk in each of them; a tier holds as many whole ones as there is room for.
    """
    made = []
    for tier in tiers:
        capacity = UNLIMITED if tier.capacity_bytes is None else tier.capacity_bytes // chunk_bytes
        store = ChunkStore(capacity, EVICTIONS[tier.eviction](capacity))
        made.append(Tier(tier.name, store, tier.exclusive, tier.direct))
    return TierChain(made)
