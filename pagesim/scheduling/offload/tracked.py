"""Tracked: what was offloaded of one request, and what is left to offer."""

from __future__ import annotations

from pagesim.kvcache.tiers import ChunkKey, Use
from pagesim.scheduling.offload.chunking import OffloadGroup
from pagesim.scheduling.offload.jobs import Job
from pagesim.scheduling.request import EngineRequest


class Tracked:
    """What a connector knows of one request.

    Attributes:
        request: see there.
        use: what it did with the tier.
        jobs: of it that are not over.
        following: of each group the first chunk that was not offered yet.
        tables: of each group the blocks that it took since it was admitted, by position, as far as chunks of
            them may be offered; those that were given back and taken again by now are `NULL`.
        local: tokens that were found on the device when it was looked up last.
        is_over: whether the request is.
    """

    __slots__ = ("_keys", "following", "is_over", "jobs", "local", "request", "tables", "use")

    def __init__(self, request: EngineRequest, groups: int) -> None:
        self.request = request
        self.use = Use()
        self.jobs: dict[Job, None] = {}
        self.local = 0
        self.is_over = False
        self.following: list[int] = []
        self.tables: list[list[int]] = []
        self._keys: list[list[ChunkKey]] = [[] for _ in range(groups)]  # of each group, as far as asked for
        self.begin(groups)

    def begin(self, groups: int) -> None:
        """Forget what was offered: the request begins anew."""
        self.following = [0] * groups
        self.tables = [[] for _ in range(groups)]

    def key(self, group: OffloadGroup, chunk: int) -> ChunkKey:
        """Return the key of a chunk of a group."""
        return self.keys(group, chunk, chunk + 1)[0]

    def keys(self, group: OffloadGroup, start: int, end: int) -> list[ChunkKey]:
        """Return the keys of some chunks in a row, the last not included."""
        number, named = group.number, self._keys[group.number]
        if end > len(named):
            content, size = self.request.content, group.tokens
            assert content is not None
            key_at = content.key_at
            ends = range((len(named) + 1) * size, (end + 1) * size, size)
            named += [(tokens, number, key_at(tokens)) for tokens in ends]
        return named[start:end]
