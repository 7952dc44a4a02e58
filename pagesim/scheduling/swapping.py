"""Swapping: which preempted requests move to the host, and when they come back."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from pagesim.errors import PagesimError
from pagesim.kvcache import BlockManager
from pagesim.scheduling.batch import Batch, Choice
from pagesim.scheduling.failure_modes import FailureMode
from pagesim.scheduling.options import Preemption, Prices
from pagesim.scheduling.request import EngineRequest
from pagesim.setup.compiled import mypyc_attr

if TYPE_CHECKING:  # a scheduler imports the swap space, too
    from pagesim.scheduling.core import Scheduler

_arrival = attrgetter("arrival")


@mypyc_attr(allow_interpreted_subclasses=True)
class SwapSpace:
    """The requests that are swapped out, and the rule that decides which victims are swapped.

    A victim with several samples is swapped, because its samples share blocks. A single sample is recomputed
    unless swapping is forced or cheaper.

    Args:
        memory: the engine's block manager.
        preemption: preemption mode.
        prices: costs of swapping and of recomputing, for mode ``auto``.

    Attributes:
        requests: requests that are swapped out.
        may_swap_one: whether a request with a single sample may be swapped out.
    """

    __slots__ = ("_memory", "_preemption", "_prices", "may_swap_one", "requests")

    def __init__(self, memory: BlockManager, preemption: Preemption, prices: Prices | None) -> None:
        self._memory = memory
        self._preemption = preemption
        self.may_swap_one = preemption in ("swap", "auto")
        self._prices = prices
        self.requests: list[EngineRequest] = []

    def expect(self, widest: int) -> None:
        """Check that requests with up to ``widest`` samples can be preempted in the chosen mode.

        Raises:
            PagesimError: recomputation is forced, but the engine swaps such requests.
        """
        if self._preemption == "recompute" and widest > 1 and self._memory.shares:
            raise PagesimError(
                "preemption recompute cannot be forced on requests of several samples: the engine swaps them"
            )

    def takes(self, request: EngineRequest, batch: Batch, sequences: int, context: int) -> bool:
        """Return whether a victim is swapped out; if not, it is recomputed.

        Args:
            request: the victim, which still has its memory.
            batch: the current iteration.
            sequences: sequences that keep running.
            context: tokens held by these sequences.
        """
        memory = self._memory
        if not memory.shares:
            return False
        if request.samples > 1 or not self.may_swap_one:
            return request.samples > 1
        if self._preemption == "swap":
            return True
        assert self._prices is not None
        blocks = memory.held_blocks(request)
        swap, recompute = self._prices(request.length, blocks, sequences, context)
        swaps = swap < recompute and blocks <= memory.free_cpu_blocks
        batch.choices += (Choice(request, swaps, blocks, swap, recompute),)
        return swaps

    def swap_out(self, request: EngineRequest, batch: Batch) -> None:
        """Move a victim's blocks to the host, or give the victim up if the host has no room."""
        memory = self._memory
        if memory.held_blocks(request) <= memory.free_cpu_blocks:
            batch.blocks_out += memory.swap_out(request)
            self.requests.append(request)
            batch.swapped_out += (request,)
        else:
            memory.release(request)
            batch.unschedulable += ((request, FailureMode.SWAP_SPACE_FULL),)

    def swap_in(self, scheduler: Scheduler, batch: Batch) -> None:
        """Swap requests back in and run them, first come, first served, as long as the device has room."""
        memory = self._memory
        self.requests.sort(key=_arrival)
        while self.requests:
            request = self.requests[0]
            blocks = memory.held_blocks(request) + request.samples
            if memory.free_blocks - blocks < scheduler.watermark_blocks:
                if scheduler.running or memory.free_blocks < memory.num_blocks:
                    return
                memory.drop_swapped(request)  # the device is empty and still too small
                batch.unschedulable += ((self.requests.pop(0), FailureMode.NEVER_SWAPPED_IN),)
                continue
            if not scheduler.may_join(request):
                return
            del self.requests[0]
            batch.blocks_in += memory.swap_in(request)
            batch.blocks_copied += memory.append(request)
            batch.resumed += (request,)
            scheduler.start(request)

    def abort(self, row: int) -> EngineRequest | None:
        """Free a swapped-out request's blocks on the host and return it; None if it is not swapped out."""
        for place, request in enumerate(self.requests):
            if request.row == row:
                self._memory.drop_swapped(request)
                return self.requests.pop(place)
        return None
