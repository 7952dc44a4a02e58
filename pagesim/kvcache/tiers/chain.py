"""Tier chain: memory behind the device's, tier behind tier, and how chunks move along it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pagesim.kvcache.tiers.eviction import ChunkKey
from pagesim.kvcache.tiers.moves import DEVICE, ChainUse, Move
from pagesim.kvcache.tiers.store import ChunkStore


@dataclass(frozen=True, slots=True)
class Tier:
    """A tier of a chain.

    Attributes:
        name: what users call it.
        store: its chunks.
        exclusive: it takes what the tier above (the device above the first) evicts, and gives up what is kept
            there; an inclusive one gets a copy of all that is written above.
        direct: its link ends at the device, beside those of the tiers above; else at the tier above.
    """

    name: str
    store: ChunkStore
    exclusive: bool = False
    direct: bool = False


class TierChain:
    """Tiers behind a device, and which chunks must be copied where.

    The chain takes room for a copy and says that it is to be made (`Move`); what drives the chain carries
    moves out, each when those that it comes ``after`` are over, and says when it is ``over``.

    - *Write-through*: what the device offers goes to the first tier and to the direct ones, if they are
      inclusive; what is written to a tier goes on to an inclusive one behind it, if that can make room.
    - *Demotion*: what a tier evicts goes to an exclusive one behind it, if that can make room. Its place is
      taken at once, but what is written there comes after the demotion.
    - *Promotion*: what is loaded from a tier in line passes through those above it, and each that can make
      room keeps it. An exclusive tier gives up what the one above keeps, or what has reached the device above
      it.

    A chain of one inclusive tier is what vLLM 0.33.0 has (its OffloadingConnector with memory of the host);
    one of an exclusive tier that never evicts (`Never`) is the swap space of the PagedAttention paper.

    Args:
        tiers: that next to the device first.

    Attributes:
        moves: those that are not over.

    Raises:
        ValueError: a tier behind the first is exclusive and direct: nothing would lead to it.
    """

    __slots__ = ("moves", "tiers")

    def __init__(self, tiers: Sequence[Tier]) -> None:
        for tier in tiers[1:]:
            if tier.exclusive and tier.direct:
                raise ValueError(f"tier {tier.name} is exclusive and direct: nothing leads to it")
        self.tiers = tuple(tiers)
        self.moves: dict[Move, None] = {}

    # Questions

    def place_of(self, key: ChunkKey) -> int | None:
        """Return the nearest tier in which a chunk is ready; None where it is in none."""
        for place, tier in enumerate(self.tiers):
            if tier.store.is_ready(key):
                return place
        return None

    def __contains__(self, key: ChunkKey) -> bool:
        return any(key in tier.store for tier in self.tiers)

    def is_writing(self, key: ChunkKey) -> bool:
        """Say of a chunk that is there whether it is still being written, wherever it is."""
        return self.place_of(key) is None

    # Changes

    def new_use(self) -> ChainUse:
        """Return what a request did with the chain before it came: nothing."""
        return ChainUse(len(self.tiers))

    def offer(self, use: ChainUse, keys: Sequence[ChunkKey]) -> list[Move] | None:
        """Offer chunks that the device has computed to all inclusive tiers next to it.

        Args:
            use: of the request that offers them.
            keys: in the order of its tokens.

        Returns:
            The moves by which they are written where they are not yet; None where the first of these tiers
            cannot make room for all of them: they can be offered again.
        """
        near = [place for place in range(len(self.tiers)) if self._above(place) == DEVICE]
        return self._offer(use, keys, [place for place in near if not self.tiers[place].exclusive])

    def take_evicted(self, use: ChainUse, keys: Sequence[ChunkKey]) -> list[Move] | None:
        """Offer what the device is about to lose to the first tier, if that is exclusive; as ``offer``."""
        return self._offer(use, keys, [0] if self.tiers and self.tiers[0].exclusive else [])

    def load(self, use: ChainUse, keys: Sequence[ChunkKey]) -> list[Move]:
        """Begin to load chunks to the device, each from the nearest tier in which it is ready.

        Raises:
            KeyError: one is ready in no tier.
        """
        by_place: dict[int, list[ChunkKey]] = {}
        for key in keys:
            place = self.place_of(key)
            if place is None:
                raise KeyError(f"chunk {key} is ready in no tier")
            by_place.setdefault(place, []).append(key)
        for place, found in by_place.items():
            self.tiers[place].store.pin(use.of[place], found)
        return [move for place in sorted(by_place) for move in self._raise(use, by_place[place], place, True)]

    def over(self, move: Move) -> list[Move]:
        """Say that a move has been carried out, and return those that follow from it."""
        if any(each in self.moves for each in move.after):
            raise ValueError(f"{move} is over before what it comes after")
        del self.moves[move]
        use, keys, source, target = move.use, move.keys, move.source, move.target
        found: list[Move] = []
        if move.writes:
            self.tiers[target].store.written(keys)
            if move.loads:
                self.tiers[target].store.pin(use.of[target], keys)
        if move.reads:
            self.tiers[source].store.unpin(keys)
        if move.loads and target != DEVICE:
            found += self._raise(use, keys, target, move.writes)
        if move.writes:
            found += self._write_through(use, keys, target)
            self._give_up(target + 1, keys)
        if move.reads and (source == 0 or target == source - 1):
            self._give_up(source, keys)
        return found

    def finish(self, use: ChainUse) -> None:
        """Say that a request is over."""
        for tier, each in zip(self.tiers, use.of, strict=True):
            tier.store.finish(each)

    # Inside

    def _above(self, place: int) -> int:
        return DEVICE if place == 0 or self.tiers[place].direct else place - 1

    def _begin(self, move: Move) -> Move:
        self.moves[move] = None
        return move

    def _offer(self, use: ChainUse, keys: Sequence[ChunkKey], places: Sequence[int]) -> list[Move] | None:
        """Offer chunks of the device to tiers, of which the first must take them."""
        found: list[Move] = []
        for place in places:
            taken = self._make_room(place, use, keys)
            if taken is None and place == places[0]:
                return None
            if taken is not None:
                missing, demotions = taken
                found += demotions
                if missing:
                    found.append(self._begin(Move(use, missing, DEVICE, place, writes=True, after=demotions)))
        return found

    def _make_room(
        self, place: int, use: ChainUse, keys: Sequence[ChunkKey]
    ) -> tuple[list[ChunkKey], list[Move]] | None:
        """Offer chunks to a tier; return those to be written and the demotions before, or None."""
        store = self.tiers[place].store
        missing = store.offer(use.of[place], keys)
        if missing is None:
            return None
        return missing, self._demote(place, store.victims)

    def _demote(self, place: int, victims: Sequence[ChunkKey]) -> list[Move]:
        """Move what a tier has evicted to an exclusive one behind it, as far as that can make room."""
        below = place + 1
        if not victims or not self._is_exclusive(below):
            return []
        use, found, moved = self.new_use(), list[Move](), list[ChunkKey]()
        for key in victims:
            taken = self._make_room(below, use, [key])
            if taken is not None:
                moved += taken[0]
                found += taken[1]
        self.tiers[below].store.finish(use.of[below])
        if moved:
            found.append(self._begin(Move(use, moved, place, below, writes=True, after=found)))
        return found

    def _raise(self, use: ChainUse, keys: Sequence[ChunkKey], place: int, reads: bool) -> list[Move]:
        """Move chunks from a tier towards the device, by one link."""
        above = self._above(place)
        if above == DEVICE:
            return [self._begin(Move(use, keys, place, DEVICE, reads=reads, loads=True))]
        taken = self._make_room(above, use, keys)
        missing, demotions = taken if taken is not None else ([], [])
        kept = set(missing)
        found = demotions
        for writes in (True, False):
            some = [key for key in keys if (key in kept) == writes]
            if some:
                after = demotions if writes else ()
                move = Move(use, some, place, above, reads=reads, writes=writes, loads=True, after=after)
                found = [*found, self._begin(move)]
        return found

    def _write_through(self, use: ChainUse, keys: Sequence[ChunkKey], place: int) -> list[Move]:
        """Move what was written to a tier on to an inclusive one behind it, if that can make room."""
        below = place + 1
        if below == len(self.tiers) or self.tiers[below].exclusive or self.tiers[below].direct:
            return []
        taken = self._make_room(below, use, keys)
        if taken is None:
            return []
        missing, demotions = taken
        if not missing:
            return demotions
        self.tiers[place].store.pin(use.of[place], missing)
        return [
            *demotions,
            self._begin(Move(use, missing, place, below, reads=True, writes=True, after=demotions)),
        ]

    def _give_up(self, place: int, keys: Sequence[ChunkKey]) -> None:
        """Let an exclusive tier give up chunks that the tier above has, but those that are read there.

        The device has what is loaded from the first tier.
        """
        if self._is_exclusive(place):
            above = None if place == 0 else self.tiers[place - 1].store
            self.tiers[place].store.give_up([key for key in keys if above is None or above.is_ready(key)])

    def _is_exclusive(self, place: int) -> bool:
        return place < len(self.tiers) and self.tiers[place].exclusive

    def check_integrity(self) -> None:
        """Raise AssertionError unless moves under way are what writes and reads chunks, and nothing else."""
        for place, tier in enumerate(self.tiers):
            tier.store.check_integrity()
            written = Counter(
                key for move in self.moves if move.writes and move.target == place for key in move.keys
            )
            read = Counter(
                key for move in self.moves if move.reads and move.source == place for key in move.keys
            )
            assert max(written.values(), default=1) == 1, f"a chunk is written twice to {tier.name}"
            assert written.keys() == tier.store.writing_keys(), f"{tier.name} waits for what never comes"
            assert read == tier.store.readers(), f"{tier.name} has pins of no move"
