"""Orders of blocks by their last use, by when they were cached, or by their next use."""

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
    """Evicts blocks in the order in which they were cached: a hit moves none."""

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
    """Evicts the block that was cached last: a hit moves none (SGLang's ``filo``)."""

    __slots__ = ()

    def hit(self, block: int) -> None:
        return


@mypyc_attr(allow_interpreted_subclasses=True)
class Belady(RankedPolicy):
    """Evicts the block that is asked for again the latest, and caches every block that was computed.

    The bound (`pagesim.eviction.Future`) may also leave a block out, so it has more hits.

    Source: L. A. Belady, IBM Systems Journal 5 (1966).
    """

    __slots__ = ()

    def key(self, block: int) -> Any:
        return -self.cache.next_request, -self.ticks
