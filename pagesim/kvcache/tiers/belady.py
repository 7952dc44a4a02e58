"""Belady's bound: the most hits that any eviction can have in so many chunks, knowing the future."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from heapq import heappop, heappush


class Future:
    """Which chunks requests will ask for, and the most of them that a tier can have then.

    A request asks for all of its chunks at once, and any of them may be kept afterwards. What is kept are
    those that are asked for again the soonest: no choice has more hits (L. A. Belady, IBM Systems Journal 5,
    1966; here several are asked for at a time, and one may also not be kept at all). A chunk counts as a hit
    whether or not the ones before it in its prompt are there, pins and transfers are not looked at: all of
    this can only raise the bound.

    Args:
        requests: the chunks that each asks for, in order of the requests; within one, each is there once.

    Attributes:
        working_set: with so many chunks every hit is had that is possible at all, and with fewer not.
        possible_hits: those.
        distinct: chunks of different content.
    """

    def __init__(self, requests: Sequence[Sequence[Hashable]]) -> None:
        never = len(requests)
        numbers: dict[Hashable, int] = {}
        self._requests = [[numbers.setdefault(key, len(numbers)) for key in keys] for keys in requests]
        self.distinct = len(numbers)
        self._next: list[list[int]] = [[] for _ in requests]
        following = [never] * len(numbers)
        for row in range(never - 1, -1, -1):
            keys = self._requests[row]
            self._next[row] = [following[key] for key in keys]
            for key in keys:
                following[key] = row
        self.possible_hits, self.working_set = self._replay(None)

    def hits(self, capacity: int) -> int:
        """Return the most hits in a tier of so many chunks."""
        return self._replay(capacity)[0]

    def _replay(self, capacity: int | None) -> tuple[int, int]:
        """Return the hits, and the most chunks that were kept at a time; None for no limit."""
        never, hits, most = len(self._requests), 0, 0
        kept: dict[int, int] = {}  # by chunk, the next request that asks for it
        last: list[
            tuple[int, int]
        ] = []  # those that are asked for last, first; stale where kept says otherwise
        for keys, following in zip(self._requests, self._next, strict=True):
            for key, again in zip(keys, following, strict=True):
                hits += key in kept
                if again == never:
                    kept.pop(key, None)
                else:
                    kept[key] = again
                    heappush(last, (-again, key))
            while capacity is not None and len(kept) > capacity:
                again, key = heappop(last)
                if kept.get(key) == -again:
                    del kept[key]
            most = max(most, len(kept))
        return hits, most
