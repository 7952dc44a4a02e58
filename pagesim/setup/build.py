"""Building: an engine's scheduler with empty memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pagesim.costs import Affine, CostModel, PreemptionPrices, ReadsSpans
from pagesim.errors import PagesimError
from pagesim.kvcache import (
    RESERVATIONS,
    BlockManager,
    HybridManager,
    NumberedPrefixManager,
    Pool,
    PrefixManager,
)
from pagesim.kvcache.groups import are_hybrid
from pagesim.kvcache.radix import HostPool, HostRadixManager, StatePool, WindowPool
from pagesim.models.parallel import hand_over_bytes_per_token
from pagesim.scheduling.attention_spans import AttentionSpans, LastTokens, SinceChunk
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.traits import Pool as ReplicaPool
from pagesim.scheduling.vllm_v1_options import VllmV1Options
from pagesim.setup.block_plans import kv_groups, pipeline_stages, type_groups
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.offload import chain_of, copy_times, load_time
from pagesim.setup.pool_plans import host_pool
from pagesim.setup.presets import check_preemption
from pagesim.setup.registry import ALLOCATORS, SCHEDULERS, memory_of
from pagesim.sim.pipeline import Pipeline
from pagesim.sizing import PoolPlan, StatePlan, TypePlan


def new_scheduler(
    config: EngineConfig, *, tables: bool = False, pool: ReplicaPool | None = None
) -> Scheduler:
    """Return a scheduler with empty memory.

    Args:
        config: engine config.
        tables: whether blocks must be numbered because block tables will be read.
        pool: pool of the engine if prefill and decode are disaggregated.

    Raises:
        PagesimError: an option is incompatible with the memory or with the pool.
    """
    options = config.sized_options
    for name in ("decode_context_parallel_size", "pipeline_parallel_size"):
        if pool is not None and (getattr(options, name, None) or 1) > 1:
            raise PagesimError(
                f"{name} is not for prefill apart from decode, where what it does is in no log of vLLM's "
                "decisions: leave it out"
            )
    memory = new_memory(config, tables=tables)
    check_preemption(config.policy, options)
    prices = None
    if config.offloads or getattr(options, "preemption", None) == "auto":
        prices = PreemptionPrices(config.cost, load_time(config) if config.offloads else None)

    def made(kind: type[Any]) -> Scheduler:
        decides: Callable[..., Scheduler] = (
            kind.kind_for(options) if pool is None else kind.kind_in_pool(options, pool)
        )
        more: dict[str, Any] = {"chain": chain_of(config)} if config.tiers else {}
        if isinstance(memory, HostRadixManager):
            more["copy_times"] = copy_times(config)
        return decides(memory, options, max_model_len=config.max_model_len, prices=prices, **more)

    scheduler = SCHEDULERS.make(config.policy.scheduler, made)
    count_spans(scheduler, config.cost)
    return scheduler


def new_pipeline(config: EngineConfig) -> Pipeline | None:
    """Return the idle pipeline that batches pass through; None if one stage has all layers."""
    stages = pipeline_stages(config)
    if len(stages) == 1:
        return None
    prices = not isinstance(config.cost, Affine)  # its cost already covers the whole iteration
    return Pipeline(
        [len(layers) for layers in stages],
        waits_for_tokens=config.scheduler.schedules_ahead(config.options),
        link=config.gpu.peer if prices else None,
        token_bytes=hand_over_bytes_per_token(config.model, config.system.tensor_parallel_size),
    )


def new_memory(config: EngineConfig, *, tables: bool = False) -> BlockManager:
    """Return empty memory.

    Args:
        config: engine config.
        tables: whether blocks must be numbered because block tables will be read.

    Raises:
        PagesimError: the allocator is incompatible with prefix caching or with the scheduler.
    """
    policy, options, scheduler = config.policy, config.sized_options, config.scheduler
    sized, max_model_len = config.capacity, config.max_model_len
    num_blocks, block_size, plan = sized.num_blocks, sized.block_size, sized.plan
    caches = scheduler.caches_prefixes(options)
    tables = tables or scheduler.needs_tables(options)
    if caches and policy.allocator != "paged":
        raise PagesimError(
            f"enable_prefix_caching needs allocator paged, not {policy.allocator}: it brings its own "
            "memory; give --no-enable-prefix-caching"
        )
    second: WindowPool | StatePool | HostPool | None = host_pool(config)
    types = None
    if isinstance(plan, TypePlan):
        types, plan = plan.holding(num_blocks), None
    if isinstance(plan, PoolPlan):
        pools, plan = plan.holding(num_blocks), None
        second = WindowPool(pools.window, pools.window_blocks)
    if isinstance(plan, StatePlan):
        second, plan = StatePool(plan.states, plan.chunk, plan.state_bytes), None
    own = scheduler.memory_for(options, num_blocks, block_size, second)
    if own is not None:
        return own
    drafts = options.draft_rules if isinstance(options, VllmV1Options) else None
    groups = () if plan is None else kv_groups(plan, drafts)
    if plan is not None and are_hybrid(groups):
        retention = getattr(options, "prefix_cache_retention_interval", None) or 0
        return HybridManager(
            num_blocks,
            groups,
            longest=max_model_len,
            in_flight=plan.in_flight_tokens,
            caches=caches,
            retention=retention,
            hash_block=plan.hash_block,
            hash_lookahead=0 if drafts is None else drafts.hash_lookahead,
            prefill_lookahead=0 if drafts is None else drafts.prefill_lookahead,
        )
    if caches:
        kind = NumberedPrefixManager if tables else PrefixManager
        first = scheduler.reuses_unhashed_first(options)
        return kind(num_blocks, block_size, sized.cpu_blocks, reuses_unhashed_first=first)
    on_demand = policy.reservation == "on-demand"
    pool = Pool(
        num_blocks,
        block_size,
        max_model_len,
        None if on_demand else RESERVATIONS[policy.reservation](max_model_len),
        sized.cpu_blocks,
        tables,
    )
    if types is not None:
        pool = _with_layer_types(pool, types)
    memory = ALLOCATORS.make(policy.allocator, lambda part: memory_of(part, pool))
    if not ALLOCATORS.owns(policy.allocator):
        _check_foreign(config, memory, pool)
    return memory


def _with_layer_types(pool: Pool, plan: TypePlan) -> Pool:
    """Return a pool whose layer types allocate their own pages, as planned."""
    groups, pages = type_groups(plan), plan.pools if plan.layout == "pools" else ()
    return replace(
        pool,
        num_blocks=sum(pages) if pages else plan.num_blocks,
        block_size=groups[0].block_size,
        layer_types=groups,
        pages=pages,
        capacity_bytes=plan.num_blocks * plan.bytes_per_block,
        in_flight_tokens=plan.in_flight_tokens,
    )


def _check_foreign(config: EngineConfig, memory: BlockManager, pool: Pool) -> None:
    """Refuse a plug-in's memory that does not match what the rest of the policy expects."""
    policy = config.policy
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
    # Samples become separate requests if layer types differ.
    shares = memory.shares or pool.layer_types
    if config.scheduler.needs_sharing and not shares:
        raise PagesimError(
            f"scheduler {policy.scheduler} needs memory that shares blocks, and {where} does not; "
            "choose vllm-sosp or orca"
        )


def count_spans(scheduler: Scheduler, cost: CostModel) -> None:
    """Make a scheduler count the tokens that window and chunk layers read, if the cost model needs it."""
    spans = cost.spans if isinstance(cost, ReadsSpans) else None
    if spans is not None and scheduler.follows_reach:
        counters = [SinceChunk(size) if kind == "chunk" else LastTokens(size) for kind, size in spans]
        scheduler.spans = AttentionSpans(counters, scheduler.memory)
