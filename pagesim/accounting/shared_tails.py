"""Last blocks shared by several samples of a request."""

from __future__ import annotations

from pagesim.scheduling.core import Scheduler


def shared_tails(scheduler: Scheduler) -> tuple[int, int]:
    """Return the unfilled slots of last blocks that samples share, and those never to be filled."""
    memory, size = scheduler.memory, scheduler.memory.block_size
    slack = rounding = 0
    for request in scheduler.running.values():
        copies = memory.copies_due(request)
        if copies:
            held = memory.length(request)
            end = held + -held % size
            slack += copies * (end - held)
            lost = sorted([max(0, end - final) for final in request.finals])
            # Samples of different lengths all share one block, which the longest sample fills furthest.
            rounding += sum(lost[-copies:])
    return slack, rounding
