"""Parts: the allocators and the schedulers that a policy names, and how each is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pagesim.kvcache import (
    Allocator,
    BestFit,
    Buddy,
    FirstFit,
    PagedAllocator,
    Pool,
    contiguous,
)
from pagesim.scheduling import (
    V0_RELEASES,
    V1_RELEASES,
    ContinuousBatching,
    Preemption,
    Prices,
    Scheduler,
    StaticBatching,
    VllmV0,
    VllmV1,
)
from pagesim.setup.plugins import Plugins

__all__ = ["ALLOCATORS", "RELEASES", "SCHEDULERS", "Limits", "MakeAllocator", "MakeScheduler"]

RELEASES: dict[str, tuple[str, ...]] = {"vllm-v0": tuple(V0_RELEASES), "vllm-v1": tuple(V1_RELEASES)}
"""The releases that a scheduler can decide as; the last is the default."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers that a scheduler keeps to; None for its own default.

    Attributes:
        max_model_len: tokens; no request is longer.
        max_num_seqs: running groups plus the samples of the one that joins.
        max_num_batched_tokens: running sequences plus prompts that join, in one iteration.
        max_batch: requests in a static batch.
        watermark: share of the blocks that an admission leaves free.
        compat: the release to decide as, for vllm-v0 and vllm-v1.
        max_paddings: tokens of padding in a batch of prompts, for vllm-v0.
        chunked_prefill: whether a prompt may run in chunks, for vllm-v1.
        long_prefill_token_threshold: tokens of one request in a step, for vllm-v1; 0 for no limit.
        reserve_full_isl: whether a prompt is admitted only if all of it fits, for vllm-v1.
        prefix_caching: whether blocks are found that were computed before, for vllm-v1.
        preemption: see `scheduling.Preemption`.
    """

    max_model_len: int
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_batch: int | None = None
    watermark: float | None = None
    compat: str | None = None
    max_paddings: int | None = None
    chunked_prefill: bool | None = None
    long_prefill_token_threshold: int | None = None
    reserve_full_isl: bool | None = None
    prefix_caching: bool | None = None
    preemption: Preemption = "default"


MakeAllocator = Callable[[Pool], Allocator]
"""Makes an empty allocator of a pool."""

MakeScheduler = Callable[[Allocator, Limits, Prices], Scheduler]
"""Makes a scheduler over empty memory, within limits; the prices tell it how to preempt under ``auto``."""


def _buddy(pool: Pool) -> Allocator:
    longest = -(-pool.max_model_len // pool.block_size)
    return contiguous(lambda num_blocks: Buddy(num_blocks, 1 << (longest - 1).bit_length()))(pool)


def _paged(pool: Pool) -> Allocator:
    return PagedAllocator(pool.num_blocks, pool.block_size, pool.cpu_blocks, pool.reservation)


def _virtual(pool: Pool) -> Allocator:
    return PagedAllocator(pool.num_blocks, pool.block_size, pool.cpu_blocks, shares=False)


def _static(memory: Allocator, limits: Limits, prices: Prices) -> Scheduler:
    # The artifact's FasterTransformer stops at 2040 of 2048 tokens.
    max_length = limits.max_model_len - 8
    slots = memory.num_blocks * memory.block_size
    max_batch = limits.max_batch or max(1, slots // max(1, max_length))
    return StaticBatching(memory, max_batch=max_batch, max_length=max_length)


def _continuous(memory: Allocator, limits: Limits, prices: Prices, *, paper: bool) -> Scheduler:
    return ContinuousBatching(
        memory,
        watermark=limits.watermark if limits.watermark is not None else 0.01 if paper else 0.0,
        max_num_seqs=limits.max_num_seqs or (2048 if paper else 256),
        max_num_batched_tokens=limits.max_num_batched_tokens or 2560,
        max_model_len=limits.max_model_len,
        preemption=limits.preemption,
        prices=prices,
    )


def _vllm_v0(memory: Allocator, limits: Limits, prices: Prices) -> Scheduler:
    release = V0_RELEASES[limits.compat or RELEASES["vllm-v0"][-1]]
    return VllmV0(
        memory,
        release,
        watermark=0.01 if limits.watermark is None else limits.watermark,
        max_num_seqs=limits.max_num_seqs or 256,
        max_num_batched_tokens=limits.max_num_batched_tokens
        or max(limits.max_model_len, release.batched_tokens),
        max_paddings=256 if limits.max_paddings is None else limits.max_paddings,
        max_model_len=limits.max_model_len,
        preemption=limits.preemption,
        prices=prices,
    )


def _vllm_v1(memory: Allocator, limits: Limits, prices: Prices) -> Scheduler:
    return VllmV1(
        memory,
        V1_RELEASES[limits.compat or RELEASES["vllm-v1"][-1]],
        watermark=limits.watermark or 0.0,
        max_num_seqs=limits.max_num_seqs or 256,
        max_num_batched_tokens=limits.max_num_batched_tokens or 2048,
        max_model_len=limits.max_model_len,
        chunked_prefill=limits.chunked_prefill is not False,
        long_prefill_token_threshold=limits.long_prefill_token_threshold or 0,
        reserve_full_isl=limits.reserve_full_isl,
    )


ALLOCATORS: Plugins[MakeAllocator] = Plugins(
    "placement",
    "pagesim.allocators",
    {
        "first-fit": contiguous(FirstFit),
        "best-fit": contiguous(BestFit),
        "buddy": _buddy,
        "paged": _paged,
        "virtual": _virtual,
    },
)
"""Where memory is taken, by the name of a placement."""

SCHEDULERS: Plugins[MakeScheduler] = Plugins(
    "scheduler",
    "pagesim.schedulers",
    {
        "static": _static,
        "orca": partial(_continuous, paper=False),
        "vllm-sosp": partial(_continuous, paper=True),
        "vllm-v0": _vllm_v0,
        "vllm-v1": _vllm_v1,
    },
)
"""Who runs next, by the name of a scheduler."""
