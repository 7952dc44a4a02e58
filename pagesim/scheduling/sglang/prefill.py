"""Prefills: which requests an admission pass admits, and how much of their prompts runs.

Source: SGLang 0.5.23, ``Scheduler._get_new_batch_prefill_raw``, ``ScheduleBatch.prepare_for_extend``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagesim.allocators import OutOfBlocks
from pagesim.errors import PagesimError
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.sglang import decode
from pagesim.scheduling.sglang.adder import AddReqResult, PrefillAdder
from pagesim.scheduling.sglang.batch import ScheduleBatch
from pagesim.scheduling.sglang.request import SglangRequest

if TYPE_CHECKING:  # it calls these functions
    from pagesim.scheduling.sglang.scheduler import Sglang


def get_new_batch_prefill(scheduler: Sglang, batch: Batch, now: int) -> bool:
    """Run prompts if any can run and nothing holds them back; return whether any does."""
    delayer = scheduler.delayer
    if delayer is None:
        return _get_new_batch_prefill(scheduler, batch)
    delayer.begin(now, scheduler.queue.waiting, scheduler.pool.usage)
    prefills = _get_new_batch_prefill(scheduler, batch)
    delayer.end(len(batch.chunks) + batch.decoding, len(scheduler.running_batch.reqs))
    return prefills


def _get_new_batch_prefill(scheduler: Sglang, batch: Batch) -> bool:
    running, preempts = scheduler.running_batch, scheduler.preempts
    if not running.reqs or scheduler.pool.is_hybrid_swa or preempts:
        running.batch_is_full = False
    if scheduler.chunked_req is None:
        if running.batch_is_full or not scheduler.queue.waiting:
            return False
        # Requests whose last token is in flight still occupy their slots.
        free = scheduler.max_running_requests - len(scheduler.running)
        if running.reqs and free < scheduler.min_free_slots:
            return False
        if free <= 0 and not preempts:
            running.batch_is_full = True
            return False
    scheduler.policy.calc_priority()
    adder = _add_requests(scheduler)
    if adder.preempt_list:
        scheduler.preempted += adder.preempt_list
        for req in adder.preempt_list:
            scheduler.queue.requeue(req)
        batch.recomputed += tuple(adder.preempt_list)
    if not adder.can_run_list:
        return False
    try:
        _run_prompts(scheduler, adder.can_run_list, batch)
    except OutOfBlocks as error:  # requests that verify drafts hold more than admission counts
        raise PagesimError(
            f"SGLang stops here with 'Prefill out of memory': for a batch of prompts {error}; raise "
            "num_blocks or schedule_conservativeness, or lower max_running_requests"
        ) from error
    return True


def _add_requests(scheduler: Sglang) -> PrefillAdder:
    """Admit requests from the head of the queue, and lock their cached prefixes."""
    running, queue, options = scheduler.running_batch, scheduler.waiting_queue, scheduler.options
    mixed = len(running.reqs) if scheduler.mixes else 0
    ratio = 1.0 if options.ignore_eos else scheduler.new_token_ratio.current
    to_come = scheduler.results.tokens_to_come(running.reqs)
    adder = PrefillAdder(scheduler.pool, options, running.reqs, to_come, ratio, mixed, scheduler.delayer)
    admitted, chunked = adder.can_run_list, scheduler.chunked_req
    if chunked is not None:
        assert adder.rem_chunk_tokens is not None
        limit = scheduler.policy.chunk_limit(chunked, adder.rem_chunk_tokens, scheduler.memory.block_size)
        adder.add_chunked_req(chunked, limit)
    goes_on = len(admitted)  # 1 if a chunked prefill continues: that request has its slot already
    result = adder.budget_state()
    while result is not AddReqResult.OTHER and (req := queue.head()) is not None:
        if len(admitted) - goes_on >= scheduler.max_running_requests - len(scheduler.running):
            running.batch_is_full = True
        if running.batch_is_full:
            if not scheduler.preempts or not adder.preempt_to_schedule(req, scheduler.release_req):
                break
            running.reqs = [each for each in running.reqs if each.order in scheduler.running]
        req.fill_len = req.length
        scheduler.pool.match_prefix(req)
        result = adder.add_one_req(req)
        if admitted and admitted[-1] is req:
            queue.pop(req)
        elif scheduler.pool.states is not None:
            scheduler.pool.states.reject()
        if result is AddReqResult.NO_TOKEN:
            running.batch_is_full = bool(admitted or running.reqs)
        if result is not AddReqResult.CONTINUE:
            break
    scheduler.chunked_req = adder.new_chunked_req
    return adder


def _run_prompts(scheduler: Sglang, prompts: list[SglangRequest], batch: Batch) -> None:
    """Allocate memory for prompts and run them, together with the running batch if mixing is enabled."""
    pool, memory, page = scheduler.pool, scheduler.memory, scheduler.memory.block_size
    tokens = sum([req.extend_end - req.prefix_len for req in prompts])
    ahead = len(prompts) * page if page > 1 else 0  # more than is allocated
    if scheduler.hicache is not None:
        scheduler.hicache.start_loads()
    if pool.states is not None:
        pool.states.reserve(prompts)
    pool.evict(-(-(tokens + ahead) // page))
    fresh: list[SglangRequest] = []
    chunks: list[tuple[EngineRequest, int]] = []
    for req in prompts:
        start, end = req.prefix_len, req.extend_end
        computed = end - start
        if scheduler.running.get(req.order) is req:  # a chunked prefill continues
            pool.evict_swa_before_chunk(req, overlaps=scheduler.overlaps)
            scheduler.events.interval_ended(req)
            scheduler.context += end - req.tokens
            memory.extend(req, end - req.tokens)
        else:
            fresh.append(req)
            scheduler.enter(req)
            req.cached = req.prefix_len
            memory.admit(req, end)
            scheduler.context += end
        chunks.append((req, computed))
        batch.context_tokens += end
        batch.query_key_pairs += computed * start + computed * (computed + 1) // 2
    batch.prompts, batch.chunks, batch.decodes = tuple(fresh), tuple(chunks), False
    beside = _decode_beside(scheduler, batch) if scheduler.mixes else []
    batch.tokens = tokens + batch.decoding
    chunked = scheduler.chunked_req
    whole = [req for req in prompts if req is not chunked]
    batch.incomplete = tuple([req for req in fresh if req is chunked])
    if len(fresh) < len(prompts):
        batch.completed = tuple([req for req in whole if req not in fresh])
    if scheduler.drafts is None:
        for req in whole:
            scheduler.start_decoding(req)
            req.final_step = req.max_new_tokens + req.prompt - req.length_offset
    else:
        scheduler.drafts.start(whole)
    only = not (beside or scheduler.drafts or any(req.max_new_tokens for req in prompts))
    scheduler.last_batch = ScheduleBatch(prompts + beside, batch.tokens, is_prefill_only=only)
    scheduler.waiting_queue.processed += batch.tokens
    scheduler.results.launched = whole


def _decode_beside(scheduler: Sglang, batch: Batch) -> list[SglangRequest]:
    """Decode the running batch together with prompts if it fits; return the requests that decode."""
    if decode.filter_ending(scheduler):
        scheduler.running_batch.batch_is_full = False
    beside = scheduler.running_batch.reqs
    if not beside or not scheduler.pool.check_decode_mem(beside):
        return []
    if scheduler.drafts is None:
        prompts = sum([req.tokens for req in scheduler.running.values() if not req.decodes])
        decode.prepare_for_decode(scheduler, batch)
        batch.decode_context = scheduler.context - prompts
        if scheduler.pool.states is not None:
            for req in beside:
                scheduler.pool.states.skip_step(req, scheduler.memory.length(req))
    else:
        scheduler.drafts.decode_beside(scheduler, batch)
    batch.context_tokens += batch.decode_context
    batch.decodes = True
    scheduler.running_batch.reqs = []
    return beside
