"""Jobs: copies of chunks between the device's blocks and a tier, and which of them an iteration starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagesim.kvcache.tiers import ChunkRun

if TYPE_CHECKING:
    from pagesim.scheduling.offload.tracked import Tracked


class Job:
    """A copy of some chunks of one request, in one direction; it ends as a whole.

    Args:
        tracked: the request.
        runs: of the chunks.
        is_store: whether it copies from the device to the tier; else the other way.
        blocks: of the device that it copies; those that it reads where left out.
        read_at_once: blocks of the device that must not be taken again before it is over.
        places: of blocks of which that holds once the request gives them back: the KV group, the place of the
            first block in the request's table, and that behind the last.

    Attributes:
        tracked: see there.
        runs: see there.
        is_store: see there.
        blocks: see there.
        read_at_once: see there.
        places: see there; none of a request that has given its blocks back.
        read_when_over: the numbers of those.
    """

    __slots__ = ("blocks", "is_store", "places", "read_at_once", "read_when_over", "runs", "tracked")

    def __init__(
        self,
        tracked: Tracked,
        runs: Sequence[ChunkRun],
        *,
        is_store: bool,
        blocks: int | None = None,
        read_at_once: Sequence[int] = (),
        places: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        self.tracked = tracked
        self.runs = runs
        self.is_store = is_store
        self.read_at_once = read_at_once
        self.places = list(places)
        self.read_when_over: list[int] = []
        reads = len(read_at_once) + sum([end - first for _, first, end in places])
        self.blocks = reads if blocks is None else blocks


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
