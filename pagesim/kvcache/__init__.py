"""The KV cache: which request holds how many blocks, and which. It knows blocks and lengths, never time."""

from pagesim.kvcache.base import Fit, Holder, KVCache, KVCacheError, OutOfBlocks
from pagesim.kvcache.buddy import Buddy
from pagesim.kvcache.contiguous import ContiguousKV, contiguous
from pagesim.kvcache.counted import CountedKV
from pagesim.kvcache.extents import Copy, Extent
from pagesim.kvcache.fit import BestFit, FirstFit
from pagesim.kvcache.groups import Full, KVGroup, Reserved, Rule, SlidingWindow
from pagesim.kvcache.placement import Placement
from pagesim.kvcache.pool import Pool
from pagesim.kvcache.prefix import CountedPrefixKV
from pagesim.kvcache.prefix_tables import PrefixCachedKV
from pagesim.kvcache.reservation import RESERVATIONS, Reservation
from pagesim.kvcache.tabled import TabledKV

__all__ = [
    "RESERVATIONS",
    "BestFit",
    "Buddy",
    "ContiguousKV",
    "Copy",
    "CountedKV",
    "CountedPrefixKV",
    "Extent",
    "FirstFit",
    "Fit",
    "Full",
    "Holder",
    "KVCache",
    "KVCacheError",
    "KVGroup",
    "OutOfBlocks",
    "Placement",
    "Pool",
    "PrefixCachedKV",
    "Reservation",
    "Reserved",
    "Rule",
    "SlidingWindow",
    "TabledKV",
    "contiguous",
]
