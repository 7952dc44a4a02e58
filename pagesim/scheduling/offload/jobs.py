"""Jobs: copies of chunks between the device's blocks and a tier, and which of them an iteration starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagesim.kvcache.tiers import Copy
from pagesim.setup.compiled import mypyc_attr

if TYPE_CHECKING:
    from pagesim.scheduling.offload.tracked import Tracked


@mypyc_attr(allow_interpreted_subclasses=True)
class Job:
    """A copy of some chunks of one request, in one direction; it ends as a whole.

    Args:
        tracked: the request.
        copy: what moves, in which direction.
        blocks: of the device that it copies; those that it reads where left out.
        read_at_once: blocks of the device that must not be taken again before it is over.
        places: of blocks of which that holds once the request gives them back: the KV group, the place of the
            first block in the request's table, and that behind the last.

    Attributes:
        tracked: the request.
        copy: what moves, in which direction.
        blocks: of the device that it copies.
        read_at_once: blocks of the device that must not be taken again before it is over.
        places: of blocks of which that will hold; none of a request that has given its blocks back.
        read_when_over: the numbers of those.
    """

    __slots__ = ("blocks", "copy", "places", "read_at_once", "read_when_over", "tracked")

    def __init__(
        self,
        tracked: Tracked,
        copy: Copy,
        *,
        blocks: int | None = None,
        read_at_once: Sequence[int] = (),
        places: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        self.tracked = tracked
        self.copy = copy
        self.read_at_once = read_at_once
        self.places = list(places)
        self.read_when_over: list[int] = []
        reads = len(read_at_once) + sum([end - first for _, first, end in places])
        self.blocks = reads if blocks is None else blocks

    @property
    def is_store(self) -> bool:
        """Whether it copies from the device to a tier; else the other way."""
        return self.copy.is_store


@mypyc_attr(allow_interpreted_subclasses=True)
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
