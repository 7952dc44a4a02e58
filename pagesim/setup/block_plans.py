"""Block plans of a system: how vLLM, or an alternative, groups its model's layers into KV cache groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagesim.errors import CapacityError, PagesimError
from pagesim.kvcache import ChunkedLocal, Full, KVGroup, Rule, SlidingWindow, State
from pagesim.models.layers import (
    KV_SCALE_BYTES,
    NVFP4,
    ChunkLayer,
    FullLayer,
    LatentLayer,
    Layer,
    RingLayer,
    StateLayer,
    WindowLayer,
)
from pagesim.models.parallel import cached_by_stage, stages_of
from pagesim.scheduling.speculative_config import DraftRules
from pagesim.scheduling.vllm_releases import RELEASES
from pagesim.scheduling.vllm_v1_options import VllmV1Options, batches_in_flight
from pagesim.setup.presets import BLOCK_SIZE
from pagesim.setup.system import System
from pagesim.sizing import (
    BlockGroup,
    BlockPlan,
    Capacity,
    TypePlan,
    plan_blocks,
    plan_types,
)
from pagesim.sizing.kernel_blocks import check_block
from pagesim.sizing.type_plan import Layout

if TYPE_CHECKING:
    from pagesim.setup.engine_config import EngineConfig

NATIVE_FP8 = 89
"""Lowest compute capability, times ten, at which Triton's kernels support an fp8 cache."""

FLASHINFER_HEADS = frozenset((64, 128, 256, 512))
"""Head dimensions that FlashInfer's kernels support, according to vLLM."""


STATE_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""Data types of recurrent states: pagesim's names by the engines' names."""


def block_plan(config: EngineConfig, max_model_len: int | None = None) -> BlockPlan:
    """Plan the KV blocks of a system of policy ``vllm-v1``, for a cache whose size is still open.

    Args:
        config: engine config.
        max_model_len: tokens of the longest request; the engine's own if left out.

    Raises:
        PagesimError: no log shows the release's plan, or the release does not start with these options.
    """
    system, options, model = config.system, config.options, config.model
    assert isinstance(options, VllmV1Options)
    check_kv_dtype(config)
    _check_context_parallel(config)
    version = options.vllm_version
    groups_layers = RELEASES[version].groups_layers
    if not groups_layers and not model.keeps_all:
        raise PagesimError(
            f"layers of {model.name} differ in what they keep, and the blocks that vLLM {version} makes of "
            "them are in no log of its decisions; choose vllm_version 0.33.0"
        )
    drafts = options.draft_rules
    plan = plan_blocks(
        model.cache_layers,
        max_model_len=max_model_len or config.max_model_len,
        in_flight_tokens=_in_flight(options),
        num_blocks=1,
        kv_dtype=config.kv_dtype,
        tp=system.tensor_parallel_size,
        block_size=system.block_size or (None if groups_layers else BLOCK_SIZE),
        prefix_caching=options.enable_prefix_caching,
        hybrid=not options.disable_hybrid_kv_cache_manager,
        capability=config.capability,
        image_prefixes=model.image_prefixes,
        state_dtype=options.mamba_ssm_cache_dtype and STATE_DTYPES[options.mamba_ssm_cache_dtype],
        prefix_match_unit=options.prefix_match_unit,
        dcp=divided_over(config),
        drafters=config.drafting.layers,
        drafts=drafts.num_speculative_tokens if drafts else 0,
        retained=max(0, drafts.prefill_lookahead - 1) if drafts else 0,
        stages=cached_by_stage(model, pipeline_stages(config)),
    )
    plan.check_retention(options.prefix_cache_retention_interval or 0)
    return plan


def divided_over(config: EngineConfig) -> int:
    """Return the decode context-parallel size, the number of GPUs over which a block's tokens are divided.

    Raises:
        PagesimError: it is above 1, and the blocks are not vLLM's own.
    """
    return _of_own_blocks(config, "decode_context_parallel_size")


def pipeline_stages(config: EngineConfig) -> tuple[range, ...]:
    """Return the layer indices of each pipeline stage, from 0; a single stage without pipeline parallelism.

    Raises:
        PagesimError: there are several stages, and blocks are not vLLM's own or another rule sizes them.
    """
    stages = _of_own_blocks(config, "pipeline_parallel_size")
    if stages > 1 and config.sizing != "vllm" and config.system.num_blocks is None:
        raise PagesimError(
            f"pipeline_parallel_size is {stages}, and sizing is {config.sizing}; it is for sizing vllm: "
            "leave one of them out, or give num_blocks"
        )
    return stages_of(config.model, stages)


def _of_own_blocks(config: EngineConfig, name: str) -> int:
    """Return a parallelism option, which only vLLM's own blocks allow to exceed 1."""
    size, policy = getattr(config.options, name, None) or 1, config.policy
    if size > 1 and (policy.layout is not None or policy.allocator != "paged"):
        raise PagesimError(
            f"{name} is {size}; it is for vLLM's own blocks, not policy {config.system.policy} with "
            f"allocator {policy.allocator}: leave it out"
        )
    return int(size)


def _check_context_parallel(config: EngineConfig) -> None:
    """Refuse a decode context-parallel size that exceeds the replication of KV heads.

    Source: ``verify_with_parallel_config`` (config/model.py).
    """
    size, gpus, model = divided_over(config), config.system.tensor_parallel_size, config.model
    of_heads = [layer.kv_heads for layer in model.cache_layers if isinstance(layer, FullLayer)]
    if size == 1 or not of_heads:
        return
    copies = gpus // max(of_heads)
    if size > copies:
        raise PagesimError(
            f"decode_context_parallel_size is {size}; with {max(of_heads)} KV heads on {gpus} GPUs it can be "
            f"at most {max(copies, 1)}: lower it, or raise tensor_parallel_size"
        )
    sharing = model.heads // max(of_heads)
    if sharing % size:
        raise PagesimError(
            f"decode_context_parallel_size is {size}; it must divide the {sharing} heads that share a KV head"
        )


def fitting_length(config: EngineConfig) -> int:
    """Return the tokens of the longest request that fits next to the null block, for ``max_model_len`` auto.

    It is at most the model's own. Source: ``_auto_fit_max_model_len`` (v1/core/kv_cache_planning.py).

    Raises:
        CapacityError: no request fits, or not even a block does.
        PagesimError: the engine is another, or the release's automatic length is not validated.
    """
    options = config.options
    if not isinstance(options, VllmV1Options) or not RELEASES[options.vllm_version].groups_layers:
        raise PagesimError(
            "max_model_len is auto; it is for policy vllm-v1 and vllm_version 0.33.0: give tokens"
        )
    if config.policy.layout is not None or config.policy.allocator != "paged":
        raise PagesimError(
            f"max_model_len is auto, and what fits is not known under policy {config.system.policy}: give "
            "tokens"
        )
    plan = block_plan(config, config.length_asked)
    plan = plan.holding(config.system.num_blocks or config.capacity_of(plan, None).num_blocks)
    if not plan.longest:
        raise CapacityError(
            f"max_model_len is auto, and not one token fits in the {plan.num_blocks} KV blocks on "
            f"{config.system.tensor_parallel_size} × {config.system.gpu}, one of them the null block: raise "
            "gpu_memory_utilization or tensor_parallel_size"
        )
    return plan.longest


def type_plan(config: EngineConfig, layout: Layout) -> TypePlan:
    """Plan the pages of a system's layer types, for a cache whose size is still open.

    Args:
        config: engine config of policy ``vllm-v1``.
        layout: how types share memory.

    Raises:
        PagesimError: speculative decoding is on, or the layers cannot be divided over the GPUs.
    """
    options = config.options
    assert isinstance(options, VllmV1Options)
    if options.speculation is not None:
        raise PagesimError(
            "speculative_tokens is not for memory of layer types, of which it is not known what drafts take; "
            "leave it out"
        )
    return plan_types(
        config.model.cache_layers,
        layout,
        max_model_len=config.max_model_len,
        in_flight_tokens=_in_flight(options),
        kv_dtype=config.kv_dtype,
        tp=config.system.tensor_parallel_size,
        block_size=config.system.block_size,
    )


def kv_groups(plan: BlockPlan, drafts: DraftRules | None = None) -> tuple[KVGroup, ...]:
    """Return the KV cache groups of a block plan, in its order.

    If the last block of a prefix hit is recomputed, this applies to all groups like those with a drafter's
    KV, or to all groups if the drafter keeps none.

    Args:
        plan: block plan.
        drafts: effects of speculative decoding on memory; None without it.
    """
    reads_behind = drafts is not None and drafts.reads_behind
    drops_block = drafts is not None and drafts.drops_block

    def kept(group: BlockGroup) -> tuple[object, ...]:
        return group.rule, group.block_size, group.pages[0], group.real_pages[0]

    drafting = {kept(group) for group in plan.groups if plan.drafting(group)} or set(map(kept, plan.groups))
    groups = []
    for group in plan.groups:
        rule = _rule(group.rule, State(plan.state_mode == "align", group.checkpoint, plan.drafts))
        if isinstance(rule, SlidingWindow):
            rule = SlidingWindow(rule.window, plan.retained)
        groups.append(
            KVGroup(
                group.block_size,
                rule,
                len(group.layers),
                plan.bytes_per_block,
                group.filled_bytes,
                drops_block and kept(group) in drafting,
                reads_behind and plan.drafting(group) > 0,
            )
        )
    return tuple(groups)


def type_groups(plan: TypePlan) -> tuple[KVGroup, ...]:
    """Return a KV cache group for each layer type of a plan, in its order."""
    return tuple(
        [
            KVGroup(each.block_size, _rule(each.rule, State()), len(each.places), each.page_bytes)
            for each in plan.types
        ]
    )


def _rule(layer: Layer, of_states: State) -> Rule:
    match layer:
        case WindowLayer(window=window):
            return SlidingWindow(window)
        case ChunkLayer(chunk=chunk):
            return ChunkedLocal(chunk)
        case StateLayer():
            return of_states
        case RingLayer():
            return State()  # one block per sequence, in which no prefix is matched
        case _:
            return Full()


def check_kv_dtype(config: EngineConfig) -> None:
    """Refuse a KV cache data type with which vLLM does not start, or whose blocks are not known.

    Raises:
        PagesimError: no kernel for the model supports the type on the GPU, or the type has scales and its
            block sizes are not known for this engine or release.
    """
    options = config.options
    release = RELEASES[options.vllm_version] if isinstance(options, VllmV1Options) else None
    if release is not None and release.scales_tokens:
        _check_fp8(config)
        _check_nvfp4(config)
    elif config.kv_dtype in KV_SCALE_BYTES or config.kv_dtype == NVFP4:
        known = ", ".join(version for version, release in RELEASES.items() if release.scales_tokens)
        given = f"policy {config.system.policy}"
        remedy = f"choose policy vllm-v1 with vllm_version {known}"
        if isinstance(options, VllmV1Options):
            given, remedy = f"vLLM {options.vllm_version}", f"choose vllm_version {known}"
        raise PagesimError(
            f"kv_cache_dtype is {config.kv_dtype}, and what a block of {given} takes with a scale of each "
            f"token and head is not known: {remedy}"
        )


def _check_fp8(config: EngineConfig) -> None:
    """Refuse fp8 below compute capability 8.9 if only vLLM's Triton kernels support the model's layers.

    Sources: ``TritonAttentionImpl`` and ``TritonMLAImpl`` (v1/attention/backends), ``FlashInferBackend``.
    """
    model, kv_dtype, capability = config.model, config.kv_dtype, config.capability
    if not kv_dtype.startswith("fp8") or not capability or capability >= NATIVE_FP8:
        return
    heads = {layer.head_dim for layer in model.cache_layers if isinstance(layer, FullLayer)}
    odd = sorted(heads - FLASHINFER_HEADS)
    needs = {
        "a scale of each token and head": kv_dtype in KV_SCALE_BYTES,
        "latent vectors": any(isinstance(layer, LatentLayer) for layer in model.cache_layers),
        "attention sinks": model.sinks,
        "images that are attended to both ways": model.image_prefixes,
        f"heads of {' and '.join(map(str, odd))}": odd,
    }
    for what, is_there in needs.items():
        if is_there:
            raise PagesimError(
                f"kv_cache_dtype is {kv_dtype}, and {config.system.gpu} has compute capability "
                f"{capability / 10:.1f}; {model.name} has {what}, for which vLLM has Triton's kernels alone, "
                f"and these take fp8 from {NATIVE_FP8 / 10:.1f}: give kv_cache_dtype bf16 (bfloat16)"
            )


def _check_nvfp4(config: EngineConfig) -> None:
    """Refuse nvfp4 for layers that FlashInfer's kernels, the only ones with nvfp4, do not support.

    Sources: ``FlashInferBackend`` (v1/attention/backends/flashinfer.py), ``get_attn_backend_cls``.
    """
    model = config.model
    sinks = model.sinks and (config.capability or 0) // 10 != 10
    what = "images that are attended to both ways" if model.image_prefixes else "attention sinks"
    if config.kv_dtype == NVFP4 and (model.image_prefixes or sinks):
        raise PagesimError(
            f"kv_cache_dtype is nvfp4, which FlashInfer's kernels alone take; {model.name} has {what}, which "
            f"they do not compute on {config.system.gpu}: give kv_cache_dtype bf16 (bfloat16) or fp8"
        )


def check_longest(system: System, blocks: BlockPlan) -> None:
    """Refuse, as the engine does at startup, a cache that cannot hold one request of ``max_model_len``.

    Raises:
        CapacityError: the request does not fit.
    """
    if blocks.starts:
        return
    longest = blocks.longest
    shorter = f"lower max_model_len to at most {longest}, or " if longest else ""
    remedy = "raise gpu_memory_utilization or tensor_parallel_size"
    if system.kv_cache_memory_bytes is not None:
        remedy = "raise kv_cache_memory_bytes or tensor_parallel_size"
    if system.num_blocks is not None:
        remedy = f"raise num_blocks (num_gpu_blocks_override) to at least {blocks.most_blocks + 1}"
    raise CapacityError(
        f"max_model_len is {blocks.max_model_len} tokens, but a request of {system.model} can have at most "
        f"{longest} in the {blocks.num_blocks} KV blocks on {system.tensor_parallel_size} × {system.gpu}, "
        f"one of them the null block: {shorter}{remedy}"
    )


def check_cache_bytes(config: EngineConfig, sized: Capacity) -> None:
    """Refuse a ``kv_cache_memory_bytes`` that does not fit on a GPU together with the weights.

    Raises:
        CapacityError: it does not fit.
        PagesimError: a rule other than vLLM's sizes the cache.
    """
    system, gpu = config.system, config.gpu
    asked = system.kv_cache_memory_bytes
    if asked is None or system.num_blocks is not None:
        return
    if config.sizing != "vllm":
        raise PagesimError(
            f"kv_cache_memory_bytes is {asked}, and sizing is {config.sizing}; it is for sizing vllm: leave "
            "one of them out"
        )
    room = gpu.memory_bytes - sized.weight_bytes_per_gpu
    if asked > room:
        raise CapacityError(
            f"kv_cache_memory_bytes is {asked}, more than the {max(room, 0)} bytes of {gpu.name} beside "
            f"{sized.weight_bytes_per_gpu} of weights: lower it, or raise tensor_parallel_size"
        )


def refused_graphs(options: VllmV1Options, blocks: BlockPlan) -> str:
    """Return why the engine refuses this many sequences with CUDA graphs, or '' if it does not."""
    refusal = blocks.beyond_graphs(options.max_num_seqs or 0)
    captures = options.max_cudagraph_capture_size != 0
    return f"{refusal}, or give --enforce-eager" if refusal and captures else ""


def check_serve_line(config: EngineConfig, *, full_graphs: bool) -> None:
    """Refuse what the engine of a server command refuses once it knows its blocks.

    Args:
        config: engine config that the command describes.
        full_graphs: whether CUDA graphs cover whole iterations.

    Raises:
        PagesimError: an option is invalid, a longest request does not fit, or there are more sequences than
            the engine can start with when it captures full CUDA graphs.
    """
    options = config.options
    if not isinstance(options, VllmV1Options):
        return
    num_blocks = config.capacity.num_blocks + config.scheduler.null_blocks
    if config.system.block_size and config.capability:
        check_block(config.model.cache_layers, config.system.block_size)
    blocks = block_plan(config).holding(num_blocks)
    check_longest(config.system, blocks)
    if full_graphs and (refusal := refused_graphs(options, blocks)):
        raise CapacityError(refusal)


def _in_flight(options: VllmV1Options) -> int:
    """Return the most tokens that are scheduled but not yet computed."""
    assert options.max_num_batched_tokens is not None
    return batches_in_flight(options) * options.max_num_batched_tokens
