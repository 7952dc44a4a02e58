"""Tier chain: a sequence of tiers behind the device, and how chunks move along it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pagesim.kvcache.tiers.chunks import ChunkRun, count, singles
from pagesim.kvcache.tiers.moves import DEVICE, ChainUse, ChunkCopy
from pagesim.kvcache.tiers.spans import of_runs
from pagesim.kvcache.tiers.store import WRITING, ChunkStore
from pagesim.kvcache.tiers.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Tier:
    """A tier of a chain.

    Attributes:
        name: the tier's name for users.
        store: the tier's chunks.
        exclusive: whether it receives what the tier above evicts and discards what that one keeps; an
            inclusive tier gets a copy of everything written above.
        direct: whether it is linked to the device rather than to the tier above.
    """

    name: str
    store: ChunkStore
    exclusive: bool = False
    direct: bool = False


class TierChain:
    """The tiers behind a device, and the copies of chunks that are due between them.

    The chain reserves room for a copy and returns a `ChunkCopy`. Its driver carries out each one once those
    in its ``after`` have finished, then calls ``over``.

    - *Write-through*: what the device offers goes to the first tier and to the direct ones. What is written
      to a tier continues to an inclusive one behind it, if that can make room.
    - *Demotion*: what a tier evicts goes to an exclusive one behind it, if that can make room. The freed slot
      is reused at once, but the write to it comes after the demotion.
    - *Promotion*: what is loaded from a tier that is not direct passes through the tiers above it; each that
      can make room keeps it. An exclusive tier discards what the one above keeps.

    A chain of one tier corresponds to vLLM 0.33.0 (its OffloadingConnector with host memory).

    Args:
        tiers: the tiers, the one closest to the device first.

    Attributes:
        moves: moves that have not finished.
        traffic: traffic of each tier.

    Raises:
        ValueError: the first tier or a direct one is exclusive: nothing would ever be moved to it.
    """

    __slots__ = ("moves", "tiers", "traffic")

    def __init__(self, tiers: Sequence[Tier]) -> None:
        for place, tier in enumerate(tiers):
            if tier.exclusive and (place == 0 or tier.direct):
                raise ValueError(
                    f"tier {tier.name} is exclusive and no tier is above it: nothing leads to it"
                )
        self.tiers = tuple(tiers)
        self.moves: dict[ChunkCopy, None] = {}
        self.traffic = [Traffic() for _ in tiers]

    # Questions

    def places(self, run: ChunkRun) -> list[tuple[ChunkRun, int | None]]:
        """Split a run by the nearest tier in which its chunks are ready; None where there is no such tier."""
        return [((run[0], first, end), place) for first, end, place, _ in self._parts(run)]

    def cut(self, run: ChunkRun) -> list[tuple[int, int, int | None]]:
        """Split a run by state: 0 if chunks are ready in any tier, else `WRITING`, or None if in none."""
        return [
            (first, end, (WRITING if writes else None) if place is None else 0)
            for first, end, place, writes in self._parts(run)
        ]

    def readers_of(self, segment: int, chunk: int) -> int | None:
        """Return the state of one chunk, as in ``cut``."""
        return self.cut((segment, chunk, chunk + 1))[0][2]

    # Changes

    def new_use(self) -> ChainUse:
        """Return the record of a new request, which has not used the chain yet."""
        return ChainUse(len(self.tiers))

    def offer(self, use: ChainUse, runs: Sequence[ChunkRun]) -> list[ChunkCopy] | None:
        """Offer chunks that the device has computed to all tiers that are linked to it.

        Args:
            use: record of the request that offers them.
            runs: runs of chunks, in token order.

        Returns:
            The moves that write chunks to tiers that lack them. None if the first tier cannot make room for
            all of its chunks: they can be offered again.
        """
        found: list[ChunkCopy] = []
        for place in range(len(self.tiers)):
            if self._above(place) != DEVICE:
                continue
            taken = self._make_room(place, use, runs)
            if taken is None and place == 0:
                return None
            if taken is not None:
                missing, demotions = taken
                found += demotions
                if missing:
                    found.append(
                        self._begin(ChunkCopy(use, missing, DEVICE, place, writes=True, after=demotions))
                    )
        return found

    def load(self, use: ChainUse, runs: Sequence[ChunkRun]) -> list[ChunkCopy]:
        """Start loading chunks to the device, each from the nearest tier in which it is ready.

        Raises:
            KeyError: a chunk is not ready in any tier.
        """
        by_place: dict[int, list[ChunkRun]] = {}
        for run in runs:
            for part, place in self.places(run):
                if place is None:
                    raise KeyError(f"chunks {part} are ready in no tier")
                by_place.setdefault(place, []).append(part)
        for place, found in by_place.items():
            self.tiers[place].store.pin(use.of[place], found)
            self.traffic[place].loaded += count(found)
        return [move for place in sorted(by_place) for move in self._raise(use, by_place[place], place, True)]

    def over(self, move: ChunkCopy) -> list[ChunkCopy]:
        """Finish a move that has been carried out, and return the moves that follow from it."""
        if any(each in self.moves for each in move.after):
            raise ValueError(f"{move} is over before what it comes after")
        del self.moves[move]
        use, runs, source, target = move.use, move.runs, move.source, move.target
        found: list[ChunkCopy] = []
        if move.writes:
            self.tiers[target].store.written(runs)
            if move.loads:
                self.tiers[target].store.pin(use.of[target], runs)
        if move.reads:
            self.tiers[source].store.unpin(runs)
        if move.loads and target != DEVICE:
            found += self._raise(use, runs, target, move.writes)
        if move.writes:
            found += self._write_through(use, runs, target)
            self._give_up(target + 1, runs)
        if move.reads and target == source - 1:
            self._give_up(source, runs)
        return found

    def finish(self, use: ChainUse) -> None:
        """End a request that has finished."""
        for tier, each in zip(self.tiers, use.of, strict=True):
            tier.store.finish(each)

    # Inside

    def _parts(self, run: ChunkRun, place: int = 0) -> list[tuple[int, int, int | None, bool]]:
        """Split a run by the nearest tier, at index ``place`` or behind, in which its chunks are ready.

        Returns:
            For each part: the first chunk, the end, the tier's index or None if the chunks are ready in none,
            and whether they are being written to a nearer tier (to any tier, if None).
        """
        if place == len(self.tiers):
            return [(run[1], run[2], None, False)]
        found: list[tuple[int, int, int | None, bool]] = []
        for first, end, readers in self.tiers[place].store.cut(run):
            if readers is not None and readers != WRITING:
                found.append((first, end, place, False))
                continue
            for start, stop, at, writes in self._parts((run[0], first, end), place + 1):
                found.append((start, stop, at, writes or readers == WRITING))
        return found

    def _above(self, place: int) -> int:
        return DEVICE if place == 0 or self.tiers[place].direct else place - 1

    def _begin(self, move: ChunkCopy) -> ChunkCopy:
        self.moves[move] = None
        if move.writes:
            traffic, chunks = self.traffic[move.target], move.chunks
            if move.loads:
                traffic.promoted += chunks
            elif move.reads or move.source == DEVICE:
                traffic.stored += chunks
            else:  # a demotion: the source has already evicted the chunks
                traffic.demoted += chunks
        return move

    def _make_room(
        self, place: int, use: ChainUse, runs: Sequence[ChunkRun]
    ) -> tuple[list[ChunkRun], list[ChunkCopy]] | None:
        """Offer chunks to a tier; return those to write and the demotions due before, or None if too full."""
        store = self.tiers[place].store
        missing = store.offer(use.of[place], runs)
        if missing is None:
            return None
        return missing, self._demote(place, store.victims)

    def _demote(self, place: int, victims: Sequence[ChunkRun]) -> list[ChunkCopy]:
        """Demote what a tier has evicted to an exclusive one behind it, as far as that can make room."""
        below = place + 1
        if not victims or not self._is_exclusive(below):
            return []
        use, found, moved = self.new_use(), list[ChunkCopy](), list[ChunkRun]()
        for victim in victims:
            for chunk in reversed(singles([victim])):
                taken = self._make_room(below, use, [chunk])
                if taken is not None:
                    moved += taken[0]
                    found += taken[1]
        self.tiers[below].store.finish(use.of[below])
        if moved:
            found.append(self._begin(ChunkCopy(use, moved, place, below, writes=True, after=found)))
        return found

    def _raise(self, use: ChainUse, runs: Sequence[ChunkRun], place: int, reads: bool) -> list[ChunkCopy]:
        """Move chunks from a tier one link closer to the device."""
        above = self._above(place)
        if above == DEVICE:
            return [self._begin(ChunkCopy(use, runs, place, DEVICE, reads=reads, loads=True))]
        taken = self._make_room(above, use, runs)
        missing, demotions = taken if taken is not None else ([], [])
        kept = of_runs(missing)
        found = demotions
        for writes, some in ((True, missing), (False, [part for run in runs for part in kept.missing(run)])):
            if some:
                after = demotions if writes else ()
                move = ChunkCopy(use, some, place, above, reads=reads, writes=writes, loads=True, after=after)
                found = [*found, self._begin(move)]
        return found

    def _write_through(self, use: ChainUse, runs: Sequence[ChunkRun], place: int) -> list[ChunkCopy]:
        """Copy what was written to a tier to an inclusive one behind it, if that can make room."""
        below = place + 1
        if below == len(self.tiers) or self.tiers[below].exclusive or self.tiers[below].direct:
            return []
        taken = self._make_room(below, use, runs)
        if taken is None:
            return []
        missing, demotions = taken
        if not missing:
            return demotions
        self.tiers[place].store.pin(use.of[place], missing)
        return [
            *demotions,
            self._begin(ChunkCopy(use, missing, place, below, reads=True, writes=True, after=demotions)),
        ]

    def _give_up(self, place: int, runs: Sequence[ChunkRun]) -> None:
        """Make an exclusive tier discard unpinned chunks that are ready in the tier above."""
        if self._is_exclusive(place):
            above = self.tiers[place - 1].store
            self.tiers[place].store.give_up([part for run in runs for part in above.ready(run)])

    def _is_exclusive(self, place: int) -> bool:
        return place < len(self.tiers) and self.tiers[place].exclusive

    def check_integrity(self) -> None:
        """Raise AssertionError unless the pending moves account for all writes and pins of chunks."""
        for place, tier in enumerate(self.tiers):
            tier.store.check_integrity()
            written = Counter(
                chunk
                for move in self.moves
                if move.writes and move.target == place
                for chunk in singles(move.runs)
            )
            read = Counter(
                chunk
                for move in self.moves
                if move.reads and move.source == place
                for chunk in singles(move.runs)
            )
            chunks = tier.store.chunks()
            writing = {chunk for chunk, readers in chunks.items() if readers == WRITING}
            assert max(written.values(), default=1) == 1, f"a chunk is written twice to {tier.name}"
            assert written.keys() == writing, f"{tier.name} waits for what never comes"
            assert read == +chunks, f"{tier.name} has pins of no move"
