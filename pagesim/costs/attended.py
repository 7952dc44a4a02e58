"""Bytes and operations of attention per attended token, by the layers' attention span."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from pagesim.costs.base import AttentionSpan
from pagesim.models import ModelSpec
from pagesim.models.layers import (
    ChunkLayer,
    IndexerLayer,
    LatentLayer,
    Layer,
    RingLayer,
    StateLayer,
    WindowLayer,
    kept_per_token,
)


class Attended(NamedTuple):
    """Attention's work per attended token, summed over some layers.

    Attributes:
        bytes: bytes read on each GPU in decoding.
        flops: operations in decoding, on all GPUs together.
        prompt_flops: operations per query-key pair in a prompt, on all GPUs together.
    """

    bytes: int
    flops: int
    prompt_flops: int


def attended(model: ModelSpec, kv_dtype: str, tp: int) -> dict[AttentionSpan | None, Attended]:
    """Return attention's work per attended token, by span; None stands for full attention.

    Decoding uses the absorbed form of latent attention, in which the latent vector is both key (with its
    rotary part) and value. So do prompts if an indexer picks the tokens. An indexer itself reads all tokens.

    Raises:
        PagesimError: ``kv_dtype`` is unknown, or the heads cannot be divided over ``tp`` GPUs.
    """
    found: dict[AttentionSpan | None, Attended] = {None: Attended(0, 0, 0)}
    mla = model.mla
    indexed = any(isinstance(layer, IndexerLayer) for layer in model.cache_layers)
    picked = mla.index_topk if mla and indexed else 0
    for layer in model.cache_layers:
        span = None
        match layer:
            case StateLayer() | RingLayer():
                continue
            case IndexerLayer():
                flops = prompt_flops = 2 * mla.index_heads * mla.index_head_dim if mla else 0
            case LatentLayer():
                span = AttentionSpan("sparse", picked) if picked else None
                rank, rope = (mla.kv_lora_rank, mla.qk_rope_head_dim) if mla else (layer.width, 0)
                flops = prompt_flops = 2 * model.heads * (2 * rank + rope)
                if mla and not picked:
                    prompt_flops = 2 * model.heads * (mla.qk_nope_head_dim + rope + mla.v_head_dim)
            case _:
                span = span_of(layer)
                flops = prompt_flops = 4 * model.heads * layer.head_dim
        before = found.get(span, Attended(0, 0, 0))
        found[span] = Attended(
            before.bytes + kept_per_token(layer, kv_dtype, tp),
            before.flops + flops,
            before.prompt_flops + prompt_flops,
        )
    return found


def span_of(layer: Layer) -> AttentionSpan | None:
    """Return the span of a window or chunk layer; None for any other layer."""
    if isinstance(layer, WindowLayer):
        return AttentionSpan("window", layer.window)
    return AttentionSpan("chunk", layer.chunk) if isinstance(layer, ChunkLayer) else None


def layers_with_experts(model: ModelSpec) -> int:
    """Return the number of layers with experts; 0 for a dense model."""
    return 0 if model.moe is None else max(0, (model.mlp_layers or model.layers) - model.moe.dense_layers)


def states(model: ModelSpec, tp: int) -> tuple[int, float]:
    """Return the bytes of a sequence's recurrent states per GPU, and their elements without convolutions'.

    Raises:
        PagesimError: the states cannot be divided evenly over ``tp`` GPUs.
    """
    layers = [layer for layer in model.cache_layers if isinstance(layer, StateLayer)]
    return sum(layer.state_bytes(tp) for layer in layers), sum(prod(layer.state) for layer in layers) / tp
