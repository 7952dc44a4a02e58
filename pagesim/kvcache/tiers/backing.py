"""Backing: what a connector stores chunks in and loads them from, a single tier or a chain of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from pagesim.kvcache.tiers.chunks import ChunkRun, count
from pagesim.kvcache.tiers.eviction import Use
from pagesim.kvcache.tiers.moves import Move
from pagesim.kvcache.tiers.store import ChunkStore
from pagesim.kvcache.tiers.traffic import Traffic
from pagesim.setup.compiled import mypyc_attr


class Copy(NamedTuple):
    """A copy of chunks between the device and what backs it; it ends as a whole.

    Attributes:
        runs: of the chunks, in token order.
        is_store: whether it reads the device; else it writes to it.
        moves: of a chain, those by which it is under way; what carries them out puts those that follow in
            their place, until all of them end at the device. None of a single tier, where it is one itself.
    """

    runs: Sequence[ChunkRun]
    is_store: bool
    moves: list[Move] = []  # noqa: RUF012 (of a single tier; never changed)

    @property
    def chunks(self) -> int:
        """How many chunks there are."""
        return count(self.runs)


class Chunks(Protocol):
    """Which chunks are there, wherever they are."""

    def cut(self, run: ChunkRun) -> list[tuple[int, int, int | None]]:
        """Cut a run where its chunks differ: their readers, `WRITING`, or None where they are not there.

        Readers are counted in one tier alone.
        """

    def readers_of(self, segment: int, chunk: int) -> int | None:
        """Say of one chunk what ``cut`` says."""


class Backing(Protocol):
    """Takes chunks from a device and gives them back."""

    @property
    def chunks(self) -> Chunks:
        """What is there."""

    @property
    def tiers(self) -> Sequence[tuple[str, ChunkStore]]:
        """The name and the chunks of each tier, that next to the device first."""

    @property
    def traffic(self) -> Sequence[Traffic]:
        """What each tier stored, gave and took on."""

    @property
    def moves_on(self) -> bool:
        """Whether chunks move from tier to tier, of which no copy of the device says when that is over."""

    def new_use(self) -> Any:
        """Return what a request did before it came: nothing."""

    def places(self, runs: Sequence[ChunkRun]) -> list[int]:
        """Return how many of these chunks would be loaded from each tier."""

    def near(self) -> Sequence[int]:
        """Return the places of the tiers that are linked to the device, the first of them first."""

    def offer(self, use: Any, runs: Sequence[ChunkRun]) -> Copy | None:
        """Offer chunks of the device; return the copy of those that are to be written.

        Returns:
            It has no chunks where all are there already; None where there is no room, and they can be offered
            again.
        """

    def load(self, use: Any, runs: Sequence[ChunkRun]) -> Copy:
        """Begin to load chunks that are there and not being written."""

    def over(self, copy: Copy) -> None:
        """Say that a copy has been carried out."""

    def finish(self, use: Any) -> None:
        """Say that a request is over."""

    def take_moves(self) -> list[Move]:
        """Hand over the moves from tier to tier that have begun since the last call, in their order."""


@mypyc_attr(allow_interpreted_subclasses=True)
class OneTier:
    """See `Backing`: vLLM's one tier.

    Args:
        store: its chunks.
        name: what users call it.
    """

    __slots__ = ("_traffic", "chunks", "name")

    moves_on = False

    def __init__(self, store: ChunkStore, name: str = "host") -> None:
        self.chunks = store
        self.name = name
        self._traffic = Traffic()

    @property
    def tiers(self) -> Sequence[tuple[str, ChunkStore]]:
        """See `Backing`."""
        return ((self.name, self.chunks),)

    @property
    def traffic(self) -> Sequence[Traffic]:
        """See `Backing`."""
        return (self._traffic,)

    def places(self, runs: Sequence[ChunkRun]) -> list[int]:
        """See `Backing`."""
        return [count(runs)]

    def near(self) -> Sequence[int]:
        """See `Backing`."""
        return (0,)

    def new_use(self) -> Use:
        """See `Backing`."""
        return Use()

    def offer(self, use: Use, runs: Sequence[ChunkRun]) -> Copy | None:
        """See `Backing`."""
        store = self.chunks
        writing = store.writing
        missing = store.offer(use, runs)
        if missing is None:
            return None
        self._traffic.stored += store.writing - writing
        return Copy(missing, is_store=True)

    def load(self, use: Use, runs: Sequence[ChunkRun]) -> Copy:
        """See `Backing`."""
        self.chunks.pin(use, runs)
        self._traffic.loaded += count(runs)
        return Copy(runs, is_store=False)

    def over(self, copy: Copy) -> None:
        """See `Backing`."""
        if copy.is_store:
            self.chunks.written(copy.runs)
        else:
            self.chunks.unpin(copy.runs)

    def finish(self, use: Use) -> None:
        """See `Backing`."""
        self.chunks.finish(use)

    def take_moves(self) -> list[Move]:
        """See `Backing`."""
        return []
