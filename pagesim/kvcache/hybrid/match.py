"""Match: what was looked up last in a counted hybrid cache, and whether it is still so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagesim.kvcache.holder import Holder
from pagesim.kvcache.hybrid.piece import Piece
from pagesim.kvcache.hybrid.pieces import PieceIndex
from pagesim.kvcache.hybrid.stores import FullStore, WindowStore
from pagesim.kvcache.run_index import Hit, RunIndex, are_there
from pagesim.kvcache.runs import Segments
from pagesim.setup.compiled import mypyc_attr

Store = FullStore | WindowStore


@mypyc_attr(allow_interpreted_subclasses=True)
class Match:
    """What was looked up last: the scheduler usually takes it next.

    Attributes:
        holder: for whom.
        most: how many blocks were asked for.
        blocks: how many are there in all groups.
        junction: how many a group alone has, if these are more; else 0. See `lookup.Found`.
        hits: of each store, what of that is taken over.
    """

    __slots__ = (
        "_missing",
        "_pieces",
        "_runs",
        "_version",
        "_versions",
        "blocks",
        "hits",
        "holder",
        "junction",
        "most",
    )

    def __init__(self, holder: Holder | None, most: int, stores: int) -> None:
        self.holder = holder
        self.most = most
        self.blocks = self.junction = 0
        self.hits: list[Any] = [()] * stores
        self._version = -1
        # What decided how far the look-up came.
        self._runs: list[Hit] = []
        self._missing: list[tuple[RunIndex, int]] = []
        self._pieces: list[tuple[Piece, int, int, int]] = []
        self._versions: list[tuple[PieceIndex, int]] = []

    def look_up(self, stores: Sequence[Store], content: Segments, version: int) -> None:
        """Find the longest prefix that is there in all stores, with this version of what can be found.

        What full attention finds is there for every shorter length. Then each store of windows makes it
        shorter in turn, until none does.
        """
        self._version = version
        found, longest = self.most, -1
        full: dict[int, list[Hit]] = {}
        windows: dict[int, WindowStore] = {}
        for number, store in enumerate(stores):
            if isinstance(store, WindowStore):
                windows[number] = store
                self._versions.append((store.index, store.index.version))
                continue
            hits: list[Hit] = []
            full[number] = hits
            found, missing = store.index.look_up(content, found, hits)
            longest = found
            self._runs += hits
            if missing is not None:
                self._missing.append((store.index, missing))
        again = True
        while again and found:
            length = found
            for number, store in windows.items():
                found = store.index.find(content, found)
                longest = max(longest, found)
                if not found:
                    break
                self.hits[number] = parts = store.index.hit(content, found)
                self._pieces += [(part[0], part[0].count, part[0].first, part[0].last) for part in parts]
            again = found < length and len(windows) > 1
        self.blocks = found
        if longest > found:
            self.junction = longest
        if not found:
            self.hits = [()] * len(stores)
            return
        for number, hits in full.items():
            self.hits[number] = _leading(hits, found)

    def holds(self, version: int) -> bool:
        """Say whether a look-up would end the same way now, with this version of what can be found."""
        if version == self._version:
            return True
        for pieces, version in self._versions:
            if pieces.version != version:
                return False
        for runs, missing in self._missing:
            if missing in runs.found:
                return False
        for piece, count, first, last in self._pieces:
            if piece.count != count or piece.first != first or piece.last != last:
                return False
        self._version = version if are_there(self._runs) else -1
        return self._version == version

    def free(self, stores: Sequence[Store]) -> int:
        """Return how many of the blocks that are taken over are free."""
        if not self.blocks:
            return 0
        return sum([store.free(hits) for store, hits in zip(stores, self.hits, strict=True)])


def _leading(hits: list[Hit], blocks: int) -> list[Hit]:
    """Return the runs of so many leading blocks of what was found."""
    leading: list[Hit] = []
    for run, there, count in hits:
        if blocks <= 0:
            break
        leading.append((run, min(there, blocks), count))
        blocks -= there
    return leading
