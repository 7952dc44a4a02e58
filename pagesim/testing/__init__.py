"""Checks for memory of your own: what a KV cache or an allocator must keep is tested by one call."""

from pagesim.testing.conformance import check_kvcache, pools

__all__ = ["check_kvcache", "pools"]
