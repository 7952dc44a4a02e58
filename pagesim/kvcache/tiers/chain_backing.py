"""A tier chain as a connector's backing: stores chunks from the device and loads them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pagesim.kvcache.tiers.chain import TierChain
from pagesim.kvcache.tiers.chunks import ChunkRun, count
from pagesim.kvcache.tiers.moves import DEVICE, ChainUse, ChunkCopy
from pagesim.kvcache.tiers.spans import of_runs
from pagesim.kvcache.tiers.store import ChunkStore
from pagesim.setup.compiled import mypyc_attr


class Copy(NamedTuple):
    """A copy of chunks between the device and its backing; it finishes as a whole.

    Attributes:
        runs: runs of the chunks, in token order.
        is_store: whether it reads from the device rather than writing to it.
        moves: current moves of the copy. The driver replaces finished ones by those that follow, until
            all of them end at the device.
    """

    runs: Sequence[ChunkRun]
    is_store: bool
    moves: list[ChunkCopy]

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return count(self.runs)


@mypyc_attr(allow_interpreted_subclasses=True)
class ChainBacking:
    """Stores chunks from a device in a chain of tiers, and loads them back.

    A copy has finished when all its moves to or from the device have. ``take_moves`` returns the moves from
    tier to tier that it needs or causes. The chain is notified when these finish, independently of the
    scheduler.

    Args:
        chain: the tiers, from the fastest to the slowest.
    """

    __slots__ = ("_begun", "chain")

    def __init__(self, chain: TierChain) -> None:
        self.chain = chain
        self._begun: list[ChunkCopy] = []

    @property
    def tiers(self) -> Sequence[tuple[str, ChunkStore]]:
        """The name and the chunks of each tier, starting with the one closest to the device."""
        return [(tier.name, tier.store) for tier in self.chain.tiers]

    @property
    def moves_on(self) -> bool:
        """Whether any moves are pending in a chain of several tiers; copies do not report all of them."""
        return len(self.chain.tiers) > 1 and bool(self.chain.moves)

    def places(self, runs: Sequence[ChunkRun]) -> list[int]:
        """Return how many of these chunks would be loaded from each tier."""
        counts = [0] * len(self.chain.tiers)
        for run in runs:
            for part, place in self.chain.places(run):
                if place is not None:
                    counts[place] += count([part])
        return counts

    def near(self) -> Sequence[int]:
        """Return the indices of the tiers that are linked to the device, in ascending order."""
        return [place for place, tier in enumerate(self.chain.tiers) if place == 0 or tier.direct]

    def offer(self, use: ChainUse, runs: Sequence[ChunkRun]) -> Copy | None:
        """Offer chunks of the device to the chain.

        Returns:
            The copy of the chunks to write, without chunks if all are stored already. None if there is no
            room; they can be offered again.
        """
        found = self.chain.offer(use, runs)
        if found is None:
            return None
        own = [move for move in found if move.source == DEVICE]
        self._begun += [move for move in found if move.source != DEVICE]
        if len(own) == 1:
            return Copy(own[0].runs, True, own)
        wanted = of_runs(run for move in own for run in move.runs)
        return Copy([part for run in runs for part in wanted.there(run)], True, own)

    def load(self, use: ChainUse, runs: Sequence[ChunkRun]) -> Copy:
        """Start loading chunks that are stored and not being written."""
        found = self.chain.load(use, runs)
        self._begun += [move for move in found if not move.loads]
        return Copy(runs, False, [move for move in found if move.loads])

    def over(self, copy: Copy) -> None:
        """Finish a copy that has been carried out."""
        for move in copy.moves:
            self._begun += self.chain.over(move)

    def take_moves(self) -> list[ChunkCopy]:
        """Return and clear the moves from tier to tier that began since the last call, in order."""
        moves, self._begun = self._begun, []
        return moves
