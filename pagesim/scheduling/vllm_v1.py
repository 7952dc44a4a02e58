"""vLLM's scheduler since v1 (0.11.2 to 0.33.0): prompts in chunks and decodes share a budget of tokens."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from pagesim.kvcache import KVCache
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Pool, Scheduler
from pagesim.scheduling.dead_ends import DeadEnd
from pagesim.scheduling.options import Machine, MemoryKind, Prices
from pagesim.scheduling.priority_queue import PriorityQueue
from pagesim.scheduling.queue import WaitingQueue
from pagesim.scheduling.request import EngineRequest, Status
from pagesim.scheduling.vllm_releases import RELEASES
from pagesim.scheduling.vllm_v0 import check_paged
from pagesim.scheduling.vllm_v1_by_priority import RunningByPriorityV1
from pagesim.scheduling.vllm_v1_options import VllmV1Options, resolved
from pagesim.setup.compiled import mypyc_attr
from pagesim.workloads.trace import IntColumn


@mypyc_attr(allow_interpreted_subclasses=True)
class VllmV1(RunningByPriorityV1):
    """See `Scheduler` for the contract.

    Every iteration gives tokens to running requests, in the order of their admission, then to waiting ones,
    until the budget is used up. A request whose prompt has not run whole gets a chunk of it, any other one
    token. A request without a free block preempts the most recently admitted one, possibly itself; nothing is
    ever swapped.

    Args:
        memory: empty, without the null block; prompts are looked up in it if it caches prefixes.
        options: see ``Options``; what they leave open is as on a GPU that vLLM does not know.
        max_model_len: tokens; no sequence is longer.
        prices: not looked at.
    """

    __slots__ = (
        "_lost",
        "_tells_plans",
        "chunked_prefill",
        "full_isl",
        "max_num_seqs",
    )

    Options = VllmV1Options
    samples = "requests"
    needs_sharing = True
    has_beams = False
    null_blocks = 1
    sizing = "vllm"
    # Source: 0.33.0, v1/engine/core.py 690 and 792, ``_process_aborts_queue`` before ``update_from_output``.
    drops_last_token = True
    follows_reach = True
    pulls: ClassVar[bool] = False
    """Whether the KV of waiting requests may come from elsewhere."""

    @classmethod
    def check_memory(cls, memory: MemoryKind) -> None:
        check_paged("vllm-v1", memory)

    @classmethod
    def longest_sequence(cls, max_model_len: int) -> int:
        return max_model_len

    @classmethod
    def takes_in(cls, prompt: IntColumn, output: IntColumn, max_model_len: int) -> npt.NDArray[np.bool_]:
        return prompt < max_model_len  # its front end looks at the prompt

    @classmethod
    def caches_prefixes(cls, options: VllmV1Options) -> bool:
        return options.enable_prefix_caching

    @classmethod
    def needs_tables(cls, options: VllmV1Options) -> bool:
        return options.offloads  # whether a block that is stored was taken again

    @classmethod
    def names_contents(cls, options: VllmV1Options) -> bool:
        return options.enable_prefix_caching or options.offloads

    @classmethod
    def hash_lookahead(cls, options: VllmV1Options) -> int:
        return int(options.enable_prefix_caching and options.speculative_method == "eagle3")

    @classmethod
    def kind_for(cls, options: VllmV1Options) -> type[Scheduler]:
        if options.offloads:
            from pagesim.scheduling.offload.scheduler import OffloadingV1  # which is one of these

            return OffloadingV1
        if options.speculative_tokens is None:
            return cls
        from pagesim.scheduling.speculation import SpeculativeV1  # which is one of these

        return SpeculativeV1

    @classmethod
    def kind_in_pool(cls, options: VllmV1Options, pool: Pool) -> type[Scheduler]:
        from pagesim.scheduling.disaggregated import PrefillingV1, PullingV1  # which are such schedulers
        from pagesim.scheduling.disaggregated.refusals import check_options

        check_options(options)
        return PrefillingV1 if pool == "prefill" else PullingV1

    @classmethod
    def resolve(cls, options: VllmV1Options, machine: Machine) -> VllmV1Options:
        return resolved(options, machine)

    @classmethod
    def gpu_memory_utilization(cls, options: VllmV1Options) -> float:
        return RELEASES[options.vllm_version].gpu_memory_utilization

    @classmethod
    def schedules_ahead(cls, options: VllmV1Options) -> bool:
        return bool(options.async_scheduling)

    @classmethod
    def graphs_to(cls, options: VllmV1Options) -> int:
        return options.max_cudagraph_capture_size or 0

    @classmethod
    def counts_cuda_graphs(cls, options: VllmV1Options) -> bool:
        # A server that captures none leaves nothing for them.
        return RELEASES[options.vllm_version].counts_cuda_graphs and options.max_cudagraph_capture_size != 0

    @classmethod
    def reuses_unhashed_first(cls, options: VllmV1Options) -> bool:
        return RELEASES[options.vllm_version].reuses_unhashed_first

    def __init__(
        self,
        memory: KVCache,
        options: VllmV1Options,
        *,
        max_model_len: int,
        prices: Prices | None = None,
    ) -> None:
        options = resolved(options, Machine("", 0, max_model_len))
        tokens, sequences = options.max_num_batched_tokens, options.max_num_seqs
        assert tokens is not None
        assert sequences is not None
        self.release = RELEASES[options.vllm_version]
        by_priority = options.scheduling_policy == "priority"
        super().__init__(
            memory,
            PriorityQueue() if by_priority else WaitingQueue(preempted_first=True),
            options,
            max_model_len=max_model_len,
            watermark=options.watermark or 0.0,
            prices=prices,
        )
        self.by_priority = by_priority
        self.max_num_seqs = sequences
        self.max_num_batched_tokens = tokens
        self.chunked_prefill = options.enable_chunked_prefill
        self.threshold = options.long_prefill_token_threshold
        self.full_isl = bool(options.scheduler_reserve_full_isl)
        self.in_flight = 2 if options.async_scheduling else 1
        memory.lag = self.in_flight - 1
        # By priority, where blocks are kept that a batch in flight fills, and where it matters which blocks a
        # request takes before another one is preempted, each request is looked at.
        which_matters = memory.is_plain and (memory.caches_prefixes or memory.names_blocks)
        self._latest_makes_room = not (by_priority or which_matters) and (
            self.in_flight == 1 or not self.keeps_in_flight
        )
        # A memory is told only what it listens to, since it is told in every decision.
        self._tells_plans = type(memory).new_plan is not KVCache.new_plan
        self._in_chunks = {}
        self._skipped = {}
        self._ending = {}
        self._lost: list[
            EngineRequest
        ] = []  # requests that lost their place while their last token is in flight
        self._unserved_context = 0
        self._answering = {}

    def accepts(self, prompt_tokens: int, output_tokens: int, samples: int) -> bool:
        return not self.refusal(prompt_tokens, output_tokens, samples)

    def refusal(self, prompt_tokens: int, output_tokens: int, samples: int) -> str:
        # The front end rejects what leaves no room for a token; the check at start-up, a cache that is
        # smaller than the longest sequence.
        if samples > 1:
            return "it is of several samples, which this engine serves as requests of their own"
        if prompt_tokens >= self.max_model_len:
            return (
                f"the prompt leaves no room for an output within max_model_len, {self.max_model_len} tokens"
            )
        if not self.chunked_prefill and prompt_tokens > self.max_num_batched_tokens:
            return (
                f"the prompt exceeds max_num_batched_tokens, {self.max_num_batched_tokens} tokens, and "
                "enable_chunked_prefill is off"
            )
        fits = self.memory.blocks_for(prompt_tokens + output_tokens - 1) <= self.memory.num_blocks
        return "" if fits else self.no_room()

    def plan(self, now: int) -> Batch:
        batch = Batch()
        batch.counts_empty = True
        if self._tells_plans:
            self.memory.new_plan()
        batch.reports, self.unreported = self.unreported, False
        self.must_replan = False
        if self.in_flight > 1:
            self.let_ending_rest()
        budget = self.max_num_batched_tokens
        if not self._run_together(batch, budget):
            self._run_one_by_one(batch, budget)
        if batch.recomputed:
            overtakes = self.release.overtakes and not self.chunked_prefill
            self.must_replan = bool(self.queue.waiting) if overtakes else self._head_fits()
        elif self.queue.waiting or self._has_landed():
            self._admit(batch, budget - batch.batched_tokens)
        if self._in_chunks or self._skipped or self.running_sequences > budget:
            self.must_replan = True
        batch.tokens = batch.batched_tokens
        batch.context_tokens = self.context - self._unserved_context
        batch.sequences = self.running_sequences
        if self.reaches is not None:
            batch.reached, batch.reached_pairs, batch.computed_prompts = self.reaches.close()
        return batch

    # Waiting requests

    def _admit(self, batch: Batch, budget: int) -> None:
        queue = self.queue
        overtaken: list[EngineRequest] = []
        while (request := queue.head()) is not None:
            if budget <= 0:
                self.must_replan = True
                break
            if not self.may_join(request):
                break
            found = 0 if request.content is None else self._look_up(request)
            if self.pulls and (started := self._start_load(request, found)) is not None:
                if started:
                    continue
                if self.running or self._waits_elsewhere():
                    break
                queue.pop(request)
                batch.stuck += ((request, DeadEnd.NEVER_ADMITTED),)
                continue
            tokens = self._chunk(request, found, budget, not self.chunked_prefill)
            if not tokens:
                self.must_replan = True
                break
            too_long = tokens > budget
            if too_long and self.release.overtakes:
                queue.pop(request)
                overtaken.append(request)
                continue
            if too_long or not self._fits(request, found + tokens):
                if self.running or self._waits_elsewhere():
                    self.must_replan = self.must_replan or too_long
                    break
                # No request will ever make room: the real one waits for ever.
                queue.pop(request)
                batch.stuck += ((request, DeadEnd.NEVER_ADMITTED),)
                continue
            self._join(request, found, tokens, batch)
            budget -= tokens
        if overtaken:
            self.must_replan = True
        # In front again, but as in the release the one that was overtaken last before the others.
        for request in overtaken:
            if self.running:
                queue.requeue(request)
            else:
                batch.stuck += ((request, DeadEnd.NEVER_ADMITTED),)

    def _join(self, request: EngineRequest, found: int, tokens: int, batch: Batch) -> None:
        """Let the head of the queue run, which computes so many tokens behind those that were found."""
        self.queue.pop(request)
        self._take_memory(request, found + tokens)
        request.cached = found
        self._enter(request)
        self.context += found
        batch.prompts += (request,)
        self._compute(request, found, tokens, batch)
        if request.order in self._in_chunks:
            batch.incomplete += (request,)

    def _has_landed(self) -> bool:
        """Say whether any request may run that is not in the queue."""
        return False

    def _waits_elsewhere(self) -> bool:
        """Say whether there may be room later though no request runs."""
        return False

    def _start_load(self, request: EngineRequest, found: int) -> bool | None:
        """Let the head of the queue hold blocks for what comes from elsewhere, if there is room for them.

        Args:
            request: see there.
            found: its tokens that are cached here.

        Returns:
            Whether there was room; None where nothing of it comes from elsewhere.
        """
        return None

    def _look_up(self, request: EngineRequest) -> int:
        """Return the tokens of a waiting request's prompt that are cached; its content is known."""
        assert request.content is not None
        if request.content.follows and self._cache_turns_before(request):
            self.must_replan = True
        return self.memory.match_prefix(request, request.length)

    def _take_memory(self, request: EngineRequest, tokens: int) -> None:
        """Take the first tokens of a waiting request into memory."""
        self.memory.admit(request, tokens)

    def _fits(self, request: EngineRequest, tokens: int) -> bool:
        memory, spare = self.memory, self.watermark_blocks if self.running else 0
        if self.full_isl:
            if memory.releases:
                return memory.can_admit_whole(request, tokens, request.length, spare)
            tokens = request.length  # it is going to hold all of them
        return memory.can_admit(request, tokens, spare)

    def _head_fits(self) -> bool:
        request = self.queue.head()
        if request is None:
            return False
        found = 0 if request.content is None else self._look_up(request)
        return self._fits(request, found + 1)

    def _enter(self, request: EngineRequest) -> None:
        """Let a request run."""
        request.order = order = self._orders
        self._orders = order + 1
        request.last_step = -1
        self.running[order] = request
        self.running_sequences += 1
        if request.content is not None:
            self._answering[request.content.answer] = request

    def preempt(self, request: EngineRequest, batch: Batch) -> None:
        chunked = request.order in self._in_chunks
        length = request.length
        if request.order in self._ending:
            self._lost.append(request)
        super().preempt(request, batch)
        request.unknown = request.in_flight = 0
        if self._in_chunks or self._skipped or self._ending or request.content is not None:
            self._forget(request)
        if chunked:
            request.length = length

    # Tokens in flight

    def end_in_flight(self, now: int) -> list[EngineRequest]:
        if not (self._ending or self._lost):
            return []
        over = self.end_resting(now)
        for request in self._lost:
            self.queue.abort(request.row)
            self.events.left(request.row, now, Status.FINISHED)
        self.unreported = self.unreported or bool(self._lost)
        over += self._lost
        self._lost = []
        return over

    def arrival_matters(self) -> bool:
        return self.by_priority or not self.queue.waiting

    def blocks_for_head(self) -> int | None:
        request = self.queue.head()
        assert request is not None
        if not self.may_join(request):
            return None
        if self.full_isl:
            return self.memory.least_to_admit_whole(request, request.length) + self.watermark_blocks
        if self.memory.caches_prefixes:
            return 0  # the less is found, the less may be taken at first
        budget = self.max_num_batched_tokens - self.running_sequences + self.resting
        tokens = self._capped(request.length, budget if self.chunked_prefill else request.length)
        return self.memory.blocks_to_admit(request, tokens) + self.watermark_blocks

    def may_join(self, request: EngineRequest) -> bool:
        return len(self.running) < self.max_num_seqs

    def abort(self, row: int, now: int) -> int:
        self.unreported = True
        self._lost = [request for request in self._lost if request.row != row]
        return super().abort(row, now)

    def _abort_running(self, request: EngineRequest) -> int:
        chunked = request.order in self._in_chunks
        generated = super()._abort_running(request)
        self._forget(request)
        return request.length - request.prompt if chunked else generated

    def _let_go(self, request: EngineRequest) -> None:
        self.unreported = True
        if request.content is not None:
            del self._answering[request.content.answer]
        self.memory.release(request)

    def _forget(self, request: EngineRequest) -> None:
        """Forget what was noted of a request that runs no longer."""
        self._in_chunks.pop(request.order, None)
        self._skipped.pop(request.order, None)
        self.forget_resting(request)
        if request.content is not None:
            del self._answering[request.content.answer]
