"""The KV cache: how many blocks, and which ones, each request holds. It knows nothing about time."""

from pagesim.kvcache.base import BlockManager, BlockManagerError, StateChunks
from pagesim.kvcache.contiguous import ContiguousManager, contiguous
from pagesim.kvcache.groups import ChunkedLocal, Full, KVGroup, Reserved, Rule, SlidingWindow, State
from pagesim.kvcache.hybrid import DENSE, HybridManager, can_keep, last_cacheable
from pagesim.kvcache.paged import PagedManager
from pagesim.kvcache.paged_tables import PagedTables
from pagesim.kvcache.pool import LayerTypePages, MakeBlockManager, Pool
from pagesim.kvcache.prefix import PrefixManager
from pagesim.kvcache.prefix_tables import NumberedPrefixManager
from pagesim.kvcache.reservation import RESERVATIONS, Reservation
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.kvcache.typed import JengaManager, PooledManager, TwoLevelPages

__all__ = [
    "DENSE",
    "RESERVATIONS",
    "BlockManager",
    "BlockManagerError",
    "ChunkedLocal",
    "ContiguousManager",
    "Full",
    "HybridManager",
    "JengaManager",
    "KVGroup",
    "LayerTypePages",
    "MakeBlockManager",
    "NumberedPrefixManager",
    "PagedManager",
    "PagedTables",
    "Pool",
    "PooledManager",
    "PrefixManager",
    "Reservation",
    "Reserved",
    "Rule",
    "SequenceGroup",
    "SlidingWindow",
    "State",
    "StateChunks",
    "TwoLevelPages",
    "can_keep",
    "contiguous",
    "last_cacheable",
]
