"""Tiers: memory beside the device's, in which chunks of KV are kept after their blocks were given back."""

from __future__ import annotations

from pagesim.kvcache.tiers.arc import Arc
from pagesim.kvcache.tiers.belady import Future
from pagesim.kvcache.tiers.chain import Tier, TierChain
from pagesim.kvcache.tiers.eviction import Eviction
from pagesim.kvcache.tiers.lru import LruByRequest
from pagesim.kvcache.tiers.lru_by_chunk import LruByChunk
from pagesim.kvcache.tiers.moves import DEVICE, ChainUse, Move
from pagesim.kvcache.tiers.names import EVICTIONS
from pagesim.kvcache.tiers.never import Never
from pagesim.kvcache.tiers.store import ChunkKey, ChunkStore, Use

__all__ = [
    "DEVICE",
    "EVICTIONS",
    "Arc",
    "ChainUse",
    "ChunkKey",
    "ChunkStore",
    "Eviction",
    "Future",
    "LruByChunk",
    "LruByRequest",
    "Move",
    "Never",
    "Tier",
    "TierChain",
    "Use",
]
