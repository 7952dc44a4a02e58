"""A chain as a backing: what a connector stores and loads, tier behind tier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pagesim.kvcache.tiers.chain import TierChain
from pagesim.kvcache.tiers.chunks import ChunkRun, count
from pagesim.kvcache.tiers.moves import DEVICE, ChainUse, Move
from pagesim.kvcache.tiers.spans import of_runs
from pagesim.kvcache.tiers.store import ChunkStore
from pagesim.setup.compiled import mypyc_attr


class Copy(NamedTuple):
    """A copy of chunks between the device and what backs it; it ends as a whole.

    Attributes:
        runs: of the chunks, in token order.
        is_store: whether it reads the device; else it writes to it.
        moves: those by which it is under way; what carries them out puts those that follow in their place,
            until all of them end at the device.
    """

    runs: Sequence[ChunkRun]
    is_store: bool
    moves: list[Move]

    @property
    def chunks(self) -> int:
        """How many chunks there are."""
        return count(self.runs)


@mypyc_attr(allow_interpreted_subclasses=True)
class ChainBacking:
    """Takes chunks from a device into a chain of tiers, and gives them back.

    A copy of the device is over when all its moves to or from the device are. What moves from tier to tier
    for it, or follows from it, is handed over by ``take_moves``, and the chain is told of these when they are
    over, whether or not a scheduler looks.

    Args:
        chain: the tiers, from the fastest to the slowest.
    """

    __slots__ = ("_begun", "chain")

    def __init__(self, chain: TierChain) -> None:
        self.chain = chain
        self._begun: list[Move] = []

    @property
    def tiers(self) -> Sequence[tuple[str, ChunkStore]]:
        """The name and the chunks of each tier, that next to the device first."""
        return [(tier.name, tier.store) for tier in self.chain.tiers]

    @property
    def moves_on(self) -> bool:
        """Whether chunks move from tier to tier, of which no copy of the device says when that is over."""
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
        """Return the places of the tiers that are linked to the device, the first of them first."""
        return [place for place, tier in enumerate(self.chain.tiers) if place == 0 or tier.direct]

    def offer(self, use: ChainUse, runs: Sequence[ChunkRun]) -> Copy | None:
        """Offer chunks of the device; return the copy of those that are to be written.

        Returns:
            It has no chunks where all are there already; None where there is no room, and they can be offered
            again.
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
        """Begin to load chunks that are there and not being written."""
        found = self.chain.load(use, runs)
        self._begun += [move for move in found if not move.loads]
        return Copy(runs, False, [move for move in found if move.loads])

    def over(self, copy: Copy) -> None:
        """Say that a copy has been carried out."""
        for move in copy.moves:
            self._begun += self.chain.over(move)

    def take_moves(self) -> list[Move]:
        """Hand over the moves from tier to tier that have begun since the last call, in their order."""
        moves, self._begun = self._begun, []
        return moves
