"""Memory of layer types: pages of each type are as large as its layers need, so they differ in bytes."""

from pagesim.kvcache.typed.jenga import JengaManager
from pagesim.kvcache.typed.pools import PooledManager
from pagesim.kvcache.typed.two_level import TwoLevelPages

__all__ = ["JengaManager", "PooledManager", "TwoLevelPages"]
