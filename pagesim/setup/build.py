"""Building: the memory and the scheduler of a policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pagesim.costs.specs import BlockPlan, PoolPlan, TypePlan
from pagesim.errors import PagesimError
from pagesim.kvcache import (
    RESERVATIONS,
    BlockManager,
    CountedHybridManager,
    Full,
    HybridManager,
    JengaManager,
    NumberedPrefixManager,
    Pool,
    PooledManager,
    PrefixManager,
)
from pagesim.kvcache.radix import WindowPool
from pagesim.kvcache.tiers import TierChain
from pagesim.scheduling.core import Pool as ReplicaPool
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.options import Prices, SchedulerOptions
from pagesim.setup.block_plans import kv_groups, type_groups
from pagesim.setup.presets import Policy, check_preemption
from pagesim.setup.registry import ALLOCATORS, SCHEDULERS, memory_of


def build_memory(
    policy: Policy,
    options: SchedulerOptions,
    *,
    num_blocks: int,
    block_size: int,
    cpu_blocks: int,
    max_model_len: int,
    plan: BlockPlan | PoolPlan | TypePlan | None = None,
    tables: bool = False,
) -> BlockManager:
    """Return the empty memory of a policy.

    Args:
        policy: its parts.
        options: of its scheduler.
        num_blocks: that sequences can hold, null blocks left out.
        block_size: token slots a block.
        cpu_blocks: of swap space.
        max_model_len: tokens.
        plan: of the blocks, where layers differ in what they keep.
        tables: whether blocks must have numbers, because something is going to look at them.
    """
    scheduler = SCHEDULERS.find(policy.scheduler)
    caches = scheduler.caches_prefixes(options)
    tables = tables or scheduler.needs_tables(options)
    if caches and policy.allocator != "paged":
        raise PagesimError(
            f"enable_prefix_caching needs allocator paged, not {policy.allocator}: it brings its own "
            "memory; give --no-enable-prefix-caching"
        )
    if isinstance(plan, TypePlan):
        return _typed_memory(plan.holding(num_blocks))
    windows = None
    if isinstance(plan, PoolPlan):
        pools, plan = plan.holding(num_blocks), None
        windows = WindowPool(pools.window, pools.window_blocks)
    own = scheduler.memory_for(options, num_blocks, block_size, windows)
    if own is not None:
        return own
    groups = () if plan is None else kv_groups(plan)
    if plan is not None and not (len(groups) == 1 and groups[0].rule == Full()):
        retention = getattr(options, "prefix_cache_retention_interval", None) or 0
        how = {"longest": max_model_len, "in_flight": plan.in_flight_tokens}
        if not (caches or tables):
            return CountedHybridManager(num_blocks, groups, **how)
        return HybridManager(num_blocks, groups, caches=caches, retention=retention, **how)
    if caches:
        kind = NumberedPrefixManager if tables else PrefixManager
        first = scheduler.reuses_unhashed_first(options)
        return kind(num_blocks, block_size, cpu_blocks, reuses_unhashed_first=first)
    on_demand = policy.reservation == "on-demand"
    pool = Pool(
        num_blocks,
        block_size,
        max_model_len,
        None if on_demand else RESERVATIONS[policy.reservation](max_model_len),
        cpu_blocks,
        tables,
    )
    memory = ALLOCATORS.make(policy.allocator, lambda part: memory_of(part, pool))
    if not ALLOCATORS.owns(policy.allocator):
        _check_foreign(policy, memory, pool)
    return memory


def _typed_memory(plan: TypePlan) -> BlockManager:
    """Return memory in which layer types take pages of their own."""
    groups = type_groups(plan)
    how = {"longest": plan.max_model_len, "in_flight": plan.in_flight_tokens}
    if plan.layout == "large-pages":
        return JengaManager(plan.num_blocks, groups, **how)
    return PooledManager(plan.pools, groups, capacity_bytes=plan.num_blocks * plan.bytes_per_block, **how)


def _check_foreign(policy: Policy, memory: BlockManager, pool: Pool) -> None:
    """Refuse a plug-in's memory that is not what the rest of the policy takes it for."""
    where = f"allocator {policy.allocator}"
    if not isinstance(memory, BlockManager):
        raise PagesimError(f"{where} makes a {type(memory).__name__}; it must make a BlockManager")
    if (memory.num_blocks, memory.block_size) != (pool.num_blocks, pool.block_size):
        raise PagesimError(
            f"{where} has {memory.num_blocks} blocks of {memory.block_size} tokens; it was asked for "
            f"{pool.num_blocks} of {pool.block_size}"
        )
    if memory.grows != (pool.reservation is None):
        raise PagesimError(
            f"{where} takes blocks {'as sequences grow' if memory.grows else 'at admission only'}, "
            f"which does not go with reservation {policy.reservation}; choose "
            f"{'on-demand' if memory.grows else 'max, pow2 or oracle'}"
        )
    if SCHEDULERS.find(policy.scheduler).needs_sharing and not memory.shares:
        raise PagesimError(
            f"scheduler {policy.scheduler} needs memory that shares blocks, and {where} does not; "
            "choose vllm-sosp or orca"
        )


def build_scheduler(
    policy: Policy,
    memory: BlockManager,
    options: SchedulerOptions,
    *,
    max_model_len: int,
    prices: Prices,
    pool: ReplicaPool | None = None,
    chain: TierChain | None = None,
) -> Scheduler:
    """Return the scheduler of a policy over its memory.

    Args:
        policy: its parts.
        memory: empty.
        options: of its scheduler.
        max_model_len: tokens.
        prices: by which it preempts under ``auto``.
        pool: what its engine does where prefill is apart from decode.
        chain: of tiers behind the device; None where there is none that the options do not describe alone.

    Raises:
        PagesimError: an option does not go with the memory, or with such a pool.
    """
    check_preemption(policy, options)

    def made(kind: type[Any]) -> Scheduler:
        decides: Callable[..., Scheduler] = (
            kind.kind_for(options) if pool is None else kind.kind_in_pool(options, pool)
        )
        more = {} if chain is None else {"chain": chain}
        return decides(memory, options, max_model_len=max_model_len, prices=prices, **more)

    return SCHEDULERS.make(policy.scheduler, made)
