"""ByPolicy: uses any eviction policy of a prefix cache for a tier."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagesim.eviction import CacheView, EvictionPolicy
from pagesim.kvcache.tiers.chunks import END, ChunkRun, singles
from pagesim.kvcache.tiers.eviction import Eviction, MayGo, RequestUse


class ByPolicy(Eviction):
    """Reports all events to a policy chunk by chunk, and evicts the chunks that it names.

    Only a request's first use of a chunk counts as a hit or a miss. Any chunk that is ready and not being
    read may be evicted; a tier does not know which chunks depend on it. All chunks cost the same.

    Args:
        capacity: capacity of the tier in chunks.
        make: makes the policy.
    """

    __slots__ = ("_asked", "_chunks", "_depth", "_gone", "_numbers", "_policy", "_there", "_view", "_weights")

    def __init__(self, capacity: int, make: Callable[[CacheView], EvictionPolicy]) -> None:
        self._chunks: list[ChunkRun] = []  # by number
        self._numbers: dict[ChunkRun, int] = {}  # of chunks that are present or were requested
        self._there: set[int] = set()
        self._gone: set[int] = set()  # discarded chunks, which the policy may still name
        self._asked: list[int] = []  # chunks of the last offer, which must not be evicted for it
        self._depth: list[int] = []
        self._weights: list[float] = []
        self._view = CacheView(capacity, self._depth, self._weights)
        self._policy = make(self._view)

    def missed(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        for number in self._first_used(use, runs):
            self._policy.miss(number)
        self._asked = []

    def touched(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        for number in self._first_used(use, runs):
            self._policy.hit(number)
        self._asked = [self._number(each) for each in singles(runs)]

    def inserted(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        use.noted.setdefault("inserted", set()).update(singles(runs))
        for each in singles(runs):
            number = self._number(each)
            self._there.add(number)
            self._policy.insert(number)

    def idle(self, runs: Sequence[ChunkRun]) -> None:
        for each in singles(runs):
            self._free(self._number(each))

    def pinned(self, runs: Sequence[ChunkRun]) -> None:
        self._view.free.difference_update(self._number(each) for each in singles(runs))

    def forgotten(self, run: ChunkRun) -> None:
        for each in singles([run]):
            number = self._numbers.pop(each)
            self._there.discard(number)
            self._gone.add(number)

    def finished(self, use: RequestUse) -> None:
        inserted = use.noted.get("inserted", set())
        used = sorted(use.noted.get("used", inserted), key=END)
        numbers = [(self._numbers.get(each), each in inserted) for each in used]
        there = [(number, new) for number, new in numbers if number in self._there]
        found = [number for number, new in there if not new]
        self._policy.over(found, [number for number, new in there if new])

    def choose(self, chunks: int, may_go: MayGo) -> list[ChunkRun] | None:
        free = self._view.free
        spared = [number for number in self._asked if number in free]
        free.difference_update(spared)
        chosen: list[int] = []
        while len(chosen) < chunks:
            number = self._policy.evict()
            if number is None:
                break
            free.discard(number)
            if number in self._gone:
                self._gone.discard(number)
            else:
                chosen.append(number)
        found = len(chosen) == chunks
        if not found:  # the chosen ones stay, as the newest
            for number in chosen:
                self._policy.insert(number)
            spared += chosen
        for number in spared:
            self._free(number)
        if not found:
            return None
        runs = [self._chunks[number] for number in chosen]
        self._there.difference_update(chosen)
        return runs

    def knows(self) -> set[ChunkRun]:
        return {self._chunks[number] for number in self._there}

    def _number(self, each: ChunkRun) -> int:
        """Return the number that identifies a chunk to the policy."""
        number = self._numbers.get(each)
        if number is None:
            number = self._numbers[each] = len(self._chunks)
            self._chunks.append(each)
            self._depth.append(each[1])
            self._weights.append(1.0)
        return number

    def _first_used(self, use: RequestUse, runs: Sequence[ChunkRun]) -> list[int]:
        """Return the chunks that a request uses for the first time, and mark them as used."""
        used = use.noted.setdefault("used", set())
        first = [each for each in singles(runs) if each not in used]
        used.update(first)
        return [self._number(each) for each in first]

    def _free(self, number: int) -> None:
        """Allow the policy to evict a chunk from now on."""
        self._view.free.add(number)
        self._policy.freed(number)
