"""A chain as a backing: what a connector stores and loads, tier behind tier."""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.kvcache.tiers.backing import Copy
from pagesim.kvcache.tiers.chain import TierChain
from pagesim.kvcache.tiers.eviction import ChunkKey
from pagesim.kvcache.tiers.moves import DEVICE, ChainUse, Move
from pagesim.kvcache.tiers.store import ChunkStore
from pagesim.kvcache.tiers.traffic import Traffic


class ChainBacking:
    """See `Backing`: a chain of tiers.

    A copy of the device is over when all its moves to or from the device are. What moves from tier to tier
    for it, or follows from it, is handed over by ``take_moves``, and the chain is told of these when they are
    over, whether or not a scheduler looks.

    Args:
        chain: see there; its first tier is inclusive.
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

    def places(self, keys: Sequence[ChunkKey]) -> list[int]:
        """See `Backing`."""
        counts, place_of = [0] * len(self.chunks.tiers), self.chunks.place_of
        for key in keys:
            place = place_of(key)
            if place is not None:
                counts[place] += 1
        return counts

    def near(self) -> Sequence[int]:
        """See `Backing`."""
        return [place for place, tier in enumerate(self.chunks.tiers) if place == 0 or tier.direct]

    def new_use(self) -> ChainUse:
        """See `Backing`."""
        return self.chunks.new_use()

    def offer(self, use: ChainUse, keys: Sequence[ChunkKey]) -> Copy | None:
        """See `Backing`."""
        found = self.chunks.offer(use, keys)
        if found is None:
            return None
        own = [move for move in found if move.source == DEVICE]
        self._begun += [move for move in found if move.source != DEVICE]
        if len(own) == 1:
            return Copy(own[0].keys, True, own)
        wanted = {key for move in own for key in move.keys}
        return Copy([key for key in keys if key in wanted], True, own)

    def load(self, use: ChainUse, keys: Sequence[ChunkKey]) -> Copy:
        """See `Backing`."""
        found = self.chunks.load(use, keys)
        self._begun += [move for move in found if not move.loads]
        return Copy(keys, False, [move for move in found if move.loads])

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
