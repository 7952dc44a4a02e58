"""Jobs: copies of chunks between the device's blocks and a tier, and which of them an iteration starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagesim.kvcache.tiers import ChunkKey, Copy

if TYPE_CHECKING:
    from pagesim.scheduling.offload.tracked import Tracked


class Job:
    """A copy of some chunks of one request, in one direction; it ends as a whole.

    Attributes:
        tracked: the request.
        copy: what moves, in which direction.
        blocks: how many blocks of the device it copies.
        read_at_once: blocks of the device that must not be taken again before it is over.
        read_when_over: those for which that holds once the request is over; until then it holds them.
    """

    __slots__ = ("blocks", "copy", "read_at_once", "read_when_over", "tracked")

    def __init__(
        self,
        tracked: Tracked,
        copy: Copy,
        blocks: int,
        *,
        read_at_once: Sequence[int] = (),
        read_when_over: Sequence[int] = (),
    ) -> None:
        self.tracked = tracked
        self.copy = copy
        self.blocks = blocks
        self.read_at_once = read_at_once
        self.read_when_over = read_when_over

    @property
    def keys(self) -> Sequence[ChunkKey]:
        """The chunks."""
        return self.copy.keys

    @property
    def is_store(self) -> bool:
        """Whether it copies from the device to a tier; else the other way."""
        return self.copy.is_store


class Transfers:
    """The jobs that an iteration starts.

    Attributes:
        loads: they begin when the iteration is over.
        stores: they begin in the next iteration, when this one is over.
        flushed: stores, earlier ones too, for which the host waits before it launches the iteration, because
            their blocks are taken again in it.
    """

    __slots__ = ("flushed", "loads", "stores")

    def __init__(self) -> None:
        self.loads: list[Job] = []
        self.stores: list[Job] = []
        self.flushed: dict[Job, None] = {}
