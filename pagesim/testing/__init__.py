"""Checks for custom allocators, block managers and eviction policies, with one call for each."""

from pagesim.testing.allocators import check_allocator
from pagesim.testing.conformance import check_block_manager, pools
from pagesim.testing.evictions import check_eviction_policy

__all__ = ["check_allocator", "check_block_manager", "check_eviction_policy", "pools"]
