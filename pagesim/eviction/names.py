"""Eviction policies by name."""

from __future__ import annotations

from pagesim.eviction.arc import Arc
from pagesim.eviction.frequency import Gdsf, Lfu, Slru
from pagesim.eviction.policy import EvictionPolicy
from pagesim.eviction.recency import Belady, Fifo, Filo, Lru, Mru
from pagesim.eviction.retention import Priority, Retention
from pagesim.eviction.s3fifo import S3Fifo
from pagesim.eviction.sieve import Sieve
from pagesim.eviction.vllm_arc import VllmArc
from pagesim.setup.plugins import Plugins

EVICTION_POLICIES: Plugins[type[EvictionPolicy]] = Plugins(
    "eviction",
    "pagesim.evictions",
    {
        "lru": Lru,
        "fifo": Fifo,
        "lfu": Lfu,
        "sieve": Sieve,
        "s3fifo": S3Fifo,
        "arc": Arc,
        "gdsf": Gdsf,
        "retention": Retention,
        "vllm-arc": VllmArc,
        "priority": Priority,
        "slru": Slru,
        "mru": Mru,
        "filo": Filo,
        "belady": Belady,
    },
    base=EvictionPolicy,
)
"""Those that come with pagesim, and those that others bring."""

OFFLINE = frozenset({"belady"})
"""Those that know the future, and so cannot serve inside an engine."""
