"""Eviction: policies that choose which block a prefix cache evicts, and bounds on what any can achieve."""

from __future__ import annotations

from pagesim.eviction.cache import PrefixCache
from pagesim.eviction.future import Future, lru_hits
from pagesim.eviction.names import EVICTION_POLICIES, OFFLINE
from pagesim.eviction.policy import CacheView, EvictionPolicy
from pagesim.eviction.ranking import Ghosts, Queue, RankedPolicy, Ranking

__all__ = [
    "EVICTION_POLICIES",
    "OFFLINE",
    "CacheView",
    "EvictionPolicy",
    "Future",
    "Ghosts",
    "PrefixCache",
    "Queue",
    "RankedPolicy",
    "Ranking",
    "lru_hits",
]
