"""Read a ModelSpec from a Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pagesim.errors import PagesimError, reason
from pagesim.models.encoder import encoder
from pagesim.models.families import OTHER
from pagesim.models.hf_config import HfConfig
from pagesim.models.hf_extras import extras
from pagesim.models.hf_kept import widest_kv
from pagesim.models.hf_layers import cached, layer_count
from pagesim.models.hf_modules import modules
from pagesim.models.hf_parts import (
    experts,
    latent,
    mlp_layers,
    named_dtype,
    plain_layers,
    recurrence,
    sparse_layers,
)
from pagesim.models.hf_quant_file import with_file
from pagesim.models.hf_quantization import cache_dtype, is_of_modelopt, weights
from pagesim.models.hf_unread import unread
from pagesim.models.hf_vision import Tower, parts, sglang_images
from pagesim.models.layers import FullLayer, LatentLayer, Layer, StateLayer, WindowLayer
from pagesim.models.model_spec import ModelSpec
from pagesim.models.parameters import tensors
from pagesim.models.parts import MixtureOfExperts
from pagesim.setup.reading import parse_json, read_text

_TIED_AROUND = ("gemma3", "gemma4", "kimi_k25", "mistral3")
"""Vision models whose token table is also the LM head unless the config's top level says otherwise."""


def from_hf_config(config: str | Path | Mapping[str, Any], name: str | None = None) -> ModelSpec:
    """Read a model's shape from a ``config.json``, its folder, or its content as a mapping.

    The families of ``families.json`` are counted as their code builds them. Any other model is assumed to be
    built like LLaMA, and is ``approximate``. What each layer keeps is read from ``layer_types`` or from the
    family's own keys. Of a multimodal model, the language model is read, and the vision tower if its family
    is known (`hf_vision`); other parts are ``left_out``. Unread keys that may carry a size are ``unread``,
    and make the weights an estimate.

    Args:
        config: path or content.
        name: the model's name; by default the folder's of a file, else the config's own or its type.

    Raises:
        PagesimError: the file cannot be read, a key is missing or is not a positive whole number, or a key
            indicates layers of an unknown kind (`hf_layers.SIGNS`).
    """
    if isinstance(config, Mapping):
        return _spec(HfConfig(with_file(config)[0], "the config"), name)
    path = Path(config)
    path = path / "config.json" if path.is_dir() else path
    try:
        content = parse_json(read_text(path), finite=False)
    except OSError as error:
        raise PagesimError(f"cannot read {path}: {error.strerror}; name a model's config.json") from error
    except ValueError as error:
        raise PagesimError(f"{path} is not JSON: {reason(error)}") from error
    if not isinstance(content, Mapping):
        raise PagesimError(f"{path} holds a {type(content).__name__}; a config.json holds an object")
    content, beside = with_file(content, path.parent)
    return _spec(HfConfig(content, f"{path}{beside}"), name or path.resolve().parent.name)


def _spec(config: HfConfig, name: str | None) -> ModelSpec:
    hidden = config.number("hidden_size", "n_embd", "d_model")
    heads = config.number("num_attention_heads", "n_head", "n_heads")
    layers = layer_count(config)
    mla, moe, recurrent = latent(config), experts(config, layers), recurrence(config)
    kv_heads = heads if mla else _kv_heads(config, heads)
    head_dim = mla.v_head_dim if mla else 0
    head_dim = head_dim or config.number("attention_head_dim", "head_dim", default=max(1, hidden // heads))
    state = None
    if recurrent is not None:
        state = replace(recurrent[0].layer(recurrent[1]), named_dtype=named_dtype(config))
    by_layer = cached(config, FullLayer(kv_heads, head_dim), mla, state)
    kept = tuple(layer for of_layer in by_layer for layer in of_layer)
    if config.family == "zamba2":  # whose code creates all attention before the layers that share it
        kept = tuple(sorted(kept, key=lambda layer: isinstance(layer, StateLayer)))
    alike = set(by_layer) == {(LatentLayer(mla.width) if mla else FullLayer(kv_heads, head_dim),)}

    def having(state: bool) -> tuple[int, ...]:
        """Return the layers that keep a state, or something else; empty if they are the first ones."""
        found = [
            i for i, of in enumerate(by_layer) if any(isinstance(each, StateLayer) == state for each in of)
        ]
        return () if found == list(range(len(found))) else tuple(found)

    tower, left_out = parts(config)
    shape: dict[str, Any] = {
        "name": name or config.text("_name_or_path") or config.model_type,
        "layers": layers,
        "hidden": hidden,
        "ffn": _ffn(config, hidden),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "vocab": config.number("vocab_size"),
        "max_model_len": _max_model_len(config),
        "source": f"{config.where}, model_type {config.model_type}",
        "mla": mla,
        "moe": moe,
        "recurrence": recurrent[0] if recurrent and state in kept else None,
        "mlp_layers": mlp_layers(config, layers),
        "fp8_on_sm10x": config.family in ("glm_moe_dsa", "glm5_next"),
        "sglang_images": sglang_images(config),
        "image_prefixes": config.family in ("gemma3", "gemma4") and config.is_part,
        "cached": () if alike else kept,
        "attending": having(False),
        "recurring": having(True),
        **_places(config, layers, moe),
        "approximate": config.rules is OTHER,
        "left_out": left_out,
        **(_of_tower(config, tower) if tower else {}),
        **_traits(config, hidden),
        **extras(config, layers),
        "mtp": _mtp(config, kept),
    }
    of_tower = tuple(f"vision_config.{key}" for key in unread(tower.config)) if tower else ()
    spec = ModelSpec(**shape, unread=(*unread(config), *of_tower))
    weighed = weights(config, modules(tensors(spec)))
    dtype, by_vllm = cache_dtype(config), not is_of_modelopt(config)
    return replace(spec, weights=weighed, kv_dtype=dtype, kv_by_vllm=bool(dtype) and by_vllm)


def _mtp(config: HfConfig, kept: Sequence[Layer]) -> tuple[Layer, ...] | None:
    """Return what MTP modules keep in families where it is not full attention like the model's own.

    Sources: vLLM 0.33.0, step3p5_mtp.py and gemma4_mtp.py (model_executor/models).
    """
    if config.family.startswith("gemma4"):
        return ()
    if config.family.startswith("step3p"):
        windows = [layer for layer in kept if isinstance(layer, WindowLayer)]
        return tuple(windows[:1]) * config.number("num_nextn_predict_layers", default=1) or None
    return None


def _of_tower(config: HfConfig, tower: Tower) -> dict[str, Any]:
    return {
        "tower": tower.shares.split,
        "tower_whole": tower.shares.whole,
        "tower_heads": tower.heads,
        "encoder": encoder(config, tower.config),
    }


def _places(config: HfConfig, layers: int, moe: MixtureOfExperts | None) -> dict[str, Any]:
    """Return which layers have a plain MLP and which have experts; empty if the plain ones come first."""
    plain, sparse = plain_layers(config, layers) if moe else [], sparse_layers(config, layers) if moe else []
    if [*plain, *sparse] == list(range(layers)):
        return {}
    return {"plain": tuple(plain), "sparse": tuple(sparse)}


def _ffn(config: HfConfig, hidden: int) -> int:
    """Return the inner width of a plain MLP, or of an expert if the model has no plain MLP."""
    if config.family == "nemotron-nas":
        return hidden  # each layer has a width of its own
    if config.family == "lfm2" and config.flag("block_auto_adjust_ff_dim", True):
        step = config.number("block_multiple_of", default=256)
        factor = config.real("block_ffn_dim_multiplier", default=1)
        width = int(factor * (2 * config.number("block_ff_dim", "intermediate_size") // 3))
        return -(-width // step) * step
    inner = 4 * hidden if config.family in ("gpt2", "gpt_bigcode", "falcon") else None
    return config.number(*config.rules.ffn, default=inner)


def _max_model_len(config: HfConfig) -> int:
    # Falcon's first configs leave it to the code, which has 2048.
    default = 2048 if config.family == "falcon" else None
    keys = ("max_position_embeddings", "n_positions", "n_ctx", "model_max_length")
    return config.number(*keys, default=default)


def _kv_heads(config: HfConfig, heads: int) -> int:
    if config.flag("multi_query") and not config.flag("new_decoder_architecture"):
        return 1
    if config.family == "falcon" and not config.flag("new_decoder_architecture"):
        return heads
    if config.family == "nemotron-nas":
        return widest_kv(config, heads, layer_count(config))
    return config.number("num_key_value_heads", "num_kv_heads", "num_attention_groups", default=heads)


def _tied(config: HfConfig, default: bool) -> bool:
    """Return whether the token table serves as the LM head.

    If there is a ``text_config``, the key at the top level counts; files written before that key existed have
    it inside.
    """
    inside = config.flag("tie_word_embeddings", default)
    if config.whole.get("text_config") is None:
        return inside
    around = config.whole.get("tie_word_embeddings")
    if around is None:
        return inside or config.whole.get("model_type") in _TIED_AROUND
    if not isinstance(around, bool):
        raise config.error("tie_word_embeddings", around, "true or false")
    return around


def _traits(config: HfConfig, hidden: int) -> dict[str, Any]:
    """Return biases, norms, position table and tying: the family's, overridden by the config."""
    family, rules = config.family, config.rules
    traits: dict[str, Any] = {
        **rules.traits,
        **{name: config.flag(key, default) for name, (key, default) in rules.flags.items()},
    }
    if family != "nemotron_h":  # whose code never ties them
        traits["tied"] = _tied(config, traits.get("tied", False))
    if family == "minimax_m2" and config.text("qk_norm_type") not in (None, "per_layer"):
        raise config.error("qk_norm_type", config.get("qk_norm_type"), "per_layer")
    if family == "opt":
        if not config.flag("layer_norm_elementwise_affine", True):
            raise config.error("layer_norm_elementwise_affine", False, "true: its norms are counted here")
        traits["position_rows"] = config.number("max_position_embeddings") + 2
        removed = config.flag("_remove_final_layer_norm")
        traits["final_norm"] = config.flag("do_layer_norm_before", True) and not removed
        width = config.number("word_embed_proj_dim", default=hidden)
        traits["embedding"] = 0 if width == hidden else width
    elif family in ("gpt2", "gpt_bigcode"):
        traits["position_rows"] = _max_model_len(config)
    elif family == "falcon":
        parallel, new = config.flag("parallel_attn", True), config.flag("new_decoder_architecture")
        two = config.number("num_ln_in_parallel_attn", default=2) == 2 if new else False
        traits["norms_per_layer"] = 2 if two or not parallel else 1
    return traits
