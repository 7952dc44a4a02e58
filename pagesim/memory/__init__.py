"""Allocators: who holds which block of the KV cache. They know ids and lengths, never time."""

from pagesim.memory.base import Allocator, AllocatorError, Copy, Extent, Fit, OutOfBlocks, UnknownSequence
from pagesim.memory.buddy import Buddy
from pagesim.memory.contiguous import ContiguousAllocator, contiguous
from pagesim.memory.fit import BestFit, FirstFit
from pagesim.memory.paged import PagedAllocator
from pagesim.memory.pieces import Content
from pagesim.memory.placement import Placement
from pagesim.memory.pool import Pool
from pagesim.memory.prefix import PrefixCachingAllocator
from pagesim.memory.reservation import RESERVATIONS, Reservation

__all__ = [
    "RESERVATIONS",
    "Allocator",
    "AllocatorError",
    "BestFit",
    "Buddy",
    "Content",
    "ContiguousAllocator",
    "Copy",
    "Extent",
    "FirstFit",
    "Fit",
    "OutOfBlocks",
    "PagedAllocator",
    "Placement",
    "Pool",
    "PrefixCachingAllocator",
    "Reservation",
    "UnknownSequence",
    "contiguous",
]
