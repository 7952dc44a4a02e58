"""Tensors of a family's layers other than attention, states, MLPs and experts of the usual shapes.

Sources: the model classes of vLLM 0.33.0; the docstrings name the files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pagesim.models.hf_config import HfConfig
from pagesim.models.hf_kept import (
    blocks,
    full_attention,
    gemma4_full,
    gemma4_types,
    is_absent,
    sparse_attention,
)
from pagesim.models.parameters import ALL, REST, Tensor, projections, vector

Fields = dict[str, Any]
"""Fields of a ModelSpec."""


def extras(config: HfConfig, layers: int) -> Fields:
    """Return some fields of a model's spec by its family: ``extras``, ``ffns`` and ``own_attention``.

    Raises:
        PagesimError: a key is missing, or its value is invalid.
    """
    read = _EXTRAS.get(config.family)
    return read(config, layers) if read else {}


def _gemma4(config: HfConfig, layers: int) -> Fields:
    """Return the attention of Gemma 4's layers that share KV, and its per-layer inputs (gemma4.py)."""
    hidden, heads = config.number("hidden_size"), config.number("num_attention_heads")
    own = layers - config.number("num_kv_shared_layers", default=0)
    kinds, every = gemma4_types(config, layers), range(layers)
    found: list[Tensor] = []
    dims = {"sliding_attention": config.number("head_dim"), "full_attention": gemma4_full(config).head_dim}
    for name, dim in dims.items():
        query, at = heads * dim, [i for i in every if i >= own and kinds[i] == name]
        found += [
            Tensor("attention", "q_proj", query, hidden, at, ALL),
            Tensor("attention", "o_proj", hidden, query, at, ALL, by_columns=True),
            vector("q_norm", query // heads, at),
        ]
    width = config.number("hidden_size_per_layer_input", default=0)
    if width:
        rows = config.number("vocab_size_per_layer_input")
        found += [
            Tensor(REST, "embed_tokens_per_layer", rows, layers * width, shards=ALL),
            Tensor(REST, "per_layer_model_projection", layers * width, hidden, shards=ALL),
            Tensor(REST, "per_layer_gate_and_projection", 2 * width, hidden, every),
            vector("per_layer_norms", hidden, every),
            vector("per_layer_projection_norm", width),
        ]
    if config.get("num_experts"):
        found.append(vector("expert_norms", 3 * hidden, every))
        found.append(vector("router_scales", hidden + config.number("num_experts"), every, counted=0))
    ffn, wide = config.number("intermediate_size"), config.flag("use_double_wide_mlp")
    ffns = (ffn,) * own + (2 * ffn,) * (layers - own) if wide and own < layers else ()
    return {"extras": tuple(found), "ffns": ffns}


def _streams(config: HfConfig, layers: int, each: int = 0, parts: int = 3) -> list[Tensor]:
    """Return the hyper-connections that mix several residual streams around attention and MLP.

    Args:
        config: the model's config.
        layers: number of layers.
        each: matrix rows per stream; 0 for two plus the number of streams.
        parts: parts of the matrix, with a learned scale each.
    """
    streams = config.number("hc_mult", default=1)
    rows, columns = streams * (each or 2 + streams), streams * config.number("hidden_size")
    return [
        Tensor(REST, "hc_fn", 2 * rows, columns, range(layers), wide=True),
        vector("hc_base", 2 * rows, range(layers), wide=True),
        vector("hc_scale", 2 * parts, range(layers), wide=True, counted=0),
    ]


def _streams_head(config: HfConfig) -> list[Tensor]:
    """Return the tensors that merge the residual streams before the LM head."""
    streams = config.number("hc_mult", default=1)
    return [
        Tensor(REST, "hc_head_fn", streams, streams * config.number("hidden_size"), wide=True),
        vector("hc_head_base", streams, wide=True),
        vector("hc_head_scale", 1, wide=True, counted=0),
    ]


def _hy_v4(config: HfConfig, layers: int) -> Fields:
    """Return Hy V4's residual streams, and the gate and sinks of its latent attention (models/hy_v4)."""
    heads, every = config.number("num_attention_heads"), range(layers)
    gate = heads * config.number("v_head_dim")
    return {
        "extras": (
            *_streams(config, layers, 2, 2),
            *_streams_head(config),
            Tensor("attention", "linear_gate", gate, config.number("hidden_size"), every, ALL),
            vector("sinks", heads, every, shards=ALL, wide=True),
        )
    }


def _glm5_next(config: HfConfig, layers: int) -> Fields:
    """Return GLM-5.3-Flash's residual streams, and what pools its indexer's keys (models/glm5next)."""
    attends = [i for i, kind in enumerate(config.entries("layer_types") or ()) if kind != "linear_attention"]
    keys, pool = config.number("index_head_dim"), config.number("index_kpool")
    hidden = config.number("hidden_size")
    return {
        "extras": (
            *_streams(config, layers),
            vector("index_kpool_compress_ape", pool * keys, attends, wide=True),
            Tensor(REST, "index_kpool_compress_gate", keys, hidden, attends),
        )
    }


def _deepseek_v4(config: HfConfig, layers: int) -> Fields:
    """Return attention to windows and compressed vectors, with a grouped output (models/deepseek_v4)."""
    hidden, heads, width = (config.number(key) for key in ("hidden_size", "num_attention_heads", "head_dim"))
    rank, groups, out = (config.number(key) for key in ("q_lora_rank", "o_groups", "o_lora_rank"))
    keys, index_heads = config.number("index_head_dim"), config.number("index_n_heads")
    every = range(layers)
    chosen = config.number("vocab_size") * config.number("num_experts_per_tok")
    ratios = (config.numbers("compress_ratios") or ())[:layers]

    def compressor(ratio: int, size: int, at: Sequence[int]) -> list[Tensor]:
        """Return the compressor of ``ratio`` tokens into one vector; for 4, whose spans overlap, doubled."""
        twice = 2 * size if ratio == 4 else size
        return [
            vector("compressor.ape", ratio * twice, at, wide=True),
            Tensor(REST, "compressor.wkv_wgate", 2 * twice, hidden, at),
            vector("compressor.norm", size, at),
        ]

    picks, thins = ([i for i in every if ratios[i] == ratio] for ratio in (4, 128))
    hashed = min(config.number("num_hash_layers", default=0), layers)
    found = [
        Tensor("attention", "wqa_wkv", rank + width, hidden, every),
        Tensor("attention", "wq_b", heads * width, rank, every, ALL),
        Tensor("attention", "wo_a", groups * out, heads * width // groups, every, ALL),
        Tensor("attention", "wo_b", hidden, groups * out, every, ALL, by_columns=True),
        Tensor("attention", "indexer.wq_b", index_heads * keys, rank, picks),
        Tensor(REST, "indexer.weights_proj", index_heads, hidden, picks),
        vector("q_norm, kv_norm", rank + width, every),
        vector("attn_sink", heads, every, shards=max(1, heads // 64), wide=True),  # at least 64 per GPU
        *compressor(4, width, picks),
        *compressor(4, keys, picks),
        *compressor(128, width, thins),
        *_streams(config, layers),
        *_streams_head(config),
        # Layers that choose experts by the token ID have a table instead of the bias.
        vector("tid2eid", chosen, range(hashed), wide=True, counted=8),
        vector("correction_bias", config.number("n_routed_experts"), range(hashed, layers), wide=True),
    ]
    return {"extras": tuple(found), "own_attention": True}


def _kimi(config: HfConfig, layers: int) -> Fields:
    """Return Kimi K3's output gate of latent attention, and weighted sums of earlier layers' outputs."""
    if not config.get("attn_res_block_size"):
        return {}
    hidden, every = config.number("hidden_size"), range(layers)
    attends = full_attention(config, layers)
    gate = config.number("num_attention_heads") * config.number("v_head_dim")
    gate = gate if config.flag("mla_use_output_gate") else 0
    latent = config.number("routed_expert_hidden_size", default=0)
    latent = latent if config.flag("latent_moe_use_norm") else 0
    return {
        "extras": (
            Tensor("attention", "g_proj", gate, hidden, attends, ALL),
            vector("res_norms, res_projs", 4 * hidden, every),
            vector("output_attn_res", 2 * hidden),
            vector("routed_expert_norm", latent, range(config.number("first_k_dense_replace"), layers)),
        )
    }


def _mimo_v2(config: HfConfig, layers: int) -> Fields:
    """Return attention with keys wider than values, and with sinks (mimo_v2.py)."""
    hidden, pattern = config.number("hidden_size"), config.numbers("hybrid_layer_pattern") or ()
    found: list[Tensor] = []
    for prefix, of_kind, kind in (("", "full", 0), ("swa_", "swa", 1)):
        at = [i for i, each in enumerate(pattern) if each == kind]
        heads = config.number(f"{prefix}num_attention_heads", "num_attention_heads")
        kv_heads = config.number(f"{prefix}num_key_value_heads", "num_key_value_heads")
        keys = config.number(f"{prefix}head_dim", "head_dim")
        values = config.number(f"{prefix}v_head_dim", default=keys)
        sinks = heads if config.flag(f"add_{of_kind}_attention_sink_bias") else 0
        found += projections(hidden, heads, kv_heads, (keys, values), at)
        found.append(vector("sinks", sinks, at, shards=ALL))
    return {"extras": tuple(found), "own_attention": True}


def _laguna(config: HfConfig, layers: int) -> Fields:
    """Return attention with a number of heads per layer, and with a gate per head or per element.

    Source: laguna.py.
    """
    dim, kinds = config.number("head_dim"), config.entries("layer_types") or ()
    key = "num_attention_heads_per_layer"
    heads = config.numbers(key) or (config.number("num_attention_heads"),) * layers
    if len(heads) != layers or min(heads) < 1:
        raise config.error(key, heads, f"a number for each of the {layers} layers")
    gating, sinks = config.get("gating"), config.flag("swa_attention_sink_enabled")
    gate = {None: 1, True: 1, "per-head": 1, "per-element": dim, False: 0}.get(gating)
    if gate is None:
        raise config.error("gating", gating, "true, false, per-head or per-element")
    slides = [i for i, kind in enumerate(kinds) if kind == "sliding_attention"] if sinks else []
    return _gated_heads(config, heads, config.number("num_key_value_heads"), gate, slides)


def _step3p5(config: HfConfig, layers: int) -> Fields:
    """Return attention with other heads in layers with a window, and a gate per head (step3p5.py)."""
    kinds, heads = config.entries("layer_types") or (), config.number("num_attention_heads")
    other = config.part("attention_other_setting")
    own = other.number("num_attention_heads") if other else heads
    kind = other.text("attention_type") if other else None
    of_layers = [own if each == kind else heads for each in kinds[:layers]] or [heads] * layers
    groups = config.number("num_attention_groups", "num_key_value_heads")
    return _gated_heads(config, of_layers, groups, int(config.flag("use_head_wise_attn_gate")))


def _gated_heads(
    config: HfConfig, heads: Sequence[int], kv_heads: int, gate: int, sinks: Sequence[int] = ()
) -> Fields:
    """Return the tensors of attention with a number of heads per layer and a gate on each head's output.

    Args:
        config: the model's config.
        heads: query heads of each layer, ``[layers]``.
        kv_heads: key and value heads.
        gate: elements of a head's gate; 0 without one.
        sinks: layers with attention sinks, one learned weight per head.
    """
    hidden, dim = config.number("hidden_size"), config.number("head_dim")
    found: list[Tensor] = []
    for number in sorted(set(heads)):
        at = [i for i, each in enumerate(heads) if each == number]
        found += [
            *projections(hidden, number, kv_heads, (dim, dim), at),
            Tensor("attention", "g_proj", number * gate, hidden, at, ALL),
            vector("qk_norm", 2 * dim, at),
            vector("sinks", number, [i for i in at if i in sinks], shards=ALL),
        ]
    return {"extras": tuple(found), "own_attention": True}


def _ling(config: HfConfig, layers: int) -> Fields:
    """Return Ling 3's output gate of latent attention, per head or per element (bailing_moe_v3.py)."""
    heads, kind = config.number("num_attention_heads"), config.text("gated_attention_proj_granularity_type")
    gate = {None: 0, "head_wise": heads, "element_wise": heads * config.number("v_head_dim")}.get(kind)
    if gate is None:
        raise config.error("gated_attention_proj_granularity_type", kind, "head_wise or element_wise")
    attends = full_attention(config, layers)
    return {"extras": (Tensor("attention", "g_proj", gate, config.number("hidden_size"), attends, ALL),)}


def _longcat(config: HfConfig, layers: int) -> Fields:
    """Return the router rows of experts that pass their input through unchanged (longcat_flash.py)."""
    zero, at = config.number("zero_expert_num", default=0), range(0, layers, 2)
    routes = Tensor(REST, "router.zero_experts", zero, config.number("hidden_size"), at, wide=True)
    return {"extras": (routes, vector("correction_bias.zero_experts", zero, at, wide=True))}


def _minimax_m3(config: HfConfig, layers: int) -> Fields:
    """Return the projections to the indexer's queries and key, with a norm each (models/minimax_m3)."""
    sparse, which = sparse_attention(config, layers)
    at = [i for i, each in enumerate(which) if each]
    heads, width = sparse.number("sparse_num_index_heads"), sparse.number("sparse_index_dim", default=128)
    hidden = config.number("hidden_size")
    return {
        "extras": (
            Tensor("attention", "index_q_proj", heads * width, hidden, at, heads),
            Tensor("attention", "index_k_proj", width, hidden, at),
            vector("index_norms", 2 * width, at),
        )
    }


def _nemotron_nas(config: HfConfig, layers: int) -> Fields:
    """Return each layer's MLP width, a multiple of 256, and norms before attention (nemotron_nas.py)."""
    hidden = config.number("hidden_size")

    def width(ffn: HfConfig) -> int:
        return 0 if is_absent(ffn) else -(-int(2 * ffn.real("ffn_mult") * hidden / 3) // 256) * 256

    found = blocks(config, layers)
    attends = [i for i, each in enumerate(found) if not each.attention.flag("no_op")]
    return {
        "ffns": tuple([width(each.ffn) for each in found]),
        "extras": (vector("input_layernorm", hidden, attends),),
    }


def _zamba2(config: HfConfig, layers: int) -> Fields:
    """Return attention and MLP blocks that layers share, and each layer's own adapters (zamba2.py)."""
    hidden, ffn = config.number("hidden_size"), config.number("intermediate_size")
    blocks, rank = config.number("num_mem_blocks"), config.number("adapter_rank", default=128)
    heads = config.number("num_attention_heads")
    dim = config.number("attention_head_dim", default=2 * hidden // heads)
    kinds = config.entries("layers_block_type") or config.entries("layer_types") or ()
    hybrid = [i for i, kind in enumerate(kinds) if kind == "hybrid"]
    at, width = hybrid[:blocks], heads * dim
    found = [
        *[Tensor("attention", f"{each}_proj", width, 2 * hidden, at, ALL) for each in "qkv"],
        Tensor("attention", "o_proj", hidden, width, at, ALL, by_columns=True),
        Tensor("mlp", "gate_up_proj", 2 * ffn, hidden, at, ALL),
        Tensor("mlp", "down_proj", hidden, ffn, at, ALL, by_columns=True),
        vector("shared_norms", 3 * hidden, at),
        Tensor(REST, "mlp_adapter.A", rank, hidden, hybrid, ALL),
        Tensor(REST, "mlp_adapter.B", 2 * ffn, rank, hybrid, ALL),
        Tensor(REST, "linear", hidden, hidden, hybrid),
    ]
    if config.flag("use_shared_attention_adapter"):
        found += [Tensor(REST, "adapter.A", 3 * rank, 2 * hidden, hybrid, ALL)]
        found += [Tensor(REST, "adapter.B", 3 * width, rank, hybrid, ALL)]
    return {"extras": tuple(found), "own_attention": True, "ffns": (0,) * layers}


_EXTRAS: dict[str, Callable[[HfConfig, int], Fields]] = {
    "bailing_hybrid": _ling,
    "deepseek_v4": _deepseek_v4,
    "gemma4": _gemma4,
    "glm5_next": _glm5_next,
    "hy_v4": _hy_v4,
    "kimi_linear": _kimi,
    "laguna": _laguna,
    "longcat_flash": _longcat,
    "mimo_v2": _mimo_v2,
    "minimax_m3": _minimax_m3,
    "nemotron-nas": _nemotron_nas,
    "step3p5": _step3p5,
    "zamba2": _zamba2,
}
