"""Moves: copies of chunks between two tiers of a chain, or between a tier and the device."""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.kvcache.tiers.chunks import ChunkRun, count
from pagesim.kvcache.tiers.eviction import RequestUse

DEVICE = -1
"""The device, in place of a tier's index."""


class ChainUse:
    """What one request did with a chain.

    Attributes:
        of: what it did with each tier.
    """

    __slots__ = ("of",)

    def __init__(self, tiers: int) -> None:
        self.of = [RequestUse() for _ in range(tiers)]


class ChunkCopy:
    """A copy of chunks to be carried out.

    Attributes:
        use: record of the request for which the chunks move.
        runs: runs of chunks, in token order.
        source, target: indices of tiers in the chain, or `DEVICE`.
        reads: whether the chunks are pinned in the source until the move has finished. Chunks that were
            evicted there, or only pass through it, are not.
        writes: whether the target keeps the chunks; they only pass through a target without room.
        loads: whether the chunks are on their way to the device.
        after: moves that must finish before this one starts: they empty the slots that it writes to.
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
        after: Sequence[ChunkCopy] = (),
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
        """Number of chunks."""
        return count(self.runs)

    def __repr__(self) -> str:
        """Return the number of chunks, the source and the target."""
        return f"Move({self.chunks} chunks, {self.source} -> {self.target})"
