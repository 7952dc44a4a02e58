"""What requests are going to ask for: Belady's bound, each block's next use, and LRU at every capacity."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from heapq import heappop, heappush
from math import inf


class Future:
    """Which blocks requests will ask for, and the most of them that a cache can have then.

    A request asks for all of its blocks at once, and any of them may be kept afterwards. What is kept are
    those that are asked for again the soonest: no choice has more hits (L. A. Belady, IBM Systems Journal 5,
    1966; here several are asked for at a time, and one may also not be kept at all). Where a block names all
    before it, who asks for it asks for those, too. So what is kept can be closed under prefixes, and the
    bound is reached by a cache of which only leaves may go. Pins and transfers are not looked at.

    Args:
        requests: the blocks that each asks for, in order of the requests; within one, each is there once.

    Attributes:
        blocks: of each request, its blocks by number, from 0 in the order in which they are first asked for.
        following: of each of these, the number of the next request that asks for it; infinite for none.
        working_set: with so many blocks every hit is had that is possible at all, and with fewer not.
        possible_hits: those.
        distinct: blocks of different content.
    """

    def __init__(self, requests: Sequence[Sequence[Hashable]]) -> None:
        numbers: dict[Hashable, int] = {}
        self.blocks = [[numbers.setdefault(key, len(numbers)) for key in keys] for keys in requests]
        self.distinct = len(numbers)
        self.following: list[list[float]] = [[] for _ in requests]
        soonest = [inf] * len(numbers)
        for row in range(len(requests) - 1, -1, -1):
            self.following[row] = [soonest[block] for block in self.blocks[row]]
            for block in self.blocks[row]:
                soonest[block] = row
        self.possible_hits, self.working_set = self._replay(None)

    def hits(self, capacity: int) -> int:
        """Return the most hits in a cache of so many blocks."""
        return self._replay(capacity)[0]

    def _replay(self, capacity: int | None) -> tuple[int, int]:
        """Return the hits, and the most blocks that were kept at a time; None for no limit."""
        hits = most = 0
        kept: dict[int, float] = {}  # by block, the next request that asks for it
        # Those that are asked for last, first; an entry is stale where ``kept`` says otherwise.
        last: list[tuple[float, int]] = []
        for blocks, following in zip(self.blocks, self.following, strict=True):
            for block, again in zip(blocks, following, strict=True):
                hits += block in kept
                if again == inf:
                    kept.pop(block, None)
                else:
                    kept[block] = again
                    if capacity is not None:
                        heappush(last, (-again, block))
            while capacity is not None and len(kept) > capacity:
                again, block = heappop(last)
                if kept.get(block) == -again:
                    del kept[block]
            most = max(most, len(kept))
        return hits, most


def lru_hits(requests: Sequence[Sequence[int]]) -> list[int]:
    """Return the hits of LRU at every capacity, in one pass over what requests ask for.

    LRU is a stack algorithm, in a prefix cache of which only leaves may go, too: a block is there if its
    place in the stack of recently used ones is within the capacity. A prompt's blocks are looked up together,
    and then put on the stack, the last at the bottom.

    Source: R. L. Mattson et al., IBM Systems Journal 9 (1970).

    Args:
        requests: the blocks of each, by number.

    Returns:
        ``[C + 1]``, the hits with 0 to C blocks, where C is the largest distance; above, they stay the same.
        No capacity may be below the longest prompt.
    """
    total = sum(map(len, requests))
    marks = [0] * (total + 1)  # a Fenwick tree over times: 1 where a block was used last
    used_at: dict[int, int] = {}
    by_distance: dict[int, int] = {}
    now = 0
    for blocks in requests:
        for block in blocks:
            at = used_at.get(block)
            if at is not None:
                distance = len(used_at) + 1
                while at:
                    distance -= marks[at]
                    at &= at - 1
                by_distance[distance] = by_distance.get(distance, 0) + 1
        for block in reversed(blocks):
            at = used_at.get(block, 0)
            while 0 < at <= total:
                marks[at] -= 1
                at += at & -at
            now += 1
            used_at[block] = at = now
            while at <= total:
                marks[at] += 1
                at += at & -at
    hits, found = [0], 0
    for distance in range(1, max(by_distance, default=0) + 1):
        found += by_distance.get(distance, 0)
        hits.append(found)
    return hits
