"""Moves: copies of chunks between the tiers of a chain, or a tier and the device."""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.kvcache.tiers.chunks import ChunkRun, count
from pagesim.kvcache.tiers.eviction import RequestUse

DEVICE = -1
"""In place of a tier."""


class ChainUse:
    """What one request did with a chain.

    Attributes:
        of: with each of its tiers.
    """

    __slots__ = ("of",)

    def __init__(self, tiers: int) -> None:
        self.of = [RequestUse() for _ in range(tiers)]


class Move:
    """A copy of chunks that is to be carried out.

    Attributes:
        use: of the request for which they move.
        runs: of chunks, in token order.
        source, target: places of tiers in the chain, or `DEVICE`.
        reads: whether the chunks are pinned in the source until it is over; what was evicted there, or only
            passes through, is not.
        writes: whether the target keeps the chunks; they only pass through it where it has no room.
        loads: whether they go on to the device.
        after: moves that must be over before this one begins: they empty what it writes to.
    """

    __slots__ = ("after", "loads", "reads", "runs", "source", "target", "use", "writes")

    def __init__(
        self,
        use: ChainUse,
        runs: Sequence[ChunkRun],
        source: int,
        target: int,
        *,
        reads: bool = False,
        writes: bool = False,
        loads: bool = False,
        after: Sequence[Move] = (),
    ) -> None:
        self.use = use
        self.runs = tuple(runs)
        self.source = source
        self.target = target
        self.reads = reads
        self.writes = writes
        self.loads = loads
        self.after = tuple(after)

    @property
    def chunks(self) -> int:
        """How many chunks there are."""
        return count(self.runs)

    def __repr__(self) -> str:
        """Say from where to where, and how many chunks."""
        return f"Move({self.chunks} chunks, {self.source} -> {self.target})"
