"""LRU by request: the chunks of the request that was active longest ago go first, and of those the tail."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from pagesim.kvcache.tiers.chunks import ChunkRun, count, singles, tail_first
from pagesim.kvcache.tiers.eviction import Eviction, MayGo, Use
from pagesim.kvcache.tiers.spans import Spans
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Rank:
    """Chunks of one rank: those that one request used, while it lives or when it was over.

    Attributes:
        number: ranks with smaller ones go first.
        chunks: how many there are.
        segments: in which they are; there may be others of which none is left.
        lives: whether the request may add others.
        stack: the chunks in the order in which they go, those that go first at the end; None where that is
            to be looked for.
    """

    __slots__ = ("chunks", "lives", "number", "segments", "stack")

    def __init__(self, number: int, *, lives: bool) -> None:
        self.number = number
        self.chunks = 0
        self.segments: dict[int, None] = {}
        self.lives = lives
        self.stack: list[ChunkRun] | None = None


@mypyc_attr(allow_interpreted_subclasses=True)
class LruByRequest(Eviction):
    """See `Eviction`.

    A request's chunks have the rank of its first use of the tier while it lives, and a fresh one when it is
    over; a chunk of several requests has the greatest of theirs.

    Source: vLLM 0.33.0, v1/kv_offload/cpu/policies/lru.py.
    """

    __slots__ = ("_clock", "_rank_of", "_ranks")

    def __init__(self) -> None:
        self._clock = 0
        self._rank_of: Spans[Rank] = Spans()
        # By number, in order, since each new one is the greatest. That of a request stays until it is over.
        self._ranks: OrderedDict[int, Rank] = OrderedDict()

    def touched(self, use: Use, runs: Sequence[ChunkRun]) -> None:
        rank = self._of(use)
        number = rank.number
        for run in runs:
            for first, end, old in self._rank_of.cut(run):
                assert old is not None
                if old.number < number:
                    old.stack = None
                    self._lose(old, end - first)
                    self._add(rank, (run[0], first, end))

    def inserted(self, use: Use, runs: Sequence[ChunkRun]) -> None:
        rank, put = self._of(use), self._rank_of.put
        rank.stack = None
        for run in runs:
            rank.chunks += run[2] - run[1]
            rank.segments[run[0]] = None
            put(run, rank)

    def forgotten(self, run: ChunkRun) -> None:
        self._leave(run)
        self._rank_of.remove(run)

    def finished(self, use: Use, runs: Sequence[ChunkRun]) -> None:
        old = self._ranks.get(use.rank)
        if old is not None and runs and old.chunks == count(runs):
            # It has these and no others, and no later request used any: the rank as a whole is fresh.
            del self._ranks[old.number]
            self._clock += 1
            old.number, old.lives = self._clock, False
            self._ranks[old.number] = old
            return
        if runs:
            rank = self._new(lives=False)
            for run in runs:
                self._leave(run)
                self._add(rank, run)
        if old is not None and not old.chunks:
            del self._ranks[use.rank]

    def choose(self, chunks: int, may_go: MayGo) -> list[ChunkRun] | None:
        chosen: list[ChunkRun] = []
        lost: dict[Rank, int] = {}
        for rank in self._ranks.values():
            if not rank.chunks:
                continue  # of a request that lives, and lost all that it had
            lacking = chunks
            for run in self._tail_first(rank):
                parts = may_go(run)
                if parts != [run]:
                    rank.stack = None  # some of it stays that is not at the end
                for segment, first, end in reversed(parts):
                    if first < end - chunks:
                        first = end - chunks
                    chosen.append((segment, first, end))
                    chunks -= end - first
                    if not chunks:
                        break
                if not chunks:
                    break
            lost[rank] = lacking - chunks
            if not chunks:
                break
        if chunks:
            return None
        for run in chosen:
            self._rank_of.remove(run)
        for rank, gone in lost.items():
            self._lose(rank, gone)
            if rank.stack:
                _pop(rank.stack, gone)
        return chosen

    def knows(self) -> set[ChunkRun]:
        return set(singles(run for run, _ in self._rank_of))

    def _tail_first(self, rank: Rank) -> Iterable[ChunkRun]:
        """Return the chunks of a rank in the order in which they go; of each run the last goes first."""
        if rank.stack:
            return reversed(rank.stack)
        runs: list[ChunkRun] = []
        gone: list[int] = []
        for segment in rank.segments:
            spans = self._rank_of.of(segment)
            if len(spans) == 1 and spans[0][2] is rank:
                runs.append((segment, spans[0][0], spans[0][1]))
                continue
            own = [(segment, first, end) for first, end, other in spans if other is rank]
            runs += own
            if not own:
                gone.append(segment)
        for segment in gone:
            del rank.segments[segment]
        found = tail_first(runs, last_group_first=not rank.lives)
        if isinstance(found, list):
            rank.stack = found[::-1]
        return found

    def _leave(self, run: ChunkRun) -> None:
        """Count chunks out of the ranks that they have."""
        for first, end, rank in self._rank_of.cut(run):
            assert rank is not None
            rank.stack = None
            self._lose(rank, end - first)

    def _lose(self, rank: Rank, chunks: int) -> None:
        """Count chunks out of a rank."""
        rank.chunks -= chunks
        if not rank.chunks and not rank.lives:
            del self._ranks[rank.number]  # else every choice would pass over it

    def _add(self, rank: Rank, run: ChunkRun) -> None:
        rank.chunks += run[2] - run[1]
        rank.segments[run[0]] = None
        rank.stack = None
        self._rank_of.put(run, rank)

    def _of(self, use: Use) -> Rank:
        """Return the rank of a request that lives."""
        rank = self._ranks.get(use.rank)
        if rank is None:
            rank = self._new(lives=True)
            use.rank = rank.number
        return rank

    def _new(self, *, lives: bool) -> Rank:
        self._clock += 1
        rank = self._ranks[self._clock] = Rank(self._clock, lives=lives)
        return rank


def _pop(stack: list[ChunkRun], chunks: int) -> None:
    """Take so many chunks off the end of a stack of runs."""
    while chunks:
        segment, first, end = stack[-1]
        if end - first > chunks:
            stack[-1] = (segment, first, end - chunks)
            return
        chunks -= end - first
        del stack[-1]
