"""Evictions by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from pagesim.kvcache.tiers.arc import Arc
from pagesim.kvcache.tiers.eviction import Eviction
from pagesim.kvcache.tiers.lru import LruByRequest
from pagesim.kvcache.tiers.lru_by_chunk import LruByChunk
from pagesim.kvcache.tiers.never import Never

EVICTIONS: Mapping[str, Callable[[int], Eviction]] = MappingProxyType(
    {
        "lru": lambda capacity: LruByRequest(),
        "arc": Arc,
        "lru-chunk": lambda capacity: LruByChunk(),
        "never": lambda capacity: Never(),
    }
)
"""How each is made for a capacity in chunks."""
