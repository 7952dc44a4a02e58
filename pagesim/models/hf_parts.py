"""Experts, latent attention and recurrent layers, read from a Hugging Face config."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from pagesim.models.hf_config import HfConfig
from pagesim.models.parts import LatentAttention, MixtureOfExperts
from pagesim.models.recurrent import (
    GatedDeltaNet,
    KimiDelta,
    LightningAttention,
    Mamba1,
    Mamba2,
    Recurrence,
    ShortConv,
)

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def latent(config: HfConfig) -> LatentAttention | None:
    """Return the latent attention, if the family may have it and the config gives its rank."""
    if not config.rules.latent or config.get("kv_lora_rank") is None:
        return None
    config.skip("num_key_value_heads", "num_kv_heads", "head_dim", "qk_head_dim")
    indexed = config.get("index_topk") is not None
    return LatentAttention(
        kv_lora_rank=config.number("kv_lora_rank"),
        qk_rope_head_dim=config.number("qk_rope_head_dim", default=0),
        qk_nope_head_dim=config.number("qk_nope_head_dim"),
        v_head_dim=config.number("v_head_dim"),
        q_lora_rank=config.number("q_lora_rank", default=0),
        index_heads=config.number("index_n_heads") if indexed else 0,
        index_head_dim=config.number("index_head_dim") if indexed else 0,
        index_topk=config.number("index_topk") if indexed else 0,
    )


def experts(config: HfConfig, layers: int) -> MixtureOfExperts | None:
    """Return the experts of a model's layers, if its family may have experts and it has at least two."""
    rules = config.rules
    if rules.experts is None:
        return None
    number = config.number(
        *("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"), default=0
    )
    if number < 2 or (config.family == "nemotron_h" and not _letters(config, "E", "moe")):
        _skip_experts(config)
        return None
    shared = config.number(*rules.shared_ffn, default=0) if rules.shared_ffn else 0
    latent = {"nemotron_h": "moe_latent_size", "kimi_linear": "routed_expert_hidden_size"}.get(config.family)
    found = MixtureOfExperts(
        experts=number,
        experts_per_token=config.number(
            *("num_experts_per_tok", "moe_k", "num_experts_per_token", "experts_per_token", "top_k_experts"),
            *("moe_top_k", "moe_topk"),
        ),
        # If experts have a width of their own and its key is missing, a plain MLP's width cannot replace it.
        expert_ffn=config.number(*rules.expert_ffn),
        shared_experts=config.number(
            *("n_shared_experts", "moe_num_shared_experts", "num_shared_experts"),
            default=1 if shared or config.family == "llama4" else 0,
        ),
        shared_ffn=shared,
        dense_layers=len(plain_layers(config, layers)),
        correction_bias=config.text("topk_method") == "noaux_tc"
        or config.flag("use_routing_bias")
        or config.flag("use_expert_bias")
        or config.flag("moe_router_enable_expert_bias"),
        wide_router=config.text("router_dtype") == "fp32",
        latent=config.number(latent, default=0) if latent else 0,
    )
    return replace(found, **rules.experts)


def _skip_experts(config: HfConfig) -> None:
    """Mark the keys about experts as read for a model without experts."""
    config.skip("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
    config.skip("n_shared_experts", "moe_num_shared_experts", "moe_intermediate_size", "moe_latent_size")
    config.skip("moe_shared_expert_intermediate_size", "first_k_dense_replace", "moe_layer_freq")


def plain_layers(config: HfConfig, layers: int) -> list[int]:
    """Return the layers with a plain MLP, from 0, in a model with experts."""
    every = range(layers)
    match config.family:
        case "deepseek_v4":
            return []
        case "longcat_flash":
            return list(every)
        case "jamba":
            period = config.number("expert_layer_period")
            offset = config.number("expert_layer_offset", default=0)
            return [i for i in every if i % period != offset]
        case "llama4":
            sparse = config.numbers("moe_layers")
            step = config.number("interleave_moe_layer_step")
            return [i for i in every if ((i + 1) % step != 0 if sparse is None else i not in sparse)]
        case "ernie4_5_moe":
            first, last = config.get("moe_layer_start_index"), config.get("moe_layer_end_index")
            for key, value in (("moe_layer_start_index", first), ("moe_layer_end_index", last)):
                if isinstance(value, bool) or not isinstance(value, int) or value < -1:
                    raise config.error(key, value, "a whole number from 0, or -1 for the last layer")
            last = layers - 1 if last == -1 else last
            step = config.number("moe_layer_interval")
            return [i for i in every if (i + 1) % step != 0 or not first <= i <= last]
        case "qwen2_moe" | "qwen3_moe" | "qwen3_next":
            dense = config.numbers("mlp_only_layers") or ()
            step = config.number("decoder_sparse_step", default=1)
            return [i for i in every if i in dense or (i + 1) % step != 0]
        case "nemotron_h":
            return _letters(config, "-", "mlp")
        case "step3p5" if config.get("mlp_layer_types") is None:
            listed = config.text("moe_layers_enum")
            if listed is None:
                return [0]
            numbers = listed.split(",")
            if not all(each.strip().isdecimal() for each in numbers):
                raise config.error("moe_layers_enum", listed, "numbers of layers with commas between")
            sparse = [int(each) for each in numbers]
            return [i for i in every if i not in sparse]
    first = config.number("first_k_dense_replace", "num_dense_layers", default=0)
    kinds = config.entries("mlp_layer_types")
    if kinds is not None:
        config.skip("moe_layer_freq")
        if len(kinds) != layers or not all(kind in ("dense", "sparse") for kind in kinds):
            raise config.error("mlp_layer_types", kinds, f"dense or sparse for each of the {layers} layers")
        return [i for i in every if kinds[i] == "dense"]
    # This is one number, or a list with 1 for each layer with experts.
    if isinstance(config.get("moe_layer_freq"), list):
        sparse = config.numbers("moe_layer_freq") or ()
        if len(sparse) != layers:
            raise config.error("moe_layer_freq", sparse, f"0 or 1 for each of the {layers} layers")
        return [i for i in every if not sparse[i]]
    step = config.number("moe_layer_freq", default=1)
    return [i for i in every if i < first or i % step != 0]


def sparse_layers(config: HfConfig, layers: int) -> list[int]:
    """Return the layers with experts, from 0, in a model that has some."""
    if config.family == "nemotron_h":
        return _letters(config, "E", "moe")
    if config.family == "longcat_flash":  # next to the first of each layer's two MLPs
        return list(range(0, layers, 2))
    plain = plain_layers(config, layers)
    return [i for i in range(layers) if i not in plain]


def mlp_layers(config: HfConfig, layers: int) -> int:
    """Return how many layers have an MLP or experts; 0 if all do."""
    if config.family not in ("nemotron_h", "longcat_flash"):
        return 0
    return len(plain_layers(config, layers)) + len(sparse_layers(config, layers))


def _letters(config: HfConfig, letter: str, name: str) -> list[int]:
    """Return which of Nemotron-H's layers are of a kind, given by its letter and its name."""
    named = config.entries("layers_block_type") or config.entries("layer_types")
    if named is not None:
        return [i for i, each in enumerate(named) if each == name]
    return [i for i, each in enumerate(str(config.get("hybrid_override_pattern"))) if each == letter]


def recurrence(config: HfConfig) -> tuple[Recurrence, str] | None:
    """Return the shape of a family's recurrent layers and their state's dtype, or None without such."""
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
        case "zamba2":
            inner = config.number("mamba_expand") * config.number("hidden_size")
            heads = config.number("n_mamba_heads", default=inner // config.number("mamba_headdim"))
            return Mamba2(
                heads=heads,
                head_dim=config.number("mamba_headdim", default=inner // heads),
                groups=config.number("mamba_ngroups"),
                state=config.number("mamba_d_state"),
                conv=config.number("mamba_d_conv"),
                conv_bias=config.flag("use_conv_bias", True),
                in_bias=config.flag("add_bias_linear"),
                out_bias=config.flag("add_bias_linear"),
            ), "bf16"
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
                chunk=config.number("chunk_size", default=256),
            ), _dtype(config, "mamba_ssm_cache_dtype")
        case "qwen3_next" | "qwen3_5" | "qwen3_5_moe":
            return GatedDeltaNet(
                key_heads=config.number("linear_num_key_heads"),
                key_dim=config.number("linear_key_head_dim"),
                value_heads=config.number("linear_num_value_heads"),
                value_dim=config.number("linear_value_head_dim"),
                conv=config.number("linear_conv_kernel_dim"),
            ), _dtype(config, "mamba_ssm_dtype")
        case "lfm2" | "lfm2_moe":
            width, tokens = config.number("hidden_size"), config.number("conv_L_cache")
            return ShortConv(width, tokens, config.flag("conv_bias")), "bf16"
        case "bailing_hybrid" if config.get("short_conv_kernel_size"):
            if not config.flag("no_kda_lora"):
                raise config.error("no_kda_lora", config.get("no_kda_lora"), "true, as vLLM's code needs it")
            return KimiDelta(
                heads=config.number("linear_num_heads", "num_attention_heads"),
                head_dim=config.number("linear_head_dim", "head_dim"),
                conv=config.number("short_conv_kernel_size", "linear_conv_kernel_dim"),
                full_gate=True,
                full_decay=True,
            ), "fp32"
        case "bailing_hybrid":
            return LightningAttention(
                heads=config.number("linear_num_heads", "num_attention_heads"),
                head_dim=config.number("linear_head_dim", "head_dim"),
                qk_norm=config.flag("use_qk_norm"),
            ), "bf16"
        case "kimi_linear" | "glm5_next":
            of_delta = config.part("linear_attn_config")
            if of_delta is None:
                raise config.error("linear_attn_config", None, "an object")
            return KimiDelta(
                heads=of_delta.number("num_heads"),
                head_dim=of_delta.number("head_dim"),
                conv=of_delta.number("short_conv_kernel_size"),
                full_gate=of_delta.flag("use_full_rank_gate"),
                bounded=of_delta.get("gate_lower_bound") is not None,
            ), "fp32"
    return None


def named_dtype(config: HfConfig) -> str:
    """Return the recurrent state's dtype from the config key that SGLang reads, or ''.

    Source: SGLang 0.5.23, ``mamba2_state_dtype`` (srt/configs/mamba_utils.py).
    """
    return "" if config.get("mamba_ssm_dtype") is None else _dtype(config, "mamba_ssm_dtype")


def _mamba2(config: HfConfig) -> Mamba2:
    """Return Mamba-2 from the keys of Bamba, Falcon-H1 and Granite 4."""
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
        chunk=config.number("mamba_chunk_size", default=256),
    )


def _dtype(config: HfConfig, key: str) -> str:
    """Return the dtype of a recurrent state; bf16, as for the model, if the key is missing."""
    value = config.get(key)
    if value is None:
        return "bf16"
    if not isinstance(value, str) or value not in _DTYPES:
        raise config.error(key, value, f"one of {', '.join(_DTYPES)}")
    return _DTYPES[value]
