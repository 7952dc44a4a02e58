"""Models whose layers differ in kind or have experts: the keys of their ``config.json`` that size them.

A release whose ``config.json`` was seen, or a copy of it that has every key which is here, is verified.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from pagesim.models.huggingface import from_hf_config
from pagesim.models.model_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Release:
    """A released model.

    Attributes:
        name: what users call it.
        hub_ids: its ids on Hugging Face; the first is where the config stands.
        seen: in one line, where the numbers were seen.
        config: the keys of its ``config.json`` by which it is sized.
        unverified: neither the file nor a copy with all these keys was seen.
    """

    name: str
    hub_ids: tuple[str, ...]
    seen: str
    config: dict[str, Any] = field(repr=False)
    unverified: bool = False


def released(release: Release) -> ModelSpec:
    """Return the model of a release."""
    source = f"config.json of {release.hub_ids[0]}, {release.seen}"
    if release.unverified:
        source = f"{release.seen}; the config.json of {release.hub_ids[0]} was not seen"
    return replace(from_hf_config(release.config, release.name), source=source, unverified=release.unverified)


_DEFAULTS = "the defaults of its family in transformers 5.23"


def _gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    return {
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": layers,
        "layer_types": ["sliding_attention", "full_attention"] * (layers // 2),
        "sliding_window": 128,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "attention_bias": True,
        "num_local_experts": experts,
        "num_experts_per_tok": 4,
        "vocab_size": 201088,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "mxfp4"},
    }


def _gemma3(layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, head_dim: int) -> dict[str, Any]:
    return {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": hidden,
            "intermediate_size": ffn,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head_dim,
            "sliding_window": 1024,
            "sliding_window_pattern": 6,
        },
        "vision_config": {
            "hidden_size": 1152,
            "image_size": 896,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "patch_size": 14,
            "vision_use_head": False,
        },
    }


def _qwen3_moe(layers: int, hidden: int, ffn: int, expert_ffn: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "qwen3_moe",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "moe_intermediate_size": expert_ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": False,
    }


_DELTA_NET = {
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_size": 2048,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 512,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
}

RELEASES = (
    Release(
        "mistral-7b-v0.1",
        ("mistralai/Mistral-7B-v0.1", "mistralai/Mistral-7B-Instruct-v0.1"),
        "whose numbers epfLLM/Megatron-LLM repeats",
        {
            "model_type": "mistral",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "sliding_window": 4096,
            "vocab_size": 32000,
            "max_position_embeddings": 32768,
        },
    ),
    Release(
        "mistral-small-3",
        ("mistralai/Mistral-Small-24B-Instruct-2501", "mistralai/Mistral-Small-24B-Base-2501"),
        "its numbers as public tests quote them, its length as Together AI documents it",
        {
            "model_type": "mistral",
            "hidden_size": 5120,
            "intermediate_size": 32768,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "sliding_window": None,
            "vocab_size": 131072,
            "max_position_embeddings": 32768,
        },
        unverified=True,
    ),
    Release(
        "mixtral-8x7b",
        ("mistralai/Mixtral-8x7B-v0.1", "mistralai/Mixtral-8x7B-Instruct-v0.1"),
        "copied in a test of NVIDIA/TensorRT-LLM",
        {
            "model_type": "mixtral",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "sliding_window": None,
            "vocab_size": 32000,
            "max_position_embeddings": 32768,
        },
    ),
    Release(
        "gpt-oss-20b",
        ("openai/gpt-oss-20b",),
        "copied in jihengzhang/jihz-gpt-oss-20b; experts in MXFP4 as released",
        _gpt_oss(24, 32),
    ),
    Release(
        "gpt-oss-120b",
        ("openai/gpt-oss-120b",),
        "copied in ai-dynamo/aiconfigurator; experts in MXFP4 as released",
        _gpt_oss(36, 128),
    ),
    Release(
        "gemma3-12b",
        ("google/gemma-3-12b-it", "google/gemma-3-12b-pt"),
        "copied in a public test",
        _gemma3(48, 3840, 15360, 16, 8, 256),
    ),
    Release(
        "gemma3-27b",
        ("google/gemma-3-27b-it", "google/gemma-3-27b-pt"),
        "copied, all but the number of layers, in a test of NVIDIA/TensorRT-LLM",
        _gemma3(62, 5376, 21504, 32, 16, 128),
    ),
    Release(
        "llama4-scout",
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "meta-llama/Llama-4-Scout-17B-16E"),
        "copied in an issue of vllm-project/vllm",
        {
            "model_type": "llama4",
            "text_config": {
                "model_type": "llama4_text",
                "attention_chunk_size": 8192,
                "head_dim": 128,
                "hidden_size": 5120,
                "interleave_moe_layer_step": 1,
                "intermediate_size": 8192,
                "intermediate_size_mlp": 16384,
                "max_position_embeddings": 10485760,
                "no_rope_layers": [1, 1, 1, 0] * 12,
                "num_attention_heads": 40,
                "num_experts_per_tok": 1,
                "num_hidden_layers": 48,
                "num_key_value_heads": 8,
                "num_local_experts": 16,
                "tie_word_embeddings": False,
                "vocab_size": 202048,
            },
            "vision_config": {
                "hidden_size": 1408,
                "image_size": 336,
                "intermediate_size": 5632,
                "num_hidden_layers": 34,
                "patch_size": 14,
                "projector_input_dim": 4096,
                "projector_output_dim": 4096,
                "vision_output_dim": 4096,
            },
        },
    ),
    Release(
        "qwen3-30b-a3b",
        ("Qwen/Qwen3-30B-A3B",),
        "copied in public notes beside those of the dense models",
        _qwen3_moe(48, 2048, 6144, 768, 32),
    ),
    Release(
        "qwen3-235b-a22b",
        ("Qwen/Qwen3-235B-A22B",),
        "copied in ai-dynamo/aiconfigurator",
        _qwen3_moe(94, 4096, 12288, 1536, 64),
    ),
    Release(
        "qwen3-next-80b",
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen/Qwen3-Next-80B-A3B-Thinking"),
        "copied in ai-dynamo/aiconfigurator; without its multi-token prediction module",
        {
            **_DELTA_NET,
            "model_type": "qwen3_next",
            "intermediate_size": 5120,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "num_hidden_layers": 48,
            "vocab_size": 151936,
        },
    ),
    Release(
        "qwen3.5-35b-a3b",
        ("Qwen/Qwen3.5-35B-A3B",),
        "copied in alibaba/InferSim; without its multi-token prediction module",
        {
            "model_type": "qwen3_5_moe",
            "text_config": {
                **_DELTA_NET,
                "model_type": "qwen3_5_moe_text",
                "mamba_ssm_dtype": "float32",
                "num_experts": 256,
                "num_experts_per_tok": 8,
                "num_hidden_layers": 40,
                "vocab_size": 248320,
            },
            "vision_config": {
                "depth": 27,
                "hidden_size": 1152,
                "intermediate_size": 4304,
                "num_position_embeddings": 2304,
                "out_hidden_size": 2048,
                "patch_size": 16,
            },
        },
    ),
    Release(
        "minimax-m2.5",
        ("MiniMaxAI/MiniMax-M2.5",),
        "copied in ai-dynamo/aiconfigurator; without its multi-token prediction modules",
        {
            "model_type": "minimax_m2",
            "hidden_size": 3072,
            "intermediate_size": 1536,
            "num_hidden_layers": 62,
            "num_attention_heads": 48,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "num_local_experts": 256,
            "num_experts_per_tok": 8,
            "use_routing_bias": True,
            "vocab_size": 200064,
            "max_position_embeddings": 196608,
            "tie_word_embeddings": False,
            "quantization_config": {
                "quant_method": "fp8",
                "weight_block_size": [128, 128],
                "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
            },
        },
    ),
    Release(
        "kimi-k2.5",
        ("moonshotai/Kimi-K2.5",),
        "copied in ai-dynamo/aiconfigurator",
        {
            "model_type": "kimi_k25",
            "tie_word_embeddings": False,
            "vision_config": {
                "patch_size": 14,
                "vt_hidden_size": 1152,
                "vt_intermediate_size": 4304,
                "vt_num_hidden_layers": 27,
            },
            "text_config": {
                "model_type": "kimi_k2",
                "hidden_size": 7168,
                "intermediate_size": 18432,
                "moe_intermediate_size": 2048,
                "num_hidden_layers": 61,
                "first_k_dense_replace": 1,
                "num_attention_heads": 64,
                "num_key_value_heads": 64,
                "q_lora_rank": 1536,
                "kv_lora_rank": 512,
                "qk_nope_head_dim": 128,
                "qk_rope_head_dim": 64,
                "v_head_dim": 128,
                "n_routed_experts": 384,
                "n_shared_experts": 1,
                "num_experts_per_tok": 8,
                "topk_method": "noaux_tc",
                "vocab_size": 163840,
                "max_position_embeddings": 262144,
                "tie_word_embeddings": False,
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {
                        "group_0": {
                            "targets": ["Linear"],
                            "input_activations": None,
                            "weights": {
                                "num_bits": 4,
                                "type": "int",
                                "strategy": "group",
                                "group_size": 32,
                                "symmetric": True,
                            },
                        }
                    },
                    "ignore": [
                        "lm_head",
                        "re:.*self_attn.*",
                        "re:.*shared_experts.*",
                        r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
                    ],
                },
            },
        },
    ),
    Release(
        "deepseek-v3.2",
        ("deepseek-ai/DeepSeek-V3.2", "deepseek-ai/DeepSeek-V3.2-Exp"),
        "copied in a public test; without its multi-token prediction module",
        {
            "model_type": "deepseek_v32",
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 61,
            "first_k_dense_replace": 3,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "index_head_dim": 128,
            "index_n_heads": 64,
            "index_topk": 2048,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "topk_method": "noaux_tc",
            "vocab_size": 129280,
            "max_position_embeddings": 163840,
            "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        },
    ),
    Release(
        "jamba-1.5-mini",
        ("ai21labs/AI21-Jamba-1.5-Mini",),
        "copied in sdpython/onnx-diagnostic",
        {
            "model_type": "jamba",
            "attn_layer_offset": 4,
            "attn_layer_period": 8,
            "expert_layer_offset": 1,
            "expert_layer_period": 2,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "mamba_conv_bias": True,
            "mamba_d_conv": 4,
            "mamba_d_state": 16,
            "mamba_dt_rank": 256,
            "mamba_expand": 2,
            "mamba_proj_bias": False,
            "max_position_embeddings": 262144,
            "num_attention_heads": 32,
            "num_experts": 16,
            "num_experts_per_tok": 2,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "tie_word_embeddings": False,
            "vocab_size": 65536,
        },
    ),
    Release(
        "granite-4-h-small",
        ("ibm-granite/granite-4.0-h-small",),
        "part of it quoted in public tests, the place of its attention layers that of Granite 4.0 H Tiny",
        {
            "model_type": "granitemoehybrid",
            "hidden_size": 4096,
            "intermediate_size": 768,
            "shared_intermediate_size": 1536,
            "num_hidden_layers": 40,
            "layer_types": ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)],
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 72,
            "num_experts_per_tok": 10,
            "mamba_d_conv": 4,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "mamba_expand": 2,
            "mamba_n_groups": 1,
            "mamba_n_heads": 128,
            "tie_word_embeddings": True,
            "vocab_size": 100352,
            "max_position_embeddings": 131072,
        },
        unverified=True,
    ),
    Release(
        "nemotron-h-8b",
        ("nvidia/Nemotron-H-8B-Base-8K",),
        "copied in a public test",
        {
            "model_type": "nemotron_h",
            "attention_bias": False,
            "attention_head_dim": 128,
            "conv_kernel": 4,
            "hidden_size": 4096,
            "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
            "intermediate_size": 21504,
            "mamba_head_dim": 64,
            "mamba_num_heads": 128,
            "max_position_embeddings": 8192,
            "mlp_bias": False,
            "n_groups": 8,
            "num_attention_heads": 32,
            "num_hidden_layers": 52,
            "num_key_value_heads": 8,
            "ssm_state_size": 128,
            "tie_word_embeddings": False,
            "use_bias": False,
            "use_conv_bias": True,
            "vocab_size": 131072,
        },
    ),
    Release(
        "nemotron-3-nano",
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",),
        "copied in a test of nemotron3_jax",
        {
            "model_type": "nemotron_h",
            "attention_bias": False,
            "conv_kernel": 4,
            "head_dim": 128,
            "hidden_size": 2688,
            "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            "intermediate_size": 1856,
            "mamba_head_dim": 64,
            "mamba_num_heads": 64,
            "mamba_ssm_cache_dtype": "float32",
            "max_position_embeddings": 262144,
            "mlp_bias": False,
            "moe_intermediate_size": 1856,
            "moe_shared_expert_intermediate_size": 3712,
            "n_groups": 8,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "num_attention_heads": 32,
            "num_experts_per_tok": 6,
            "num_hidden_layers": 52,
            "num_key_value_heads": 2,
            "ssm_state_size": 128,
            "tie_word_embeddings": False,
            "use_bias": False,
            "use_conv_bias": True,
            "vocab_size": 131072,
        },
    ),
    Release(
        "falcon-h1-7b",
        ("tiiuae/Falcon-H1-7B-Base", "tiiuae/Falcon-H1-7B-Instruct"),
        "copied in a public test",
        {
            "model_type": "falcon_h1",
            "head_dim": 128,
            "hidden_size": 3072,
            "intermediate_size": 12288,
            "mamba_d_conv": 4,
            "mamba_d_head": 128,
            "mamba_d_ssm": 3072,
            "mamba_d_state": 256,
            "mamba_expand": 2,
            "mamba_n_groups": 1,
            "mamba_n_heads": 24,
            "max_position_embeddings": 262144,
            "num_attention_heads": 12,
            "num_hidden_layers": 44,
            "num_key_value_heads": 2,
            "tie_word_embeddings": False,
            "vocab_size": 130048,
        },
    ),
)
"""Family by family, small to large."""
