"""A radix tree as a prefix cache: see `RadixKV`."""

from pagesim.kvcache.radix.eviction import EvictionPolicy
from pagesim.kvcache.radix.memory import RadixKV
from pagesim.kvcache.radix.tree import Node, RadixTree

__all__ = ["EvictionPolicy", "Node", "RadixKV", "RadixTree"]
