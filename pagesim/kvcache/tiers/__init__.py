"""Tiers: memory behind the device's that keeps chunks of KV after their blocks have been freed."""

from __future__ import annotations

from pagesim.kvcache.tiers.arc import TierArc
from pagesim.kvcache.tiers.chain import Tier, TierChain
from pagesim.kvcache.tiers.chain_backing import ChainBacking, Copy
from pagesim.kvcache.tiers.chunks import ChunkRun, count, group_of, joined, segment, singles, within
from pagesim.kvcache.tiers.counts import ENTRIES, UNLIMITED, TierCounts
from pagesim.kvcache.tiers.eviction import Eviction, RequestUse
from pagesim.kvcache.tiers.lru import LruByRequest
from pagesim.kvcache.tiers.moves import DEVICE, ChainUse, ChunkCopy
from pagesim.kvcache.tiers.names import EVICTIONS, new_eviction
from pagesim.kvcache.tiers.never import Never
from pagesim.kvcache.tiers.spans import Spans
from pagesim.kvcache.tiers.store import WRITING, ChunkStore
from pagesim.kvcache.tiers.traffic import Traffic

__all__ = [
    "DEVICE",
    "ENTRIES",
    "EVICTIONS",
    "UNLIMITED",
    "WRITING",
    "ChainBacking",
    "ChainUse",
    "ChunkCopy",
    "ChunkRun",
    "ChunkStore",
    "Copy",
    "Eviction",
    "LruByRequest",
    "Never",
    "RequestUse",
    "Spans",
    "Tier",
    "TierArc",
    "TierChain",
    "TierCounts",
    "Traffic",
    "count",
    "group_of",
    "joined",
    "new_eviction",
    "segment",
    "singles",
    "within",
]
