"""The KV cache: which request holds how many blocks, and which. It knows blocks and lengths, never time."""

from pagesim.kvcache.allocator import Allocator
from pagesim.kvcache.base import KVCache, KVCacheError, OutOfBlocks, StateChunks
from pagesim.kvcache.buddy import Buddy
from pagesim.kvcache.contiguous import ContiguousKV, contiguous
from pagesim.kvcache.extents import Copy, Extent, join_extents
from pagesim.kvcache.fit import BestFit, FirstFit
from pagesim.kvcache.groups import ChunkedLocal, Full, KVGroup, Reserved, Rule, SlidingWindow, State
from pagesim.kvcache.holder import Holder
from pagesim.kvcache.hybrid import (
    DENSE,
    CountedHybridKV,
    HybridKV,
    can_keep,
)
from pagesim.kvcache.paged import PagedKV
from pagesim.kvcache.paged_tables import PagedTables
from pagesim.kvcache.pool import Pool
from pagesim.kvcache.prefix import PrefixKV
from pagesim.kvcache.prefix_tables import NumberedPrefixKV
from pagesim.kvcache.reservation import RESERVATIONS, Reservation
from pagesim.kvcache.typed import JengaKV, PooledKV, TwoLevelPages

__all__ = [
    "DENSE",
    "RESERVATIONS",
    "Allocator",
    "BestFit",
    "Buddy",
    "ChunkedLocal",
    "ContiguousKV",
    "Copy",
    "CountedHybridKV",
    "Extent",
    "FirstFit",
    "Full",
    "Holder",
    "HybridKV",
    "JengaKV",
    "KVCache",
    "KVCacheError",
    "KVGroup",
    "NumberedPrefixKV",
    "OutOfBlocks",
    "PagedKV",
    "PagedTables",
    "Pool",
    "PooledKV",
    "PrefixKV",
    "Reservation",
    "Reserved",
    "Rule",
    "SlidingWindow",
    "State",
    "StateChunks",
    "TwoLevelPages",
    "can_keep",
    "contiguous",
    "join_extents",
]
