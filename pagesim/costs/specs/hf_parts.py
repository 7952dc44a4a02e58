"""Experts, latent attention and recurrent layers, read from a Hugging Face config."""

from __future__ import annotations

from math import ceil

from pagesim.costs.specs.hf_config import HfConfig
from pagesim.costs.specs.models import LatentAttention, MixtureOfExperts
from pagesim.costs.specs.recurrent import GatedDeltaNet, Mamba1, Mamba2, Recurrence

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def latent(config: HfConfig) -> LatentAttention | None:
    """Return latent attention, if the config has a rank for it."""
    if config.get("kv_lora_rank") is None:
        return None
    indexed = config.get("index_topk") is not None
    return LatentAttention(
        kv_lora_rank=config.number("kv_lora_rank"),
        qk_rope_head_dim=config.number("qk_rope_head_dim"),
        qk_nope_head_dim=config.number("qk_nope_head_dim"),
        v_head_dim=config.number("v_head_dim"),
        q_lora_rank=config.number("q_lora_rank", default=0),
        index_heads=config.number("index_n_heads") if indexed else 0,
        index_head_dim=config.number("index_head_dim") if indexed else 0,
        index_topk=config.number("index_topk") if indexed else 0,
    )


def experts(config: HfConfig, layers: int) -> MixtureOfExperts | None:
    """Return the experts of a model's layers, if it has at least two."""
    number = config.number("n_routed_experts", "num_local_experts", "num_experts", default=0)
    if number < 2 or (config.family == "nemotron_h" and not _letters(config, "E", "moe")):
        return None
    shared = config.number(
        *("shared_expert_intermediate_size", "shared_intermediate_size"),
        *("moe_shared_expert_intermediate_size",),
        default=0,
    )
    return MixtureOfExperts(
        experts=number,
        experts_per_token=config.number("num_experts_per_tok"),
        expert_ffn=config.number("moe_intermediate_size", "intermediate_size"),
        shared_experts=config.number(
            "n_shared_experts", default=1 if shared or config.family == "llama4" else 0
        ),
        shared_ffn=shared,
        shared_gate=config.family in ("qwen2_moe", "qwen3_next", "qwen3_5_moe"),
        dense_layers=_dense_layers(config, layers),
        correction_bias=config.get("topk_method") == "noaux_tc"
        or config.family == "nemotron_h"
        or config.flag("use_routing_bias"),
        biases=config.family == "gpt_oss",
    )


def _dense_layers(config: HfConfig, layers: int) -> int:
    """Return how many layers have a plain MLP where the others have experts."""
    match config.family:
        case "jamba":
            period = config.number("expert_layer_period")
            offset = config.number("expert_layer_offset", default=0)
            return sum(i % period != offset for i in range(layers))
        case "llama4":
            sparse = config.entries("moe_layers")
            step = config.number("interleave_moe_layer_step")
            return layers - (layers // step if sparse is None else sum(i in sparse for i in range(layers)))
        case "qwen2_moe" | "qwen3_moe" | "qwen3_next":
            dense = config.entries("mlp_only_layers") or ()
            step = config.number("decoder_sparse_step", default=1)
            return sum(i in dense or (i + 1) % step != 0 for i in range(layers))
        case "nemotron_h":
            return _letters(config, "-", "mlp")
    return config.number("first_k_dense_replace", default=0)


def mlp_layers(config: HfConfig) -> int:
    """Return how many layers have an MLP or experts, 0 if all have."""
    if config.family != "nemotron_h":
        return 0
    return _letters(config, "-", "mlp") + _letters(config, "E", "moe")


def _letters(config: HfConfig, letter: str, name: str) -> int:
    """Return how many of Nemotron-H's layers are of a kind."""
    named = config.entries("layers_block_type") or config.entries("layer_types")
    if named is not None:
        return sum(each == name for each in named)
    return str(config.get("hybrid_override_pattern")).count(letter)


def recurrence(config: HfConfig) -> tuple[Recurrence, str] | None:
    """Return what the recurrent layers of a family hold, if it has such, and the type of their state."""
    match config.family:
        case "jamba":
            hidden = config.number("hidden_size")
            rank = config.get("mamba_dt_rank")
            inner = config.number("mamba_expand") * hidden
            return Mamba1(
                inner=inner,
                state=config.number("mamba_d_state"),
                conv=config.number("mamba_d_conv"),
                dt_rank=ceil(hidden / 16) if rank in (None, "auto") else config.number("mamba_dt_rank"),
                conv_bias=config.flag("mamba_conv_bias"),
                proj_bias=config.flag("mamba_proj_bias"),
            ), "bf16"
        case "bamba" | "falcon_h1" | "granitemoehybrid":
            return _mamba2(config), "bf16"
        case "nemotron_h":
            return Mamba2(
                heads=config.number("mamba_num_heads"),
                head_dim=config.number("mamba_head_dim"),
                groups=config.number("n_groups"),
                state=config.number("ssm_state_size"),
                conv=config.number("conv_kernel"),
                conv_bias=config.flag("use_conv_bias"),
                in_bias=config.flag("use_bias"),
                out_bias=config.flag("use_bias"),
            ), _dtype(config, "mamba_ssm_cache_dtype")
        case "qwen3_next" | "qwen3_5" | "qwen3_5_moe":
            return GatedDeltaNet(
                key_heads=config.number("linear_num_key_heads"),
                key_dim=config.number("linear_key_head_dim"),
                value_heads=config.number("linear_num_value_heads"),
                value_dim=config.number("linear_value_head_dim"),
                conv=config.number("linear_conv_kernel_dim"),
            ), _dtype(config, "mamba_ssm_dtype")
    return None


def _mamba2(config: HfConfig) -> Mamba2:
    """Return Mamba-2 as Bamba, Falcon-H1 and Granite 4 name it."""
    heads = config.number("mamba_n_heads")
    inner = config.number("mamba_expand") * config.number("hidden_size")
    if config.family == "falcon_h1":
        inner = config.number("mamba_d_ssm", default=inner)
    width = config.get("mamba_d_head")
    falcon = config.family == "falcon_h1"
    return Mamba2(
        heads=heads,
        head_dim=inner // heads if width in (None, "auto") else config.number("mamba_d_head"),
        groups=config.number("mamba_n_groups"),
        state=config.number("mamba_d_state"),
        conv=config.number("mamba_d_conv"),
        conv_bias=config.flag("mamba_conv_bias"),
        in_bias=config.flag("mamba_proj_bias"),
        out_bias=config.flag("projectors_bias" if falcon else "mamba_proj_bias"),
        norm=config.flag("mamba_rms_norm") if falcon else True,
    )


def _dtype(config: HfConfig, key: str) -> str:
    """Return the type of a recurrent state, that of the model where the key is missing."""
    value = config.get(key)
    if value is None:
        return "bf16"
    if not isinstance(value, str) or value not in _DTYPES:
        raise config.error(key, value, f"one of {', '.join(_DTYPES)}")
    return _DTYPES[value]
