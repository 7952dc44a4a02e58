"""Tracked: what was offloaded of one request, and what is left to offer."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final, cast

from pagesim.kvcache.tiers import ChunkRun, within
from pagesim.kvcache.tiers.chunks import END
from pagesim.scheduling.content import Content
from pagesim.scheduling.offload.chunking import OffloadGroup, chunk_runs
from pagesim.scheduling.offload.jobs import Job
from pagesim.scheduling.request import EngineRequest
from pagesim.setup.compiled import mypyc_attr

_ANY: Final = 1 << 31  # more tokens than any request has


@mypyc_attr(allow_interpreted_subclasses=True)
class Tracked:
    """What a connector knows of one request.

    Attributes:
        request: whose blocks are stored and loaded.
        use: what it did with the tier.
        jobs: of it that are not over.
        following: of each group the first chunk that was not offered yet.
        tables: of each group that keeps a part the blocks that it took since it was admitted, by position, as
            far as chunks of them may be offered; `NULL` for those that were given back and taken again.
            Of a request that is over, the blocks of all groups.
        has_begun: whether it was admitted since it began anew.
        is_served: whether it got tokens since it was admitted.
        local: tokens that were found on the device when it was looked up last.
        is_over: whether the request is.
    """

    __slots__ = (
        *("_runs", "following", "has_begun", "is_over", "is_served", "jobs"),
        *("local", "request", "tables", "use"),
    )

    def __init__(self, request: EngineRequest, groups: int, use: Any) -> None:
        self.request = request
        self.use = use
        self.jobs: dict[Job, None] = {}
        self.local = 0
        self.is_over = False
        self._runs: list[list[ChunkRun] | None] = [None] * groups  # all that it may have
        self.begin(groups)

    def begin(self, groups: int) -> None:
        """Forget what was offered: the request begins anew."""
        self.has_begun = self.is_served = False
        self.following = [0] * groups
        self.tables: list[list[int]] = [[] for _ in range(groups)]

    def runs(self, group: OffloadGroup, start: int, end: int) -> list[ChunkRun]:
        """Return some chunks in a row of a group, the last not included, in runs."""
        return within(self._runs[group.number] or self._whole(group), start, end)

    def segment(self, group: OffloadGroup, chunk: int) -> int:
        """Return the segment in which a chunk of a group is."""
        whole = self._runs[group.number] or self._whole(group)
        return whole[bisect_right(whole, chunk, key=END)][0]

    def _whole(self, group: OffloadGroup) -> list[ChunkRun]:
        content = cast(Content, self.request.content)
        whole = self._runs[group.number] = chunk_runs(content, group, 0, _ANY // group.tokens)
        return whole
