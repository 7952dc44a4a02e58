"""Equip: the options of a system's scheduler, its memory, and its costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pagesim.costs import CostModel, EngineTime, engine_time, parse_cost
from pagesim.costs.specs import (
    BlockPlan,
    Capacity,
    ModelSpec,
    PoolPlan,
    TypePlan,
    capacity,
    gpu,
    model,
    paged_block,
)
from pagesim.costs.specs.capacity import Sizing
from pagesim.errors import PagesimError
from pagesim.scheduling.options import Machine, SchedulerOptions
from pagesim.scheduling.sglang import SglangOptions, static_fraction
from pagesim.scheduling.vllm_v1_options import VllmV1Options
from pagesim.setup.block_plans import (
    block_plan,
    check_graphs,
    check_kv_dtype,
    check_longest,
    pool_plan,
    type_plan,
)
from pagesim.setup.options import chosen
from pagesim.setup.presets import TYPED, Policy, granularity, parts_of
from pagesim.setup.registry import SCHEDULERS
from pagesim.setup.scenario import MOST_BLOCKS, System
from pagesim.setup.served import served_model


def asked_of(system: System, policy: Policy) -> SchedulerOptions:
    """Return the options of a system's scheduler: those given, and those that are its policy's own.

    Raises:
        PagesimError: the scheduler has no such option, a value is off, or contradicts the policy.
    """
    given = policy.with_own(system.scheduler_options)
    if given.get("tiers") and "tiers" not in SCHEDULERS.find(policy.scheduler).Options.model_fields:
        raise PagesimError(
            f"tiers is {' '.join(given['tiers'])}; scheduler {policy.scheduler} stores nothing in tiers: "
            "choose policy vllm-v1, or, for the paper's swap space, preemption swap with cpu_blocks under "
            "vllm-sosp"
        )
    return chosen(policy.scheduler, given)


def options_of(system: System, policy: Policy) -> SchedulerOptions:
    """Return the options of a system's scheduler, with what its engine takes for those left out.

    Raises:
        PagesimError: the scheduler has no such option, a value is off, or the engine would not start with it.
    """
    return SCHEDULERS.find(policy.scheduler).resolve(asked_of(system, policy), machine_of(system))


def machine_of(system: System) -> Machine:
    """Return what the engine of a system knows when it starts."""
    device, spec = gpu(system.gpu), model(system.model)
    return Machine(
        device.name,
        device.memory_bytes,
        system.max_model_len or spec.max_model_len,
        tp=system.tensor_parallel_size,
        listed_mib=device.listed_mib or 0,
        model=system.model,
        latent=spec.mla is not None,
    )


def sizing_of(system: System, policy: Policy) -> tuple[Sizing, float]:
    """Return whose rule sizes a system's memory, and the share of GPU memory that vLLM's may use."""
    kind = SCHEDULERS.find(policy.scheduler)
    share = system.gpu_memory_utilization
    if share is None:
        share = kind.gpu_memory_utilization(asked_of(system, policy))
    return system.sizing or kind.sizing, share


def static_memory(system: System, policy: Policy) -> dict[str, Any]:
    """Return what of a system decides how much memory SGLang's rule gives its cache, as `capacity` takes it.

    Empty where another rule sizes the cache, or the number of blocks is given.

    Raises:
        PagesimError: an option of one rule is given beside another rule, or see `static_fraction`.
    """
    sizing, _ = sizing_of(system, policy)
    options = options_of(system, policy)
    if sizing == "sglang":
        if not isinstance(options, SglangOptions):
            raise PagesimError(
                f"sizing is sglang, and scheduler {policy.scheduler} has none of the options that it goes "
                "by: choose policy sglang, or sizing paper or vllm"
            )
        if system.gpu_memory_utilization is not None:
            raise PagesimError(
                f"gpu_memory_utilization is {system.gpu_memory_utilization}; it is for sizing vllm, and "
                "SGLang has another share: give mem_fraction_static"
            )
    elif not isinstance(options, SglangOptions):
        return {}
    if sizing == "sglang" and system.num_blocks is None:
        share = static_fraction(options, machine_of(system))
        return {"mem_fraction_static": share, "max_total_tokens": options.max_total_tokens}
    beside = f"sizing is {sizing}" if system.num_blocks is None else f"num_blocks is {system.num_blocks}"
    for name in ("mem_fraction_static", "max_total_tokens"):
        if (value := getattr(options, name)) is not None:
            raise PagesimError(
                f"{name} is {value}, and {beside}, beside which it has no effect: leave one of them out"
            )
    return {}


def block_of(system: System, policy: Policy) -> tuple[int, int | None]:
    """Return the token slots of a system's blocks and the bytes of a page: see `granularity`."""
    kind, size, page = SCHEDULERS.find(policy.scheduler), system.block_size, system.page_size
    if isinstance(page, int):
        if not issubclass(kind.Options, SglangOptions):
            raise PagesimError(
                f"page_size is {page}; tokens of a page are an option of sglang, not {policy.scheduler}: "
                "give block_size"
            )
        if size not in (None, page):
            raise PagesimError(
                f"page_size is {page} and block_size {size}; under sglang they are one: leave one out"
            )
        size, page = page, None
    return granularity(policy, size or kind.default_block_size(machine_of(system)), page)


def keeps_tree(options: SchedulerOptions) -> bool:
    """Whether a scheduler with these options caches prefixes in a radix tree."""
    return isinstance(options, SglangOptions) and options.caches


def engine_of(system: System, policy: Policy) -> EngineTime:
    """Return the own time of the engine that a system's scheduler is taken from.

    Raises:
        PagesimError: see `options_of`.
    """
    options = options_of(system, policy)
    kind = SCHEDULERS.find(policy.scheduler)
    own = engine_time(
        policy.scheduler,
        getattr(options, "vllm_version", None),
        asynchronous=kind.schedules_ahead(options),
    )
    return replace(own, graphs_to=kind.graphs_to(options))


def release_of(system: System, policy: Policy) -> str:
    """Return the engine and release that a system's scheduler decides as, empty where it has no releases.

    Raises:
        PagesimError: see `options_of`.
    """
    release = getattr(options_of(system, policy), "vllm_version", None)
    return f"vllm {release}" if release else ""


def memory_of(system: System, policy: Policy) -> dict[str, Any]:
    """Return what of a system decides how much memory its cache gets, as `capacity` and `divide` take it.

    Raises:
        PagesimError: see `options_of`.
    """
    sizing, share = sizing_of(system, policy)
    kind = SCHEDULERS.find(policy.scheduler)
    asked = asked_of(system, policy)
    # A rule that is not the engine's own has defaults of its own.
    options = options_of(system, policy) if sizing == kind.sizing == "vllm" else asked
    return {
        "tp": system.tensor_parallel_size,
        "gpu_memory_utilization": share,
        "max_num_batched_tokens": getattr(options, "max_num_batched_tokens", None),
        "max_num_seqs": getattr(options, "max_num_seqs", None),
        "cuda_graphs": kind.counts_cuda_graphs(asked),
        "flashinfer_sampler": system.flashinfer_sampler,
    }


def block_bytes(system: System, policy: Policy) -> int:
    """Return the bytes of a system's block on each GPU.

    Raises:
        PagesimError: an option is off.
    """
    spec = served_model(system)
    blocks = _blocks_of(system, policy, spec)
    if blocks is not None:
        return blocks.bytes_per_block
    block_size, page_bytes = block_of(system, policy)
    kv_dtype, tp = system.kv_dtype, system.tensor_parallel_size
    if page_bytes is not None:
        return paged_block(spec, page_bytes, kv_dtype=kv_dtype, tp=tp).bytes
    return block_size * spec.kv_bytes_per_token(kv_dtype, tp)


def _blocks_of(system: System, policy: Policy, spec: ModelSpec) -> BlockPlan | PoolPlan | TypePlan | None:
    """Return the plan of a system's blocks; None where layers keep alike, or are kept so."""
    layout = TYPED.get(policy.allocator)
    check_kv_dtype(system, options_of(system, policy), spec)
    if spec.is_plain and layout is None:
        return None
    options = options_of(system, policy)
    if isinstance(options, SglangOptions):
        return pool_plan(system, options, spec, block_of(system, policy)[0])
    if not isinstance(options, VllmV1Options):
        if not (spec.keeps_all or SCHEDULERS.find(policy.scheduler).serves_hybrids):
            raise PagesimError(
                f"layers of {spec.name} keep some tokens only; scheduler {policy.scheduler} is simulated for "
                "layers that keep all: choose another model, or policy vllm-v1"
            )
        return None
    return block_plan(system, options, spec) if layout is None else type_plan(system, options, spec, layout)


def _check_chunk(options: SchedulerOptions, block_size: int) -> None:
    """Refuse a chunk that is no whole number of pages, as SGLang does."""
    if isinstance(options, SglangOptions) and (options.chunked_prefill_size or 0) > 0:
        chunk = options.chunked_prefill_size or 0
        if chunk % block_size:
            raise PagesimError(
                f"chunked_prefill_size is {chunk}; it must be a multiple of a page's {block_size} tokens: "
                "SGLang does not start so"
            )


def equip(system: System, policy: Policy) -> tuple[Capacity, int, CostModel]:
    """Return the memory of a system (null blocks left out), its longest request and its costs.

    Raises:
        PagesimError: an option is off, or the model does not fit.
    """
    spec, device = served_model(system), gpu(system.gpu)
    max_model_len = system.max_model_len or spec.max_model_len
    # The engines of the paper's time start with a cache shorter than the longest request; vLLM's later ones
    # refuse to.
    sizing, _ = sizing_of(system, policy)
    checks_length = sizing == "vllm" and system.num_blocks is None
    block_size, page_bytes = block_of(system, policy)
    blocks = _blocks_of(system, policy, spec)
    _check_chunk(options_of(system, policy), block_size)
    sized = capacity(
        spec,
        device,
        **memory_of(system, policy),
        **static_memory(system, policy),
        block_size=block_size,
        page_bytes=page_bytes,
        kv_dtype=system.kv_dtype,
        sizing=sizing,
        max_model_len=max_model_len if checks_length else None,
        num_blocks=system.num_blocks,
        blocks=blocks,
    )
    if blocks is not None and (checks_length or isinstance(blocks, PoolPlan)):
        blocks.holding(sized.num_blocks).check_start()
    if page_bytes is not None and system.cpu_blocks:
        raise PagesimError(
            f"cpu_blocks is {system.cpu_blocks}; allocator virtual has no swap space: its pages are unmapped "
            "and never moved to the host"
        )
    # A tiny model's tokens are small, and no run fills such a swap space.
    cpu_blocks = min(sized.cpu_blocks, MOST_BLOCKS) if system.cpu_blocks is None else system.cpu_blocks
    sized = replace(sized, cpu_blocks=cpu_blocks)
    if sized.num_blocks > MOST_BLOCKS:
        raise PagesimError(
            f"num_blocks of {spec.name} comes to {sized.num_blocks} blocks of {sized.block_size} tokens; the "
            f"bound is {MOST_BLOCKS}: give num_blocks, or a larger block_size"
        )
    null_blocks = SCHEDULERS.find(policy.scheduler).null_blocks
    if null_blocks and not isinstance(blocks, TypePlan):  # which no sequence ever holds
        sized = replace(sized, num_blocks=sized.num_blocks - null_blocks)
        if sized.num_blocks < 1:
            raise PagesimError(
                f"num_blocks is {sized.num_blocks + null_blocks}; {policy.scheduler} needs at least "
                f"{null_blocks + 1}, of which {null_blocks} is its null block"
            )
    cost = parse_cost(
        system.cost,
        model=spec,
        gpu=device,
        tp=system.tensor_parallel_size,
        block_size=sized.block_size,
        kv_dtype=system.kv_dtype,
        engine=engine_of(system, policy),
        release=release_of(system, policy),
    )
    return sized, max_model_len, cost


def check_served(system: System, *, full_graphs: bool) -> None:
    """Refuse what the engine of a served line refuses when it knows its blocks.

    Args:
        system: that the line describes.
        full_graphs: whether CUDA graphs hold whole iterations.

    Raises:
        PagesimError: see `equip`; a longest request does not fit, or see `check_graphs`.
    """
    policy = parts_of(system.policy)
    options, spec = options_of(system, policy), served_model(system)
    if not isinstance(options, VllmV1Options):
        return
    sized, _, _ = equip(system, policy)
    blocks = block_plan(
        system, options, spec, sized.num_blocks + SCHEDULERS.find(policy.scheduler).null_blocks
    )
    check_longest(system, blocks)
    if full_graphs:
        check_graphs(options, blocks)
