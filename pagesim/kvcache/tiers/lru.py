"""LRU by request: evicts from the tail of the least recently active request's chunks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from pagesim.kvcache.tiers.chunks import ChunkRun, singles, tail_first
from pagesim.kvcache.tiers.eviction import Eviction, MayGo, RequestUse
from pagesim.kvcache.tiers.spans import Spans, of_runs
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class RecencyClass:
    """The chunks of one rank: those that one request used, either while it runs or at its end.

    Attributes:
        number: rank; chunks with a smaller one are evicted first.
        chunks: number of chunks.
        segments: segments of the chunks; some may have no chunks of this rank left.
        lives: whether the request is still running and may add chunks.
        demoted: for a running request, chunks that it used but that have another rank or are missing.
    """

    __slots__ = ("chunks", "demoted", "lives", "number", "segments")

    def __init__(self, number: int) -> None:
        self.number = number
        self.chunks = 0
        self.segments: dict[int, None] = {}
        self.lives = True
        self.demoted: list[ChunkRun] = []


@mypyc_attr(allow_interpreted_subclasses=True)
class LruByRequest(Eviction):
    """Evicts the tail of the least recently active request.

    While a request runs, its chunks have the rank of its first use of the tier. When it has finished, they
    get a new one. A chunk that several requests used has the greatest of their ranks.

    Source: vLLM 0.33.0, v1/kv_offload/cpu/policies/lru.py.
    """

    __slots__ = ("_clock", "_rank_of", "_ranks")

    def __init__(self) -> None:
        self._clock = 0
        self._rank_of: Spans[RecencyClass] = Spans()
        # By number, ascending, as each new one is the greatest. A running request's rank always stays.
        self._ranks: OrderedDict[int, RecencyClass] = OrderedDict()

    def touched(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        rank = self._of(use)
        if rank.demoted:  # chunks that it has used before keep their rank
            demoted = of_runs(rank.demoted)
            runs = [part for run in runs for part in demoted.missing(run)]
        for run in runs:
            self._move(run, rank)

    def inserted(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        rank = self._of(use)
        for run in runs:
            self._give(run, rank)

    def refused(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        self._of(use).demoted += runs  # another request may store them later

    def forgotten(self, run: ChunkRun) -> None:
        for first, end, rank in self._rank_of.cut(run):
            assert rank is not None
            self._lose(rank, (run[0], first, end))
        self._rank_of.remove(run)

    def finished(self, use: RequestUse) -> None:
        rank = self._ranks.pop(use.rank, None)
        if rank is not None:
            # All chunks that it used get the new rank, including those that have or got other ranks.
            self._clock += 1
            rank.number, rank.lives = self._clock, False
            demoted, rank.demoted = rank.demoted, []
            for run in demoted:
                self._move(run, rank)
            if rank.chunks:
                self._ranks[rank.number] = rank

    def choose(self, chunks: int, may_go: MayGo) -> list[ChunkRun] | None:
        chosen: list[tuple[RecencyClass, ChunkRun]] = []
        for rank in self._ranks.values():
            for run in self._tail_first(rank):
                for segment, first, end in reversed(may_go(run)):
                    first = max(first, end - chunks)
                    chosen.append((rank, (segment, first, end)))
                    chunks -= end - first
                    if not chunks:
                        for old, part in chosen:
                            self._lose(old, part)
                            self._rank_of.remove(part)
                        return [part for _, part in chosen]
        return None

    def knows(self) -> set[ChunkRun]:
        return set(singles(run for run, _ in self._rank_of))

    def _tail_first(self, rank: RecencyClass) -> Iterator[ChunkRun]:
        """Return the chunks of a rank in eviction order, each run from its last chunk on."""
        runs: list[ChunkRun] = []
        for segment in list(rank.segments):
            own = [(segment, first, end) for first, end, other in self._rank_of.of(segment) if other is rank]
            runs += own
            if not own:
                del rank.segments[segment]
        return tail_first(runs, last_group_first=not rank.lives)

    def _move(self, run: ChunkRun, rank: RecencyClass) -> None:
        """Give the present chunks of a run a rank, unless they have a greater one."""
        for first, end, old in self._rank_of.cut(run):
            if old is None or old is rank:
                continue
            part = (run[0], first, end)
            if old.number > rank.number:
                rank.demoted.append(part)
                continue
            self._lose(old, part)
            self._give(part, rank)

    def _give(self, run: ChunkRun, rank: RecencyClass) -> None:
        """Give a rank to chunks that are not counted in another."""
        rank.chunks += run[2] - run[1]
        rank.segments[run[0]] = None
        self._rank_of.put(run, rank)

    def _lose(self, rank: RecencyClass, run: ChunkRun) -> None:
        """Remove chunks from the count of a rank."""
        rank.chunks -= run[2] - run[1]
        if rank.lives:
            rank.demoted.append(run)
        elif not rank.chunks:
            del self._ranks[rank.number]  # otherwise every later choice would have to skip it

    def _of(self, use: RequestUse) -> RecencyClass:
        """Return the rank of a running request."""
        rank = self._ranks.get(use.rank)
        if rank is None:
            self._clock += 1
            use.rank = self._clock
            rank = self._ranks[use.rank] = RecencyClass(use.rank)
        return rank
