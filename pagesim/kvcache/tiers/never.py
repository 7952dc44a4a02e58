"""No eviction: chunks stay in a tier until they are discarded, as in a swap space."""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.kvcache.tiers.chunks import ChunkRun, singles
from pagesim.kvcache.tiers.eviction import Eviction, MayGo, RequestUse
from pagesim.kvcache.tiers.spans import Spans
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Never(Eviction):
    """An eviction that evicts nothing: a full tier has room for a chunk only once another is discarded."""

    __slots__ = ("_there",)

    def __init__(self) -> None:
        self._there: Spans[bool] = Spans()

    def inserted(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        for run in runs:
            self._there.put(run, True)

    def forgotten(self, run: ChunkRun) -> None:
        self._there.remove(run)

    def choose(self, chunks: int, may_go: MayGo) -> list[ChunkRun] | None:
        return None

    def knows(self) -> set[ChunkRun]:
        return set(singles(run for run, _ in self._there))
