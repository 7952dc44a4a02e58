"""Read a ModelSpec from a Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pagesim.costs.specs.families import TRAITS
from pagesim.costs.specs.hf_config import HfConfig
from pagesim.costs.specs.hf_layers import Shape, cached, kinds
from pagesim.costs.specs.hf_modules import modules
from pagesim.costs.specs.hf_parts import experts, latent, mlp_layers, recurrence
from pagesim.costs.specs.hf_quantization import weights
from pagesim.costs.specs.models import ModelSpec
from pagesim.errors import PagesimError, reason
from pagesim.setup.reading import parse_json

_BIASES = ("qkv_bias", "out_bias", "mlp_bias")


def from_hf_config(config: str | Path | Mapping[str, Any], name: str | None = None) -> ModelSpec:
    """Read a model's shape from a ``config.json``, its folder, or its content as a mapping.

    The families of `families.TRAITS` are counted exactly; any other model is taken to be built like LLaMA,
    and is ``approximate``. What each layer keeps is read from ``layer_types`` or from the family's own keys.
    Of a model of images or sound too, the language model is read.

    Args:
        config: path or content.
        name: the model's name; by default the one that the config holds, else its folder's or its type.

    Raises:
        PagesimError: the file cannot be read, a key is missing or holds no positive whole number, or one says
            that the layers keep something that is not known here (`hf_layers.SIGNS`).
    """
    if isinstance(config, Mapping):
        return _spec(HfConfig(config, "the config"), name)
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
    return _spec(HfConfig(content, str(path)), name or path.resolve().parent.name)


def _spec(config: HfConfig, name: str | None) -> ModelSpec:
    hidden = config.number("hidden_size", "n_embd", "d_model")
    heads = config.number("num_attention_heads", "n_head", "n_heads")
    layers = len(kinds(config))
    mla, moe, recurrent = latent(config), experts(config, layers), recurrence(config)
    kv_heads = heads if mla else _kv_heads(config, heads)
    head_dim = config.number("attention_head_dim", "head_dim", default=max(1, hidden // heads))
    state = None
    if recurrent is not None:
        state = recurrent[0].layer(recurrent[1])
    kept = cached(config, Shape(kv_heads, head_dim, mla, state))
    shape: dict[str, Any] = {
        "name": str(name or config.get("_name_or_path") or config.family),
        "layers": layers,
        "hidden": hidden,
        "ffn": _ffn(config, hidden),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": mla.v_head_dim if mla else head_dim,
        "vocab": config.number("vocab_size"),
        "max_model_len": _max_model_len(config),
        "source": f"{config.where}, model_type {config.family}",
        "mla": mla,
        "moe": moe,
        "recurrence": recurrent[0] if recurrent and state in kept else None,
        "mlp_layers": mlp_layers(config),
        "image_prefixes": config.family == "gemma3" and config.is_part,
        "cached": kept,
        "approximate": config.family not in TRAITS,
    }
    spec = ModelSpec(**{**shape, **_traits(config, hidden)})
    of_layers = list(enumerate(kinds(config)))
    attending = [layer for layer, kind in of_layers if kind not in ("state", "none")]
    recurring = [layer for layer, kind in of_layers if kind in ("state", "both")]
    return replace(spec, weights=weights(config, modules(spec, attending, recurring)))


def _ffn(config: HfConfig, hidden: int) -> int:
    """Return the inner width of a plain MLP; of a model without one, that of an expert."""
    inner = 4 * hidden if config.family in ("gpt2", "gpt_bigcode", "falcon") else None
    if config.family == "granitemoehybrid":
        return config.number("shared_intermediate_size")
    keys: tuple[str, ...] = (
        "intermediate_size",
        "ffn_dim",
        "n_inner",
        "ffn_hidden_size",
        "moe_intermediate_size",
    )
    if config.family == "llama4":
        keys = ("intermediate_size_mlp", *keys)
    return config.number(*keys, default=inner)


def _max_model_len(config: HfConfig) -> int:
    # Falcon's first configs leave its 2048 to the code.
    default = 2048 if config.family == "falcon" else None
    return config.number("max_position_embeddings", "n_positions", "n_ctx", default=default)


def _kv_heads(config: HfConfig, heads: int) -> int:
    if config.flag("multi_query") and not config.flag("new_decoder_architecture"):
        return 1
    if config.family == "falcon" and not config.flag("new_decoder_architecture"):
        return heads
    return config.number("num_key_value_heads", "num_kv_heads", default=heads)


def _traits(config: HfConfig, hidden: int) -> dict[str, Any]:
    """Biases, norms, position table and tying: the family's, changed by what the config says."""
    traits: dict[str, Any] = dict(TRAITS.get(config.family, {}))
    traits["tied"] = config.flag("tie_word_embeddings", traits.get("tied", False))
    if config.family == "opt":
        traits["position_rows"] = config.number("max_position_embeddings") + 2
        traits["final_norm"] = config.flag("do_layer_norm_before", True)
        width = config.number("word_embed_proj_dim", default=hidden)
        traits["embedding"] = 0 if width == hidden else width
    elif config.family in ("gpt2", "gpt_bigcode"):
        traits["position_rows"] = _max_model_len(config)
    elif config.family == "falcon":
        traits |= dict.fromkeys(_BIASES, config.flag("bias"))
        one_norm = config.flag("parallel_attn", True) and not config.flag("new_decoder_architecture")
        traits["norms_per_layer"] = 1 if one_norm else 2
    else:
        biased = config.flag("attention_bias", traits.get("out_bias", False))
        traits["qkv_bias"] = biased or traits.get("qkv_bias", False)
        traits["out_bias"] = biased
        traits["mlp_bias"] = config.flag("mlp_bias", traits.get("mlp_bias", False))
    return traits
