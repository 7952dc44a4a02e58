"""Families: what the code of a model family fixes without naming it in a ``config.json``.

Source: the modeling and configuration files of transformers 5.23.
"""

from __future__ import annotations

from typing import Any

_LAYER_NORM: dict[str, Any] = {"gated": False, "layer_norm": True}
_BIASES: dict[str, Any] = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
_QWEN_NEXT: dict[str, Any] = {"qk_norm": True, "output_gate": True}

TRAITS: dict[str, dict[str, Any]] = {
    "apertus": {"gated": False, "qk_norm": True, "act_numbers": 2},
    "arcee": {"gated": False},
    "bailing_hybrid": {},
    "bamba": {},
    "cohere": {"norms_per_layer": 1, "tied": True, "split_qk_norm": True},
    "cohere2": {"norms_per_layer": 1, "tied": True},
    "deepseek_v2": {},
    "deepseek_v3": {},
    "deepseek_v32": {},
    "ernie4_5": {"tied": True},
    "ernie4_5_moe": {"tied": True},
    "exaone4": {"qk_norm": True},
    "falcon": {**_LAYER_NORM, "tied": True},
    "falcon_h1": {},
    "gemma": {"tied": True},
    "gemma2": {"norms_per_layer": 4, "tied": True},
    "gemma3": {"norms_per_layer": 4, "tied": True, "qk_norm": True},
    "deepseek_v4": {},
    "gemma4": {"norms_per_layer": 4, "tied": True, "qk_norm": True},
    "glm": {},
    "glm4": {"norms_per_layer": 4},
    "glm4_moe": {},
    "glm4_moe_lite": {},
    "glm5_next": {},
    "glm_moe_dsa": {},
    "gpt2": {**_LAYER_NORM, **_BIASES, "tied": True},
    "gpt_bigcode": {**_LAYER_NORM, **_BIASES, "tied": True},
    "gpt_neox": {**_LAYER_NORM, **_BIASES},
    "gpt_oss": {"qkv_bias": True, "out_bias": True, "sinks": True},
    "granite": {},
    "granitemoe": {},
    "granitemoehybrid": {},
    "jamba": {},
    "kimi_k2": {},
    "laguna": {},
    "lfm2": {"qk_norm": True, "tied": True},
    "lfm2_moe": {"qk_norm": True, "tied": True},
    "llama": {},
    "llama4": {},
    "kimi_linear": {},
    "mimo": {"qkv_bias": True},
    "mimo_v2": {},
    "minimax_m2": {"wide_qk_norm": True, "split_qk_norm": True},
    "minimax_m3": {"qk_norm": True},
    "ministral": {},
    "ministral3": {},
    "mistral": {},
    "mixtral": {},
    "nemotron": {"gated": False, "layer_norm": True},
    "nemotron-nas": {"norms_per_layer": 1},
    "nemotron_h": {"gated": False, "norms_per_layer": 1},
    "olmo": {"norms_per_layer": 0, "final_norm": False},
    "olmo2": {"wide_qk_norm": True},
    "olmo3": {"wide_qk_norm": True},
    "olmoe": {"wide_qk_norm": True},
    "opt": {**_LAYER_NORM, **_BIASES, "tied": True},
    "phi": {**_LAYER_NORM, **_BIASES, "norms_per_layer": 1},
    "phi3": {},
    "phimoe": {"layer_norm": True},
    "qwen2": {"qkv_bias": True},
    "qwen2_moe": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "qwen3_moe": {"qk_norm": True},
    "qwen3_next": _QWEN_NEXT,
    "qwen3_5": _QWEN_NEXT,
    "qwen3_5_moe": _QWEN_NEXT,
    "seed_oss": {"qkv_bias": True},
    "smollm3": {"tied": True},
    "starcoder2": {**_LAYER_NORM, **_BIASES, "tied": True},
    "zamba2": {"norms_per_layer": 1, "tied": True},
}
"""Fields of a ModelSpec by family, whose parameters are counted exactly. Others are read like LLaMA."""

BUILT_AS = {
    "gemma4_unified": "gemma4",
    "glm4v": "glm4",
    "glm4v_moe": "glm4_moe",
    "mimo_v2_flash": "mimo_v2",
    "minimax_m3_vl": "minimax_m3",
    "qwen2_5_vl": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
}
"""Other names of families, most of them of the language model of one that takes images too."""

LATENTS = (
    *("bailing_hybrid", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm5_next"),
    *("glm_moe_dsa", "kimi_k2", "kimi_linear"),
)
"""The families of these whose layers may have latent attention."""

MIXTURES = (
    *LATENTS,
    *(
        *("deepseek_v4", "ernie4_5_moe", "gemma4", "glm4_moe", "gpt_oss", "granitemoe", "granitemoehybrid"),
        *("jamba", "laguna", "lfm2_moe", "llama4", "olmoe", "phimoe"),
        *("mimo_v2", "minimax_m2", "minimax_m3"),
        "mixtral",
        "nemotron_h",
    ),
    *("qwen2_moe", "qwen3_moe", "qwen3_next", "qwen3_5_moe"),
)
"""The families of these whose layers may have experts."""

ATTENTION_BIAS = (
    *("apertus", "arcee", "bamba", "cohere", "cohere2", "falcon_h1", "gemma", "gemma2", "gemma3", "gemma4"),
    *("gpt_neox", "gpt_oss", "granite", "granitemoe", "granitemoehybrid", "llama", "llama4"),
    *("nemotron", "nemotron_h", "olmo", "olmo2", "olmo3", "olmoe", "phimoe", "qwen3", "qwen3_moe"),
    *("qwen3_next", "qwen3_5", "qwen3_5_moe", "smollm3"),
)
"""The families of these whose code makes biases of attention where ``attention_bias`` says so."""

QKV_BIAS = {"glm": False, "glm4": True, "glm4_moe": False, "seed_oss": True}
"""Likewise, of queries, keys and values alone, and what their code takes where the config is silent."""

MLP_BIAS = (*("arcee", "bamba", "falcon_h1", "granite", "llama", "nemotron", "seed_oss", "smollm3"),)
"""Likewise of MLPs, where ``mlp_bias`` says so."""

TIED_AROUND = ("gemma3", "gemma4", "kimi_k25", "mistral3")
"""Models of images whose token table serves as the LM head unless the config says otherwise at its top."""

_DELTA = {
    "full_attention_interval": 4,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
}
_MAMBA2 = {
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_state": 256,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
}

DEFAULTS: dict[str, dict[str, Any]] = {
    "bamba": _MAMBA2,
    "cohere2": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "deepseek_v3": {"topk_method": "noaux_tc"},
    "deepseek_v4": {"hc_mult": 4, "topk_method": "noaux_tc"},
    "gemma4": {"global_head_dim": 512, "head_dim": 256, "sliding_window": 512},
    "glm": {"head_dim": 128, "num_key_value_heads": 2},
    "glm4": {"head_dim": 128, "num_key_value_heads": 2},
    "glm4_moe": {
        **{"first_k_dense_replace": 1, "moe_intermediate_size": 1408, "n_routed_experts": 128},
        **{"n_shared_experts": 1, "num_experts_per_tok": 8, "num_key_value_heads": 8},
        "topk_method": "noaux_tc",
    },
    "glm4_moe_lite": {"topk_method": "noaux_tc"},
    "glm5_next": {"hc_mult": 4, "topk_method": "noaux_tc"},
    "kimi_k2": {"topk_method": "noaux_tc"},
    "deepseek_v32": {
        "index_head_dim": 128,
        "index_n_heads": 64,
        "index_topk": 2048,
        "topk_method": "noaux_tc",
    },
    "ernie4_5_moe": {
        "moe_k": 6,
        "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
        "moe_layer_start_index": 1,
        "moe_num_experts": 64,
        "moe_num_shared_experts": 2,
    },
    "exaone4": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "falcon": {"multi_query": True},
    "falcon_h1": {**_MAMBA2, "mamba_d_ssm": 1024, "num_key_value_heads": 8},
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256, "sliding_window": 4096, "sliding_window_pattern": 2},
    "gemma3": {
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "vocab_size": 262208,
    },
    "glm_moe_dsa": {
        "index_head_dim": 128,
        "index_n_heads": 32,
        "index_topk": 2048,
        "topk_method": "noaux_tc",
    },
    "gpt_bigcode": {"multi_query": True},
    "gpt_oss": {
        "attention_bias": True,
        "head_dim": 64,
        "num_experts_per_tok": 4,
        "num_key_value_heads": 8,
        "sliding_window": 128,
        "sliding_window_pattern": 2,
    },
    "granitemoe": {"num_experts_per_tok": 2, "num_local_experts": 8},
    "granitemoehybrid": {**_MAMBA2, "num_experts_per_tok": 2},
    "jamba": {
        "attn_layer_offset": 4,
        "attn_layer_period": 8,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
        "mamba_conv_bias": True,
        "mamba_d_conv": 4,
        "mamba_d_state": 16,
        "mamba_expand": 2,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 8,
    },
    "lfm2": {"conv_L_cache": 3, "num_key_value_heads": 8},
    "lfm2_moe": {
        "conv_L_cache": 3,
        "num_dense_layers": 2,
        "num_experts_per_tok": 4,
        "num_key_value_heads": 8,
    },
    "llama4": {
        "attention_chunk_size": 8192,
        "head_dim": 128,
        "interleave_moe_layer_step": 1,
        "no_rope_layer_interval": 4,
        "num_experts_per_tok": 1,
        "num_key_value_heads": 8,
        "num_local_experts": 16,
        "vocab_size": 202048,
    },
    "minimax_m2": {"use_routing_bias": True},
    "ministral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "ministral3": {"head_dim": 128, "num_key_value_heads": 8},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "mixtral": {"num_experts_per_tok": 2, "num_key_value_heads": 8, "num_local_experts": 8},
    "nemotron_h": {
        "conv_kernel": 4,
        "head_dim": 128,
        "mamba_head_dim": 64,
        "mamba_num_heads": 128,
        "mamba_ssm_cache_dtype": "float32",
        "n_groups": 8,
        "num_key_value_heads": 8,
        "ssm_state_size": 128,
        "use_conv_bias": True,
    },
    "olmoe": {"num_experts": 64, "num_experts_per_tok": 8},
    "phimoe": {"num_experts_per_tok": 2, "num_key_value_heads": 8, "num_local_experts": 16},
    "seed_oss": {"head_dim": 128, "num_key_value_heads": 8},
    "olmo3": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "qwen2": {"max_window_layers": 28, "sliding_window": 4096, "use_sliding_window": False},
    "qwen2_moe": {"max_window_layers": 28, "sliding_window": 4096, "use_sliding_window": False},
    "qwen3": {
        "head_dim": 128,
        "max_window_layers": 28,
        "sliding_window": 4096,
        "use_sliding_window": False,
    },
    "qwen3_moe": {"num_key_value_heads": 4, "sliding_window": 4096, "use_sliding_window": False},
    "qwen3_next": _DELTA,
    "qwen3_5": _DELTA,
    "qwen3_5_moe": _DELTA,
    "smollm3": {"use_sliding_window": False},
    "zamba2": {"mamba_d_conv": 4, "mamba_expand": 2, "mamba_ngroups": 1, "num_mem_blocks": 1},
}
"""By family, what its code takes where the config is silent and other than LLaMA's code would take it."""
