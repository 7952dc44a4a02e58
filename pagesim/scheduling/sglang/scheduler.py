"""SGLang's scheduler, release 0.5.23: prefill first, admission by estimate, retraction, radix tree.

Source: ``srt/managers/scheduler.py``.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from pagesim.kvcache import BlockManager
from pagesim.kvcache.radix import (
    HostPool,
    HostRadixManager,
    RadixManager,
    StatePool,
    StateRadixManager,
    WindowedRadixManager,
    WindowPool,
)
from pagesim.scheduling.arrivals import NEVER
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.options import Machine, Prices
from pagesim.scheduling.request import EngineRequest, Status
from pagesim.scheduling.sglang import decode, fast_forward, prefill
from pagesim.scheduling.sglang.batch import ScheduleBatch
from pagesim.scheduling.sglang.defaults import most_running, page_size, resolved
from pagesim.scheduling.sglang.delays import PrefillDecodeInterval, PrefillDelayer
from pagesim.scheduling.sglang.hicache import CopyTime, HiCacheController, at_once
from pagesim.scheduling.sglang.new_token_ratio import NewTokenRatio
from pagesim.scheduling.sglang.options import SglangOptions
from pagesim.scheduling.sglang.policy import SchedulePolicy
from pagesim.scheduling.sglang.pool import TokenPool
from pagesim.scheduling.sglang.queue import SglangQueue
from pagesim.scheduling.sglang.recv_skipper import PREFILL_WEIGHT, SchedulerRecvSkipper
from pagesim.scheduling.sglang.request import LengthLimits, SglangRequest, room_behind
from pagesim.scheduling.sglang.results import PendingResults
from pagesim.scheduling.sglang.speculation import PendingDrafts, SpeculativePool
from pagesim.setup.compiled import mypyc_attr
from pagesim.workloads.trace import IntColumn


@mypyc_attr(allow_interpreted_subclasses=True)
class Sglang(Scheduler):
    """SGLang's ``Scheduler``; `plan` is its ``get_next_batch_to_run``.

    An iteration runs prompts or decodes; with ``enable_mixed_chunk`` it may run both. Prompts come first.
    Admission goes by free memory less a share of the tokens that running requests may still generate. That
    share falls with every decode, and rises when requests are retracted for lack of memory.

    Args:
        memory: an empty block manager: a `RadixManager` for prefix caching, a `WindowedRadixManager` if
            sliding-window layers have a pool of their own, a `StateRadixManager` if layers keep recurrent
            states, a `HostRadixManager` if there is a host tier.
        options: options, resolved or not.
        max_model_len: tokens of the model's context.
        prices: has no effect on SGLang's decisions.
        copy_times: functions that return how long loads from the host and copies to it take.

    Attributes:
        waiting_queue: ``queue`` under its concrete type.
        policy: sorts the queue.
        pool: the memory as this loop sees it.
        results: pending results of iterations in flight.
        new_token_ratio: the share of future tokens for which an admission reserves room.
        running_batch: the decoding requests.
        last_batch: the batch prefilled in the previous iteration, about to join; None if there was none.
        chunked_req: the request whose chunked prefill is to continue; None without one.
        overlaps: whether an iteration is decided while the previous one runs.
        drafts: ``results`` with speculative decoding; None without.
        recv_skipper: decides in which turns the loop receives arrivals; None to do so in each turn.
        interval: turns without prompts after each prefill; None if there are none.
        preempts: whether more important requests preempt running ones.
        hicache: copies to the host and back; None without a host tier.
        delayer: holds prompts back while few slots are free; None if disabled.
        preempted: requests preempted by more important ones in the last turn.
        min_free_slots: slots that must be free before prompts run while other requests run.
    """

    __slots__ = (
        "_dry_until",
        "_heeds_arrivals",
        "_is_idle",
        "chunked_req",
        "delayer",
        "drafts",
        "hicache",
        "interval",
        "last_batch",
        "limits",
        "max_running_requests",
        "min_free_slots",
        "mixes",
        "new_token_ratio",
        "options",
        "overlaps",
        "policy",
        "pool",
        "preempted",
        "preempts",
        "recv_skipper",
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
    def kind_for(cls, options: SglangOptions) -> type[Sglang]:
        from pagesim.scheduling.sglang.attention_group import SglangRank  # it is a subclass

        return SglangRank if options.attn_dp_size > 1 else cls

    @classmethod
    def most_output(
        cls, prompt: IntColumn, max_model_len: int, num_blocks: int, block_size: int
    ) -> IntColumn:
        rooms = room_behind(prompt, max_model_len, num_blocks * block_size, block_size)
        found: IntColumn = np.maximum(1, np.minimum(*rooms))
        return found

    @classmethod
    def takes_in(cls, prompt: IntColumn, output: IntColumn, max_model_len: int) -> npt.NDArray[np.bool_]:
        return np.ones(len(prompt), bool)  # overlong prompts are answered with one token

    @classmethod
    def caches_prefixes(cls, options: SglangOptions) -> bool:
        return options.caches

    @classmethod
    def memory_for(
        cls,
        options: SglangOptions,
        num_blocks: int,
        block_size: int,
        second: WindowPool | StatePool | HostPool | None = None,
    ) -> BlockManager | None:
        policy, pairs = options.radix_eviction_policy, options.keys_by_pairs
        if isinstance(second, HostPool):
            return HostRadixManager(num_blocks, block_size, second, policy=policy, by_pairs=pairs)
        if isinstance(second, WindowPool):
            return WindowedRadixManager(
                num_blocks, block_size, second, policy=policy, caches=options.caches, by_pairs=pairs
            )
        if second is not None:
            slots = 1 + options.tracking_slots(block_size)
            return StateRadixManager(num_blocks, block_size, second, slots_per_request=slots, policy=policy)
        if not options.caches:
            return None
        return RadixManager(num_blocks, block_size, policy=policy, by_pairs=pairs)

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
        copy_times: tuple[CopyTime, CopyTime] = (at_once, at_once),
    ) -> None:
        options = resolved(options, Machine("", 0, max_model_len))
        capacity = memory.num_blocks * memory.block_size
        self.limits = LengthLimits(options, max_model_len, capacity, memory.block_size)
        queue = SglangQueue(self.limits.prepare, options)
        super().__init__(memory, queue, options, max_model_len=max_model_len, prices=prices)
        self.waiting_queue = queue
        self.options = options
        self.max_running_requests = most_running(options, capacity, max_model_len)
        self.mixes = options.enable_mixed_chunk and (options.chunked_prefill_size or 0) > 0
        self.overlaps = not options.disable_overlap_schedule
        self.in_flight = 2 if self.overlaps else 1
        memory.steps_in_flight = self.in_flight - 1
        self.drafts: PendingDrafts | None = None
        if options.speculation is None:
            self.pool = TokenPool(memory, options)
            self.results = PendingResults(self.pool)
        else:
            self.pool = pool = SpeculativePool(memory, options)
            self.results = self.drafts = PendingDrafts(pool, options)
            self.speculation, self.decodes_apart = self.drafts.counts, True
        self.hicache: HiCacheController | None = None
        if isinstance(memory, HostRadixManager):
            self.hicache = HiCacheController(memory, *copy_times)
        self._dry_until: int | None = None  # when copies end, if nothing else was left to do
        self.policy = SchedulePolicy(options, self.pool.tree_cache, queue)
        self.new_token_ratio = NewTokenRatio(options.schedule_conservativeness)
        self.running_batch = ScheduleBatch()
        self.last_batch: ScheduleBatch | None = None
        self.chunked_req: SglangRequest | None = None
        every, turns = options.scheduler_recv_interval, options.prefill_decode_interval
        self.recv_skipper = SchedulerRecvSkipper(every) if every > 1 else None
        least = options.prefill_decode_interval_min_bs
        self.interval = PrefillDecodeInterval(turns, least) if turns else None
        self.preempts = options.enable_priority_scheduling and not options.disable_priority_preemption
        self._heeds_arrivals = self.preempts or every > 1 or options.max_queued_requests is not None
        delays = options.enable_prefill_delayer
        self.delayer = PrefillDelayer(options, self.max_running_requests) if delays else None
        slots = min(options.min_free_slots_delay or 1, self.max_running_requests)
        self.min_free_slots = slots if slots > 1 else 0
        self.preempted: list[SglangRequest] = []
        self._is_idle = True  # whether the previous turn launched nothing

    # Requests

    def refusal(self, prompt_tokens: int, output_tokens: int, samples: int) -> str:
        if samples > 1:
            return "it is of several samples, which this engine serves as requests of their own"
        return ""  # a prompt that is too long is answered with one token

    def later_refusal(self, prompt_tokens: int, output_tokens: int, samples: int) -> str:
        refusal, most = self.limits.refusal(prompt_tokens), self.options.max_queued_requests
        if refusal or most is None:
            return refusal
        return f"max_queued_requests is {most}; so many waited already"

    def never_fits(self, prompt_tokens: int) -> bool:
        return self.limits.never_fits(prompt_tokens)

    # An iteration

    def plan(self, now: int) -> Batch:
        """Decide the next iteration in one turn, or in two if the engine is idle: those pass in no time."""
        batch, queue = Batch(), self.waiting_queue
        self.preempted = []
        if self.recv_skipper is not None and self.recv_skipper.handle():
            queue.receive()
        may_change = bool(queue.messages) or (self.interval is not None and self.interval.is_on)
        self._get_next_batch_to_run(batch, now)
        if not batch.tokens and (self._is_idle or not self.overlaps) and may_change:
            self.ran_dry()
            queue.receive()
            self._get_next_batch_to_run(batch, now)
        self._close_turn(batch)
        return batch

    def _close_turn(self, batch: Batch) -> None:
        """Record the outcome of a turn."""
        queue = self.waiting_queue
        self._is_idle = not batch.tokens
        if self.recv_skipper is not None:
            self.recv_skipper.weight = PREFILL_WEIGHT if batch.chunks else 1
        self.results.decodes = self.overlaps and batch.decoding > 0
        if self.drafts is not None:
            self.drafts.close(batch, self.chunked_req)
        if queue.turned_away:
            batch.ignored, queue.turned_away = tuple(queue.turned_away), []
        batch.batched_tokens = batch.tokens
        batch.sequences = self.running_sequences

    def _get_next_batch_to_run(self, batch: Batch, now: int) -> None:
        if self.hicache is not None:
            self._check_hicache(self.hicache, now)
        self.pool.begin_turn()
        chunked = self.chunked_req
        if chunked is not None and chunked.extend_end > chunked.prefix_len:
            self.pool.cache_unfinished_req(chunked)
            chunked.prefix_len = chunked.extend_end
        if self.overlaps:
            self._note_ending()
        self.merge_last_batch()
        interval = self.interval
        deferred = interval is not None and interval.defers(len(self.running_batch.reqs))
        prefills = not deferred and prefill.get_new_batch_prefill(self, batch, now)
        if prefills and interval is not None:
            interval.begin()
        may_decode = self.may_decode(prefills=prefills)
        if may_decode and self.running_batch.reqs and not self.running_batch.is_prefill_only:
            decode.update_running_batch(self, batch)

    def _check_hicache(self, hicache: HiCacheController, now: int) -> None:
        """Learn which copies have finished."""
        if self._dry_until is not None and self._dry_until < now:
            self.new_token_ratio.reset()
        self._dry_until = None
        hicache.check_events(now)

    def may_decode(self, *, prefills: bool) -> bool:
        """Return whether the running batch may decode by itself; ``prefills`` is whether prompts run."""
        return not prefills

    def merge_last_batch(self) -> None:
        """Merge the requests prefilled in the previous iteration into the running batch."""
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

    def drop_from_running(self, over: Collection[SglangRequest]) -> None:
        """Remove finished requests from the running batch."""
        self.merge_last_batch()  # as the real engine does before it drops finished requests
        running = self.running_batch
        running.reqs = [req for req in running.reqs if req not in over]
        running.batch_is_full = False

    def release_req(self, req: SglangRequest) -> None:
        """Free a running request's slot and memory without caching any of it."""
        req.length = req.prompt + self.results.known_outputs(req)
        req.prefix_len = 0
        self.context -= self.memory.length(req)
        self._stop(req)
        self.pool.release_req(req)
        self.results.forget(req)

    # Results

    def _note_ending(self) -> None:
        """Note which requests have their last token in the iteration in flight, in batch order."""
        self.results.launch()
        if self._finishing and self._finishing[0][0] <= self.memory.steps:
            last = [] if self.last_batch is None else self.last_batch.reqs
            self.results.note_ending(self._finishing, self.running_batch.reqs + last)

    def finish(self, now: int) -> list[EngineRequest]:
        """Process the oldest result in flight: cache its prompts, release finished requests."""
        if not self.overlaps:
            self._note_ending()
        over = self.results.process(self, now)
        if self.hicache is not None:
            self.hicache.start_writes(now)
        return over

    def launched(self, end: int) -> int:
        return end if self.hicache is None else self.hicache.launched(end)

    def decided_at(self, now: int) -> int:
        return now if self.hicache is None else max(now, self.hicache.now)

    @property
    def wakes_at(self) -> int:
        return NEVER if self.hicache is None or not self.queue.waiting else self.hicache.next_end

    def give_up(self, req: SglangRequest, now: int) -> None:
        """Release a refused request, which has been answered with its one token."""
        self.context -= self.memory.length(req)
        self._stop(req)
        self._let_go(req)
        self.events.left(req.row, now, Status.IGNORED)

    def _let_go(self, request: EngineRequest) -> None:
        assert isinstance(request, SglangRequest)
        self.pool.cache_finished_req(request)

    def start_draining(self) -> None:
        self._note_ending()
        self.merge_last_batch()
        if decode.filter_ending(self):
            self.running_batch.batch_is_full = False

    def stored_length(self, request: EngineRequest) -> int:
        if self.drafts is None:
            return self.memory.length(request)
        assert isinstance(request, SglangRequest)
        return self.drafts.stored(request)

    @property
    def has_work(self) -> bool:
        if self.running or self.queue.waiting or self.waiting_queue.messages:
            return True
        return not self._is_idle  # one more turn processes the last result

    def ran_dry(self) -> None:
        self._is_idle = True
        if self.recv_skipper is not None:
            self.recv_skipper.reset()
        if self.interval is not None:
            self.interval.end()
        if self.running or self.queue.waiting:
            return
        if self.hicache is None or not self.hicache.copies:
            self.new_token_ratio.reset()
        else:
            self._dry_until = self.hicache.last_end

    def _abort_running(self, request: EngineRequest) -> int:
        assert isinstance(request, SglangRequest)
        if request in self.results.ending and not request.decodes:
            self.draining -= 1
            self.draining_context -= request.tokens
        self.results.forget(request)
        known = request.length - request.prompt
        generated = super()._abort_running(request)
        if self.drafts is not None:
            generated = known
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
        if self._heeds_arrivals or self.pool.is_hybrid_swa or self.policy.name == "hrrn":
            return True
        return not self.running_batch.batch_is_full
