"""Policies: named bundles of a scheduler and an allocator, and how to build one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from pagesim.errors import PagesimError
from pagesim.memory import (
    RESERVATIONS,
    Allocator,
    BestFit,
    Buddy,
    ContiguousAllocator,
    FirstFit,
    PagedAllocator,
    Placement,
    PrefixCachingAllocator,
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

SchedulerName = Literal["static", "orca", "vllm-sosp", "vllm-v0", "vllm-v1"]
ReservationName = Literal["max", "pow2", "oracle", "on-demand"]
PlacementName = Literal["first-fit", "best-fit", "buddy", "paged", "virtual"]
PageSize = Literal["64K", "128K", "256K", "2M"]

BLOCK_SIZE = 16
"""Token slots of a block where nobody says otherwise."""

PAGE_BYTES: dict[str, int] = {"64K": 64 << 10, "128K": 128 << 10, "256K": 256 << 10, "2M": 2 << 20}
"""The pages that vAttention maps, by name; 2M is what an unmodified driver has, and the default."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What a policy's name stands for.

    Attributes:
        scheduler: who runs in the next iteration.
        reservation: for how many tokens memory is taken at admission.
        placement: where it is taken.
        sentence: what it is, for a listing.
        block_size: token slots of its blocks, if that is part of what it is.
    """

    scheduler: SchedulerName
    reservation: ReservationName
    placement: PlacementName
    sentence: str
    block_size: int | None = None

    @property
    def has_own_blocks(self) -> bool:
        """Whether nobody can choose the size of its blocks."""
        return self.block_size is not None or self.placement == "virtual"


POLICIES: dict[str, Policy] = {
    "static": Policy(
        "static",
        "oracle",
        "first-fit",
        "FasterTransformer: static batches, padded to the longest input and output",
    ),
    "contiguous-max": Policy(
        "orca", "max", "first-fit", "iteration-level batching; each request reserves the model's full length"
    ),
    "orca-max": Policy("orca", "max", "buddy", "Orca (Max): the full length, from a buddy allocator"),
    "orca-pow2": Policy(
        "orca",
        "pow2",
        "buddy",
        "Orca (Pow2): the output rounded up to a power of two, from a buddy allocator",
    ),
    "orca-oracle": Policy(
        "orca", "oracle", "buddy", "Orca (Oracle): the true output length, from a buddy allocator"
    ),
    "vllm-sosp": Policy(
        "vllm-sosp",
        "on-demand",
        "paged",
        "the PagedAttention paper's vLLM: blocks on demand, preemption by recomputation or swap",
    ),
    "vllm-v0": Policy(
        "vllm-v0", "on-demand", "paged", "vLLM 0.1.7 to 0.2.7: an iteration is all prompts or all decodes"
    ),
    "vllm-v1": Policy(
        "vllm-v1",
        "on-demand",
        "paged",
        "vLLM 0.11.2 and 0.33.0: prompts in chunks and decodes share a budget",
    ),
    "token-granular": Policy(
        "vllm-sosp",
        "on-demand",
        "paged",
        "LightLLM's TokenAttention: memory token by token, in blocks of 1",
        block_size=1,
    ),
    "virtual-contiguous": Policy(
        "vllm-sosp",
        "on-demand",
        "virtual",
        "vAttention: contiguous virtual addresses, pages of 64 KB to 2 MB mapped on demand, nothing shared",
    ),
}

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


def parts_of(
    name: str,
    scheduler: SchedulerName | None = None,
    reservation: ReservationName | None = None,
    placement: PlacementName | None = None,
) -> Policy:
    """Return the policy of this name with some of its parts replaced.

    Raises:
        PagesimError: the name is unknown, or the parts contradict one another.
    """
    if name not in POLICIES:
        raise PagesimError(f"policy is {name!r}; it must be one of {', '.join(POLICIES)}")
    bundle = POLICIES[name]
    policy = Policy(
        scheduler or bundle.scheduler,
        reservation or bundle.reservation,
        placement or bundle.placement,
        bundle.sentence,
        bundle.block_size,
    )
    for part, value, allowed in (
        ("scheduler", policy.scheduler, SchedulerName),
        ("reservation", policy.reservation, ReservationName),
        ("placement", policy.placement, PlacementName),
    ):
        if value not in get_args(allowed):
            raise PagesimError(f"{part} is {value!r}; it must be one of {', '.join(get_args(allowed))}")
    if policy.reservation == "on-demand" and policy.placement not in ("paged", "virtual"):
        raise PagesimError(
            f"reservation on-demand needs placement paged or virtual, not {policy.placement}: "
            "neighbouring blocks cannot be promised to a sequence that grows"
        )
    if policy.placement == "virtual" and policy.reservation != "on-demand":
        raise PagesimError(
            f"placement virtual needs reservation on-demand, not {policy.reservation}: it reserves "
            "addresses, and maps memory as a sequence grows"
        )
    if policy.placement == "virtual" and policy.scheduler in RELEASES:
        raise PagesimError(
            f"scheduler {policy.scheduler} needs placement paged, not virtual: vLLM's releases share blocks; "
            "choose vllm-sosp or orca"
        )
    if policy.scheduler == "static" and policy.reservation != "oracle":
        raise PagesimError(
            "scheduler static needs reservation oracle: a static batch reserves its own padded length, "
            f"not {policy.reservation}"
        )
    if policy.scheduler in RELEASES and policy.reservation != "on-demand":
        raise PagesimError(
            f"scheduler {policy.scheduler} needs reservation on-demand, not {policy.reservation}: vLLM takes "
            "blocks as sequences grow"
        )
    if policy.scheduler == "static" and policy.placement == "buddy":
        raise PagesimError(
            "scheduler static cannot use placement buddy, whose powers of two hold fewer rows than the "
            "batch was made for; choose first-fit, best-fit or paged"
        )
    return policy


def granularity(
    policy: Policy, block_size: int | None = None, page_size: str | None = None
) -> tuple[int, int | None]:
    """Return the token slots of a policy's blocks and, where memory is mapped in pages, the bytes of a page.

    The first means nothing where there are pages: what a page holds depends on the model.

    Args:
        policy: see there.
        block_size: what was asked for; None for the policy's own or else ``BLOCK_SIZE``.
        page_size: what was asked for, a name in ``PAGE_BYTES``; None for 2M where there are pages.

    Raises:
        PagesimError: the policy does not leave the choice.
    """
    if policy.placement == "virtual":
        if block_size is not None:
            raise PagesimError(
                f"block_size is {block_size}; placement virtual takes page_size instead: a block is what a "
                "page in every tensor holds"
            )
        return BLOCK_SIZE, PAGE_BYTES[page_size or "2M"]
    if page_size is not None:
        raise PagesimError(f"page_size is for placement virtual, not {policy.placement}")
    if policy.block_size is not None and block_size not in (None, policy.block_size):
        raise PagesimError(
            f"block_size is {block_size}; it must be {policy.block_size} or left out: this policy is about "
            "blocks of that size"
        )
    return block_size or policy.block_size or BLOCK_SIZE, None


def build_memory(
    policy: Policy, *, num_blocks: int, block_size: int, cpu_blocks: int, limits: Limits
) -> Allocator:
    """Return the empty memory of a policy."""
    max_model_len = limits.max_model_len
    if limits.prefix_caching:
        release = V1_RELEASES[limits.compat or RELEASES["vllm-v1"][-1]]
        return PrefixCachingAllocator(
            num_blocks, block_size, cpu_blocks, reuses_unfilled_first=release.reuses_unfilled_first
        )
    if policy.reservation == "on-demand":
        return PagedAllocator(num_blocks, block_size, cpu_blocks, shares=policy.placement != "virtual")
    reservation = RESERVATIONS[policy.reservation](max_model_len)
    if policy.placement == "paged":
        return PagedAllocator(num_blocks, block_size, cpu_blocks, reservation)
    longest = -(-max_model_len // block_size)
    placements: dict[str, Callable[[], Placement]] = {
        "first-fit": lambda: FirstFit(num_blocks),
        "best-fit": lambda: BestFit(num_blocks),
        "buddy": lambda: Buddy(num_blocks, 1 << (longest - 1).bit_length()),
    }
    return ContiguousAllocator(placements[policy.placement](), block_size, reservation, cpu_blocks)


def build_scheduler(policy: Policy, memory: Allocator, limits: Limits, prices: Prices) -> Scheduler:
    """Return the scheduler of a policy over its memory; ``prices`` tell it how to preempt under ``auto``.

    Raises:
        PagesimError: a limit does not go with the scheduler.
    """
    _check_limits(policy.scheduler, limits)
    if not memory.grows_on_demand and limits.preemption != "default":
        raise PagesimError(
            f"preemption {limits.preemption} needs reservation on-demand: where memory is reserved "
            "nobody is ever preempted"
        )
    if policy.placement == "virtual" and limits.preemption in ("swap", "auto"):
        raise PagesimError(
            f"preemption {limits.preemption} is not for placement virtual: its pages are unmapped and "
            "never moved to the host, so whoever is preempted is recomputed"
        )
    if policy.scheduler == "static":
        # The artifact's FasterTransformer stops at 2040 of 2048 tokens.
        max_length = limits.max_model_len - 8
        slots = memory.num_blocks * memory.block_size
        max_batch = limits.max_batch or max(1, slots // max(1, max_length))
        return StaticBatching(memory, max_batch=max_batch, max_length=max_length)
    if policy.scheduler == "vllm-v0":
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
    if policy.scheduler == "vllm-v1":
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
    paper = policy.scheduler == "vllm-sosp"
    return ContinuousBatching(
        memory,
        watermark=limits.watermark if limits.watermark is not None else 0.01 if paper else 0.0,
        max_num_seqs=limits.max_num_seqs or (2048 if paper else 256),
        max_num_batched_tokens=limits.max_num_batched_tokens or 2560,
        max_model_len=limits.max_model_len,
        preemption=limits.preemption,
        prices=prices,
    )


def longest_output(scheduler: SchedulerName, max_model_len: int) -> int | None:
    """Return prompt + output at which the engine ends a sequence; None where it takes no longer requests."""
    # v0 checks after the token that goes beyond, v1 before it.
    return {"vllm-v0": max_model_len + 1, "vllm-v1": max_model_len}.get(scheduler)


def _check_limits(scheduler: SchedulerName, limits: Limits) -> None:
    """Refuse what the scheduler does not have."""
    belongs = {
        "max_batch": ("static",),
        "compat": ("vllm-v0", "vllm-v1"),
        "max_paddings": ("vllm-v0",),
        "chunked_prefill": ("vllm-v1",),
        "long_prefill_token_threshold": ("vllm-v1",),
        "reserve_full_isl": ("vllm-v1",),
        "prefix_caching": ("vllm-v1",),
    }
    for name, schedulers in belongs.items():
        if getattr(limits, name) is not None and scheduler not in schedulers:
            raise PagesimError(f"{name} is for scheduler {' and '.join(schedulers)}, not {scheduler}")
    if scheduler == "static" and limits.max_num_seqs is not None:
        raise PagesimError("max_num_seqs is not for scheduler static, which takes max_batch")
    if limits.compat is not None and limits.compat not in RELEASES[scheduler]:
        known = ", ".join(RELEASES[scheduler])
        raise PagesimError(f"compat is {limits.compat!r}; scheduler {scheduler} can decide as {known}")
    if scheduler == "vllm-v1" and limits.preemption in ("swap", "auto"):
        raise PagesimError(
            f"preemption {limits.preemption} is not for scheduler vllm-v1: since v1 vLLM only recomputes"
        )
