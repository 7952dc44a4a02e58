"""Memory of several KV groups: windows, chunks, states and full attention over one pool of blocks."""

from pagesim.kvcache.hybrid.counted import CountedHybridKV
from pagesim.kvcache.hybrid.counted_prefix import CountedHybridPrefixKV, counts_prefixes
from pagesim.kvcache.hybrid.kinds import DENSE
from pagesim.kvcache.hybrid.lazy_prefix import LazyHybridPrefixKV
from pagesim.kvcache.hybrid.state import can_keep
from pagesim.kvcache.hybrid.tabled import HybridKV

__all__ = [
    "DENSE",
    "CountedHybridKV",
    "CountedHybridPrefixKV",
    "HybridKV",
    "LazyHybridPrefixKV",
    "can_keep",
    "counts_prefixes",
]
