"""Chain copies: carries the moves of a chain of tiers out over its links, on the simulated clock."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from pagesim.costs.transfers import ChainLinks
from pagesim.kvcache.tiers import Move, TierChain


class ChainCopies:
    """When the moves of a chain begin and end.

    A move waits for those sent before it over its link in its direction, and for those that it comes after.
    All of its chunks arrive together; then what follows from it is sent on.

    Args:
        chain: is told of each move that is over.
        links: of its tiers.
        chunk_bytes: of each chunk.
    """

    __slots__ = ("_chunk_bytes", "_ends", "_links", "_queue", "_sent", "chain")

    def __init__(self, chain: TierChain, links: ChainLinks, chunk_bytes: int) -> None:
        self.chain = chain
        self._links = links
        self._chunk_bytes = chunk_bytes
        self._queue: list[tuple[int, int, Move]] = []
        self._ends: dict[Move, int] = {}
        self._sent = 0

    @property
    def next_end(self) -> int | None:
        """When the next move is over, in ticks; None where none is under way."""
        return self._queue[0][0] if self._queue else None

    def send(self, now: int, moves: Iterable[Move]) -> None:
        """Send moves that the chain has begun, in their order, at an instant in ticks."""
        for move in moves:
            ready = max([now, *(self._ends.get(each, now) for each in move.after)])
            link = self._links.between(move.source, move.target)
            _, end = link.send(ready, len(move.keys) * self._chunk_bytes)
            self._ends[move] = end
            heappush(self._queue, (end, self._sent, move))
            self._sent += 1

    def advance(self, now: int) -> list[tuple[int, Move]]:
        """Carry out what is over by an instant, and send what follows; return what was over, and when."""
        over = []
        while self._queue and self._queue[0][0] <= now:
            end, _, move = heappop(self._queue)
            del self._ends[move]
            over.append((end, move))
            self.send(end, self.chain.over(move))
        return over
