"""ARC: chunks used by one request and chunks used by several share the capacity, adapting to misses."""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.eviction.vllm_arc import ArcByRequest
from pagesim.kvcache.tiers.chunks import ChunkRun, joined, singles, tail_first
from pagesim.kvcache.tiers.eviction import Eviction, MayGo, RequestUse


class TierArc(Eviction):
    """vLLM's adaptive replacement cache, whose order changes when a request has finished.

    Args:
        capacity: capacity of the tier in chunks.
    """

    __slots__ = ("_order",)

    def __init__(self, capacity: int) -> None:
        self._order: ArcByRequest[ChunkRun] = ArcByRequest(capacity)

    def missed(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        missed = use.noted.setdefault("missed", set())
        for each in reversed(singles(runs)):
            if each not in missed:
                missed.add(each)
                self._order.missed(each)

    def reused(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        inserted = use.noted.get("inserted", ())
        use.noted.setdefault("reused", set()).update(each for each in singles(runs) if each not in inserted)

    def inserted(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        chunks = singles(runs)
        use.noted.setdefault("inserted", set()).update(chunks)
        for each in chunks:
            self._order.inserted(each)

    def forgotten(self, run: ChunkRun) -> None:
        for each in singles([run]):
            self._order.forgotten(each)

    def finished(self, use: RequestUse) -> None:
        reused = use.noted.get("reused", set())
        used = [each for each in reused | use.noted.get("inserted", set()) if each in self._order]
        for run in tail_first(joined(sorted(used)), last_group_first=True):
            self._order.over(reversed(singles([run])), reused)

    def choose(self, chunks: int, may_go: MayGo) -> list[ChunkRun] | None:
        return self._order.choose(chunks, may_go)

    def knows(self) -> set[ChunkRun]:
        return {*self._order.recent, *self._order.frequent}
