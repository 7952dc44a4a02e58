"""A chain as a backing: what a connector stores and loads, tier behind tier."""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.kvcache.tiers.backing import Copy
from pagesim.kvcache.tiers.chain import TierChain
from pagesim.kvcache.tiers.chunks import ChunkRun, count
from pagesim.kvcache.tiers.moves import DEVICE, ChainUse, Move
from pagesim.kvcache.tiers.spans import of_runs
from pagesim.kvcache.tiers.store import ChunkStore
from pagesim.kvcache.tiers.traffic import Traffic
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class ChainBacking:
    """See `Backing`: a chain of tiers.

    A copy of the device is over when all its moves to or from the device are. What moves from tier to tier
    for it, or follows from it, is handed over by ``take_moves``, and the chain is told of these when they are
    over, whether or not a scheduler looks.

    Args:
        chain: the tiers, from the fastest to the slowest; the first one is inclusive.
    """

    __slots__ = ("_begun", "chunks")

    def __init__(self, chain: TierChain) -> None:
        self.chunks = chain
        self._begun: list[Move] = []

    @property
    def tiers(self) -> Sequence[tuple[str, ChunkStore]]:
        """See `Backing`."""
        return [(tier.name, tier.store) for tier in self.chunks.tiers]

    @property
    def traffic(self) -> Sequence[Traffic]:
        """See `Backing`."""
        return self.chunks.traffic

    @property
    def moves_on(self) -> bool:
        """See `Backing`."""
        return bool(self.chunks.moves)

    def places(self, runs: Sequence[ChunkRun]) -> list[int]:
        """See `Backing`."""
        counts = [0] * len(self.chunks.tiers)
        for run in runs:
            for part, place in self.chunks.places(run):
                if place is not None:
                    counts[place] += count([part])
        return counts

    def near(self) -> Sequence[int]:
        """See `Backing`."""
        return [place for place, tier in enumerate(self.chunks.tiers) if place == 0 or tier.direct]

    def new_use(self) -> ChainUse:
        """See `Backing`."""
        return self.chunks.new_use()

    def offer(self, use: ChainUse, runs: Sequence[ChunkRun]) -> Copy | None:
        """See `Backing`."""
        found = self.chunks.offer(use, runs)
        if found is None:
            return None
        own = [move for move in found if move.source == DEVICE]
        self._begun += [move for move in found if move.source != DEVICE]
        if len(own) == 1:
            return Copy(own[0].runs, True, own)
        wanted = of_runs(run for move in own for run in move.runs)
        return Copy([part for run in runs for part in wanted.there(run)], True, own)

    def load(self, use: ChainUse, runs: Sequence[ChunkRun]) -> Copy:
        """See `Backing`."""
        found = self.chunks.load(use, runs)
        self._begun += [move for move in found if not move.loads]
        return Copy(runs, False, [move for move in found if move.loads])

    def over(self, copy: Copy) -> None:
        """See `Backing`."""
        for move in copy.moves:
            self._begun += self.chunks.over(move)

    def finish(self, use: ChainUse) -> None:
        """See `Backing`."""
        self.chunks.finish(use)

    def take_moves(self) -> list[Move]:
        """See `Backing`."""
        moves, self._begun = self._begun, []
        return moves
