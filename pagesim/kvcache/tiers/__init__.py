"""Tiers: memory beside the device's, in which chunks of KV are kept after their blocks were given back."""

from __future__ import annotations

from pagesim.kvcache.tiers.arc import Arc
from pagesim.kvcache.tiers.eviction import Eviction
from pagesim.kvcache.tiers.lru import LruByRequest
from pagesim.kvcache.tiers.store import ChunkKey, ChunkStore, Use

__all__ = ["Arc", "ChunkKey", "ChunkStore", "Eviction", "LruByRequest", "Use"]
