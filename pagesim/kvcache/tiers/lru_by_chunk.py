"""LRU by chunk: the chunk that was used longest ago goes first, whichever request it is of."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

from pagesim.kvcache.tiers.chunks import ChunkRun, singles
from pagesim.kvcache.tiers.eviction import Eviction, MayGo, RequestUse


class LruByChunk(Eviction):
    """Evicts the chunk that was used longest ago; a request uses a chunk when it first asks for it.

    The chunks of a request are used in token order, so its head goes before its tail, which is of no use
    without the head. `LruByRequest` has the tail go first; this one is for comparison.
    """

    __slots__ = ("_order",)

    def __init__(self) -> None:
        self._order: OrderedDict[ChunkRun, None] = OrderedDict()  # chunk by chunk

    def missed(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        use.noted.setdefault("seen", set()).update(singles(runs))

    def touched(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        seen = use.noted.setdefault("seen", set())
        for each in singles(runs):
            if each not in seen:
                seen.add(each)
                self._order.move_to_end(each)

    def inserted(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        self._order.update(dict.fromkeys(singles(runs)))

    def forgotten(self, run: ChunkRun) -> None:
        for each in singles([run]):
            del self._order[each]

    def choose(self, chunks: int, may_go: MayGo) -> list[ChunkRun] | None:
        chosen = list(islice((each for each in self._order if may_go(each)), chunks))
        if len(chosen) < chunks:
            return None
        for each in chosen:
            del self._order[each]
        return chosen

    def knows(self) -> set[ChunkRun]:
        return set(self._order)
