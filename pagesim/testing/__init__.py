"""Checks for parts of your own: what an allocator or a KV cache must keep is tested by one call."""

from pagesim.testing.allocators import check_allocator
from pagesim.testing.conformance import check_block_manager, pools

__all__ = ["check_allocator", "check_block_manager", "pools"]
