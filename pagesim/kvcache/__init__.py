"""Allocators: who holds which block of the KV cache. They know ids and lengths, never time."""

from pagesim.kvcache.base import Allocator, AllocatorError, Copy, Extent, Fit, OutOfBlocks, UnknownSequence
from pagesim.kvcache.buddy import Buddy
from pagesim.kvcache.contiguous import ContiguousAllocator, contiguous
from pagesim.kvcache.fit import BestFit, FirstFit
from pagesim.kvcache.paged import PagedAllocator
from pagesim.kvcache.pieces import Content
from pagesim.kvcache.placement import Placement
from pagesim.kvcache.pool import Pool
from pagesim.kvcache.prefix import PrefixCachingAllocator
from pagesim.kvcache.reservation import RESERVATIONS, Reservation

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
