"""A radix tree as a prefix cache: see `RadixKV`."""

from pagesim.kvcache.radix.eviction import EvictionPolicy
from pagesim.kvcache.radix.memory import RadixKV
from pagesim.kvcache.radix.tree import Node, RadixTree
from pagesim.kvcache.radix.windowed import WindowedTree, WindowNode
from pagesim.kvcache.radix.windowed_memory import WindowedRadixKV, WindowPool

__all__ = [
    "EvictionPolicy",
    "Node",
    "RadixKV",
    "RadixTree",
    "WindowNode",
    "WindowPool",
    "WindowedRadixKV",
    "WindowedTree",
]
