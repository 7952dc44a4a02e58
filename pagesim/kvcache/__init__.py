"""The KV cache: which request holds how many blocks, and which. It knows blocks and lengths, never time."""

from pagesim.kvcache.allocator import Allocator
from pagesim.kvcache.base import BlockManager, BlockManagerError, OutOfBlocks, StateChunks
from pagesim.kvcache.buddy import Buddy
from pagesim.kvcache.contiguous import ContiguousManager, contiguous
from pagesim.kvcache.extents import Copy, Extent, join_extents
from pagesim.kvcache.fit import BestFit, FirstFit
from pagesim.kvcache.groups import ChunkedLocal, Full, KVGroup, Reserved, Rule, SlidingWindow, State
from pagesim.kvcache.holder import Holder
from pagesim.kvcache.hybrid import (
    DENSE,
    CountedHybridManager,
    HybridManager,
    can_keep,
)
from pagesim.kvcache.paged import PagedManager
from pagesim.kvcache.paged_tables import PagedTables
from pagesim.kvcache.pool import Pool
from pagesim.kvcache.prefix import PrefixManager
from pagesim.kvcache.prefix_tables import NumberedPrefixManager
from pagesim.kvcache.reservation import RESERVATIONS, Reservation
from pagesim.kvcache.typed import JengaManager, PooledManager, TwoLevelPages

__all__ = [
    "DENSE",
    "RESERVATIONS",
    "Allocator",
    "BestFit",
    "BlockManager",
    "BlockManagerError",
    "Buddy",
    "ChunkedLocal",
    "ContiguousManager",
    "Copy",
    "CountedHybridManager",
    "Extent",
    "FirstFit",
    "Full",
    "Holder",
    "HybridManager",
    "JengaManager",
    "KVGroup",
    "NumberedPrefixManager",
    "OutOfBlocks",
    "PagedManager",
    "PagedTables",
    "Pool",
    "PooledManager",
    "PrefixManager",
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
