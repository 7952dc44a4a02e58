"""Read a ModelSpec from a Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pagesim.costs.specs.models import LatentAttention, MixtureOfExperts, ModelSpec
from pagesim.errors import PagesimError, brief, reason
from pagesim.setup.reading import parse_json

_LAYER_NORM: dict[str, Any] = {"gated": False, "layer_norm": True}
_BIASES: dict[str, Any] = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}

_FAMILIES: dict[str, dict[str, Any]] = {
    "opt": {**_LAYER_NORM, **_BIASES, "tied": True},
    "gpt2": {**_LAYER_NORM, **_BIASES, "tied": True},
    "gpt_bigcode": {**_LAYER_NORM, **_BIASES, "tied": True},
    "gpt_neox": {**_LAYER_NORM, **_BIASES},
    "falcon": {**_LAYER_NORM, "tied": True},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "qwen3_moe": {"qk_norm": True},
}
"""What a family's code fixes without naming it in the config. Others are read like LLaMA."""


def from_hf_config(config: str | Path | Mapping[str, Any], name: str | None = None) -> ModelSpec:
    """Read a model's shape from a ``config.json``, its folder, or its content as a mapping.

    OPT, GPT-2, GPT-NeoX, Falcon, LLaMA, Mistral, Mixtral, Qwen2, Qwen3 (dense or not) and DeepSeek V2 and V3
    are counted exactly; any other model is taken to be built like LLaMA. A sliding window is ignored: every
    token's KV is kept.

    Args:
        config: path or content.
        name: the model's name; by default the one that the config holds, else its folder's or its type.

    Raises:
        PagesimError: the file cannot be read, or a key is missing or holds no positive whole number.
    """
    if isinstance(config, Mapping):
        return _Config(config, "the config").spec(name)
    path = Path(config)
    path = path / "config.json" if path.is_dir() else path
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PagesimError(f"cannot read {path}: {error.strerror}; name a model's config.json") from error
    except ValueError as error:
        raise PagesimError(f"{path} is not JSON: {reason(error)}") from error
    if not isinstance(content, Mapping):
        raise PagesimError(f"{path} holds a {type(content).__name__}; a config.json holds an object")
    return _Config(content, str(path)).spec(name or path.resolve().parent.name)


class _Config:
    """A config's content, and where it was read, for the errors."""

    def __init__(self, content: Mapping[str, Any], where: str) -> None:
        self.content = content
        self.where = where
        family = str(content.get("model_type", "llama"))
        self.family = "falcon" if family.startswith("RefinedWeb") else family

    def number(self, *keys: str, default: int | None = None) -> int:
        """The first of these keys that is there and not null; 0 is allowed where it is the default."""
        least = 0 if default == 0 else 1
        for key in keys:
            value = self.content.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise PagesimError(
                    f"{self.where}: {key} is {brief(value)}; it must be a whole number from {least}"
                )
            return value
        if default is None:
            aliases = f" (or {', '.join(keys[1:])})" if keys[1:] else ""
            raise PagesimError(f"{self.where}: key {keys[0]}{aliases} is missing; add it to the config")
        return default

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.content.get(key)
        return default if value is None else bool(value)

    def spec(self, name: str | None) -> ModelSpec:
        hidden = self.number("hidden_size", "n_embd", "d_model")
        heads = self.number("num_attention_heads", "n_head", "n_heads")
        inner = 4 * hidden if self.family in ("gpt2", "gpt_bigcode", "falcon") else None
        mla = self.latent()
        shape: dict[str, Any] = {
            "name": str(name or self.content.get("_name_or_path") or self.family),
            "layers": self.number("num_hidden_layers", "n_layer", "n_layers"),
            "hidden": hidden,
            "ffn": self.number("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", default=inner),
            "heads": heads,
            "kv_heads": heads if mla else self.kv_heads(heads),
            "head_dim": mla.v_head_dim if mla else self.number("head_dim", default=hidden // heads),
            "vocab": self.number("vocab_size"),
            "max_model_len": self.max_model_len(),
            "source": f"{self.where}, model_type {self.family}",
            "weight_dtype_bytes": 1 if self.quantization() == "fp8" else 2,
            "mla": mla,
            "moe": self.experts(),
        }
        return ModelSpec(**{**shape, **self.traits(hidden)})

    def quantization(self) -> str:
        section = self.content.get("quantization_config")
        return str(section.get("quant_method")) if isinstance(section, Mapping) else ""

    def max_model_len(self) -> int:
        # Falcon's first configs leave its 2048 to the code.
        default = 2048 if self.family == "falcon" else None
        return self.number("max_position_embeddings", "n_positions", "n_ctx", default=default)

    def kv_heads(self, heads: int) -> int:
        if self.flag("multi_query") and not self.flag("new_decoder_architecture"):
            return 1
        if self.family == "falcon" and not self.flag("new_decoder_architecture"):
            return heads
        return self.number("num_key_value_heads", "num_kv_heads", default=heads)

    def traits(self, hidden: int) -> dict[str, Any]:
        """Biases, norms, position table and tying: the family's, changed by what the config says."""
        traits: dict[str, Any] = dict(_FAMILIES.get(self.family, {}))
        traits["tied"] = self.flag("tie_word_embeddings", traits.get("tied", False))
        if self.family == "opt":
            traits["position_rows"] = self.number("max_position_embeddings") + 2
            traits["final_norm"] = self.flag("do_layer_norm_before", True)
            width = self.number("word_embed_proj_dim", default=hidden)
            traits["embedding"] = 0 if width == hidden else width
        elif self.family in ("gpt2", "gpt_bigcode"):
            traits["position_rows"] = self.max_model_len()
        elif self.family == "falcon":
            traits |= dict.fromkeys(_BIASES, self.flag("bias"))
            one_norm = self.flag("parallel_attn", True) and not self.flag("new_decoder_architecture")
            traits["norms_per_layer"] = 1 if one_norm else 2
        else:
            biased = self.flag("attention_bias", traits.get("out_bias", False))
            traits["qkv_bias"] = biased or traits.get("qkv_bias", False)
            traits["out_bias"] = biased
            traits["mlp_bias"] = self.flag("mlp_bias", traits.get("mlp_bias", False))
        return traits

    def latent(self) -> LatentAttention | None:
        if self.content.get("kv_lora_rank") is None:
            return None
        return LatentAttention(
            kv_lora_rank=self.number("kv_lora_rank"),
            qk_rope_head_dim=self.number("qk_rope_head_dim"),
            qk_nope_head_dim=self.number("qk_nope_head_dim"),
            v_head_dim=self.number("v_head_dim"),
            q_lora_rank=self.number("q_lora_rank", default=0),
        )

    def experts(self) -> MixtureOfExperts | None:
        experts = self.number("n_routed_experts", "num_local_experts", "num_experts", default=0)
        if experts < 2:
            return None
        return MixtureOfExperts(
            experts=experts,
            experts_per_token=self.number("num_experts_per_tok"),
            expert_ffn=self.number("moe_intermediate_size", "intermediate_size"),
            shared_experts=self.number("n_shared_experts", default=0),
            dense_layers=self.number("first_k_dense_replace", default=0),
            correction_bias=self.content.get("topk_method") == "noaux_tc",
        )
