"""ARC: chunks that were used by one request, and by several, share the room as the misses of both say."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from pagesim.kvcache.tiers.chunks import ChunkRun, joined, singles, tail_first
from pagesim.kvcache.tiers.eviction import Eviction, MayGo, RequestUse

Order = OrderedDict[ChunkRun, None]
"""Chunks, the next to go first."""


class Arc(Eviction):
    """An adaptive replacement cache, whose order changes when a request is over.

    A chunk is among the *recent* ones until a request is over that used it and had not had it written; from
    then on it is among the *frequent*. Of both, the names of what was evicted are kept (*ghosts*): a chunk
    that is offered again while it is a ghost moves the target, how many chunks may be recent.

    Source: vLLM 0.33.0, v1/kv_offload/cpu/policies/arc.py.

    Args:
        capacity: chunks of the tier; as many ghosts of either kind are kept.
    """

    __slots__ = ("_capacity", "_frequent", "_frequent_ghosts", "_recent", "_recent_ghosts", "_target")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._target = 0.0
        self._recent: Order = OrderedDict()
        self._frequent: Order = OrderedDict()
        self._recent_ghosts: Order = OrderedDict()
        self._frequent_ghosts: Order = OrderedDict()

    def missed(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        recent, frequent = self._recent_ghosts, self._frequent_ghosts
        missed = use.noted.setdefault("missed", set())
        for each in reversed(singles(runs)):
            if each in missed:
                continue
            missed.add(each)
            if each in recent:
                step = max(1, len(frequent) / len(recent))
                self._target = min(self._target + step, self._capacity)
                recent.move_to_end(each)
            elif each in frequent:
                step = max(1, len(recent) / len(frequent))
                self._target = max(self._target - step, 0)
                frequent.move_to_end(each)

    def reused(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        inserted = use.noted.get("inserted", ())
        use.noted.setdefault("reused", set()).update(each for each in singles(runs) if each not in inserted)

    def inserted(self, use: RequestUse, runs: Sequence[ChunkRun]) -> None:
        chunks = singles(runs)
        use.noted.setdefault("inserted", set()).update(chunks)
        for each in chunks:
            self._recent[each] = None
            self._recent_ghosts.pop(each, None)
            self._frequent_ghosts.pop(each, None)

    def forgotten(self, run: ChunkRun) -> None:
        for each in singles([run]):
            del (self._recent if each in self._recent else self._frequent)[each]

    def finished(self, use: RequestUse) -> None:
        reused = use.noted.get("reused", set())
        used = [each for each in reused | use.noted.get("inserted", set()) if self._is_there(each)]
        for run in tail_first(joined(sorted(used)), last_group_first=True):
            for each in reversed(singles([run])):
                if each in self._frequent:
                    self._frequent.move_to_end(each)
                elif each in reused:
                    del self._recent[each]
                    self._frequent[each] = None
                else:
                    self._recent.move_to_end(each)

    def choose(self, chunks: int, may_go: MayGo) -> list[ChunkRun] | None:
        recent = (each for each in self._recent if may_go(each))
        frequent = (each for each in self._frequent if may_go(each))
        left = len(self._recent)
        chosen: list[ChunkRun] = []
        for _ in range(chunks):
            each = next(recent, None) if left >= int(self._target) else None
            if each is None:
                each = next(frequent, None)
            if each is None:
                each = next(recent, None)
            if each is None:
                return None
            left -= each in self._recent
            chosen.append(each)
        for each in chosen:
            if each in self._recent:
                del self._recent[each]
                self._recent_ghosts[each] = None
            else:
                del self._frequent[each]
                self._frequent_ghosts[each] = None
        for ghosts in (self._recent_ghosts, self._frequent_ghosts):
            while len(ghosts) > self._capacity:
                ghosts.popitem(last=False)
        return chosen

    def _is_there(self, chunk: ChunkRun) -> bool:
        return chunk in self._recent or chunk in self._frequent

    def knows(self) -> set[ChunkRun]:
        return {*self._recent, *self._frequent}
