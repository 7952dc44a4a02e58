"""Policies that rank blocks by their last use, by when they were cached, or by their next use."""

from __future__ import annotations

from typing import Any

from pagesim.eviction.ranking import RankedPolicy
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Lru(RankedPolicy):
    """Evicts the least recently used block (vLLM's device cache, SGLang's default)."""

    __slots__ = ()

    def key(self, block: int) -> Any:
        return self.ticks


@mypyc_attr(allow_interpreted_subclasses=True)
class Fifo(Lru):
    """Evicts blocks in the order in which they were cached; hits do not matter."""

    __slots__ = ()

    def hit(self, block: int) -> None:
        return


@mypyc_attr(allow_interpreted_subclasses=True)
class Mru(RankedPolicy):
    """Evicts the most recently used block.

    Source: SGLang 0.5.23, srt/mem_cache/evict_policy.py.
    """

    __slots__ = ()

    def key(self, block: int) -> Any:
        return -self.ticks


@mypyc_attr(allow_interpreted_subclasses=True)
class Filo(Mru):
    """Evicts the most recently cached block; hits do not matter (SGLang's ``filo``)."""

    __slots__ = ()

    def hit(self, block: int) -> None:
        return


@mypyc_attr(allow_interpreted_subclasses=True)
class Belady(RankedPolicy):
    """Evicts the block whose next use is furthest away, and caches every computed block.

    The bound (`pagesim.eviction.Future`) need not cache every block, so it can have more hits.

    Source: L. A. Belady, IBM Systems Journal 5 (1966).
    """

    __slots__ = ()

    def key(self, block: int) -> Any:
        return -self.cache.next_request, -self.ticks
