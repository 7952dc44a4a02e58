"""Releases of vLLM v1: what each decides differently, and what its server takes where an option is left out.

Where each number stands in a release is in docs/reference/vllm-defaults.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagesim.scheduling.options import Machine

GIB = 1 << 30
"""Bytes."""


@dataclass(frozen=True, slots=True)
class Tier:
    """What a server takes on a kind of GPU.

    Attributes:
        least_gib: memory from which a GPU is of this tier.
        smaller: parts of the names of GPUs that have the memory and still belong to the smallest tier.
        max_num_batched_tokens: token budget of a step.
        max_num_seqs: running requests at most.
    """

    least_gib: int
    smaller: tuple[str, ...]
    max_num_batched_tokens: int
    max_num_seqs: int

    def takes(self, machine: Machine) -> bool:
        """Say whether a GPU is of this tier or a larger one."""
        enough = machine.memory_bytes >= self.least_gib * GIB
        return enough and not any(part in machine.gpu.lower() for part in self.smaller)


@dataclass(frozen=True, slots=True)
class Release:
    """What a release of vLLM does that others do otherwise.

    Attributes:
        reserves_full_isl: a prompt is admitted only if all of it fits, not just its first chunk.
        spares_single: the long-prefill threshold does not hold while there is only one request.
        overtakes: without chunked prefill, a prompt that the budget cannot take is passed by those behind it;
            several that were passed are then in front in reverse order.
        reuses_unhashed_first: freed blocks that cannot be found are the next to be taken.
        bounds_threshold: the long-prefill threshold is at most the longest request.
        lacks: options that its server does not know.
        async_scheduling: whether its server schedules the next batch while the one before it runs.
        serves_by_priority: whether what it decides by priority is checked.
        speculates: whether its speculative decoding is modelled.
        groups_layers: whether it is checked what blocks it makes of layers that differ in what they keep.
        scales_tokens: whether it is known what its blocks take with a scale of each token and head.
        gpu_memory_utilization: the share of GPU memory that its server uses.
        counts_cuda_graphs: whether its server leaves out of the cache what CUDA graphs will take.
        keeps_sampler_buffers: whether its sampler keeps counts of tokens for all requests (V2 model runner).
        prints_whole_requests: whether "GPU KV cache size" in its log is what requests of the greatest length
            can hold, rather than all slots.
        follows_checkpoint: whether it is checked that a KV cache of no given dtype has the checkpoint's.
        tiers: what its server takes by GPU, the largest first; the last takes all.
    """

    tiers: tuple[Tier, ...]
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

    def tier(self, machine: Machine) -> Tier:
        """Return the tier of a GPU."""
        return next(tier for tier in self.tiers if tier.takes(machine))


_SMALL = Tier(0, (), 2048, 256)
_LARGE = Tier(70, ("a100",), 8192, 1024)

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
        tiers=(Tier(160, (), 16384, 1024), Tier(70, ("a100", "gb10"), 8192, 1024), _SMALL),
    ),
}
