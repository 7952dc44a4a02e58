"""What a model's layers read and compute of the tokens before, by how far back they look."""

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
    """What attention takes of one token that it looks back on, all of some layers.

    Attributes:
        bytes: read on each GPU in decoding.
        flops: operations in decoding, on all GPUs together.
        prompt_flops: in a prompt, for a query and a key.
    """

    bytes: int
    flops: int
    prompt_flops: int


class States(NamedTuple):
    """The recurrent states of one sequence, all layers, on each GPU.

    Attributes:
        bytes: of all of them.
        elements: numbers in them, those of the convolutions left out.
    """

    bytes: int
    elements: float


def attended(model: ModelSpec, kv_dtype: str, tp: int) -> dict[AttentionSpan | None, Attended]:
    """Return what attention takes of a token, by span; None stands for layers that look back on all.

    Latent vectors are attended to in their absorbed form in decoding (the vector is key, with its rotary
    part, and value at once), and in prompts where an indexer picks them. An indexer looks back on all tokens.

    Raises:
        PagesimError: an unknown ``kv_dtype``, or a ``tp`` that the heads do not allow.
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
    """Return how far back a layer of windows or chunks looks; None of any other."""
    if isinstance(layer, WindowLayer):
        return AttentionSpan("window", layer.window)
    return AttentionSpan("chunk", layer.chunk) if isinstance(layer, ChunkLayer) else None


def layers_with_experts(model: ModelSpec) -> int:
    """Return how many layers have experts, of which none is there in a model without them."""
    return 0 if model.moe is None else max(0, (model.mlp_layers or model.layers) - model.moe.dense_layers)


def states(model: ModelSpec, tp: int) -> States:
    """Return the recurrent states of a sequence.

    Raises:
        PagesimError: they cannot be dealt out evenly over ``tp`` GPUs.
    """
    layers = [layer for layer in model.cache_layers if isinstance(layer, StateLayer)]
    return States(
        sum(layer.state_bytes(tp) for layer in layers), sum(prod(layer.state) for layer in layers) / tp
    )
