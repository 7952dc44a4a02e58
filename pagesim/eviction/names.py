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
    sentences={
        "lru": "the least recently used block (vLLM's device cache, SGLang's default)",
        "fifo": "the block that was cached first, used since or not",
        "lfu": "the least frequently used block, of several the least recently used",
        "sieve": "the first unused block that a hand meets on its way through a FIFO queue",
        "s3fifo": "blocks leave a small FIFO queue soon, and a main one late",
        "arc": "adaptive replacement: recent and frequent blocks share the room as misses say",
        "gdsf": "the block whose uses save the fewest FLOPs; unused ones age",
        "retention": "the block of the lowest priority, which requests give and which may expire",
        "vllm-arc": "arc as vLLM's tier on the host has it, told of one request after another",
        "priority": "the block whose requests had the lowest priority (SGLang)",
        "slru": "a block used once, before those used more often (SGLang)",
        "mru": "the most recently used block (SGLang)",
        "filo": "the block that was cached last (SGLang)",
        "belady": "the block that is needed again the latest: offline, the future is known",
    },
)
"""The policies that come with pagesim, and those of plugins."""

OFFLINE = frozenset({"belady"})
"""Policies that need to know the future, and so cannot be used inside an engine."""
