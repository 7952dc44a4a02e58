"""Count parameters with transformers' own classes on the meta device, and write counted.csv.

    python tests/models/make_counted.py

needs transformers and torch, which the tests do not. A row is a config as transformers writes it, less what
every config has, and the parameters of its model: tied ones once, with the biases by which routers balance
their load, which are buffers in some families. Phi's LM head has a bias there that vLLM does not make; it is
left out.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

ROUTERS = ("e_score_correction_bias", "expert_bias")
KEPT = ("tie_word_embeddings",)
LAYERS = 6
WIDTHS = {"num_hidden_layers": LAYERS, "hidden_size": 512, "intermediate_size": 1280}
HEADS = {**WIDTHS, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 4096}
WIDE = {**HEADS, "head_dim": 128}
EXPERTS = {**WIDE, "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 192}
SHARED = {**EXPERTS, "shared_expert_intermediate_size": 384}
LATENT = {
    **HEADS,
    "num_key_value_heads": 8,
    "kv_lora_rank": 64,
    "q_lora_rank": 96,
    "qk_nope_head_dim": 48,
    "qk_rope_head_dim": 16,
    "v_head_dim": 64,
    "n_routed_experts": 16,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 192,
    "first_k_dense_replace": 2,
}
LATENT_V2 = {**LATENT, "topk_method": "greedy", "moe_layer_freq": 1}
FALCON = {"num_hidden_layers": LAYERS, "hidden_size": 512, "num_attention_heads": 8, "vocab_size": 4096}
SMALL = {**FALCON, "hidden_size": 256, "num_hidden_layers": 3, "intermediate_size": 512}
GPT2 = {"n_embd": 256, "n_head": 8, "n_layer": 4, "vocab_size": 4096, "n_positions": 512}
NEMOTRON = {
    "hidden_size": 256,
    "vocab_size": 4096,
    "layers_block_type": ["mamba", "moe", "attention", "mlp", "mamba", "moe"],
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 640,
    "mamba_num_heads": 8,
    "n_groups": 2,
    "ssm_state_size": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "moe_shared_expert_intermediate_size": 192,
}
DELTA = {"linear_num_key_heads": 4, "linear_num_value_heads": 8}
MAMBA = {"mamba_n_heads": 16, "mamba_d_state": 16, "mamba_d_head": 64}
SIGLIP = {
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "image_size": 56,
    "patch_size": 14,
}
QWEN_VISION = {
    "depth": 3,
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_heads": 4,
    "out_hidden_size": 512,
}

CASES: list[tuple[str, dict[str, Any]]] = [
    ("apertus", HEADS),
    ("apertus", {**HEADS, "tie_word_embeddings": True}),
    ("arcee", HEADS),
    ("arcee", {**HEADS, "attention_bias": True, "mlp_bias": True}),
    ("bamba", {**HEADS, **MAMBA, "attn_layer_indices": [1, 4]}),
    ("cohere2", HEADS),
    ("deepseek_v2", LATENT_V2),
    ("deepseek_v2", {**LATENT_V2, "q_lora_rank": None}),
    ("deepseek_v3", LATENT),
    ("deepseek_v3", {**LATENT, "tie_word_embeddings": True, "attention_bias": True}),
    ("deepseek_v32", {**LATENT, "index_n_heads": 4, "index_head_dim": 32, "index_topk": 64}),
    ("ernie4_5_moe", {**HEADS, "moe_num_experts": 16, "moe_k": 3, "moe_intermediate_size": 192}),
    (
        "ernie4_5_moe",
        {
            **HEADS,
            "moe_num_experts": 8,
            "moe_num_shared_experts": 1,
            "moe_layer_start_index": 2,
            "moe_layer_end_index": 4,
            "moe_layer_interval": 2,
            "tie_word_embeddings": False,
        },
    ),
    ("ernie4_5_moe", {**HEADS, "moe_num_experts": 8, "use_bias": True}),
    ("falcon", FALCON),
    ("falcon", {**FALCON, "ffn_hidden_size": 1024}),
    ("falcon", {**FALCON, "num_kv_heads": 2, "new_decoder_architecture": True}),
    ("falcon", {**FALCON, "num_kv_heads": 2, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}),
    ("falcon", {**FALCON, "multi_query": False, "parallel_attn": False, "bias": True, "alibi": True}),
    ("falcon_h1", {**HEADS, **MAMBA, "mamba_d_ssm": 1024}),
    ("falcon_h1", {**HEADS, **MAMBA, "mamba_d_ssm": 1024, "mamba_rms_norm": True, "attention_bias": True}),
    ("gemma", HEADS),
    ("gemma2", HEADS),
    ("gemma3_text", HEADS),
    ("gemma3_text", {**HEADS, "num_key_value_heads": 4, "tie_word_embeddings": False}),
    ("gemma3", {"text_config": {"model_type": "gemma3_text", **HEADS}, "vision_config": SIGLIP}),
    ("glm_moe_dsa", {**LATENT, "index_n_heads": 4, "index_head_dim": 32, "index_topk": 64}),
    ("glm_moe_dsa", {**LATENT, "index_n_heads": 4, "index_head_dim": 32, "index_topk_freq": 3}),
    ("gpt2", GPT2),
    ("gpt2", {**GPT2, "n_inner": 768, "tie_word_embeddings": False}),
    ("gpt_bigcode", GPT2),
    ("gpt_bigcode", {**GPT2, "multi_query": False}),
    ("gpt_neox", {**HEADS, "num_key_value_heads": None}),
    ("gpt_neox", {**HEADS, "num_key_value_heads": None, "attention_bias": False}),
    ("gpt_oss", {**WIDE, "num_local_experts": 8}),
    ("granite", HEADS),
    ("granite", {**HEADS, "attention_bias": True, "mlp_bias": True}),
    (
        "granitemoehybrid",
        {
            **HEADS,
            **MAMBA,
            "layer_types": ["mamba", "mamba", "attention"] * 2,
            "num_local_experts": 8,
            "shared_intermediate_size": 384,
        },
    ),
    (
        "granitemoehybrid",
        {**HEADS, **MAMBA, "layer_types": ["mamba", "attention"] * 3, "num_local_experts": 0},
    ),
    ("jamba", {**HEADS, "num_experts": 4, "attn_layer_period": 3, "attn_layer_offset": 1}),
    ("llama", HEADS),
    ("llama", {**WIDE, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("llama4_text", {**WIDE, "intermediate_size_mlp": 2048, "num_local_experts": 8}),
    ("llama4_text", {**WIDE, "num_local_experts": 8, "interleave_moe_layer_step": 2}),
    (
        "llama4",
        {
            "text_config": {"model_type": "llama4_text", **WIDE, "num_local_experts": 4},
            "vision_config": {
                **SIGLIP,
                "projector_input_dim": 256,
                "projector_output_dim": 256,
                "vision_output_dim": 256,
                "intermediate_size": 768,
            },
        },
    ),
    ("minimax_m2", {**WIDE, "num_local_experts": 8, "num_experts_per_tok": 2}),
    ("ministral", WIDE),
    ("ministral3", WIDE),
    ("mistral", HEADS),
    ("mistral", {**HEADS, "sliding_window": None, "tie_word_embeddings": True}),
    (
        "mistral3",
        {
            "text_config": {"model_type": "mistral", **HEADS},
            "vision_config": {"model_type": "pixtral", **SIGLIP},
            "multimodal_projector_bias": True,
        },
    ),
    (
        "mistral3",
        {
            "text_config": {"model_type": "ministral3", **WIDE},
            "vision_config": {"model_type": "pixtral", **SIGLIP},
            "tie_word_embeddings": False,
        },
    ),
    ("mixtral", HEADS),
    ("mixtral", {**HEADS, "num_local_experts": 4, "head_dim": 96}),
    ("nemotron_h", NEMOTRON),
    ("nemotron_h", {**NEMOTRON, "moe_latent_size": 64}),
    ("nemotron_h", {**NEMOTRON, "moe_latent_size": 128, "n_routed_experts": 32, "tie_word_embeddings": True}),
    ("nemotron_h", {**NEMOTRON, "use_bias": True, "mlp_bias": True}),
    ("opt", {**FALCON, "ffn_dim": 1024}),
    ("opt", {**FALCON, "enable_bias": False}),
    ("phi", {**HEADS, "num_key_value_heads": None}),
    ("phi", {**HEADS, "qk_layernorm": True}),
    ("phi3", {**HEADS, "pad_token_id": 0}),
    ("qwen2", HEADS),
    ("qwen2", {**HEADS, "use_sliding_window": True, "max_window_layers": 3}),
    ("qwen2_moe", {**SHARED, "head_dim": 64}),
    ("qwen2_moe", {**SHARED, "head_dim": 64, "qkv_bias": False, "mlp_only_layers": [0, 3]}),
    ("qwen3", HEADS),
    ("qwen3", {**WIDE, "attention_bias": True}),
    ("qwen3_moe", EXPERTS),
    ("qwen3_moe", {**EXPERTS, "decoder_sparse_step": 2}),
    ("qwen3_next", {**SHARED, **DELTA}),
    ("qwen3_5_text", {**WIDE, **DELTA}),
    ("qwen3_5_moe_text", {**SHARED, **DELTA}),
    (
        "qwen3_5",
        {"text_config": {"model_type": "qwen3_5_text", **WIDE, **DELTA}, "vision_config": QWEN_VISION},
    ),
    (
        "qwen3_5_moe",
        {"text_config": {"model_type": "qwen3_5_moe_text", **SHARED, **DELTA}, "vision_config": QWEN_VISION},
    ),
    (
        "qwen2_5_vl",
        {"text_config": {"model_type": "qwen2_5_vl_text", **HEADS}, "vision_config": QWEN_VISION},
    ),
    (
        "qwen3_vl",
        {
            "text_config": {"model_type": "qwen3_vl_text", **WIDE},
            "vision_config": {**QWEN_VISION, "deepstack_visual_indexes": [0, 1]},
        },
    ),
    (
        "qwen3_vl",
        {
            "text_config": {"model_type": "qwen3_vl_text", **WIDE},
            "vision_config": {**QWEN_VISION, "deepstack_visual_indexes": [1]},
            "tie_word_embeddings": True,
        },
    ),
    (
        "qwen3_vl_moe",
        {
            "text_config": {"model_type": "qwen3_vl_moe_text", **EXPERTS},
            "vision_config": {**QWEN_VISION, "deepstack_visual_indexes": [0, 1, 2]},
        },
    ),
    ("smollm3", {**HEADS, "pad_token_id": 0}),
    ("starcoder2", HEADS),
    ("starcoder2", {**HEADS, "use_bias": False}),
    ("cohere", {**HEADS, "pad_token_id": 0}),
    ("cohere", {**HEADS, "use_qk_norm": True, "pad_token_id": 0}),
    ("ernie4_5", HEADS),
    ("ernie4_5", {**HEADS, "use_bias": True}),
    ("exaone4", {**HEADS, "pad_token_id": 0}),
    ("gemma4_text", {**WIDE, "global_head_dim": 128, "hidden_size_per_layer_input": 32}),
    (
        "gemma4_text",
        {**WIDE, "num_hidden_layers": 12, "num_kv_shared_layers": 4, "use_double_wide_mlp": True},
    ),
    ("glm", {**HEADS, "pad_token_id": 0}),
    ("glm4", {**HEADS, "pad_token_id": 0}),
    ("glm4", {**HEADS, "pad_token_id": 0, "attention_bias": False}),
    ("glm4_moe", {**EXPERTS, "n_routed_experts": 16, "first_k_dense_replace": 2, "use_qk_norm": True}),
    ("granitemoe", HEADS),
    ("lfm2", {**HEADS, "full_attn_idxs": [2, 4]}),
    ("lfm2", {**HEADS, "full_attn_idxs": [1], "block_auto_adjust_ff_dim": False, "conv_bias": True}),
    ("lfm2_moe", {**EXPERTS, "layer_types": ["conv", "conv", "full_attention"] * 2}),
    ("olmo", {**HEADS, "pad_token_id": 0}),
    ("olmo2", {**HEADS, "pad_token_id": 0}),
    ("olmo3", {**HEADS, "pad_token_id": 0}),
    ("olmoe", {**EXPERTS, "head_dim": 64}),
    ("phimoe", {**HEADS, "attention_bias": True}),
    ("seed_oss", {**HEADS, "pad_token_id": 0}),
    ("nemotron", {**HEADS, "pad_token_id": 0}),
    # Families that are not read.
    *[
        (name, {**HEADS, "pad_token_id": 0})
        for name in ["helium", "persimmon", "diffllama", "doge", "bitnet"]
    ],
    *[(name, HEADS) for name in ["stablelm", "vaultgemma", "nanochat", "jetmoe", "minimax"]],
    *[(name, EXPERTS) for name in ["exaone_moe", "hunyuan_v1_moe"]],
    ("gptj", {"n_embd": 256, "n_head": 4, "n_layer": 3, "rotary_dim": 32, "vocab_size": 4096}),
    ("codegen", {"n_embd": 256, "n_head": 4, "n_layer": 3, "rotary_dim": 32, "vocab_size": 4096}),
    ("biogpt", SMALL),
    ("xglm", {"d_model": 256, "num_layers": 3, "attention_heads": 4, "ffn_dim": 512, "vocab_size": 4096}),
    ("gpt_neox_japanese", {**SMALL, "intermediate_multiple_size": 4}),
    ("hunyuan_v1_dense", WIDE),
    ("ctrl", {"n_embd": 256, "n_head": 4, "n_layer": 3, "dff": 512, "vocab_size": 4096}),
    ("bloom", {"hidden_size": 256, "n_head": 4, "n_layer": 3, "vocab_size": 4096}),
    ("mpt", {"d_model": 256, "n_heads": 4, "n_layers": 3, "vocab_size": 4096}),
    ("llava", {"text_config": {"model_type": "llama", **HEADS}}),
]
LAST_READ = next(at for at, (family, _) in enumerate(CASES) if family == "helium")


def count(config: Any) -> int:
    """Return the parameters of a config's model."""
    with torch.device("meta"):
        try:
            model = AutoModelForCausalLM.from_config(config)
        except ValueError:
            model = AutoModelForImageTextToText.from_config(config)
        if getattr(config, "vision_config", None) is not None:
            model = AutoModelForImageTextToText.from_config(config)
    parameters = sum(each.numel() for each in model.parameters())
    buffers = sum(each.numel() for name, each in model.named_buffers() if name.endswith(ROUTERS))
    return parameters + buffers - (config.vocab_size if config.model_type == "phi" else 0)


def content(config: Any) -> dict[str, Any]:
    """Return what a config says of its own, but for what says nothing."""
    common = transformers.PreTrainedConfig().to_dict()

    def own(section: dict[str, Any]) -> dict[str, Any]:
        return {
            key: own(value) if isinstance(value, dict) else value
            for key, value in section.items()
            if key == "model_type"
            or (value is not None and (key not in common or key in KEPT or common[key] != value))
        }

    return own(config.to_dict())


def main() -> None:
    """Write the file beside this one."""
    first = {
        family: (family, keys) for family, keys in reversed(CASES[:LAST_READ]) if "text_config" not in keys
    }
    biased = [(family, {**keys, "attention_bias": True, "mlp_bias": True}) for family, keys in first.values()]
    with Path(__file__).with_name("counted.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["parameters", "config"])
        for family, keys in CASES:
            config = transformers.CONFIG_MAPPING[family](**keys)
            table.writerow([count(config), json.dumps(content(config), sort_keys=True)])
        for family, keys in biased:
            config = transformers.CONFIG_MAPPING[family](**keys)
            length = {"max_position_embeddings": 4096}  # the only key that has a default nowhere
            given = {**length, **keys, "model_type": family}
            table.writerow([count(config), json.dumps(given, sort_keys=True)])


if __name__ == "__main__":
    main()
