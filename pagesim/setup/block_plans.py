"""The plan of a system's blocks: what vLLM, or a rival, makes of its model's layers, from its options."""

from __future__ import annotations

from pagesim.costs.specs import (
    BlockPlan,
    ModelSpec,
    PoolPlan,
    TypePlan,
    gpu,
    plan_blocks,
    plan_pools,
    plan_types,
)
from pagesim.costs.specs.layers import KV_SCALE_BYTES, FullLayer, LatentLayer, StateLayer
from pagesim.costs.specs.type_plan import Layout
from pagesim.errors import CapacityError, PagesimError
from pagesim.scheduling.options import SchedulerOptions
from pagesim.scheduling.sglang import SglangOptions
from pagesim.scheduling.vllm_releases import RELEASES
from pagesim.scheduling.vllm_v1_options import VllmV1Options
from pagesim.setup.presets import BLOCK_SIZE
from pagesim.setup.scenario import System

NATIVE_FP8 = 89
"""The compute capability, ten times, from which Triton's kernels take a cache in fp8."""

FLASHINFER_HEADS = frozenset((64, 128, 256, 512))
"""Widths of heads that FlashInfer's kernels take, as vLLM has it."""


def block_plan(system: System, options: VllmV1Options, model: ModelSpec, num_blocks: int = 1) -> BlockPlan:
    """Plan the KV blocks of a system of policy ``vllm-v1``.

    Args:
        system: what serves.
        options: of its scheduler, resolved.
        model: what it serves.
        num_blocks: blocks of its cache, where they are known already.

    Raises:
        PagesimError: the release's plan is in no log, or it does not start with these options.
    """
    check_kv_dtype(system, options, model)
    version = options.vllm_version
    groups_layers = RELEASES[version].groups_layers
    if not groups_layers and not model.keeps_all:
        raise PagesimError(
            f"layers of {model.name} differ in what they keep, and the blocks that vLLM {version} makes of "
            "them are in no log of its decisions; choose vllm_version 0.33.0"
        )
    if options.speculative_tokens and not model.keeps_all:
        raise PagesimError(
            f"layers of {model.name} differ in what they keep, and what drafts take of them is in no log of "
            "vLLM's decisions; leave speculative_tokens out"
        )
    plan = plan_blocks(
        model.cache_layers,
        max_model_len=system.max_model_len or model.max_model_len,
        in_flight_tokens=_in_flight(options),
        num_blocks=num_blocks,
        kv_dtype=system.kv_dtype,
        tp=system.tensor_parallel_size,
        block_size=system.block_size or (None if groups_layers else BLOCK_SIZE),
        prefix_caching=options.enable_prefix_caching,
        hybrid=not options.disable_hybrid_kv_cache_manager,
        capability=_capability(system),
    )
    plan.check_retention(options.prefix_cache_retention_interval or 0)
    return plan


def type_plan(system: System, options: VllmV1Options, model: ModelSpec, layout: Layout) -> TypePlan:
    """Plan the pages of the layer types of a system, of a cache that is empty yet.

    Args:
        system: what serves.
        options: of its scheduler, resolved.
        model: what it serves.
        layout: how types share memory.

    Raises:
        PagesimError: it has drafts, or its layers cannot be dealt out over its GPUs.
    """
    check_kv_dtype(system, options, model)
    if options.speculative_tokens:
        raise PagesimError(
            "speculative_tokens is not for memory of layer types, of which it is not known what drafts take; "
            "leave it out"
        )
    return plan_types(
        model.cache_layers,
        layout,
        max_model_len=system.max_model_len or model.max_model_len,
        in_flight_tokens=_in_flight(options),
        kv_dtype=system.kv_dtype,
        tp=system.tensor_parallel_size,
        block_size=system.block_size,
    )


def pool_plan(system: System, options: SglangOptions, model: ModelSpec, block_size: int) -> PoolPlan | None:
    """Plan the two pools of a system of policy ``sglang``; None where it has one, of layers that keep all.

    Args:
        system: what serves.
        options: of its scheduler.
        model: what it serves.
        block_size: tokens of a page.

    Raises:
        PagesimError: its layers keep a state, or something else that is not simulated.
    """
    if any(isinstance(layer, StateLayer) for layer in model.cache_layers):
        raise PagesimError(
            f"layers of {model.name} keep a state; scheduler sglang is simulated for layers that attend: "
            "choose another model, or policy vllm-v1"
        )
    if options.disable_hybrid_swa_memory:
        return None
    return plan_pools(
        model,
        block_size=block_size,
        ratio=options.swa_full_tokens_ratio,
        kv_dtype=system.kv_dtype,
        tp=system.tensor_parallel_size,
    )


def check_kv_dtype(system: System, options: SchedulerOptions, model: ModelSpec) -> None:
    """Refuse a type of the cache that vLLM does not start with, or of which blocks are not known.

    Raises:
        PagesimError: fp8 on a GPU on which no kernel for the model takes it, or a scale of each token and
            head where it is not known what blocks take of this engine or release.
    """
    if isinstance(options, VllmV1Options) and RELEASES[options.vllm_version].scales_tokens:
        _check_fp8(system, model)
    if system.kv_dtype not in KV_SCALE_BYTES:
        return
    known = ", ".join(version for version, release in RELEASES.items() if release.scales_tokens)
    given = f"policy {system.policy}"
    remedy = f"choose policy vllm-v1 with vllm_version {known}"
    if isinstance(options, VllmV1Options):
        if RELEASES[options.vllm_version].scales_tokens:
            return
        given, remedy = f"vLLM {options.vllm_version}", f"choose vllm_version {known}"
    raise PagesimError(
        f"kv_cache_dtype is {system.kv_dtype}, and what a block of {given} takes with a scale of each "
        f"token and head is not known: {remedy}"
    )


def _check_fp8(system: System, model: ModelSpec) -> None:
    """Refuse fp8 before compute capability 8.9 where only vLLM's Triton kernels take the model's layers.

    Sources: ``TritonAttentionImpl`` and ``TritonMLAImpl`` (v1/attention/backends), ``FlashInferBackend``.
    """
    capability = _capability(system)
    if not system.kv_dtype.startswith("fp8") or not capability or capability >= NATIVE_FP8:
        return
    heads = {layer.head_dim for layer in model.cache_layers if isinstance(layer, FullLayer)}
    odd = sorted(heads - FLASHINFER_HEADS)
    needs = {
        "a scale of each token and head": system.kv_dtype in KV_SCALE_BYTES,
        "latent vectors": any(isinstance(layer, LatentLayer) for layer in model.cache_layers),
        "attention sinks": model.sinks,
        "images that are attended to both ways": model.image_prefixes,
        f"heads of {' and '.join(map(str, odd))}": odd,
    }
    for what, is_there in needs.items():
        if is_there:
            raise PagesimError(
                f"kv_cache_dtype is {system.kv_dtype}, and {system.gpu} has compute capability "
                f"{capability / 10:.1f}; {model.name} has {what}, for which vLLM has Triton's kernels alone, "
                f"and these take fp8 from {NATIVE_FP8 / 10:.1f}: give kv_cache_dtype bf16 (bfloat16)"
            )


def check_longest(system: System, blocks: BlockPlan) -> None:
    """Refuse, as the engine does when it starts, a cache in which not even one longest request fits.

    Raises:
        CapacityError: it does not.
    """
    if blocks.starts:
        return
    longest = blocks.longest
    shorter = f"lower max_model_len to at most {longest}, or " if longest else ""
    remedy = "raise gpu_memory_utilization or tensor_parallel_size"
    if system.num_blocks is not None:
        remedy = f"raise num_blocks (num_gpu_blocks_override) to at least {blocks.most_blocks + 1}"
    raise CapacityError(
        f"max_model_len is {blocks.max_model_len} tokens, but a request of {system.model} can have at most "
        f"{longest} in the {blocks.num_blocks} KV blocks on {system.tensor_parallel_size} × {system.gpu}, "
        f"one of them the null block: {shorter}{remedy}"
    )


def check_graphs(options: VllmV1Options, blocks: BlockPlan) -> None:
    """Refuse more sequences than the engine starts with where it captures full CUDA graphs.

    Raises:
        CapacityError: see `BlockPlan.beyond_graphs`.
    """
    for refusal in graph_notes(options, blocks):
        raise CapacityError(refusal)


def graph_notes(options: SchedulerOptions, blocks: object) -> tuple[str, ...]:
    """Return that the engine does not start with so many sequences; nothing where it does."""
    if not isinstance(options, VllmV1Options) or not isinstance(blocks, BlockPlan):
        return ()
    refusal = blocks.beyond_graphs(options.max_num_seqs or 0)
    captures = options.max_cudagraph_capture_size != 0
    return (f"{refusal}, or give --enforce-eager",) if refusal and captures else ()


def kernel_notes(system: System, model: ModelSpec) -> tuple[str, ...]:
    """Return that blocks are a Hopper GPU's where a GPU decides and its capability is not known."""
    decides = any(isinstance(layer, LatentLayer | StateLayer) for layer in model.cache_layers)
    if not decides or _capability(system) is not None:
        return ()
    named = (
        f"gpu {system.gpu} has no compute capability"
        if "gpu" in system.model_fields_set
        else "no gpu is named"
    )
    return (f"{named}, by which vLLM chooses kernels: blocks are planned as on a Hopper GPU",)


def _capability(system: System) -> int | None:
    """Return the compute capability of a system's GPU; None where none is named, or it is not known."""
    return gpu(system.gpu).capability if "gpu" in system.model_fields_set else None


def _in_flight(options: VllmV1Options) -> int:
    """Return the tokens that are scheduled and not yet computed at most."""
    assert options.max_num_batched_tokens is not None
    return (2 if options.async_scheduling else 1) * options.max_num_batched_tokens
