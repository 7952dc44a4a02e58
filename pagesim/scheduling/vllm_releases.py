"""Releases of vLLM v1: how their decisions differ, and the defaults of their servers.

The source of each number in a release is listed in docs/reference/vllm-defaults.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagesim.scheduling.options import Machine

GIB = 1 << 30
"""Bytes per GiB."""


@dataclass(frozen=True, slots=True)
class GpuDefaults:
    """A server's defaults on a class of GPUs.

    Attributes:
        least_gib: minimum memory of a GPU in this tier, in GiB.
        smaller: parts of the names of GPUs that have this memory but still belong to a lower tier.
        max_num_batched_tokens: token budget of a step.
        max_num_seqs: maximum number of running requests.
    """

    least_gib: int
    smaller: tuple[str, ...]
    max_num_batched_tokens: int
    max_num_seqs: int

    def takes(self, machine: Machine) -> bool:
        """Return whether a GPU is in this tier or a larger one."""
        enough = machine.memory_bytes >= self.least_gib * GIB
        return enough and not any(part in machine.gpu.lower() for part in self.smaller)


@dataclass(frozen=True, slots=True)
class Release:
    """Behaviour in which a release of vLLM differs from others.

    Attributes:
        reserves_full_isl: whether a prompt is admitted only if all of it fits, not just its first chunk.
        spares_single: whether the long-prefill threshold is ignored while there is only one request.
        overtakes: whether, without chunked prefill, later prompts overtake one that exceeds the budget;
            several overtaken ones return to the front in reverse order.
        reuses_unhashed_first: whether freed blocks without a hash are the next to be allocated.
        bounds_threshold: whether the long-prefill threshold must not exceed max_model_len.
        lacks: options that its server does not have.
        async_scheduling: whether its server schedules the next batch while the previous one runs.
        serves_by_priority: whether its scheduling by priority has been checked.
        speculates: whether its speculative decoding is modelled.
        groups_layers: whether its blocks for layers that differ in what they keep have been checked.
        scales_tokens: whether the size of its blocks with one scale per token and head is known.
        gpu_memory_utilization: share of GPU memory that its server uses.
        counts_cuda_graphs: whether its server deducts the memory of CUDA graphs from the cache.
        keeps_sampler_buffers: whether its sampler keeps token counts for all requests (V2 model runner).
        prints_whole_requests: whether "GPU KV cache size" in its log counts only what requests of maximum
            length can hold, rather than all slots.
        follows_checkpoint: whether a KV cache without a given dtype is known to use the checkpoint's.
        tiers: defaults of its server by GPU, largest tier first; the last one accepts every GPU.
    """

    tiers: tuple[GpuDefaults, ...]
    lacks: tuple[str, ...] = ()
    gpu_memory_utilization: float = 0.9
    reserves_full_isl: bool = False
    spares_single: bool = False
    overtakes: bool = False
    reuses_unhashed_first: bool = False
    bounds_threshold: bool = False
    async_scheduling: bool = False
    serves_by_priority: bool = False
    speculates: bool = False
    groups_layers: bool = False
    scales_tokens: bool = False
    counts_cuda_graphs: bool = False
    keeps_sampler_buffers: bool = False
    prints_whole_requests: bool = False
    follows_checkpoint: bool = False

    def tier(self, machine: Machine) -> GpuDefaults:
        """Return the tier of a GPU."""
        return next(tier for tier in self.tiers if tier.takes(machine))


_SMALL = GpuDefaults(0, (), 2048, 256)
_LARGE = GpuDefaults(70, ("a100",), 8192, 1024)

RELEASES = {
    "0.11.2": Release(
        overtakes=True,
        lacks=(
            "prefill_schedule_interval",
            "scheduler_reserve_full_isl",
            "watermark",
            "prefix_cache_retention_interval",
        ),
        tiers=(_LARGE, _SMALL),
    ),
    # Logs prove each decision: v1_019_prefix reserves_full_isl and reuses_unhashed_first, v1_019_threshold
    # spares_single, v1_019_unchunked overtakes.
    "0.19.0": Release(
        reserves_full_isl=True,
        lacks=("prefill_schedule_interval", "watermark", "prefix_cache_retention_interval"),
        async_scheduling=True,
        tiers=(_LARGE, _SMALL),
    ),
    "0.33.0": Release(
        reserves_full_isl=True,
        spares_single=True,
        reuses_unhashed_first=True,
        bounds_threshold=True,
        async_scheduling=True,
        serves_by_priority=True,
        speculates=True,
        groups_layers=True,
        scales_tokens=True,
        gpu_memory_utilization=0.92,
        counts_cuda_graphs=True,
        keeps_sampler_buffers=True,
        prints_whole_requests=True,
        follows_checkpoint=True,
        tiers=(GpuDefaults(160, (), 16384, 1024), GpuDefaults(70, ("a100", "gb10"), 8192, 1024), _SMALL),
    ),
}
