"""What each layer keeps in the families of which a config says it by keys of their own.

Sources: ``get_kv_cache_spec`` of the layers of each family in vLLM 0.33.0; the docstrings name the files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pagesim.models.hf_config import HfConfig
from pagesim.models.layers import (
    FullLayer,
    IndexerLayer,
    LatentLayer,
    Layer,
    RingLayer,
    StateLayer,
    WindowLayer,
)

Kept = list[tuple[Layer, ...]]
"""What each transformer layer keeps, in order; none where it keeps nothing of its own."""

Reader = Callable[[HfConfig, int, FullLayer, LatentLayer | None, StateLayer | None], Kept]
"""Reads this from a config, given the number of layers, and what such a layer keeps by the usual keys where
it attends to all tokens, keeps a latent vector, or has a state."""

LATENT_SCALES = 8
"""Bytes of the scales of a token of DeepSeek V4."""


def indexer_bytes(keys: int) -> int:
    """Return the bytes that an indexer keeps of a token: numbers in fp8, and a scale of each whole 128.

    Source: ``DeepseekV32IndexerCache`` in deepseek_v2.py.
    """
    return keys + keys // 128 * 4


def _gemma4(config: HfConfig, layers: int, full: FullLayer, *_: object) -> Kept:
    """Windows and full attention with heads of their own; the last layers read what others keep.

    Source: gemma4.py.
    """
    wide = gemma4_full(config)
    window = WindowLayer(full.kv_heads, full.head_dim, config.number("sliding_window"))
    own = layers - config.number("num_kv_shared_layers", default=0)
    return [
        () if i >= own else (window if kind == "sliding_attention" else wide,)
        for i, kind in enumerate(gemma4_types(config, layers))
    ]


def gemma4_full(config: HfConfig) -> FullLayer:
    """Return what a full attention layer of a Gemma 4 model keeps.

    Its heads are in keys of their own or, as transformers writes it, in ``per_layer_config``.
    """
    heads, dim = config.number("num_key_value_heads"), config.number("head_dim")
    if config.get("per_layer_config") is not None:
        for of_full in config.parts("per_layer_config")[:1]:
            heads = of_full.number("num_key_value_heads", default=heads)
            dim = of_full.number("head_dim", default=dim)
        return FullLayer(heads, dim)
    own = config.flag("attention_k_eq_v") and config.get("num_global_key_value_heads")
    kv_heads = config.number("num_global_key_value_heads") if own else heads
    return FullLayer(kv_heads, config.number("global_head_dim", default=dim))


def gemma4_types(config: HfConfig, layers: int) -> Sequence[str]:
    """Return the types of a Gemma 4 model's layers: as named, or every sixth and the last full attention."""
    usual = ["sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(layers - 1)]
    found = config.entries("layer_types") or [*usual, "full_attention"]
    if len(found) != layers:
        raise config.error("layer_types", found, f"one entry for each of the {layers} layers")
    return found


def _deepseek_v4(config: HfConfig, layers: int, *_: object) -> Kept:
    """A window, and of layers that compress the compressed vectors and what is not compressed yet.

    models/deepseek_v4: attention.py, compressor.py; v1/attention/backends/mla/sparse_swa.py. Vectors are in
    fp8 with scales, their rotary part in bf16; the compressors' states in 32 bits, key and gate, twice where
    the spans of 4 tokens overlap.
    """
    width, rotary = config.number("head_dim"), config.number("qk_rope_head_dim")
    vector, keys = width + rotary + LATENT_SCALES, config.number("index_head_dim", default=128)
    of_key = indexer_bytes(keys)

    def window(size: int, block: int, token_bytes: int) -> WindowLayer:
        return WindowLayer(1, width, size, token_bytes, block, ALIGNED)

    def layer(ratio: int) -> tuple[Layer, ...]:
        kept: list[Layer] = [window(config.number("sliding_window"), 64, vector)]
        if ratio > 1:
            overlap, block = (2, 4) if ratio == 4 else (1, 8)
            kept.append(LatentLayer(width, vector, tokens_per_state=ratio, alignment=ALIGNED))
            kept.append(window(overlap * ratio, block, 2 * overlap * width * 4))
            if ratio == 4:
                kept.append(IndexerLayer(of_key, ratio, ALIGNED))
                kept.append(window(overlap * ratio, block, 2 * overlap * keys * 4))
        return tuple(kept)

    ratios = config.numbers("compress_ratios") or ()
    if len(ratios) < layers or set(ratios[:layers]) - {0, 1, 4, 128}:
        raise config.error("compress_ratios", ratios, f"0, 4 or 128 for each of the {layers} layers")
    return [layer(ratio) for ratio in ratios[:layers]]


ALIGNED = 576
"""Bytes of which a page of DeepSeek V4 is a multiple."""


def _deltas(
    config: HfConfig, layers: int, _: FullLayer, latent: LatentLayer | None, state: StateLayer | None
) -> Kept:
    """Kimi-Linear, Kimi K3, Ling 3 and GLM-5.3-Flash: states, and latent vectors with an indexer's keys.

    The last tokens of which there is no key yet are in a ring (models/glm5next/common/attention.py).
    """
    full = full_attention(config, layers)
    if latent is None or state is None:
        raise config.error("kv_lora_rank", config.get("kv_lora_rank"), "a whole number from 1")
    attends: tuple[Layer, ...] = (latent,)
    if config.get("index_topk") is not None:
        keys, pool = config.number("index_head_dim"), config.number("index_kpool")
        attends += (IndexerLayer(indexer_bytes(keys), pool), RingLayer(pool, 2 * 2 * keys))
    return [attends if i in full else (state,) for i in range(layers)]


def full_attention(config: HfConfig, layers: int) -> list[int]:
    """Return the layers, from 0, of a Kimi, Ling or GLM model that attend to all tokens.

    Kimi's list begins at 1; of Ling it is the last of each group, and those behind the last whole group.

    Raises:
        PagesimError: it does not say which.
    """
    if config.family == "bailing_hybrid":
        group = config.number("layer_group_size")
        return [i for i in range(layers) if (i + 1) % group == 0 or i >= layers // group * group]
    lists = config.part("linear_attn_config")
    full = lists.numbers("full_attn_layers") if lists else None
    if full is None:
        raise config.error(
            "linear_attn_config", config.get("linear_attn_config"), "an object with full_attn_layers"
        )
    return [i if config.family == "glm5_next" else i - 1 for i in full]


def _glm_dsa(config: HfConfig, layers: int, _: FullLayer, latent: LatentLayer | None, *__: object) -> Kept:
    """Latent vectors, and an indexer in the layers that pick for those after them.

    Sources: models/deepseek_v32/attention.py, models/hy_v4.
    """
    if latent is None:
        raise config.error("kv_lora_rank", None, "a whole number from 1")
    keys = config.number("index_head_dim")
    indexer = IndexerLayer(indexer_bytes(keys))
    frequency = config.number("index_topk_freq", default=1)
    offset = config.number("index_skip_topk_offset", default=2)
    pattern = config.text("index_topk_pattern")
    kinds = config.entries("indexer_types") if config.family == "hy_v4" else None
    config.skip("indexer_types")
    picks = [max(i - offset + 1, 0) % frequency == 0 for i in range(layers)]
    if pattern is not None:
        if len(pattern) != layers:
            raise config.error("index_topk_pattern", pattern, f"a letter for each of the {layers} layers")
        picks = [letter != "S" for letter in pattern]
    if kinds is not None:
        if len(kinds) != layers:
            raise config.error("indexer_types", kinds, f"one entry for each of the {layers} layers")
        picks = [kind != "shared" for kind in kinds]
    return [(latent, indexer) if pick else (latent,) for pick in picks]


def _minimax_m3(config: HfConfig, layers: int, full: FullLayer, *_: object) -> Kept:
    """Keys and values by head, and a key of the indexer in 16 bits (models/minimax_m3/common/indexer.py)."""
    sparse, which = sparse_attention(config, layers)
    indexer = IndexerLayer(2 * sparse.number("sparse_index_dim", default=128))
    return [(full, indexer) if each else (full,) for each in which]


def sparse_attention(config: HfConfig, layers: int) -> tuple[HfConfig, Sequence[int]]:
    """Return what a MiniMax-M3 config says of its indexer, and of each layer whether it has one, 0 or 1.

    Raises:
        PagesimError: it does not say so of each layer.
    """
    sparse = config.part("sparse_attention_config")
    which = sparse.numbers("sparse_attention_freq") if sparse else None
    if sparse is None or which is None or len(which) != layers:
        raise config.error(
            "sparse_attention_config",
            config.get("sparse_attention_config"),
            f"an object with sparse_attention_freq, 0 or 1 for each of the {layers} layers",
        )
    return sparse, which


class Block(NamedTuple):
    """What one layer of a Nemotron-NAS model has: attention and an MLP, each with keys of its own."""

    attention: HfConfig
    ffn: HfConfig


def blocks(config: HfConfig, layers: int) -> list[Block]:
    """Return what attention and what MLP each layer of a Nemotron-NAS model has, as its config says it.

    Raises:
        PagesimError: it does not say so of each layer.
    """
    found = []
    for each in config.parts("block_configs"):
        attention, ffn = each.part("attention"), each.part("ffn")
        if attention is not None and ffn is not None:
            found.append(Block(attention, ffn))
    if len(found) != layers:
        raise config.error(
            "block_configs",
            config.get("block_configs"),
            f"a list of objects with attention and ffn, one for each of the {layers} layers",
        )
    return found


def is_absent(part: HfConfig) -> bool:
    """Return whether a layer of a Nemotron-NAS model has no attention, or no MLP, of the usual shape."""
    return part.flag("no_op") or part.flag("replace_with_linear")


def _kv_heads(attention: HfConfig, heads: int) -> int:
    """Return the KV heads of a layer of a Nemotron-NAS model, which says how many heads share each.

    Raises:
        PagesimError: it does not say so, or the heads do not divide into such groups.
    """
    group = attention.number("n_heads_in_group")
    if heads % group:
        raise attention.error("n_heads_in_group", group, f"a divisor of the {heads} heads")
    return heads // group


def widest_kv(config: HfConfig, heads: int, layers: int) -> int:
    """Return the most KV heads that a layer of a Nemotron-NAS model has; 1 where none attends."""
    attends = [each.attention for each in blocks(config, layers) if not is_absent(each.attention)]
    return max([_kv_heads(each, heads) for each in attends], default=1)


def _minicpm3(config: HfConfig, layers: int, full: FullLayer, *_: object) -> Kept:
    """Keys and values of each head, made of latent vectors before they are cached, both as wide as keys.

    Source: minicpm3.py.
    """
    width = config.number("qk_nope_head_dim") + config.number("qk_rope_head_dim")
    return [(FullLayer(full.kv_heads, width),)] * layers


def _nemotron_nas(config: HfConfig, layers: int, full: FullLayer, *_: object) -> Kept:
    """As many KV heads as each layer says, or no attention (nemotron_nas.py)."""
    heads = config.number("num_attention_heads")
    return [
        () if is_absent(attention) else (FullLayer(_kv_heads(attention, heads), full.head_dim),)
        for attention, _ in blocks(config, layers)
    ]


def _mimo_v2(config: HfConfig, layers: int, full: FullLayer, *_: object) -> Kept:
    """Windows with KV heads of their own; keys are wider than values (mimo_v2.py)."""

    def width(prefix: str) -> int:
        """Return the mean width of a key and a value."""
        keys = config.number(f"{prefix}head_dim", default=full.head_dim)
        return (keys + config.number(f"{prefix}v_head_dim", default=keys)) // 2

    window = WindowLayer(
        config.number("swa_num_key_value_heads", default=full.kv_heads),
        width("swa_"),
        config.number("sliding_window"),
    )
    wide = FullLayer(full.kv_heads, width(""))
    pattern = config.numbers("hybrid_layer_pattern") or ()
    if len(pattern) != layers:
        raise config.error("hybrid_layer_pattern", pattern, f"0 or 1 for each of the {layers} layers")
    return [(window,) if each else (wide,) for each in pattern]


KEPT: dict[str, Reader] = {
    "bailing_hybrid": _deltas,
    "deepseek_v4": _deepseek_v4,
    "gemma4": _gemma4,
    "glm5_next": _deltas,
    "glm_moe_dsa": _glm_dsa,
    "hy_v4": _glm_dsa,
    "kimi_linear": _deltas,
    "mimo_v2": _mimo_v2,
    "minicpm3": _minicpm3,
    "minimax_m3": _minimax_m3,
    "nemotron-nas": _nemotron_nas,
}
"""The families that are read so, by ``model_type``."""
