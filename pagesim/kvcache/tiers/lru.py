"""LRU by request: the chunks of the request that was active longest ago go first, and of those the tail."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from pagesim.kvcache.tiers.chunks import ChunkRun, joined, singles, tail_first
from pagesim.kvcache.tiers.eviction import ChunkBatch, Eviction, MayGo, RecencyClass, RequestUse
from pagesim.kvcache.tiers.spans import Spans, of_runs
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class LruByRequest(Eviction):
    """Evicts the tail of the request that was active longest ago.

    A request's chunks have the rank of its first use of the tier while it lives, and a fresh one when it is
    over; a chunk of several requests has the greatest of theirs.

    Source: vLLM 0.33.0, v1/kv_offload/cpu/policies/lru.py.
    """

    __slots__ = ("_clock", "_held", "_ranks")

    def __init__(self) -> None:
        self._clock = 0
        self._held: Spans[ChunkBatch] = Spans()
        # By number, in order, since each new one is the greatest. That of a request stays until it is over.
        self._ranks: OrderedDict[int, RecencyClass] = OrderedDict()

    def begun(self, held: Spans[ChunkBatch]) -> None:
        self._held = held

    def touched(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        rank = self._of(use)
        if rank.demoted:  # what it used before stays where it is
            demoted = of_runs(rank.demoted)
            runs = [part for run in runs for part in demoted.missing(run)]
        for run in runs:
            self._move(run, rank)

    def inserted(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        rank = self._of(use)
        batch = self._held.at(runs[0])
        batch.rank = rank
        rank.stack = None
        rank.chunks += batch.chunks
        segments = rank.segments
        for run in runs:
            segments[run[0]] = None

    def refused(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        self._of(use).demoted += runs  # another request may bring them

    def forgotten(self, run: ChunkRun) -> None:
        for first, end, batch in self._held.cut(run):
            assert batch is not None
            assert batch.rank is not None
            self._lose(batch.rank, (run[0], first, end))

    def finished(self, use: RequestUse) -> None:
        rank = self._ranks.pop(use.rank, None)
        if rank is not None:
            # All that it has is fresh, and with that what others have, or brought, of what the request used.
            self._clock += 1
            rank.number, rank.lives = self._clock, False
            demoted, rank.demoted = rank.demoted, []
            for run in demoted:
                self._move(run, rank)
            if rank.chunks:
                self._ranks[rank.number] = rank

    def choose(self, chunks: int, may_go: MayGo) -> list[ChunkRun] | None:
        chosen: list[ChunkRun] = []
        lost: list[tuple[RecencyClass, int, int]] = []  # each with the first of its runs, and its chunks
        for rank in self._ranks.values():
            if not rank.chunks:
                continue  # of a request that lives, and lost all that it had
            start, lacking = len(chosen), chunks
            for run in reversed(rank.stack) if rank.stack else self._tail_first(rank):
                parts = may_go(run)
                if parts != [run]:
                    rank.stack = None  # some of it stays that is not at the end
                for segment, first, end in reversed(parts):
                    if end - first >= chunks:
                        chosen.append((segment, end - chunks, end))
                        chunks = 0
                        break
                    chosen.append((segment, first, end))
                    chunks -= end - first
                if not chunks:
                    break
            lost.append((rank, start, lacking - chunks))
            if not chunks:
                break
        if chunks:
            return None
        stop = len(chosen)
        for rank, start, gone in reversed(lost):
            rank.chunks -= gone
            if rank.lives:
                rank.demoted += chosen[start:stop]
            elif not rank.chunks:
                del self._ranks[rank.number]  # else every choice would pass over it
            if rank.chunks and rank.stack:
                _pop(rank.stack, chosen[start:stop])
            stop = start
        return chosen

    def knows(self) -> set[ChunkRun]:
        return set(singles(run for run, batch in self._held if batch.rank is not None))

    def _tail_first(self, rank: RecencyClass) -> Iterable[ChunkRun]:
        """Return the chunks of a rank in the order in which they go; of each run the last goes first."""
        runs: list[ChunkRun] = []
        gone: list[int] = []
        for segment in rank.segments:
            spans = self._held.of(segment)
            if len(spans) == 1 and spans[0][2].rank is rank:
                runs.append((segment, spans[0][0], spans[0][1]))
                continue
            own = joined([(segment, first, end) for first, end, batch in spans if batch.rank is rank])
            runs += own
            if not own:
                gone.append(segment)
        for segment in gone:
            del rank.segments[segment]
        found = tail_first(runs, last_group_first=not rank.lives)
        if isinstance(found, list):
            rank.stack = found[::-1]
        return found

    def _move(self, run: ChunkRun, rank: RecencyClass) -> None:
        """Let those chunks of a run that are there have a rank, unless they have a greater one."""
        segment = run[0]
        for first, end, batch in self._held.cut(run):
            if batch is None or batch.rank is rank:
                continue
            part, old = (segment, first, end), batch.rank
            assert old is not None
            if old.number > rank.number:
                rank.demoted.append(part)
                continue
            self._lose(old, part)
            rank.chunks += end - first
            rank.segments[segment] = None
            rank.stack = None
            self._held.put(part, batch.part(batch.readers, rank))

    def _lose(self, rank: RecencyClass, run: ChunkRun) -> None:
        """Count chunks out of a rank."""
        rank.chunks -= run[2] - run[1]
        rank.stack = None
        if rank.lives:
            rank.demoted.append(run)
        elif not rank.chunks:
            del self._ranks[rank.number]

    def _of(self, use: RequestUse) -> RecencyClass:
        """Return the rank of a request that lives."""
        rank = self._ranks.get(use.rank)
        if rank is None:
            rank = self._new(lives=True)
            use.rank = rank.number
        return rank

    def _new(self, *, lives: bool) -> RecencyClass:
        self._clock += 1
        rank = self._ranks[self._clock] = RecencyClass(self._clock, lives=lives)
        return rank


def _pop(stack: list[ChunkRun], runs: Iterable[ChunkRun]) -> None:
    """Take runs, each of which is the end of one of a stack, off its end."""
    for run in runs:
        segment, first, _ = stack.pop()
        if first < run[1]:
            stack.append((segment, first, run[1]))
