"""Last blocks that several samples of a request share."""

from __future__ import annotations

from pagesim.scheduling.core import Scheduler


def shared_tails(scheduler: Scheduler) -> tuple[int, int]:
    """Return slots of last blocks that several samples share: those not filled yet, and never to be."""
    memory, size = scheduler.memory, scheduler.memory.block_size
    slack = rounding = 0
    for request in scheduler.running.values():
        copies = memory.copies_due(request)
        if copies:
            held = memory.length(request)
            end = held + -held % size
            slack += copies * (end - held)
            lost = sorted([max(0, end - final) for final in request.finals])
            # Samples of different lengths all share one block, which the longest fills most.
            rounding += sum(lost[-copies:])
    return slack, rounding
