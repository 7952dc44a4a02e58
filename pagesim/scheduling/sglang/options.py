"""Options of `Sglang`, under SGLang's own names."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pagesim.errors import PagesimError
from pagesim.kvcache.radix import EvictionPolicy
from pagesim.scheduling.options import MOST, Machine, SchedulerOptions

SchedulePolicy = Literal["fcfs", "lof", "lpm", "dfs-weight", "hrrn", "shortest-prefill-first"]

CACHE_AWARE: tuple[SchedulePolicy, ...] = ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first")
"""Policies that look every waiting prompt up; without a prefix cache they are ``fcfs``."""

_CHUNKS_TO_GIB = ((20, 2048), (60, 4096), (160, 8192))
"""Memory of a GPU in GiB, below which a chunk has so many tokens; beyond the last, 16384."""


class SglangOptions(SchedulerOptions):
    """See `Sglang`; ``block_size`` is SGLang's page size."""

    schedule_policy: SchedulePolicy = Field("fcfs", description="Order in which requests wait.")
    schedule_conservativeness: float = Field(
        1.0,
        ge=0,
        le=100,
        description="Scales the share of the tokens to come for which an admission leaves room.",
    )
    chunked_prefill_size: int | None = Field(
        None, ge=-1, le=MOST, description="Tokens of prompts in an iteration at most; -1 for no chunks."
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
    max_running_requests: int | None = Field(None, ge=1, le=MOST, description="Running requests at most.")
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


def resolved(options: SglangOptions, machine: Machine) -> SglangOptions:
    """Return the options with what SGLang takes by default on a machine.

    Source: 0.5.23, ``srt/server_args.py``.

    Raises:
        PagesimError: the engine would not start with these.
    """
    chunk = options.chunked_prefill_size
    if chunk == 0:
        raise PagesimError("chunked_prefill_size is 0; it must be at least 1, or -1 for no chunks")
    if chunk is None:
        gib = machine.memory_bytes / (1 << 30)
        chunk = next((size for below, size in _CHUNKS_TO_GIB if gib < below), 16384) if gib else 8192
    return options.model_copy(update={"chunked_prefill_size": chunk})
