"""Growth: running requests get a slot for their last sampled token; the latest are preempted if needed.

This is the rule of the PagedAttention paper's artifact and of vLLM before v1.
"""

from __future__ import annotations

from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler


def keep_running(scheduler: Scheduler, batch: Batch) -> None:
    """Give every running request a slot, preempting the latest request until all fit."""
    memory, forks = scheduler.memory, scheduler.forks
    while (copies := memory.try_allocate_step(scheduler.widest)) < 0:
        if not scheduler.running or _all_fit(scheduler):
            copies = memory.allocate_step(1)
            break
        scheduler.preempt(scheduler.latest(), batch)
    if copies:
        batch.blocks_copied = copies
    if forks.copied:
        batch.blocks_copied += forks.take_copied()
    scheduler.context += scheduler.running_sequences


def _all_fit(scheduler: Scheduler) -> bool:
    """Return whether each request in turn finds a free block for each of its samples.

    The rule requires that block even if no new one is needed. It goes through the requests in order and
    preempts from the end until the current one fits. The result is the longest prefix in which all fit, the
    same as preempting from the end while any request does not fit.
    """
    memory = scheduler.memory
    left = memory.free_blocks - memory.blocks_needed(1)
    if left >= scheduler.widest:
        return True
    if left < 0:
        return False
    if scheduler.widest == 1:
        # All but the last have theirs; a free block is left for it, or it allocates the last one itself.
        return left > 0 or memory.blocks_to_extend(scheduler.latest(), 1) > 0
    free = memory.free_blocks
    for request in scheduler.running.values():
        if free < request.samples:
            return False
        free -= memory.blocks_to_extend(request, 1)
    return True
