"""Priority: the block whose requests had the lowest priority goes first (SGLang's ``priority``)."""

from __future__ import annotations

from pagesim.eviction.retention import Retention
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Priority(Retention):
    """Evicts by the greatest priority of a block's requests, of several the least recently used one.

    Priorities do not end.

    Source: SGLang 0.5.23, srt/mem_cache/evict_policy.py.
    """

    __slots__ = ()

    def miss(self, block: int) -> bool:
        return True

    def insert(self, block: int) -> None:
        priority = self.cache.priority
        known: int = self._ranking.keys.get(block, (priority, 0))[0]
        self._rank(block, max(priority, known))
