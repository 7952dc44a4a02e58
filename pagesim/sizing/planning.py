"""Block planning: which layers share block tables, how large a block is, and how many blocks there are.

Sources: ``get_kv_cache_configs`` (v1/core/kv_cache_planning.py) and
``resolve_kv_cache_block_sizes`` (v1/core/kv_cache_utils.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import gcd, lcm

from pagesim.errors import CapacityError, PagesimError
from pagesim.models.layers import (
    ChunkLayer,
    IndexerLayer,
    LatentLayer,
    Layer,
    RingLayer,
    StateLayer,
)
from pagesim.sizing.block_pages import StateMode, at_least_one, block_pages, most_blocks
from pagesim.sizing.block_plan import BlockGroup, BlockPlan
from pagesim.sizing.kernel_blocks import (
    HOPPER,
    OTHER_VENDOR,
    as_kept,
    kernels_block,
    packs,
    stride,
)
from pagesim.sizing.layer_groups import grouped


def plan_blocks(
    layers: Sequence[Layer],
    *,
    max_model_len: int,
    in_flight_tokens: int,
    num_blocks: int | None = None,
    cache_bytes: int | None = None,
    kv_dtype: str = "bf16",
    tp: int = 1,
    block_size: int | None = None,
    prefix_caching: bool = True,
    hybrid: bool = True,
    capability: int | None = None,
    image_prefixes: bool = False,
    state_dtype: str | None = None,
    prefix_match_unit: int | None = None,
    dcp: int = 1,
    drafters: Sequence[Layer] = (),
    drafts: int = 0,
    retained: int = 0,
    stages: Sequence[Collection[int]] = (),
) -> BlockPlan:
    """Plan the blocks of a cache, as vLLM 0.33.0 does.

    Args:
        layers: what each layer keeps, in order (`ModelSpec.cache_layers`).
        max_model_len: tokens of the longest request.
        in_flight_tokens: most tokens that are scheduled but not yet computed: ``max_num_batched_tokens``, or
            twice that under asynchronous scheduling.
        num_blocks: number of blocks, including the null block; exclusive with ``cache_bytes``.
        cache_bytes: bytes for the cache on each GPU.
        kv_dtype: type of keys, values and latent vectors: one of `KV_DTYPE_BYTES`. States have their own.
        tp: GPUs over which heads and states are divided.
        block_size: tokens per block, as far as the layers allow it; the kernels' own if left out.
        prefix_caching: whether prefixes that were computed before are reused.
        hybrid: whether windows and chunks get groups of their own.
        capability: `GpuSpec.capability` of the GPU, which selects the kernels; Hopper's if left out.
        image_prefixes: whether the tokens of an image attend to one another bidirectionally.
        state_dtype: data type of recurrent states (``mamba_ssm_cache_dtype``), not of convolution states;
            each layer's own if left out.
        prefix_match_unit: tokens per block hash; the largest that suits all groups if left out.
        dcp: decode context-parallel size: number of the ``tp`` GPUs over which a block's tokens are divided.
            A block has ``dcp`` times ``block_size`` tokens, at unchanged bytes per GPU.
        drafters: what each of the drafter's layers keeps, in order (`draft_layers`).
        drafts: draft tokens that a step verifies per request; 0 without speculative decoding.
        retained: tokens kept before a window, for MTP modules that read behind.
        stages: indices of each pipeline stage's layers, from 0; a single stage if left out.

    Raises:
        CapacityError: ``cache_bytes`` is less than one block.
        PagesimError: an argument is out of bounds, or vLLM does not start with such layers.
    """
    at_least_one(
        layers=len(layers),
        max_model_len=max_model_len,
        in_flight_tokens=in_flight_tokens,
        block_size=block_size,
        num_blocks=num_blocks,
        cache_bytes=cache_bytes,
        dcp=dcp,
    )
    if (num_blocks is None) == (cache_bytes is None):
        raise PagesimError("a block plan needs num_blocks or cache_bytes, and only one of them: give one")
    if dcp > 1:
        _check_context_parallel(layers, tp, dcp)
    capability = HOPPER if capability is None else capability
    layers = as_kept(layers, capability)
    if state_dtype is not None:
        layers = [
            replace(layer, state_dtype=state_dtype)
            if isinstance(layer, StateLayer) and layer.conv[1]
            else layer
            for layer in layers
        ]
    layers = [
        *[layer.speculating(drafts) if isinstance(layer, StateLayer) else layer for layer in layers],
        *as_kept(drafters, capability),
    ]
    states = [layer for layer in layers if isinstance(layer, StateLayer)]
    mode: StateMode = "align" if states and prefix_caching else "none"
    block_size = block_size or kernels_block(layers, kv_dtype, capability, image_prefixes=image_prefixes)
    pages = block_pages(layers, block_size, kv_dtype, tp, mode, max_model_len)
    leave_states = all(state.checkpoint is not None for state in states)
    groups = []
    packed = packs(layers)
    for members in grouped(pages, hybrid=hybrid, packed=packed):
        page = members[0][1]
        if isinstance(page.rule, ChunkLayer) and page.rule.chunk % page.block_size:
            raise PagesimError(
                f"chunk is {page.rule.chunk} tokens and a block {page.block_size}; vLLM's kernels take "
                "chunks of whole blocks: choose a block_size that divides the chunk"
            )
        checkpoint = None
        if isinstance(page.rule, StateLayer) and mode == "align":
            if page.rule.always:
                checkpoint = page.rule.checkpoint
            elif leave_states:
                checkpoint = page.block_size
        tokens = page.block_size * dcp
        most = most_blocks(
            *(page.rule, tokens, max_model_len, in_flight_tokens, mode), drafts=drafts, retained=retained
        )
        groups.append(
            BlockGroup(
                rule=page.rule,
                places=tuple(place for place, _ in members),
                layers=tuple(layers[place] for place, _ in members),
                block_size=tokens,
                pages=tuple(page.bytes for _, page in members),
                real_pages=tuple(page.real for _, page in members),
                most_blocks=most + (checkpoint is not None),
                checkpoint=checkpoint,
            )
        )
    if drafters and stages:  # the drafter runs in the last stage
        stages = [*stages[:-1], {*stages[-1], *range(len(layers))[-len(drafters) :]}]
    stage_bytes = [max(group.bytes_in(stage) for group in groups) for stage in stages or [range(len(layers))]]
    if packed:
        step = lcm(*[stride(layer, kv_dtype, capability) for layer in layers])
        stage_bytes = [-(-size // step) * step for size in stage_bytes]
    bytes_per_block = sum(stage_bytes)
    if num_blocks is None:
        assert cache_bytes is not None
        num_blocks = cache_bytes // max(stage_bytes)
        if num_blocks < 1:
            raise CapacityError(
                f"a KV block takes {max(stage_bytes)} bytes on each GPU, more than the {cache_bytes} that "
                "are left for the cache: give it more"
            )
    sizes = [group.block_size for group in groups]
    hashed = [group.block_size for group in groups if not isinstance(group.rule, RingLayer)]
    finds = prefix_caching and (not states or mode == "align")
    hash_block = gcd(*hashed) if finds else lcm(*sizes)
    if prefix_match_unit is not None and finds:
        hash_block = _matched(prefix_match_unit, hashed, alone=len(groups) == 1)
    return BlockPlan(
        groups=tuple(groups),
        num_blocks=num_blocks,
        bytes_per_block=bytes_per_block,
        scheduler_block=lcm(*sizes),
        hash_block=hash_block,
        state_mode=mode,
        max_model_len=max_model_len,
        in_flight_tokens=in_flight_tokens,
        host_copies=tp if capability == OTHER_VENDOR else host_copies(layers, tp),
        drafters=len(drafters),
        drafts=drafts,
        retained=retained,
        stage_bytes=tuple(stage_bytes),
    )


def _check_context_parallel(layers: Sequence[Layer], tp: int, dcp: int) -> None:
    """Refuse decode context parallelism where vLLM does, or where it is not modelled.

    Source: ``get_num_blocks`` of each kind of layer (v1/kv_cache_interface.py).
    """
    if tp % dcp:
        raise PagesimError(
            f"decode_context_parallel_size is {dcp}; it must divide tensor_parallel_size, which is {tp}"
        )
    kinds = {layer.kind for layer in layers} - {"full", "latent", "indexer"}
    if kinds & {"window", "chunk"}:
        raise PagesimError(
            f"decode_context_parallel_size is {dcp}, and layers keep a window or chunks, with which vLLM "
            "does not start: leave it out"
        )
    if kinds:
        raise PagesimError(
            f"decode_context_parallel_size is {dcp}, and layers keep a state; what blocks such layers then "
            "have is not modelled: leave it out"
        )


def _matched(unit: int, sizes: Sequence[int], *, alone: bool) -> int:
    """Return ``prefix_match_unit`` if the engine starts with it (``resolve_kv_cache_block_sizes``).

    Raises:
        PagesimError: it does not divide every group's block, or it differs from the only group's block.
    """
    if alone and unit != sizes[0]:
        raise PagesimError(
            f"prefix_match_unit is {unit}; where all layers share blocks it must be a block's "
            f"{sizes[0]} tokens"
        )
    if any(size % unit for size in sizes):
        raise PagesimError(
            f"prefix_match_unit is {unit}; it must divide the blocks of every group: "
            f"{', '.join(map(str, dict.fromkeys(sizes)))} tokens"
        )
    return unit


def host_copies(layers: Sequence[Layer], tp: int) -> int:
    """Return how many GPUs' copies of a block vLLM's host tier stores: one if all ranks hold the same data.

    They do if every layer keeps latent vectors or what an indexer reads (``replicated_layout`` in
    distributed/kv_transfer/kv_connector/v1/offloading/config.py), on one machine with NVIDIA GPUs.

    Args:
        layers: what each layer keeps.
        tp: GPUs that share the model.
    """
    return 1 if all(isinstance(layer, LatentLayer | IndexerLayer) for layer in layers) else tp
