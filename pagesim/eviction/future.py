"""Future uses of blocks: Belady's bound, each block's next use, and LRU hits at every capacity."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from heapq import heappop, heappush
from math import inf


class Future:
    """The blocks that future requests use, and the most hits that a cache can achieve with them.

    A request uses all of its blocks at once, and any of them may be kept afterwards. The blocks with the
    soonest next use are kept: no other choice has more hits (L. A. Belady, IBM Systems Journal 5, 1966; here
    several blocks are used at a time, and a block need not be kept at all). If a block identifies all blocks
    before it, requests that use it also use those. So the kept blocks can be closed under prefixes, and a
    cache that only evicts leaves reaches the bound. Pins and transfers are ignored.

    Args:
        requests: distinct blocks of each request, in order of the requests.

    Attributes:
        blocks: blocks of each request by number, counted from 0 in the order of their first use.
        following: for each of these, the number of the next request that uses it; infinite for none.
        working_set: smallest number of blocks with which a cache has all possible hits.
        possible_hits: hits without a limit on the capacity.
        distinct: number of distinct blocks.
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
        """Return the most hits that a cache of ``capacity`` blocks can have."""
        return self._replay(capacity)[0]

    def _replay(self, capacity: int | None) -> tuple[int, int]:
        """Return the hits and the most blocks kept at once; ``capacity`` None means no limit."""
        hits = most = 0
        kept: dict[int, float] = {}  # by block, the next request that uses it
        # The latest next use comes first; an entry that disagrees with ``kept`` is stale.
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
    """Return the hits of LRU at every capacity, in one pass over the requests.

    LRU is a stack algorithm, also in a prefix cache that only evicts leaves. A block is cached if its depth
    in the stack of recently used blocks is within the capacity. A prompt's blocks are looked up together
    and then pushed onto the stack, the last block first.

    Source: R. L. Mattson et al., IBM Systems Journal 9 (1970).

    Args:
        requests: block numbers of each request.

    Returns:
        ``[C + 1]``, the hits at capacities of 0 to C blocks, where C is the largest stack distance; larger
        capacities have no more hits. Entries below the longest prompt are not valid.
    """
    total = sum(map(len, requests))
    marks = [0] * (total + 1)  # a Fenwick tree over times: 1 at each block's last use
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
