"""Decodes: the running batch generates one token per request, and shrinks if memory is short.

Source: SGLang 0.5.23, ``Scheduler.update_running_batch``, ``ScheduleBatch.prepare_for_decode``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagesim.scheduling.batch import Batch
from pagesim.scheduling.failure_modes import FailureMode

if TYPE_CHECKING:  # it calls these functions
    from pagesim.scheduling.sglang.scheduler import Sglang


def update_running_batch(scheduler: Sglang, batch: Batch) -> None:
    """Decode the running batch if any of it is left; retract requests if memory is short."""
    running = scheduler.running_batch
    before = len(running.reqs)
    ended = filter_ending(scheduler)
    if not running.reqs:
        running.batch_is_full = False
        return
    if scheduler.pool.check_decode_mem(running.reqs):
        scheduler.new_token_ratio.decay()
    elif ended:
        running.batch_is_full = False  # their memory is freed before the next turn
        return
    else:
        _retract_decode(scheduler, batch)
    if len(running.reqs) < before:
        running.batch_is_full = False
    if running.reqs:
        if scheduler.drafts is None:
            prepare_for_decode(scheduler, batch)
        else:
            scheduler.drafts.verify(scheduler, batch)
        batch.tokens = batch.decoding + batch.drafts
        batch.context_tokens = batch.decode_context
        # Each decode counts the tokens of the prefill iteration in which the batch began once more.
        scheduler.waiting_queue.processed += running.extend_num_tokens


def filter_ending(scheduler: Sglang) -> int:
    """Drain requests whose last token is known to be in flight; return how many drain."""
    if scheduler.drafts is not None:
        return scheduler.drafts.filter_ending(scheduler)
    for req in scheduler.results.ending:
        if req.decodes and req.output >= req.max_new_tokens:
            scheduler.events.interval_ended(req)
            scheduler.memory.stop_decoding(req)
            scheduler.draining += 1
            scheduler.draining_context += req.tokens
            scheduler.running_batch.reqs.remove(req)
    return scheduler.draining


def prepare_for_decode(scheduler: Sglang, batch: Batch) -> None:
    """Allocate memory for one token of every request in the running batch."""
    reqs, pool, results = scheduler.running_batch.reqs, scheduler.pool, scheduler.results
    decoding = len(reqs)
    if pool.is_hybrid_swa:
        for req in reqs:
            pool.evict_swa(req, req.prompt + results.known_outputs(req))
    pool.evict(decoding)  # more than is allocated
    scheduler.memory.allocate_step(1)
    scheduler.context += decoding
    batch.decoding = decoding
    if results.ending:
        batch.discarded = tuple([req for req in results.ending if req.decodes])
    batch.decode_context = scheduler.context - scheduler.draining_context
    if scheduler.chunked_req is not None:  # it waits for now
        batch.decode_context -= scheduler.chunked_req.tokens


def _retract_decode(scheduler: Sglang, batch: Batch) -> None:
    """Retract running requests because memory is short; give up the last one if it does not fit alone."""
    running, results = scheduler.running_batch, scheduler.results
    by_importance = scheduler.options.retraction_policy == "priority"
    retracted, aborted = running.retract_decode(
        scheduler.pool, results.known_outputs, by_importance, scheduler.release_req
    )
    batch.unschedulable += tuple([(req, FailureMode.NEVER_ADMITTED) for req in aborted])
    generated = sum([results.known_outputs(req) for req in running.reqs])
    most = sum([req.max_new_tokens for req in running.reqs])
    scheduler.new_token_ratio.retract(generated, most, len(running.reqs))
    for req in retracted:
        scheduler.queue.requeue(req)
    batch.recomputed += tuple(retracted)
