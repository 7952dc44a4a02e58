"""Tracks which of a request's chunks were offloaded and which are left to offer."""

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
    """What a connector knows about one request.

    Attributes:
        request: the request whose blocks are stored and loaded.
        use: its use of the chain of tiers so far.
        jobs: its unfinished jobs.
        following: for each group, the first chunk not offered yet.
        tables: for each group that does not keep all tokens, the blocks allocated since admission, by
            position, as far as their chunks may be offered; `NULL` for blocks freed and allocated again. For
            a finished request, also the blocks of the other groups, if more of them may be offered.
        has_begun: whether it has been admitted since it last started.
        is_served: whether it has been scheduled tokens since it was admitted.
        local: tokens on the device as of its last look-up.
        is_over: whether the request has finished.
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
        self._runs: list[list[ChunkRun] | None] = [None] * groups  # all possible chunks of each group
        self.begin(groups)

    def begin(self, groups: int) -> None:
        """Forget what was offered because the request starts anew."""
        self.has_begun = self.is_served = False
        self.following = [0] * groups
        self.tables: list[list[int]] = [[] for _ in range(groups)]

    def runs(self, group: OffloadGroup, start: int, end: int) -> list[ChunkRun]:
        """Return a group's chunks from ``start`` up to but excluding ``end``, as runs."""
        return within(self._runs[group.number] or self._whole(group), start, end)

    def segment(self, group: OffloadGroup, chunk: int) -> int:
        """Return the segment that a chunk of a group belongs to."""
        whole = self._runs[group.number] or self._whole(group)
        return whole[bisect_right(whole, chunk, key=END)][0]

    def _whole(self, group: OffloadGroup) -> list[ChunkRun]:
        content = cast(Content, self.request.content)
        whole = self._runs[group.number] = chunk_runs(content, group, 0, _ANY // group.tokens)
        return whole
