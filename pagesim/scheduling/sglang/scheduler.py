"""SGLang's scheduler, release 0.5.23: prompts first, admission by an estimate, retraction, a radix tree.

Source: ``srt/managers/scheduler.py``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pagesim.kvcache import BlockManager
from pagesim.kvcache.radix import RadixManager, WindowedRadixManager, WindowPool
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.failure_modes import FailureMode
from pagesim.scheduling.options import Machine, Prices
from pagesim.scheduling.request import EngineRequest, Status
from pagesim.scheduling.sglang import fast_forward
from pagesim.scheduling.sglang.adder import AddReqResult, PrefillAdder
from pagesim.scheduling.sglang.batch import ScheduleBatch
from pagesim.scheduling.sglang.defaults import most_running, page_size, resolved
from pagesim.scheduling.sglang.new_token_ratio import NewTokenRatio
from pagesim.scheduling.sglang.options import SglangOptions
from pagesim.scheduling.sglang.policy import SchedulePolicy
from pagesim.scheduling.sglang.pool import TokenPool
from pagesim.scheduling.sglang.queue import SglangQueue
from pagesim.scheduling.sglang.request import LengthLimits, SglangRequest, room_behind
from pagesim.scheduling.sglang.results import PendingResults
from pagesim.setup.compiled import mypyc_attr
from pagesim.workloads.trace import IntColumn


@mypyc_attr(allow_interpreted_subclasses=True)
class Sglang(Scheduler):
    """SGLang's ``Scheduler``; `plan` is its ``get_next_batch_to_run``.

    An iteration is one of prompts or one of decodes; with ``enable_mixed_chunk`` it may be both. Prompts
    come first. Which request runs next follows from what is free, less a share of what running ones may still
    generate; that share falls with every decode and rises when requests are retracted for want of memory.

    Args:
        memory: empty; a `RadixManager` where prefixes are cached, a `WindowedRadixManager` where layers with
            a window have a pool of their own.
        options: what `SglangOptions` has, resolved or not.
        max_model_len: tokens of the model's context.
        prices: not looked at.

    Attributes:
        waiting_queue: the queue, by its own type.
        policy: sorts the queue.
        pool: the memory, as this loop sees it.
        results: what is due of iterations in flight.
        new_token_ratio: the share of the tokens to come for which an admission leaves room.
        running_batch: the requests that decode.
        last_batch: those whose prompts ran in the iteration before, and join; None where none ran.
        chunked_req: the request whose prompt runs in chunks, and goes on.
        overlaps: whether an iteration is decided while the one before it runs.
    """

    __slots__ = (
        "chunked_req",
        "last_batch",
        "limits",
        "max_running_requests",
        "mixes",
        "new_token_ratio",
        "options",
        "overlaps",
        "policy",
        "pool",
        "results",
        "running_batch",
        "waiting_queue",
    )

    Options = SglangOptions
    samples = "one"
    reservations = ("on-demand",)
    allocators = ("paged",)
    takes_plugins = False
    memory_reason = "it takes pages as requests grow"
    has_beams = False
    drops_last_token = True
    loses_in_flight = True
    empty_turns = False
    sizing = "sglang"

    @classmethod
    def most_output(
        cls, prompt: IntColumn, max_model_len: int, num_blocks: int, block_size: int
    ) -> IntColumn:
        rooms = room_behind(prompt, max_model_len, num_blocks * block_size, block_size)
        found: IntColumn = np.maximum(1, np.minimum(*rooms))
        return found

    @classmethod
    def takes_in(cls, prompt: IntColumn, output: IntColumn, max_model_len: int) -> npt.NDArray[np.bool_]:
        return np.ones(len(prompt), bool)  # what is too long is answered with one token

    @classmethod
    def caches_prefixes(cls, options: SglangOptions) -> bool:
        return options.caches

    @classmethod
    def memory_for(
        cls, options: SglangOptions, num_blocks: int, block_size: int, windows: WindowPool | None = None
    ) -> BlockManager | None:
        policy = options.radix_eviction_policy
        if windows is not None:
            return WindowedRadixManager(num_blocks, block_size, windows, policy=policy, caches=options.caches)
        return RadixManager(num_blocks, block_size, policy=policy) if options.caches else None

    @classmethod
    def resolve(cls, options: SglangOptions, machine: Machine) -> SglangOptions:
        return resolved(options, machine)

    @classmethod
    def default_block_size(cls, machine: Machine) -> int | None:
        return page_size(machine)

    @classmethod
    def schedules_ahead(cls, options: SglangOptions) -> bool:
        return not options.disable_overlap_schedule

    @classmethod
    def graphs_to(cls, options: SglangOptions) -> int:
        return (options.cuda_graph_max_bs_prefill or 0) if options.graphs_prompts else 0

    def __init__(
        self,
        memory: BlockManager,
        options: SglangOptions,
        *,
        max_model_len: int,
        prices: Prices | None = None,
    ) -> None:
        options = resolved(options, Machine("", 0, max_model_len))
        capacity = memory.num_blocks * memory.block_size
        self.limits = LengthLimits(options, max_model_len, capacity, memory.block_size)
        queue = SglangQueue(self.limits.prepare)
        super().__init__(memory, queue, options, max_model_len=max_model_len, prices=prices)
        self.waiting_queue = queue
        self.options = options
        self.max_running_requests = most_running(options, capacity, max_model_len)
        self.mixes = options.enable_mixed_chunk and (options.chunked_prefill_size or 0) > 0
        self.overlaps = not options.disable_overlap_schedule
        self.in_flight = 2 if self.overlaps else 1
        memory.steps_in_flight = self.in_flight - 1
        self.pool = TokenPool(memory, options)
        self.results = PendingResults(self.pool)
        self.policy = SchedulePolicy(options, self.pool.tree_cache, queue)
        self.new_token_ratio = NewTokenRatio(options.schedule_conservativeness)
        self.running_batch = ScheduleBatch()
        self.last_batch: ScheduleBatch | None = None
        self.chunked_req: SglangRequest | None = None

    # Requests

    def refusal(self, prompt_tokens: int, output_tokens: int, samples: int) -> str:
        if samples > 1:
            return "it is of several samples, which this engine serves as requests of their own"
        return ""  # a prompt that is too long is answered with one token

    def later_refusal(self, prompt_tokens: int, output_tokens: int, samples: int) -> str:
        return self.limits.refusal(prompt_tokens)

    def never_fits(self, prompt_tokens: int) -> bool:
        return self.limits.never_fits(prompt_tokens)

    # An iteration

    def plan(self, now: int) -> Batch:
        """Decide the next iteration."""
        batch = Batch()
        chunked = self.chunked_req
        if chunked is not None and chunked.extend_end > chunked.prefix_len:
            self.pool.cache_unfinished_req(chunked)
            chunked.prefix_len = chunked.extend_end
        if self.overlaps:
            self._note_ending()
        self.merge_last_batch()
        prefills = self._get_new_batch_prefill(batch)
        if not prefills and self.running_batch.reqs and not self.running_batch.is_prefill_only:
            self._update_running_batch(batch)
        self.results.decodes = self.overlaps and batch.decoding > 0
        batch.batched_tokens = batch.tokens
        batch.sequences = self.running_sequences
        return batch

    def merge_last_batch(self) -> None:
        """Let the requests join the running batch whose prompts ran in the iteration before."""
        last, self.last_batch = self.last_batch, None
        if last is None:
            return
        before, chunked, running = len(last.reqs), self.chunked_req, self.running
        last.reqs = [req for req in last.reqs if req.order in running and req is not chunked]
        if len(last.reqs) < before:
            self.running_batch.batch_is_full = False
        if last.reqs and self.running_batch.reqs:
            self.running_batch.merge_batch(last)
        elif last.reqs:
            self.running_batch = last

    # Prompts

    def _get_new_batch_prefill(self, batch: Batch) -> bool:
        """Let prompts run, if any can; say whether any does."""
        running = self.running_batch
        if not running.reqs or self.pool.is_hybrid_swa:
            running.batch_is_full = False
        if (running.batch_is_full or not self.queue.waiting) and self.chunked_req is None:
            return False
        if self.chunked_req is None and len(self.running) >= self.max_running_requests:
            running.batch_is_full = True  # also of requests whose last token is in flight
            return False
        self.policy.calc_priority()
        adder = self._add_requests()
        if not adder.can_run_list:
            return False
        self._run_prompts(adder.can_run_list, batch)
        return True

    def _add_requests(self) -> PrefillAdder:
        """Admit requests, the first ones of the queue, and hold what of them is cached."""
        running, queue, options = self.running_batch, self.waiting_queue, self.options
        mixed = len(running.reqs) if self.mixes else 0
        ratio = 1.0 if options.ignore_eos else self.new_token_ratio.current
        to_come = self.results.tokens_to_come(running.reqs)
        adder = PrefillAdder(self.pool, options, running.reqs, to_come, ratio, mixed)
        admitted, chunked = adder.can_run_list, self.chunked_req
        if chunked is not None:
            assert adder.rem_chunk_tokens is not None
            limit = self.policy.chunk_limit(chunked, adder.rem_chunk_tokens, self.memory.block_size)
            adder.add_chunked_req(chunked, limit)
        # Of the requests that are admitted only the one that goes on has a place among those that run.
        places = self.max_running_requests - len(self.running) + len(admitted)
        result = adder.budget_state()
        while result is not AddReqResult.OTHER and (req := queue.head()) is not None:
            if len(admitted) >= places:
                running.batch_is_full = True
            if running.batch_is_full:
                break
            self.pool.match_prefix(req)
            result = adder.add_one_req(req)
            if admitted and admitted[-1] is req:
                queue.pop(req)
            if result is AddReqResult.NO_TOKEN:
                running.batch_is_full = bool(admitted or running.reqs)
            if result is not AddReqResult.CONTINUE:
                break
        self.chunked_req = adder.new_chunked_req
        return adder

    def _run_prompts(self, prompts: list[SglangRequest], batch: Batch) -> None:
        """Take memory for prompts and let them run, the running batch beside them where it may."""
        pool, memory, page = self.pool, self.memory, self.memory.block_size
        tokens = sum([req.extend_end - req.prefix_len for req in prompts])
        ahead = len(prompts) * page if page > 1 else 0  # more than is taken
        pool.evict(-(-(tokens + ahead) // page))
        fresh: list[SglangRequest] = []
        chunks: list[tuple[EngineRequest, int]] = []
        for req in prompts:
            start, end = req.prefix_len, req.extend_end
            computed = end - start
            if self.running.get(req.order) is req:  # in chunks
                pool.evict_swa_before_chunk(req, overlaps=self.overlaps)
                self.events.interval_ended(req)
                self.context += end - req.tokens
                memory.extend(req, end - req.tokens)
            else:
                fresh.append(req)
                self._enter(req)
            chunks.append((req, computed))
            batch.context_tokens += end
            batch.query_key_pairs += computed * start + computed * (computed + 1) // 2
        batch.prompts, batch.chunks, batch.decodes = tuple(fresh), tuple(chunks), False
        beside = self._decode_beside(batch) if self.mixes else []
        batch.tokens = tokens + batch.decoding
        chunked = self.chunked_req
        whole = [req for req in prompts if req is not chunked]
        batch.incomplete = tuple([req for req in fresh if req is chunked])
        if len(fresh) < len(prompts):
            batch.completed = tuple([req for req in whole if req not in fresh])
        for req in whole:
            self.start_decoding(req)
            req.final_step = req.max_new_tokens + req.prompt - req.length_offset
        only = not beside and not any(req.max_new_tokens for req in prompts)
        self.last_batch = ScheduleBatch(prompts + beside, batch.tokens, is_prefill_only=only)
        self.waiting_queue.processed += batch.tokens
        self.results.launched = whole

    def _enter(self, req: SglangRequest) -> None:
        """Give a request that was admitted a place and its memory."""
        self.enter(req)
        req.cached = req.prefix_len
        self.memory.admit(req, req.extend_end)
        self.context += req.extend_end

    def _decode_beside(self, batch: Batch) -> list[SglangRequest]:
        """Let the running batch decode beside prompts, if it fits; return the requests that join anew."""
        if self._filter_ending():
            self.running_batch.batch_is_full = False
        beside = self.running_batch.reqs
        if not beside or not self.pool.check_decode_mem():
            return []
        prompts = sum([req.tokens for req in self.running.values() if not req.decodes])
        self._prepare_for_decode(batch)
        batch.decode_context = self.context - prompts
        batch.context_tokens += batch.decode_context
        batch.decodes = True
        self.running_batch.reqs = []
        return beside

    # Decodes

    def _update_running_batch(self, batch: Batch) -> None:
        """Let the running batch decode, if anything is left of it; retract requests where memory is short."""
        running = self.running_batch
        ended = self._filter_ending()
        if not running.reqs:
            running.batch_is_full = False
            return
        if self.pool.check_decode_mem():
            self.new_token_ratio.decay()
        elif ended:
            running.batch_is_full = False  # what they hold comes back before the next turn
            return
        else:
            self._retract_decode(batch)
        if ended or batch.recomputed or batch.unschedulable:
            running.batch_is_full = False
        if running.reqs:
            self._prepare_for_decode(batch)
            batch.tokens = batch.decoding
            batch.context_tokens = batch.decode_context
            # The prompts of an iteration are counted again with each decode of those that began in it alone.
            self.waiting_queue.processed += running.extend_num_tokens

    def _filter_ending(self) -> int:
        """Let requests drain whose last token is known to be in flight; return how many do."""
        memory = self.memory
        for req in self.results.ending:
            if req.decodes and req.output >= req.max_new_tokens:
                self.events.interval_ended(req)
                memory.stop_decoding(req)
                self.draining += 1
                self.draining_context += req.tokens
                self.running_batch.reqs.remove(req)
        return self.draining

    def _prepare_for_decode(self, batch: Batch) -> None:
        """Take memory for a token of every request of the running batch."""
        reqs = self.running_batch.reqs
        decoding = len(reqs)
        if self.pool.is_hybrid_swa:
            for req in reqs:
                self.pool.evict_swa(req, req.prompt + self.results.known_outputs(req))
        self.pool.evict(decoding)  # more than is taken
        self.memory.allocate_step(1)
        self.context += decoding
        batch.decoding = decoding
        if self.results.ending:
            batch.discarded = tuple([req for req in self.results.ending if req.decodes])
        batch.decode_context = self.context - self.draining_context
        if self.chunked_req is not None:  # which waits
            batch.decode_context -= self.chunked_req.tokens

    def _retract_decode(self, batch: Batch) -> None:
        """Retract requests of the running batch where memory is short; one that is alone is given up."""
        running, results = self.running_batch, self.results
        retracted, aborted = running.retract_decode(self.pool, results.known_outputs, self._release_req)
        batch.unschedulable += tuple([(req, FailureMode.NEVER_ADMITTED) for req in aborted])
        generated = sum([results.known_outputs(req) for req in running.reqs])
        most = sum([req.max_new_tokens for req in running.reqs])
        self.new_token_ratio.retract(generated, most, len(running.reqs))
        for req in retracted:
            self.queue.requeue(req)
        batch.recomputed += tuple(retracted)

    def _release_req(self, req: SglangRequest) -> None:
        """Take a running request's place and memory; nothing of it is cached."""
        req.length = req.prompt + self.results.known_outputs(req)
        self.context -= self.memory.length(req)
        self._stop(req)
        self.pool.release_req(req)
        self.results.forget(req)

    # What becomes known

    def _note_ending(self) -> None:
        """Note which requests have their last token in the iteration that is in flight, in its order."""
        self.results.launch()
        if self._finishing and self._finishing[0][0] <= self.memory.steps:
            last = [] if self.last_batch is None else self.last_batch.reqs
            self.results.note_ending(self._finishing, self.running_batch.reqs + last)

    def finish(self, now: int) -> list[EngineRequest]:
        """Take in the oldest result in flight: cache its prompts, let those go that are over."""
        if not self.overlaps:
            self._note_ending()
        return self.results.process(self, now)

    def give_up(self, req: SglangRequest, now: int) -> None:
        """Let a request go that was refused, and got the one token with which it is answered."""
        self.context -= self.memory.length(req)
        self._stop(req)
        self._let_go(req)
        self.events.left(req.row, now, Status.IGNORED)

    def _let_go(self, request: EngineRequest) -> None:
        assert isinstance(request, SglangRequest)
        self.pool.cache_finished_req(request)

    def start_draining(self) -> None:
        self._note_ending()
        if self._filter_ending():
            self.running_batch.batch_is_full = False

    def ran_dry(self) -> None:
        if not (self.running or self.queue.waiting):
            self.new_token_ratio.reset()

    def _abort_running(self, request: EngineRequest) -> int:
        assert isinstance(request, SglangRequest)
        if request in self.results.ending and not request.decodes:
            self.draining -= 1
            self.draining_context -= request.tokens
        self.results.forget(request)
        generated = super()._abort_running(request)
        if request is self.chunked_req:
            self.chunked_req = None
        running = self.running_batch
        running.reqs = [req for req in running.reqs if req is not request]
        running.batch_is_full = False
        return generated

    def may_join(self, request: EngineRequest) -> bool:
        return len(self.running) < self.max_running_requests

    # Fast-forward

    def steps_until_next_decision(self) -> int:
        return fast_forward.steps_until_next_decision(self)

    def advance(self, steps: int) -> None:
        fast_forward.advance(self, steps)

    def arrival_matters(self) -> bool:
        is_full = self.running_batch.batch_is_full
        return not is_full or self.pool.is_hybrid_swa or self.policy.name == "hrrn"
