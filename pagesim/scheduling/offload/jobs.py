"""Jobs: copies of chunks between the device's blocks and a tier, and which of them an iteration starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagesim.kvcache.tiers import ChunkKey

if TYPE_CHECKING:
    from pagesim.scheduling.offload.tracked import Tracked


class Job:
    """A copy of some chunks of one request, in one direction; it ends as a whole.

    Attributes:
        tracked: the request.
        keys: of the chunks.
        is_store: whether it copies from the device to the tier; else the other way.
        blocks: how many blocks of the device it copies.
        read_at_once: blocks of the device that must not be taken again before it is over.
        read_when_over: those for which that holds once the request is over; until then it holds them.
    """

    __slots__ = ("blocks", "is_store", "keys", "read_at_once", "read_when_over", "tracked")

    def __init__(
        self,
        tracked: Tracked,
        keys: Sequence[ChunkKey],
        blocks: int,
        *,
        is_store: bool,
        read_at_once: Sequence[int] = (),
        read_when_over: Sequence[int] = (),
    ) -> None:
        self.tracked = tracked
        self.keys = keys
        self.blocks = blocks
        self.is_store = is_store
        self.read_at_once = read_at_once
        self.read_when_over = read_when_over


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
