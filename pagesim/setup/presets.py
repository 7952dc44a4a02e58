"""Policies: named bundles of a scheduler, a reservation and an allocator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from pydantic import ValidationError

from pagesim.errors import PagesimError
from pagesim.kvcache import LayerTypePages
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.options import SchedulerOptions
from pagesim.scheduling.vllm_v1_options import VllmV1Options
from pagesim.setup.plugins import Plugins
from pagesim.setup.registry import ALLOCATORS, SCHEDULERS, refuse_unknown, sentence
from pagesim.sizing.type_plan import Layout

ReservationName = Literal["max", "pow2", "oracle", "on-demand"]
PageSize = Literal["64K", "128K", "256K", "2M"]

BLOCK_SIZE = 16
"""Default token slots per block."""

PAGE_BYTES: dict[str, int] = {"64K": 64 << 10, "128K": 128 << 10, "256K": 256 << 10, "2M": 2 << 20}
"""Page sizes that vAttention maps, by name; 2M, the default, is what an unmodified driver supports."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The parts that a policy's name stands for.

    Attributes:
        scheduler: name of the scheduler, which decides which requests run: ``static``, ``orca``,
            ``vllm-sosp``, ``vllm-v0``, ``vllm-v1``, ``sglang``, ``trtllm``, ``lightllm``, or a plug-in's.
        reservation: rule for the tokens to reserve at admission: ``max``, ``pow2``, ``oracle``, or
            ``on-demand``.
        allocator: name of the allocator: ``first-fit``, ``best-fit``, ``buddy``, ``paged``, ``virtual``,
            ``two-level``, ``pools``, or a plug-in's.
        sentence: one-line description for listings.
        block_size: token slots per block, if the policy fixes them.
        default_block_size: token slots per block if the user gives none; None for ``BLOCK_SIZE``.
        options: scheduler options that the policy fixes, by name.
        note: caveat about its results for models whose layers differ in what they keep.
    """

    scheduler: str
    reservation: ReservationName
    allocator: str
    sentence: str
    block_size: int | None = None
    default_block_size: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    note: str = ""

    @property
    def layout(self) -> Layout | None:
        """How layer types share memory under its allocator; None if all blocks are alike.

        Raises:
            PagesimError: there is no such allocator.
        """
        part = ALLOCATORS.find(self.allocator)
        if not isinstance(part, LayerTypePages):
            return None
        return "pools" if part.is_divided else "large-pages"

    @property
    def has_own_blocks(self) -> bool:
        """Whether the policy or its allocator fixes the block size."""
        return self.block_size is not None or self.allocator == "virtual"


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
    "orca-max": Policy("orca", "max", "buddy", "Orca (Max): the full length, from buddy chunks"),
    "orca-pow2": Policy(
        "orca",
        "pow2",
        "buddy",
        "Orca (Pow2): the output rounded up to a power of two, from buddy chunks",
    ),
    "orca-oracle": Policy(
        "orca", "oracle", "buddy", "Orca (Oracle): the true output length, from buddy chunks"
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
        "vLLM 0.11.2 to 0.33.0: prompts in chunks and decodes share a budget",
    ),
    "vllm-v1-no-hybrid": Policy(
        "vllm-v1",
        "on-demand",
        "paged",
        "vllm-v1 with its hybrid KV cache manager off: layers with a window or chunks keep all tokens",
        options={"disable_hybrid_kv_cache_manager": True},
        note="every token that is kept counts as used, also where it is behind a layer's window",
    ),
    "jenga": Policy(
        "vllm-v1",
        "on-demand",
        "two-level",
        "Jenga's memory under vllm-v1, from the paper, not checked against code: small pages for each layer "
        "type in large pages that all types take",
        options={"enable_prefix_caching": False},
        note="from the paper, not checked against code; prefixes are not cached",
    ),
    "pool-per-type": Policy(
        "vllm-v1",
        "on-demand",
        "pools",
        "vllm-v1 over a pool for each layer type, divided once as one request of max_model_len takes it",
        options={"enable_prefix_caching": False},
        note="prefixes are not cached",
    ),
    "sglang": Policy(
        "sglang",
        "on-demand",
        "paged",
        "SGLang 0.5.23: prompts first, admission by an estimate, retraction, a radix tree",
        default_block_size=1,
    ),
    "trtllm": Policy(
        "trtllm",
        "on-demand",
        "paged",
        "TensorRT-LLM: requests start if they can end, or if they fit and may be paused; not checked by logs",
        default_block_size=32,
    ),
    "trtllm-max-util": Policy(
        "trtllm",
        "on-demand",
        "paged",
        "trtllm with capacity_scheduler_policy MAX_UTILIZATION",
        default_block_size=32,
        options={"capacity_scheduler_policy": "MAX_UTILIZATION"},
    ),
    "lightllm": Policy(
        "lightllm",
        "on-demand",
        "paged",
        "LightLLM's admission by the peak to come, over token-granular's memory; not checked by logs",
        block_size=1,
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

POLICY_PLUGINS: Plugins[Policy] = Plugins("policy", "pagesim.policies", POLICIES)
"""The policies above and those of plug-ins."""

CONTIGUOUS = ("first-fit", "best-fit", "buddy")
"""Allocators of runs of contiguous blocks."""


def parts_of(
    name: str,
    scheduler: str | None = None,
    reservation: ReservationName | None = None,
    allocator: str | None = None,
) -> Policy:
    """Return the policy of this name with some of its parts replaced.

    Raises:
        PagesimError: the name is unknown, or the parts are incompatible.
    """
    bundle = POLICY_PLUGINS.find(name)
    policy = replace(
        bundle,
        scheduler=scheduler or bundle.scheduler,
        reservation=reservation or bundle.reservation,
        allocator=allocator or bundle.allocator,
    )
    if bundle.options and policy.scheduler != bundle.scheduler:
        raise PagesimError(
            f"scheduler is {policy.scheduler}; policy {name} is about {', '.join(bundle.options)} of "
            f"{bundle.scheduler}: leave it out"
        )
    if policy.reservation not in get_args(ReservationName):
        known = ", ".join(get_args(ReservationName))
        raise PagesimError(f"reservation is {policy.reservation!r}; it must be one of {known}")
    scheduler_kind = SCHEDULERS.find(policy.scheduler)
    by_type = policy.layout is not None
    if policy.reservation == "on-demand" and policy.allocator in CONTIGUOUS:
        raise PagesimError(
            f"reservation on-demand needs allocator paged or virtual, not {policy.allocator}: "
            "neighbouring blocks cannot be promised to a sequence that grows"
        )
    if policy.allocator == "virtual" and policy.reservation != "on-demand":
        raise PagesimError(
            f"allocator virtual needs reservation on-demand, not {policy.reservation}: it reserves "
            "addresses, and maps memory as a sequence grows"
        )
    if by_type and not issubclass(scheduler_kind.Options, VllmV1Options):
        raise PagesimError(
            f"allocator {policy.allocator} needs scheduler vllm-v1, not {policy.scheduler}: only that one "
            "asks for pages of layer types"
        )
    _check_memory(policy, scheduler_kind)
    return policy


def _check_memory(policy: Policy, scheduler: type[Scheduler]) -> None:
    """Refuse memory that a policy's scheduler cannot work with."""
    reservations, allocators = scheduler.reservations, scheduler.allocators
    needs = f"scheduler {policy.scheduler} needs"
    if policy.reservation not in reservations:
        raise PagesimError(
            f"{needs} reservation {' or '.join(reservations)}, not {policy.reservation}: "
            f"{scheduler.memory_reason}"
        )
    named = ALLOCATORS.owns(policy.allocator) or not scheduler.takes_plugins
    if named and allocators is not None and policy.allocator not in allocators:
        raise PagesimError(
            f"{needs} allocator {' or '.join(allocators)}, not {policy.allocator}: {scheduler.memory_reason}"
        )


def check_preemption(policy: Policy, options: SchedulerOptions) -> None:
    """Refuse a preemption mode that a policy's memory does not support.

    Raises:
        PagesimError: the mode is not supported; the message says why.
    """
    preemption = getattr(options, "preemption", "default")
    if policy.reservation != "on-demand" and preemption != "default":
        raise PagesimError(
            f"preemption {preemption} needs reservation on-demand: where memory is reserved no request is "
            "ever preempted"
        )
    if policy.allocator != "paged" and preemption in ("swap", "auto"):
        raise PagesimError(
            f"preemption {preemption} is not for allocator {policy.allocator}, which cannot swap: a request "
            "that is preempted is recomputed"
        )


def options_of(policy: Policy, given: Mapping[str, Any]) -> SchedulerOptions:
    """Return the options of a policy's scheduler: those that were given, and those the policy fixes.

    Args:
        policy: policy whose scheduler is configured.
        given: options of any scheduler, by name.

    Raises:
        PagesimError: an option contradicts the policy, is unknown to the scheduler, or is out of bounds.
    """
    for name, own in policy.options.items():
        if given.get(name, own) != own:
            raise PagesimError(
                f"{name} is {json.dumps(given[name])}; it must be {json.dumps(own)} or left out: this "
                "policy is about it"
            )
    kind = SCHEDULERS.find(policy.scheduler).Options
    for name in given:
        if name not in kind.model_fields:
            refuse_unknown(policy.scheduler, name)
    try:
        return kind.model_validate({**given, **policy.options})
    except ValidationError as error:
        where = f"under scheduler {policy.scheduler} "
        raise PagesimError(sentence(str(error.errors()[0]["loc"][0]), error, where)) from None
