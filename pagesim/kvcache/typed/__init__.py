"""Typed memory: each layer type has pages of the size that its layers need, so page sizes differ."""

from pagesim.kvcache.typed.jenga import JengaManager
from pagesim.kvcache.typed.pools import PooledManager
from pagesim.kvcache.typed.two_level import TwoLevelPages

__all__ = ["JengaManager", "PooledManager", "TwoLevelPages"]
