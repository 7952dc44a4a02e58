"""SLRU: blocks that were used twice stay longer than others (SGLang's ``slru``)."""

from __future__ import annotations

from pagesim.eviction.lfu import Lfu
from pagesim.setup.compiled import mypyc_attr

PROTECTED = 2
"""Uses from which on a block is protected, the first one included; SGLang's default."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Slru(Lfu):
    """Evicts the least recently used block of those used once; of the others where none of these may go.

    Source: SGLang 0.5.23, srt/mem_cache/evict_policy.py.
    """

    __slots__ = ()

    def _priority(self, block: int) -> float:
        return float(self._uses[block] >= PROTECTED)
