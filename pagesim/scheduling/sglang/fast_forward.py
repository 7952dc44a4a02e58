"""How far SGLang's loop can be fast-forwarded: for how many steps the running batch just decodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.sglang.request import SglangRequest

if TYPE_CHECKING:  # it calls these functions
    from pagesim.scheduling.sglang.scheduler import Sglang


def steps_until_next_decision(scheduler: Sglang) -> int:
    """Return for how many iterations no decision can change without an arrival; set ``must_replan``."""
    running, results, pool = scheduler.running_batch, scheduler.results, scheduler.pool
    finishing, memory = scheduler._finishing, scheduler.memory
    scheduler.must_replan = True
    if not finishing or scheduler.chunked_req is not None or results.computed:
        return 0
    if scheduler.hicache is not None and scheduler.hicache.copies:  # the end of a copy frees memory
        return 0
    queue, preempts = scheduler.waiting_queue, scheduler.preempts
    if queue.waiting and (not running.batch_is_full or pool.is_hybrid_swa or preempts):
        return 0
    if queue.turned_away or (preempts and running.batch_is_full):
        return 0
    if len(results.ending) > scheduler.draining:
        return 0
    steps = finishing[0][0] - memory.steps
    if queue.messages:
        assert scheduler.recv_skipper is not None
        looks_in = scheduler.recv_skipper.turns_until_look
        if not looks_in:
            return 0
        steps = min(steps, looks_in)
    joins = bool(results.launched) or scheduler.last_batch is not None
    if joins and (steps <= 0 or not _joins_quietly(scheduler)):
        return 0
    if steps > 0:
        decoding = scheduler.running_sequences - scheduler.draining
        steps = pool.steps_alike(steps, decoding, running.reqs, overlaps=scheduler.overlaps)
        scheduler.must_replan = not steps
        return steps
    # They can drain in one step if all of them are known to end.
    scheduler.must_replan = bool(results.ending) or not _end_by_length(scheduler)
    return 0


def advance(scheduler: Sglang, steps: int) -> None:
    """Run ``steps`` iterations that only decode."""
    results = scheduler.results
    if scheduler.last_batch is not None or results.launched:
        scheduler.merge_last_batch()
        results.launch()
        if steps > 1 or not scheduler.overlaps:
            results.cache_computed()
    Scheduler.advance(scheduler, steps)
    if scheduler.recv_skipper is not None:
        scheduler.recv_skipper.advance(steps)
    running = len(scheduler.running_batch.reqs) + scheduler.draining
    tried = scheduler.interval is None or scheduler.interval.advance(steps, running)
    if tried and scheduler.delayer is not None:
        scheduler.delayer.clear()
    scheduler.new_token_ratio.decay(steps)
    scheduler.waiting_queue.processed += scheduler.running_batch.extend_num_tokens * steps
    results.decodes = scheduler.overlaps


def _joins_quietly(scheduler: Sglang) -> bool:
    """Return whether the requests prefilled in the iteration in flight can join without a decision.

    They can if caching their prompts while the next step runs changes no memory count.
    """
    running, results = scheduler.running_batch, scheduler.results
    stays_full = bool(running.reqs) or not running.batch_is_full
    return stays_full and not results.ending and scheduler.pool.caches_apart(results.launched)


def _end_by_length(scheduler: Sglang) -> bool:
    """Return whether the requests whose last token is in flight are all known to end with it, by length."""
    for step, _, request in scheduler._finishing:
        if step > scheduler.memory.steps:
            return True
        assert isinstance(request, SglangRequest)
        if request.output < request.max_new_tokens:
            return False
    return True
