"""What each layer keeps in families whose configs specify it by special keys.

Sources: each family's ``get_kv_cache_spec`` in vLLM 0.33.0; the docstrings name the files.
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
"""What each transformer layer keeps, in order; an empty tuple if it keeps nothing of its own."""

Reader = Callable[[HfConfig, int, FullLayer, LatentLayer | None, StateLayer | None], Kept]
"""Reads this from a config, given the number of layers and what, by the usual keys, a layer with full
attention, with latent attention and with a state keeps."""

LATENT_SCALES = 8
"""Bytes of scales per token in DeepSeek V4."""


def indexer_bytes(keys: int) -> int:
    """Return an indexer's bytes per token: fp8 elements, and a 4-byte scale per 128 of them.

    Source: ``DeepseekV32IndexerCache`` in deepseek_v2.py.
    """
    return keys + keys // 128 * 4


def _gemma4(config: HfConfig, layers: int, full: FullLayer, *_: object) -> Kept:
    """Return what Gemma 4 keeps: windows, and full attention with other heads; last layers share KV.

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
    """Return what a full-attention layer of a Gemma 4 model keeps.

    Its heads are given by separate keys or, as transformers writes them, in ``per_layer_config``.
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
    """Return a Gemma 4 model's layer types; by default every sixth layer and the last one are full."""
    usual = ["sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(layers - 1)]
    found = config.entries("layer_types") or [*usual, "full_attention"]
    if len(found) != layers:
        raise config.error("layer_types", found, f"one entry for each of the {layers} layers")
    return found


def _deepseek_v4(config: HfConfig, layers: int, *_: object) -> Kept:
    """Return what DeepSeek V4 keeps: windows and, in some layers, compressed vectors and pending tokens.

    Vectors are in fp8 with scales, their rotary part in bf16. The compressors' states (key and gate) have 32
    bits, and are twice as large for a ratio of 4, where spans overlap. Sources: models/deepseek_v4
    (attention.py, compressor.py) and v1/attention/backends/mla/sparse_swa.py.
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
"""Bytes to a multiple of which DeepSeek V4's pages are padded."""


def _deltas(
    config: HfConfig, layers: int, _: FullLayer, latent: LatentLayer | None, state: StateLayer | None
) -> Kept:
    """Return the states, and the latent vectors with any indexer, of Kimi, Ling 3 and GLM-5.3-Flash.

    The last tokens, which have no key yet, are kept in a ring (models/glm5next/common/attention.py).
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
    """Return the full-attention layers, from 0, of a Kimi, Ling or GLM model.

    Kimi counts layers from 1. In Ling they are the last one of each group and all after the last whole group.

    Raises:
        PagesimError: the config does not list them.
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
    """Return the latent vectors, and the indexers of layers that also select tokens for later layers.

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
    """Return keys and values per head, and the indexer's 16-bit key (models/minimax_m3/common/indexer.py)."""
    sparse, which = sparse_attention(config, layers)
    indexer = IndexerLayer(2 * sparse.number("sparse_index_dim", default=128))
    return [(full, indexer) if each else (full,) for each in which]


def sparse_attention(config: HfConfig, layers: int) -> tuple[HfConfig, Sequence[int]]:
    """Return a MiniMax-M3 model's sparse attention config, and whether each layer has an indexer (0 or 1).

    Raises:
        PagesimError: the config does not give this for each layer.
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
    """One layer of a Nemotron-NAS model: the configs of its attention and of its MLP."""

    attention: HfConfig
    ffn: HfConfig


def blocks(config: HfConfig, layers: int) -> list[Block]:
    """Return the configs of attention and MLP of each layer of a Nemotron-NAS model.

    Raises:
        PagesimError: the config does not have one for each layer.
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
    """Return whether a Nemotron-NAS layer lacks this part (attention or MLP) in its usual shape."""
    return part.flag("no_op") or part.flag("replace_with_linear")


def _kv_heads(attention: HfConfig, heads: int) -> int:
    """Return the KV heads of a Nemotron-NAS layer, whose config gives how many query heads share each.

    Raises:
        PagesimError: that number is missing, or does not divide the heads.
    """
    group = attention.number("n_heads_in_group")
    if heads % group:
        raise attention.error("n_heads_in_group", group, f"a divisor of the {heads} heads")
    return heads // group


def widest_kv(config: HfConfig, heads: int, layers: int) -> int:
    """Return the most KV heads of any layer of a Nemotron-NAS model; 1 if no layer attends."""
    attends = [each.attention for each in blocks(config, layers) if not is_absent(each.attention)]
    return max([_kv_heads(each, heads) for each in attends], default=1)


def _minicpm3(config: HfConfig, layers: int, full: FullLayer, *_: object) -> Kept:
    """Return what MiniCPM3 keeps: keys and values per head, expanded before caching, as wide as keys.

    Source: minicpm3.py.
    """
    width = config.number("qk_nope_head_dim") + config.number("qk_rope_head_dim")
    return [(FullLayer(full.kv_heads, width),)] * layers


def _nemotron_nas(config: HfConfig, layers: int, full: FullLayer, *_: object) -> Kept:
    """Return each layer's own number of KV heads, or nothing without attention (nemotron_nas.py)."""
    heads = config.number("num_attention_heads")
    return [
        () if is_absent(attention) else (FullLayer(_kv_heads(attention, heads), full.head_dim),)
        for attention, _ in blocks(config, layers)
    ]


def _mimo_v2(config: HfConfig, layers: int, full: FullLayer, *_: object) -> Kept:
    """Return what MiMo V2 keeps: windows with other KV heads, and keys wider than values (mimo_v2.py)."""

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
"""Readers of these families by ``model_type``."""
