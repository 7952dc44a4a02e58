"""What vLLM v1 says of itself before it has memory or requests: what it needs, and what options mean."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from pagesim.scheduling.core import Pool, Scheduler
from pagesim.scheduling.options import Machine, MemoryKind
from pagesim.scheduling.resting import RestingScheduler
from pagesim.scheduling.vllm_releases import RELEASES
from pagesim.scheduling.vllm_v0 import check_paged
from pagesim.scheduling.vllm_v1_options import VllmV1Options, resolved
from pagesim.setup.compiled import mypyc_attr
from pagesim.workloads.trace import IntColumn


@mypyc_attr(allow_interpreted_subclasses=True)
class VllmV1Traits(RestingScheduler):
    """The `SchedulerTraits` of `VllmV1`."""

    __slots__ = ()

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
        # By priority a request may lose what it has just taken, which is then not taken.
        return options.offloads and options.scheduling_policy == "priority"

    @classmethod
    def watches_blocks(cls, options: VllmV1Options) -> bool:
        return options.offloads

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
        return cls

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
