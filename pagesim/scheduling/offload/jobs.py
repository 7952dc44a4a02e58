"""Jobs that copy chunks between the device's blocks and a tier, and which of them an iteration starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagesim.kvcache.tiers import Copy
from pagesim.setup.compiled import mypyc_attr

if TYPE_CHECKING:
    from pagesim.scheduling.offload.tracked import Tracked


@mypyc_attr(allow_interpreted_subclasses=True)
class Job:
    """A copy of some of a request's chunks in one direction; it finishes as a whole.

    Args:
        tracked: the request, as the connector tracks it.
        copy: the chunks and the direction of the copy.
        blocks: number of device blocks that it copies; if omitted, the number that it reads.
        read_at_once: device blocks that must not be reused before it has finished.
        places: further such blocks, once the request frees them: (KV cache group, position of the first block
            in the request's block table, position after the last).

    Attributes:
        tracked: the request, as the connector tracks it.
        copy: the chunks and the direction of the copy.
        blocks: number of device blocks that it copies.
        read_at_once: device blocks that must not be reused before it has finished.
        places: positions of further such blocks, as above; empty once the request has freed its blocks.
        read_when_over: the numbers of those blocks, from then on.
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
        """Whether it copies from the device to a tier, not the other way."""
        return self.copy.is_store


@mypyc_attr(allow_interpreted_subclasses=True)
class Transfers:
    """The jobs that an iteration starts.

    Attributes:
        loads: loads, which start when the iteration has finished.
        stores: stores, which start in the next iteration, when this one has finished.
        flushed: stores, including earlier ones, that the host waits for before it launches the iteration,
            because the iteration reuses their blocks.
    """

    __slots__ = ("flushed", "loads", "stores")

    def __init__(self) -> None:
        self.loads: list[Job] = []
        self.stores: list[Job] = []
        self.flushed: dict[Job, None] = {}
