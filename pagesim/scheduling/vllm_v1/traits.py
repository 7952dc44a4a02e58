"""What vLLM v1 says of itself before it has memory or requests: what it needs, and what options mean."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from pagesim.kvcache import KVCache
from pagesim.scheduling.core import Pool, Scheduler
from pagesim.scheduling.disaggregated.refusals import check_options
from pagesim.scheduling.options import Machine, MemoryKind, Prices
from pagesim.scheduling.priority_queue import PriorityQueue
from pagesim.scheduling.queue import WaitingQueue
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.resting import RestingScheduler
from pagesim.scheduling.vllm_releases import RELEASES
from pagesim.scheduling.vllm_v0 import check_paged
from pagesim.scheduling.vllm_v1_options import VllmV1Options, resolved
from pagesim.setup.compiled import mypyc_attr
from pagesim.workloads.trace import IntColumn


@mypyc_attr(allow_interpreted_subclasses=True)
class VllmV1Traits(RestingScheduler):
    """What `VllmV1` is configured with.

    Attributes:
        options: with those replaced that were left open.
        release: whose decisions.
        by_priority: whether a request's priority decides when it is admitted, and who is preempted.
        max_num_seqs: running requests at most.
        max_num_batched_tokens: the token budget of a step.
        chunked_prefill: whether a prompt may run in chunks.
        threshold: tokens of a request in a step at most; 0 for no limit.
        full_isl: whether a prompt is admitted only if there is room for all of it.
    """

    __slots__ = (
        "by_priority",
        "chunked_prefill",
        "full_isl",
        "max_num_batched_tokens",
        "max_num_seqs",
        "options",
        "release",
        "threshold",
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
        return options.offloads  # to tell which blocks are taken again while copies read them

    @classmethod
    def names_contents(cls, options: VllmV1Options) -> bool:
        return options.enable_prefix_caching or options.offloads

    @classmethod
    def hash_lookahead(cls, options: VllmV1Options) -> int:
        return int(options.enable_prefix_caching and options.speculative_method == "eagle3")

    @classmethod
    def kind_in_pool(cls, options: VllmV1Options, pool: Pool) -> Callable[..., Scheduler]:
        check_options(options)
        return partial(cls, pool=pool)  # type: ignore[call-arg]  # of `VllmV1`

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
        self, memory: KVCache, options: VllmV1Options, *, max_model_len: int, prices: Prices | None
    ) -> None:
        self.options = options = resolved(options, Machine("", 0, max_model_len))
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
        self.full_isl = bool(options.scheduler_reserve_full_isl)
        self.in_flight = 2 if options.async_scheduling else 1
        memory.lag = self.in_flight - 1

    @abstractmethod
    def most_slots(self, tokens: int) -> int:
        """Return the slots that a sequence takes at most that is so long in the end."""

    def may_join(self, request: EngineRequest) -> bool:
        return len(self.running) < self.max_num_seqs

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
        slots = self.most_slots(prompt_tokens + output_tokens - 1)
        return "" if self.memory.blocks_for(slots) <= self.memory.num_blocks else self.no_room()
