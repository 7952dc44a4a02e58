"""Plans of SGLang's second pool: for layers with a window, for states, or in host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagesim.errors import PagesimError
from pagesim.kvcache.radix import HostPool
from pagesim.scheduling.sglang import SglangOptions
from pagesim.scheduling.sglang.defaults import options_of_rank, states_of_a_request
from pagesim.setup.block_plans import STATE_DTYPES
from pagesim.sizing import PoolPlan, StatePlan, plan_pools, plan_states

if TYPE_CHECKING:
    from pagesim.setup.engine_config import EngineConfig

GB = 1e9
"""Bytes per gigabyte."""


def pool_plan(config: EngineConfig, options: SglangOptions) -> PoolPlan | StatePlan | None:
    """Plan the two pools of a system of policy ``sglang``; None if a single pool holds all layers.

    Raises:
        PagesimError: the layers keep something that is not simulated, or SGLang would not start with these
            options.
    """
    model, page = config.model, config.granularity[0]
    tp, kv_dtype = config.tp, config.kv_dtype
    if model.state_layers:
        options = options_of_rank(options)
        if options.caches and options.mamba_radix_cache_strategy == "no_buffer" and page > 1:
            raise PagesimError(
                f"mamba_radix_cache_strategy is no_buffer, and block_size is {page}; SGLang needs pages of "
                "1 token for it: choose extra_buffer, or leave block_size out"
            )
        running = options.max_running_requests or 0  # with drafts it has a default
        interval, verified = options.mamba_track_interval, options.speculative_num_draft_tokens or 0
        if options.tracking_slots(page) and (interval < verified or interval % page):
            raise PagesimError(
                f"mamba_track_interval is {interval}; SGLang starts only with a multiple of a page's {page} "
                f"tokens, and with no fewer than the {verified} that a step verifies"
            )
        return plan_states(
            model,
            block_size=page,
            of_a_request=states_of_a_request(options, page),
            states=options.max_mamba_cache_size or (running if options.disable_radix_cache else 0),
            ratio=options.mamba_full_memory_ratio,
            state_dtype=options.mamba_ssm_dtype and STATE_DTYPES[options.mamba_ssm_dtype],
            kv_dtype=kv_dtype,
            tp=tp,
            draft_layers=config.drafting.attending,
            verified=verified,
            running=running,
        )
    if options.disable_hybrid_swa_memory:
        return None
    ratio = options.swa_full_tokens_ratio
    drafts = config.drafting.attending
    return plan_pools(model, block_size=page, ratio=ratio, kv_dtype=kv_dtype, tp=tp, draft_layers=drafts)


def host_pool(config: EngineConfig) -> HostPool | None:
    """Return the host pool of a system of policy ``sglang``; None if it has none.

    Source: SGLang 0.5.23, ``srt/mem_cache/pool_host/base.py``.

    Raises:
        PagesimError: SGLang would not start with it, or its behavior is not simulated.
    """
    options, sized = config.options, config.capacity
    if not isinstance(options, SglangOptions) or not options.enable_hierarchical_cache:
        return None
    if sized.plan is not None:
        kept = "a state" if isinstance(sized.plan, StatePlan) else "a window"
        raise PagesimError(
            f"enable_hierarchical_cache is given, and layers of {config.model.name} keep {kept}: what "
            "SGLang decides then is checked by no log; leave it out"
        )
    page, speculation = sized.block_size, options.speculation
    tokens = int(sized.slots * options.hicache_ratio)
    if options.hicache_size:
        token_bytes = sized.block_bytes // page
        if speculation is not None and speculation.drafter != "mtp":  # its layers have a pool of their own
            token_bytes = config.model.kv_bytes_per_token(config.kv_dtype, config.tp)
        tokens = int(options.hicache_size * GB // token_bytes)
    return HostPool((tokens // page + 1) * page, options.hicache_write_policy)


def check_chunk(options: SglangOptions, page: int) -> None:
    """Refuse a prefill chunk that is not a whole number of pages, as SGLang does.

    Args:
        options: resolved options.
        page: tokens per page.
    """
    chunk = options.chunked_prefill_size or 0
    if chunk > 0 and chunk % page:
        raise PagesimError(
            f"chunked_prefill_size is {chunk}; it must be a multiple of a page's {page} tokens: "
            "SGLang does not start so"
        )
