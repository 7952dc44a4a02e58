"""vLLM v1 apart from ``schedule()``: its traits, its state and how requests leave it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from pagesim.kvcache import BlockManager
from pagesim.kvcache.tiers import TierChain
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.disaggregated import IdleConnector, PrefillConnector, PullConnector
from pagesim.scheduling.disaggregated.refusals import check_options
from pagesim.scheduling.draining import DrainingScheduler
from pagesim.scheduling.failure_modes import FailureMode, no_room
from pagesim.scheduling.offload.offloading import OffloadingConnector
from pagesim.scheduling.options import Machine, Prices
from pagesim.scheduling.priority_queue import PriorityQueue
from pagesim.scheduling.queue import WaitingQueue
from pagesim.scheduling.request import EngineRequest, Status
from pagesim.scheduling.speculative_config import DraftRules
from pagesim.scheduling.traits import Pool
from pagesim.scheduling.vllm_releases import RELEASES
from pagesim.scheduling.vllm_v1.cadence import PrefillCadence
from pagesim.scheduling.vllm_v1.kv_cache_manager import KVCacheManager
from pagesim.scheduling.vllm_v1.speculation import Drafts
from pagesim.scheduling.vllm_v1_options import VllmV1Options, batches_in_flight, resolved
from pagesim.setup.compiled import mypyc_attr
from pagesim.workloads.trace import IntColumn


@mypyc_attr(allow_interpreted_subclasses=True)
class VllmV1Base(DrainingScheduler):
    """`VllmV1` apart from ``schedule()``: its `SchedulerTraits`, its state and how requests leave it.

    Args:
        memory: empty block manager, without the null block; prompts are looked up if it caches prefixes.
        options: engine options; unset ones default as on a GPU that vLLM does not know.
        max_model_len: maximum length of a sequence in tokens.
        prices: costs of loading and of recomputing, if a tier's connector chooses between them.
        chain: tiers behind the device, in place of vLLM's own tier.
        pool: role of the engine under disaggregated prefill; None if it does both prefill and decode.

    Attributes:
        release: vLLM release whose decisions are simulated.
        by_priority: whether admission and preemption follow the requests' priorities.
        max_num_seqs: maximum number of running requests.
        max_num_batched_tokens: token budget of a step.
        chunked_prefill: whether prompts may be prefilled in chunks.
        threshold: maximum number of a request's tokens per step; 0 for no limit.
        drafts: state of requests under speculative decoding or pipelining; None without either.
        cadence: decides in which steps prompts are held back; None if they never are.
        kv_cache_manager: allocates blocks to requests that are served one by one.
    """

    __slots__ = (
        "_in_chunks",
        "_skipped",
        "_stale",
        "_unserved_context",
        "by_priority",
        "cadence",
        "chunked_prefill",
        "drafts",
        "kv_cache_manager",
        "max_num_batched_tokens",
        "max_num_seqs",
        "release",
        "threshold",
    )

    Options = VllmV1Options
    samples = "requests"
    reservations = ("on-demand",)
    allocators = ("paged", "two-level", "pools")
    memory_reason = "vLLM's blocks are taken as sequences grow, and shared"
    needs_sharing = True
    has_beams = False
    null_blocks = 1
    sizing = "vllm"
    # Source: 0.33.0, v1/engine/core.py 690 and 792, ``_process_aborts_queue`` before ``update_from_output``.
    drops_last_token = True
    follows_reach = True

    @classmethod
    def longest_sequence(cls, max_model_len: int) -> int:
        return max_model_len

    @classmethod
    def takes_in(cls, prompt: IntColumn, output: IntColumn, max_model_len: int) -> npt.NDArray[np.bool_]:
        return prompt < max_model_len  # its front end checks only the prompt

    @classmethod
    def caches_prefixes(cls, options: VllmV1Options) -> bool:
        return options.enable_prefix_caching

    @classmethod
    def needs_tables(cls, options: VllmV1Options) -> bool:
        return options.offloads  # to detect blocks that are reallocated while copies read them

    @classmethod
    def names_contents(cls, options: VllmV1Options) -> bool:
        return options.enable_prefix_caching or options.offloads

    @classmethod
    def hash_lookahead(cls, options: VllmV1Options) -> int:
        rules = options.draft_rules
        return 0 if rules is None else rules.hash_lookahead

    @classmethod
    def kind_in_pool(cls, options: VllmV1Options, pool: Pool) -> Callable[..., Scheduler]:
        check_options(options)
        return partial(cls, pool=pool)

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
        # A server that captures no graphs reserves no memory for them.
        return RELEASES[options.vllm_version].counts_cuda_graphs and options.max_cudagraph_capture_size != 0

    @classmethod
    def keeps_sampler_buffers(cls, options: VllmV1Options) -> bool:
        return RELEASES[options.vllm_version].keeps_sampler_buffers

    @classmethod
    def reuses_unhashed_first(cls, options: VllmV1Options) -> bool:
        return RELEASES[options.vllm_version].reuses_unhashed_first

    def __init__(
        self,
        memory: BlockManager,
        options: VllmV1Options,
        *,
        max_model_len: int,
        prices: Prices | None = None,
        chain: TierChain | None = None,
        pool: Pool | None = None,
    ) -> None:
        options = resolved(options, Machine("", 0, max_model_len))
        tokens, sequences = options.max_num_batched_tokens, options.max_num_seqs
        assert tokens is not None
        assert sequences is not None
        by_priority = options.scheduling_policy == "priority"
        super().__init__(
            memory,
            PriorityQueue() if by_priority else WaitingQueue(preempted_first=True),
            options,
            max_model_len=max_model_len,
            watermark=options.watermark or 0.0,
            prices=prices,
        )
        self.release = RELEASES[options.vllm_version]
        self.by_priority = by_priority
        self.max_num_seqs = sequences
        self.max_num_batched_tokens = tokens
        self.chunked_prefill = options.enable_chunked_prefill
        self.threshold = options.long_prefill_token_threshold
        stages = options.pipeline_parallel_size or 1
        self.in_flight = batches_in_flight(options)
        memory.steps_in_flight = self.in_flight - 1
        interval = options.prefill_schedule_interval or 1
        self.cadence = PrefillCadence(interval) if interval > 1 else None
        self.drafts: Drafts | None = None
        speculation, rules = options.speculation, options.draft_rules
        if speculation is not None or stages > 1:
            self.drafts = Drafts(
                rules or DraftRules(0),
                () if speculation is None else speculation.acceptance(options.acceptance),
                memory,
                max_model_len=max_model_len,
                in_flight=self.in_flight,
                stages=stages,
                is_async=bool(options.async_scheduling),
            )
            self.decodes_apart = True
        if rules is not None and self.drafts is not None:
            self.speculation = self.drafts.counts
            self.max_num_seqs = min(sequences, rules.max_concurrency)
        if pool is not None:
            kind = PrefillConnector if pool == "prefill" else PullConnector
            self.connector = kind(memory, self.in_flight)
        elif options.offloads:
            self.connector = OffloadingConnector(memory, options, chain=chain, prices=prices)
        elif options.kv_connector is not None:
            self.connector = IdleConnector(memory)
        if self.connector is not None:
            self.parks = self.connector.parks
        full_isl = bool(options.scheduler_reserve_full_isl)
        self.kv_cache_manager = KVCacheManager(memory, self.drafts, full_isl=full_isl)
        # Requests with an unfinished prefill, and decoding ones that got no token, by order of admission.
        self._in_chunks: dict[int, EngineRequest] = {}
        self._skipped: dict[int, EngineRequest] = {}
        self._draining = {}
        # Preempted requests whose last token is in flight (vLLM: stale output).
        self._stale: list[EngineRequest] = []
        self._unserved_context = 0  # tokens held by running requests that get none in the current step

    def may_join(self, request: EngineRequest) -> bool:
        return len(self.running) < self.max_num_seqs

    def refusal(self, prompt_tokens: int, output_tokens: int, samples: int) -> str:
        # The front end rejects prompts that leave no room for a token; the start-up check rejects caches that
        # are smaller than the longest sequence.
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
        slots = prompt_tokens + output_tokens - 1
        if self.drafts is not None:
            slots = self.drafts.most_slots(slots)
        return "" if self.memory.blocks_for(slots) <= self.memory.num_blocks else no_room(self.memory)

    def stored_length(self, request: EngineRequest) -> int:
        if self.drafts is not None:
            return self.drafts.of[request.row].stored
        return self.memory.length(request)

    @property
    def _defers_frees(self) -> bool:
        """Whether freeing blocks that a batch in flight writes is deferred, because copies fill blocks."""
        return self.in_flight > 1 and self.connector is not None and self.connector.fills_blocks

    def _is_in_flight(self, request: EngineRequest) -> bool:
        """Return whether a running request gets tokens from a batch in flight while one is planned."""
        if self.in_flight == 1:
            return False
        if self.drafts is not None:
            return self.drafts.of[request.row].num_inflight_tokens > 0
        if request.order in self._in_chunks:
            return request.inflight_tokens > 0
        return request.order not in self._skipped

    # Requests that leave

    def preempt(self, request: EngineRequest, batch: Batch, given: int = 0) -> None:
        """Preempt a running request, which loses its slot and memory and is recomputed.

        Args:
            request: the running request.
            batch: the current step.
            given: tokens that it was given in this step and now does not compute.
        """
        length = request.length
        if self.drafts is None and request.order not in self._in_chunks:
            length = self.memory.length(request) + 1 - given
        if request.order in self._draining:
            self._stale.append(request)
        if self.connector is not None:
            self.connector.preempted(request)
        super().preempt(request, batch)
        request.length = length
        request.uncommitted_tokens = request.inflight_tokens = request.loaded = 0
        if self.drafts is not None:
            self.drafts.of[request.row].lose()
        self._forget(request)

    def length_known(self, request: EngineRequest, held: int) -> int:
        return held + 1 if self.drafts is None else request.length

    def abort(self, row: int, now: int) -> int:
        self.unreported = True
        self._stale = [request for request in self._stale if request.row != row]
        held = next((request for request in self.queue.holding if request.row == row), None)
        generated = super().abort(row, now)
        if held is not None and self.connector is not None:
            self.events.held_without_running_changes(now)
            self.connector.abort_held(held)
        if self.drafts is not None:
            self.drafts.of.pop(row, None)
        self._waits_no_longer(row)
        return generated

    def _abort_running(self, request: EngineRequest) -> int:
        chunked = request.order in self._in_chunks
        generated = super()._abort_running(request)
        self._forget(request)
        if self.drafts is not None:
            return request.length - request.prompt
        return request.length - request.prompt if chunked else generated

    def _drop(self, request: EngineRequest) -> None:
        connector = self.connector
        if connector is not None:
            connector.request_finished(request, is_aborted=True)
            if self._defers_frees and self._is_in_flight(request):
                connector.defer_free(request)
                return
        self.memory.release(request)

    def _let_go(self, request: EngineRequest) -> None:
        self.unreported = True
        self.kv_cache_manager.runs_no_longer(request)
        in_flight = False  # in flight again, if it finished on draft tokens
        if self.drafts is None:
            request.inflight_tokens = 0
        else:
            in_flight = self._defers_frees and self._is_in_flight(request)
            del self.drafts.of[request.row]
        connector = self.connector
        if connector is not None and connector.request_finished(request, is_aborted=False):
            if request.decodes:
                self.memory.stop_decoding(request)
        elif in_flight and connector is not None:
            connector.defer_free(request)
        else:
            self.memory.release(request)

    def _forget(self, request: EngineRequest) -> None:
        """Drop the state of a request that no longer runs."""
        self._in_chunks.pop(request.order, None)
        self._skipped.pop(request.order, None)
        self.stop_draining(request)
        self.kv_cache_manager.runs_no_longer(request)

    def _give_up_starved(self, drafts: Drafts, batch: Batch, now: int) -> None:
        """Give up requests that will never get a token again, since nothing is in flight.

        A prompt chunk must end at a state block, but may not end too close to the end of the prompt.
        """
        holds = self.cadence is not None and self.cadence.holds
        if drafts.is_in_flight or holds or self.awaits or batch.recomputed or batch.unschedulable:
            return
        head = self.queue.head()
        for request in [*self.running.values()] or ([] if head is None else [head]):
            self.abort(request.row, now)
            batch.unschedulable += ((request, FailureMode.NEVER_SCHEDULED),)

    # Output of a step

    def end_in_flight(self, now: int) -> list[EngineRequest]:
        if self.drafts is not None:
            return self._verify(self.drafts, now)
        if not (self._draining or self._stale):
            return []
        over = self.finish_draining(now)
        stale, self._stale = self._stale, []
        for request in stale:
            self._over_waiting(request, now)
        return over + stale

    def _verify(self, drafts: Drafts, now: int) -> list[EngineRequest]:
        """Process the oldest batch in flight, whose drafts are verified; return finished requests."""
        shares, over = drafts.next_output(), []
        answered = [each.request for each in shares if each.outputs and each.request.row in drafts.of]
        if answered:
            self.events.answered(answered, now)
        for share in shares:
            request = share.request
            runs = request.order == share.order and request.order in self.running
            if not drafts.update_from_output(share, runs=runs):
                continue
            if request.length >= request.final_length:
                over.append(request)
                if runs:
                    self._over(request, now)
                else:
                    self._over_waiting(request, now)
            elif runs:
                self.memory.cache_full_blocks(request)
        return over

    def _over_waiting(self, request: EngineRequest, now: int) -> None:
        """Finish a preempted request that then got its last token from a batch in flight."""
        self.queue.abort(request.row)
        self._waits_no_longer(request.row)
        self.events.left(request.row, now, Status.FINISHED)
        self.unreported = True
        if self.drafts is not None:
            del self.drafts.of[request.row]

    def _waits_no_longer(self, row: int) -> None:
        """Note that a request may have left the queue outside a plan, which decides if prompts are held."""
        if self.cadence is not None:
            self.cadence.deferred.discard(row)
            self.must_replan = True

    # What the engine asks

    @property
    def awaits(self) -> bool:
        """Whether requests will be loaded, or blocks freed, without any step."""
        return self.connector is not None and self.connector.awaits

    def arrival_matters(self) -> bool:
        return self.by_priority or self.connector is not None or not self.queue.waiting
