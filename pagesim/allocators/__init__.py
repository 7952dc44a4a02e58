"""Allocators: which blocks of a pool an allocation gets. They know nothing about requests or time."""

from pagesim.allocators.allocator import Allocator, OutOfBlocks
from pagesim.allocators.buddy import Buddy
from pagesim.allocators.extents import Copy, Extent, join_extents
from pagesim.allocators.fit import BestFit, FirstFit

__all__ = ["Allocator", "BestFit", "Buddy", "Copy", "Extent", "FirstFit", "OutOfBlocks", "join_extents"]
