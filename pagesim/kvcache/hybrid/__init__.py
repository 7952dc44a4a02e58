"""Hybrid memory: KV groups with windows, chunks, states and full attention share one pool of blocks."""

from pagesim.kvcache.hybrid.families import DENSE, last_cacheable
from pagesim.kvcache.hybrid.state import can_keep
from pagesim.kvcache.hybrid.tabled import HybridManager

__all__ = ["DENSE", "HybridManager", "can_keep", "last_cacheable"]
