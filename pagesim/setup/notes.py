"""Notes: the defaults that a resolved system uses, and the assumptions made about it, in words."""

from __future__ import annotations

from typing import Any

from pagesim.costs import Assuming, Profiled, ReadsSpans
from pagesim.costs.engines import NOT_MEASURED
from pagesim.costs.roofline import Roofline
from pagesim.errors import CapacityError
from pagesim.hardware.gpus import GIB
from pagesim.models.layers import LatentLayer, StateLayer
from pagesim.scheduling.sglang import SglangOptions, most_running
from pagesim.scheduling.vllm_v1_options import VllmV1Options
from pagesim.setup.block_plans import block_plan, check_longest, divided_over, refused_graphs
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.kv_dtypes import DEFAULT_KV_DTYPE
from pagesim.sizing import BlockPlan, divide_statically


def resolved_options(config: EngineConfig) -> dict[str, dict[str, Any]]:
    """Return the options that affect memory and scheduling, divided into ``given`` and ``defaults``."""
    system = config.system
    values: dict[str, Any] = {
        **config.sized_options.model_dump(exclude_none=True),
        "max_model_len": config.max_model_len,
    }
    if kv_notes(config):
        values["kv_cache_dtype"] = config.kv_dtype
    if system.num_blocks is None:
        values["sizing"] = config.sizing
        if system.kv_cache_memory_bytes is not None:
            values["kv_cache_memory_bytes"] = system.kv_cache_memory_bytes
        elif config.sizing == "vllm":
            values["gpu_memory_utilization"] = config.gpu_memory_utilization
    if isinstance(options := config.sized_options, SglangOptions):
        values |= {name: value for name, value in config.sglang_memory.items() if value is not None}
        values["block_size" if system.page_size is None else "page_size"] = config.capacity.block_size
        values["max_running_requests"] = most_running(options, config.capacity.slots, config.max_model_len)
    given = {name for name in values if system.option(name) is not None}
    return {
        "given": {name: value for name, value in values.items() if name in given},
        "defaults": {name: value for name, value in values.items() if name not in given},
    }


def system_notes(config: EngineConfig) -> tuple[str, ...]:
    """Return notes on the assumptions made about a system, once everything has run."""
    cost, plan = config.cost, config.capacity.plan
    return (
        *config.model.notes,
        *kv_notes(config),
        *(kernel_notes(config) if isinstance(plan, BlockPlan) else ()),
        *_length_notes(config),
        *_graph_notes(config),
        *(cost.notes if isinstance(cost, Assuming) else ()),
        *_span_notes(config),
        *_context_parallel_notes(config),
        *_expert_notes(config),
        *_draft_notes(config),
        *[
            f"cost {config.system.cost} is extrapolated beyond what was measured of "
            f"{axis.replace(':', f', to {size:,}', 1)}"
            for axis, size in cost.beyond.items()
        ],
        *_default_notes(config),
        *_static_notes(config),
        *([f"{config.system.policy}: {config.policy.note}"] if config.policy.note and plan else []),
        *_link_notes(config),
        *_engine_notes(config),
    )


def _engine_notes(config: EngineConfig) -> tuple[str, ...]:
    """Return notes on the source of an engine time that was not measured, and on front-end delays."""
    time, front, given = config.engine_time, config.front_end, config.system.frontend is not None
    notes = []
    charged = isinstance(config.cost, Roofline) or (
        isinstance(config.cost, Profiled) and config.cost.profile.terms.overhead is None
    )
    if charged and "overhead_s=" not in config.system.cost and time.source.startswith(NOT_MEASURED):
        notes.append(
            f"the engine's own time, {1e3 * time.iteration_s:.2g} ms an iteration and "
            f"{1e6 * time.sequence_s:.2g} us a sequence, was {time.source}"
        )
    if not given and (front.request_s or front.token_s):
        notes.append(
            f"latencies contain a front end (HTTP, tokenizer) of {1e3 * front.request_s:g} ms a request and "
            f"{1e6 * front.token_s:g} us a prompt token, {front.source}: --frontend-latency 0 leaves it out"
        )
    return tuple(notes)


def kv_notes(config: EngineConfig) -> tuple[str, ...]:
    """Return a note if the checkpoint, or vLLM for this model and GPU, decides the KV cache's data type."""
    system, dtype = config.system, config.kv_dtype
    if system.kv_cache_dtype is not None or dtype == DEFAULT_KV_DTYPE:
        return ()
    said = f"as the checkpoint of {system.model} says"
    if not config.model.kv_dtype:
        engine = "SGLang" if isinstance(config.sized_options, SglangOptions) else "vLLM"
        said = f"as {engine} keeps that of {system.model} on {system.gpu}"
    return (f"the KV cache is {dtype}, {said}: give kv_cache_dtype bf16 for 16 bits",)


def kernel_notes(config: EngineConfig) -> tuple[str, ...]:
    """Return a note if blocks depend on the GPU, are planned for Hopper, and the capability is unknown."""
    decides = any(isinstance(layer, LatentLayer | StateLayer) for layer in config.model.cache_layers)
    if not decides or config.capability is not None:
        return ()
    named = (
        f"gpu {config.system.gpu} has no compute capability"
        if "gpu" in config.system.model_fields_set
        else "no gpu is named"
    )
    return (f"{named}, by which vLLM chooses kernels: blocks are planned as on a Hopper GPU",)


def _length_notes(config: EngineConfig) -> tuple[str, ...]:
    """Return a note if the engine does not start with as few blocks as given."""
    system, options = config.system, config.options
    if system.policy != "vllm-v1" or system.num_blocks is None or not isinstance(options, VllmV1Options):
        return ()
    if config.blocks is None and config.max_model_len <= config.capacity.slots:
        return ()
    try:
        check_longest(system, block_plan(config).holding(system.num_blocks))
    except CapacityError as refusal:
        return (f"vLLM does not start so: {refusal}",)
    return ()


def _graph_notes(config: EngineConfig) -> tuple[str, ...]:
    """Return a note if the engine does not start with this many sequences."""
    options, plan = config.options, config.capacity.plan
    if not isinstance(options, VllmV1Options) or not isinstance(plan, BlockPlan):
        return ()
    refusal = refused_graphs(options, plan)
    return (refusal,) if refusal else ()


def _span_notes(config: EngineConfig) -> tuple[str, ...]:
    """Return a note if the cost model needs the tokens that layers attend to and the scheduler lacks them."""
    asks = isinstance(config.cost, ReadsSpans) and config.cost.spans
    if config.scheduler.follows_reach or not asks:
        return ()
    return (
        f"{config.policy.scheduler} does not say how many tokens are within the span of layers that look "
        "back on some only: they are charged for all",
    )


def _context_parallel_notes(config: EngineConfig) -> tuple[str, ...]:
    """Return a note if tokens are divided over GPUs, which the cost model ignores."""
    size = divided_over(config)
    if size == 1:
        return ()
    return (
        f"decode_context_parallel_size {size} decides on blocks here; what an iteration takes is charged as "
        "if each GPU read all tokens of its heads",
    )


def _expert_notes(config: EngineConfig) -> tuple[str, ...]:
    """Return notes on the cost of experts and MLPs that ranks share or that are kept whole."""
    division = config.model.expert_division
    if division is None:
        return ()
    if division.ranks > 1:
        name = "attn_dp_size" if division.mlps else "data_parallel_size"
        over = f"{name} {division.ranks}"
    else:
        over = "ep_size" if division.mlps else "enable_expert_parallel"
    what = "MLPs" if config.model.moe is None else "experts"
    if isinstance(config.cost, Roofline):
        at_random = "" if config.model.moe is None else ", and tokens as if they chose experts at random"
        return (
            f"{over}: what GPUs send each other for {what} is charged as an all-gather and a reduce-scatter "
            f"within a server{at_random}",
        )
    return (
        f"{over}: what GPUs send each other for {what} is not charged, and cost {config.system.cost} takes "
        f"all {what} to be on the GPUs of each rank",
    )


def _draft_notes(config: EngineConfig) -> tuple[str, ...]:
    """Return notes on draft tokens: the assumed acceptance, and what the drafter keeps and costs."""
    options = config.options
    if not isinstance(options, VllmV1Options | SglangOptions) or (speculation := options.speculation) is None:
        return ()
    notes = []
    if options.acceptance is None:
        rates = ", then ".join(f"{rate:.0%}" for rate in speculation.acceptance(None))
        preset = not (speculation.synthetic_acceptance_rates or speculation.synthetic_acceptance_length)
        source = f"a preset of {speculation.drafter}" if preset else "as speculative_config says"
        notes.append(
            f"drafts whose predecessors are accepted are accepted with {rates} ({source}): acceptance"
        )
    if speculation.model is not None and config.drafting.drafter is None and config.drafting.layers:
        notes.append(
            f"what {speculation.model} keeps is not known: it is taken to have {len(config.drafting.layers)} "
            f"layers like the last of {config.system.model} that attends to all tokens"
        )
    if config.drafting.forwards is not None and not isinstance(config.cost, Roofline):
        notes.append(f"cost {config.system.cost} does not charge what drafts: cost roofline does")
    if speculation.drafter == "suffix":
        notes.append(
            f"every step of suffix is taken to have {speculation.tokens} drafts, the most it may have"
        )
    return tuple(notes)


def _default_notes(config: EngineConfig) -> tuple[str, ...]:
    """Return a note on the options whose defaults depend on the machine, if the scheduler has any."""
    defaults = resolved_options(config)["defaults"]
    taken = [name for name in defaults if getattr(config.given_options, name, ...) is None]
    if not taken:
        return ()
    served = ", ".join(f"{name} {defaults[name]}" for name in taken)
    return (f"{config.policy.scheduler} on {config.system.gpu} takes by default {served}",)


def _static_notes(config: EngineConfig) -> tuple[str, ...]:
    """Return a note on how SGLang's cache was sized; nothing if another rule sized it."""
    asked, sized = config.sglang_memory, config.capacity
    if not asked:
        return ()
    share, most = asked["mem_fraction_static"], asked["max_total_tokens"]
    division = divide_statically(
        *(config.model, config.gpu),
        tp=sized.tp,
        mem_fraction_static=share,
        drafter_bytes=config.drafting.weights,
    )
    cut = most is not None and sized.slots + sized.block_size > most
    limit = f", cut to max_total_tokens {most:,}" if cut else ""
    return (
        f"the cache holds {sized.slots:,} tokens: mem_fraction_static {share:g} of the "
        f"{division.requested / GIB:.2f} GiB that are estimated to be free on each GPU before weights are "
        f"loaded, less {division.weights / GIB:.2f} GiB of weights, is {division.cache / GIB:.2f} GiB, a "
        f"token takes {sized.block_bytes // sized.block_size:,} bytes there{limit}",
    )


def _link_notes(config: EngineConfig) -> list[str]:
    """Return notes on the source of each tier's link speeds."""
    notes = []
    for tier in config.tiers:
        into = "" if tier.store.note == tier.load.note else f"; into it: {tier.store.note}"
        notes.append(f"links of {tier.name}: {tier.load.note}{into}")
    return notes
