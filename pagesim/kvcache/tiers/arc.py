"""ARC: chunks that were used by one request, and by several, share the room as the misses of both say."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence, Set

from pagesim.kvcache.tiers.eviction import ChunkKey, Eviction, Use

Order = OrderedDict[ChunkKey, None]
"""Chunks, the next to go first."""


class Arc(Eviction):
    """See `Eviction`: an adaptive replacement cache, whose order changes when a request is over.

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

    def touched(self, use: Use, keys: Sequence[ChunkKey], evictable: Set[ChunkKey]) -> None:
        return  # the order changes when the request is over

    def missed(self, use: Use, keys: Sequence[ChunkKey]) -> None:
        recent, frequent = self._recent_ghosts, self._frequent_ghosts
        for key in reversed(keys):
            if key in use.missed:
                continue
            if key in recent:
                step = max(1, len(frequent) / len(recent))
                self._target = min(self._target + step, self._capacity)
                recent.move_to_end(key)
            elif key in frequent:
                step = max(1, len(recent) / len(frequent))
                self._target = max(self._target - step, 0)
                frequent.move_to_end(key)
        use.missed.update(keys)

    def inserted(self, use: Use, keys: Sequence[ChunkKey]) -> None:
        for key in keys:
            self._recent[key] = None
            self._recent_ghosts.pop(key, None)
            self._frequent_ghosts.pop(key, None)

    def forgotten(self, key: ChunkKey) -> None:
        del (self._recent if key in self._recent else self._frequent)[key]

    def finished(self, use: Use, keys: Sequence[ChunkKey], evictable: Set[ChunkKey]) -> None:
        for key in keys:
            among = self._recent if key in self._recent else self._frequent
            if key in use.reused and among is self._recent:
                del self._recent[key]
                self._frequent[key] = None
            elif key in use.reused or key in use.inserted:
                among.move_to_end(key)

    def choose(
        self, count: int, evictable: Set[ChunkKey], spared: Collection[ChunkKey]
    ) -> list[ChunkKey] | None:
        recent = _that_may_go(self._recent, evictable, spared)
        frequent = _that_may_go(self._frequent, evictable, spared)
        left = len(self._recent)
        chosen: list[ChunkKey] = []
        for _ in range(count):
            key = next(recent, None) if left >= int(self._target) else None
            if key is None:
                key = next(frequent, None)
            if key is None:
                key = next(recent, None)
            if key is None:
                return None
            left -= key in self._recent
            chosen.append(key)
        for key in chosen:
            if key in self._recent:
                del self._recent[key]
                self._recent_ghosts[key] = None
            else:
                del self._frequent[key]
                self._frequent_ghosts[key] = None
        for ghosts in (self._recent_ghosts, self._frequent_ghosts):
            while len(ghosts) > self._capacity:
                ghosts.popitem(last=False)
        return chosen

    def knows(self) -> Set[ChunkKey]:
        return self._recent.keys() | self._frequent.keys()


def _that_may_go(order: Order, evictable: Set[ChunkKey], spared: Collection[ChunkKey]) -> Iterator[ChunkKey]:
    return (key for key in order if key in evictable and key not in spared)
