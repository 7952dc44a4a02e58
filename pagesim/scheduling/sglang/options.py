"""Options of `Sglang`, under SGLang's own names."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pagesim.kvcache.radix import EvictionPolicy
from pagesim.scheduling.options import MOST, SchedulerOptions

PolicyName = Literal["fcfs", "lof", "lpm", "dfs-weight", "hrrn", "shortest-prefill-first"]

CACHE_AWARE: tuple[PolicyName, ...] = ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first")
"""Policies that look every waiting prompt up; without a prefix cache they are ``fcfs``."""

_BY_GPU = "by the GPU when left out"


class SglangOptions(SchedulerOptions):
    """See `Sglang`; ``block_size`` is SGLang's page size."""

    schedule_policy: PolicyName = Field("fcfs", description="Order in which requests wait.")
    schedule_conservativeness: float = Field(
        1.0,
        ge=0,
        le=100,
        description="Scales the share of the tokens to come for which an admission leaves room.",
    )
    chunked_prefill_size: int | None = Field(
        None,
        ge=-1,
        le=MOST,
        description=f"Tokens of prompts in an iteration at most; -1 for no chunks; {_BY_GPU}.",
    )
    max_prefill_tokens: int = Field(
        16384, ge=1, le=MOST, description="Tokens of prompts that are admitted to an iteration."
    )
    prefill_max_requests: int | None = Field(
        None, ge=1, le=MOST, description="Prompts in an iteration at most."
    )
    enable_mixed_chunk: bool = Field(
        False, description="Whether running requests decode beside prompts in chunks."
    )
    max_running_requests: int | None = Field(
        None, ge=1, le=MOST, description="Running requests at most; by the cache's size when left out."
    )
    mem_fraction_static: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Share of GPU memory for weights and cache, under sizing sglang; what activations and "
        "CUDA graphs need is left when left out.",
    )
    max_total_tokens: int | None = Field(
        None, ge=1, le=MOST, description="Tokens of the cache at most, under sizing sglang."
    )
    cuda_graph_max_bs_decode: int | None = Field(
        None, ge=1, le=MOST, description=f"Sequences of the largest decode with a CUDA graph; {_BY_GPU}."
    )
    cuda_graph_max_bs_prefill: int | None = Field(
        None,
        ge=0,
        le=MOST,
        description="Tokens of the largest iteration of prompts with a CUDA graph; a chunk when left out.",
    )
    disable_cuda_graph: bool = Field(False, description="Whether there are no CUDA graphs.")
    disable_decode_cuda_graph: bool = Field(False, description="Whether decodes have no CUDA graphs.")
    disable_prefill_cuda_graph: bool = Field(False, description="Whether prompts have no CUDA graphs.")
    disable_overlap_schedule: bool = Field(
        False, description="Whether an iteration is decided only when the one before it is over."
    )
    disable_radix_cache: bool = Field(False, description="Whether no prefix is cached.")
    radix_eviction_policy: EvictionPolicy = Field("lru", description="Which cached leaf is evicted first.")
    swa_full_tokens_ratio: float = Field(
        0.8,
        gt=0,
        le=1,
        description="Tokens of the pool of layers with a window, as a share of those of the other pool.",
    )
    disable_hybrid_swa_memory: bool = Field(
        False, description="Whether layers with a window keep all tokens, in one pool with the others."
    )
    ignore_eos: bool = Field(
        False, description="Whether requests generate all tokens that they ask for, as benchmarks let them."
    )
    max_new_tokens: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Tokens that a request asks for at least; it ends earlier, by a stop token.",
    )

    @property
    def caches(self) -> bool:
        """Whether prefixes are cached."""
        return not self.disable_radix_cache

    @property
    def graphs_decodes(self) -> bool:
        """Whether decodes are launched by CUDA graphs."""
        return not (self.disable_cuda_graph or self.disable_decode_cuda_graph)

    @property
    def graphs_prompts(self) -> bool:
        """Whether prompts are launched by CUDA graphs."""
        return not (self.disable_cuda_graph or self.disable_prefill_cuda_graph)
