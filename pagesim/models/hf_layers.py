"""What each layer of a model keeps, read from its Hugging Face config.

A config gives its layers' kinds in ``layer_types``, by a pattern of its family, or not at all. A config with
keys of unsupported attention is refused: read as full attention, the model would be sized wrongly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pagesim.errors import PagesimError, brief
from pagesim.models.hf_config import HfConfig
from pagesim.models.hf_kept import KEPT, Kept, indexer_bytes
from pagesim.models.hf_unread import LAYER_FILE
from pagesim.models.layers import (
    ChunkLayer,
    FullLayer,
    IndexerLayer,
    LatentLayer,
    Layer,
    StateLayer,
    WindowLayer,
)
from pagesim.models.model_spec import MOST_PARTS
from pagesim.models.parts import LatentAttention

NO_KIND = ("compress_ratios", "index_kpool", "cross_attention_layers", "is_encoder_decoder")
"""Keys of something that no kind of layer here can represent, not even in a layer file."""

SIGNS = (
    *NO_KIND,
    *("sliding_window", "sliding_window_size", "sliding_window_pattern", "sliding_window_layers"),
    *("window_size", "attention_window", "local_attention_window", "global_attn_every_n_layers"),
    *("attention_chunk_size", "attention_types", "attn_type_list", "attention_layers"),
    *("layer_types", "layers_block_type", "block_types", "block_configs", "hybrid_override_pattern"),
    *("attn_layer_period", "attn_layer_indices", "full_attention_interval", "full_attn_idxs"),
    *("linear_attn_config", "linear_num_value_heads", "mamba_d_state", "mamba_d_ssm", "mamba_num_heads"),
    *("ssm_cfg", "ssm_state_size", "state_size", "conv_L_cache", "rwkv_head_size", "lru_width"),
    *("kv_lora_rank", "index_topk", "index_head_dim", "indexer_types"),
    *("num_kv_shared_layers", "kv_shared_layers", "global_head_dim", "num_global_key_value_heads"),
    *("blocksparse_params", "sparse_attention_config", "use_bidirectional_attention"),
)
"""Config keys of layers that keep something other than every token's keys and values per head."""

_WINDOWS = ("sliding_window", "sliding_window_pattern")
ALWAYS = ("kv_lora_rank", "layer_types", "layers_block_type")
_WITH_TYPES = (*_WINDOWS, "attention_chunk_size")

KINDS = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "window",
    "chunked_attention": "chunk",
    "linear_attention": "state",
    "mamba": "state",
    "conv": "state",
    "hybrid": "both",
    "indexed_attention": "indexed",
    "deepseek_sparse_attention": "indexed",
    "mlp": "none",
    "moe": "none",
}
"""What a layer keeps, by its entry in ``layer_types``."""

_LETTERS = {"M": "state", "*": "full", "-": "none", "E": "none"}


def kinds(config: HfConfig) -> tuple[str, ...]:
    """Return each layer's kind, in order: full, window, chunk, indexed, state, both or none.

    ``both`` is attention and a state side by side, ``indexed`` is latent attention with an indexer, and
    ``none`` is a layer with only an MLP.

    Raises:
        PagesimError: the config has attention that is not supported; the message names the key.
    """
    named = config.entries("layer_types") or config.entries("layers_block_type")
    _refuse_unknown_signs(config, named is not None)
    layers = layer_count(config)
    if named is None:
        return PATTERNS[config.rules.pattern](config, layers)
    key = "layer_types" if config.get("layer_types") else "layers_block_type"
    for name in named:
        if not isinstance(name, str) or name not in KINDS:
            raise PagesimError(
                f"{config.where}: {key} names {brief(name)}, which is none of {', '.join(KINDS)}: what such "
                f"layers keep is not known here; {LAYER_FILE}"
            )
    if config.family == "step3p5":  # which also lists its MTP modules
        named = named[:layers]
    if len(named) != layers:
        raise config.error(key, named, f"one entry for each of the {layers} layers; it has {len(named)}")
    return tuple(KINDS[name] for name in named)


def layer_count(config: HfConfig) -> int:
    """Return the number of transformer layers.

    Raises:
        PagesimError: the config does not give it, or it is too large.
    """
    named = config.entries("layer_types") or config.entries("layers_block_type")
    if config.family == "longcat_flash":  # each of whose layers attends twice
        return 2 * config.number("num_layers", "num_hidden_layers")
    layers = config.number(
        *("num_hidden_layers", "n_layer", "n_layers", "num_layers"), default=len(named) if named else None
    )
    if layers > MOST_PARTS:
        raise config.error("num_hidden_layers", layers, f"a whole number from 1 to {MOST_PARTS}")
    return layers


def cached(config: HfConfig, full: FullLayer, mla: LatentAttention | None, state: StateLayer | None) -> Kept:
    """Return what each layer keeps, in order.

    Args:
        config: the model's config.
        full: what a full-attention layer with heads keeps.
        mla: latent attention, or None.
        state: what a recurrent layer keeps, if known.

    Raises:
        PagesimError: as for `kinds`; or the size of a window, a chunk or a state is missing.
    """
    if config.family in KEPT:
        _refuse_unknown_signs(config, config.get("layer_types") is not None)
        latent = _vector(mla) if mla else None
        return KEPT[config.family](config, layer_count(config), full, latent, state)
    found = kinds(config)
    made = {kind: _layers(config, kind, full, mla, state) for kind in dict.fromkeys(found)}
    return [made[kind] for kind in found]


def _layers(
    config: HfConfig, kind: str, full: FullLayer, mla: LatentAttention | None, state: StateLayer | None
) -> tuple[Layer, ...]:
    """Return what a layer of that kind keeps."""
    heads = full.kv_heads, full.head_dim
    attends = LatentLayer(mla.width) if mla else full
    match kind:
        case "full":
            return (attends,)
        case "window":
            # Cohere's layers also see the token before the window.
            window = config.number("sliding_window") + (config.family == "cohere2")
            return (WindowLayer(*heads, window=window),)
        case "chunk":
            return (ChunkLayer(*heads, chunk=config.number("attention_chunk_size")),)
        case "indexed":
            return _indexed(config, mla)
        case "none":
            return ()
    if state is None:
        key = "layer_types" if config.get("layer_types") else "layers_block_type"
        raise PagesimError(
            f"{config.where}: {key} names recurrent layers, and the state of those of model_type "
            f"{config.model_type} is not known here; {LAYER_FILE}"
        )
    return (attends, state) if kind == "both" else (state,)


def _vector(mla: LatentAttention) -> LatentLayer:
    """Return what a layer with latent attention keeps.

    If an indexer selects the tokens to read, an fp8 vector has an fp32 scale per 128 elements and a rotary
    part in bf16 (FlashMLA's layout, as in vLLM).
    """
    if not mla.index_heads:
        return LatentLayer(mla.width)
    scales = 4 * -(-mla.kv_lora_rank // 128)
    return LatentLayer(mla.width, fp8_bytes=mla.kv_lora_rank + scales + 2 * (mla.qk_rope_head_dim or 64))


def _indexed(config: HfConfig, mla: LatentAttention | None) -> tuple[Layer, ...]:
    """Return the latent vector and the indexer of DeepSeek's sparse attention.

    The indexer's keys are in fp8 with a scale, regardless of the KV dtype (DeepGEMM's layout).
    """
    if mla is None or config.family != "deepseek_v32":
        raise PagesimError(
            f"{config.where}: layer_types names sparse attention, and the indexer of model_type "
            f"{config.model_type} is not known here; {LAYER_FILE}"
        )
    keys = config.number("index_head_dim")
    return (_vector(mla), IndexerLayer(indexer_bytes(keys)))


def _refuse_unknown_signs(config: HfConfig, named: bool) -> None:
    """Refuse a config with a key of `SIGNS` that is not read for its family."""
    windows_off = not config.flag("use_sliding_window", True)
    read = {*config.rules.reads, *ALWAYS, *(_WITH_TYPES if named else ())}
    if not config.rules.latent:
        read -= {"kv_lora_rank"}
    for key in SIGNS:
        value = config.get(key)
        if key in read or not value or (windows_off and key in _WINDOWS):
            continue
        if key == "indexer_types" and isinstance(value, list) and value == ["full"] * len(value):
            continue
        advice = "no kind of layer here stands for it: choose another model" if key in NO_KIND else LAYER_FILE
        raise PagesimError(
            f"{config.where}: {key} is {brief(value)}, and what the layers of model_type {config.model_type} "
            f"then keep is not known here; {advice}"
        )


Pattern = Callable[[HfConfig, int], tuple[str, ...]]


def _full(config: HfConfig, layers: int) -> tuple[str, ...]:
    return ("full",) * layers


def _all_windows(config: HfConfig, layers: int) -> tuple[str, ...]:
    """Return Mistral's kinds: every layer has the window, if there is one."""
    windows = config.get("sliding_window") and config.flag("use_sliding_window", True)
    return ("window" if windows else "full",) * layers


def _last_windows(config: HfConfig, layers: int) -> tuple[str, ...]:
    """Return the kinds of Qwen2 and Qwen3: layers from ``max_window_layers`` on have the window."""
    if "full" in _all_windows(config, 1):
        return _full(config, layers)
    first = config.number("max_window_layers", default=0)
    return tuple("window" if i >= first else "full" for i in range(layers))


def _even_windows(config: HfConfig, layers: int) -> tuple[str, ...]:
    """Return Qwen2-MoE's kinds: every other layer below ``max_window_layers`` has the window."""
    if "full" in _all_windows(config, 1):
        return _full(config, layers)
    most = config.number("max_window_layers", default=0)
    return tuple("window" if i % 2 == 0 and i < most else "full" for i in range(layers))


def _every(key: str, kind: str, size: str | None = None) -> Pattern:
    """Return a pattern in which every n-th layer (n at ``key``) is full attention, the others ``kind``.

    If the key ``size`` is given and is missing in the config, all layers are full attention.
    """

    def pattern(config: HfConfig, layers: int) -> tuple[str, ...]:
        if size is not None and not config.get(size):
            return _full(config, layers)
        period = config.number(key)
        return tuple("full" if (i + 1) % period == 0 else kind for i in range(layers))

    return pattern


def _of_all(kind: str) -> Pattern:
    return lambda config, layers: (kind,) * layers


def _llama4(config: HfConfig, layers: int) -> tuple[str, ...]:
    """Return Llama 4's kinds: layers with rotary positions attend within chunks."""
    if not config.get("attention_chunk_size"):
        return _full(config, layers)
    rotary = config.numbers("no_rope_layers")
    if not rotary:
        return _every("no_rope_layer_interval", "chunk")(config, layers)
    if len(rotary) < layers:
        raise config.error("no_rope_layers", rotary, f"a number for each of the {layers} layers")
    return tuple("chunk" if has else "full" for has in rotary[:layers])


def _jamba(config: HfConfig, layers: int) -> tuple[str, ...]:
    period, offset = config.number("attn_layer_period"), config.number("attn_layer_offset", default=0)
    return tuple("full" if i % period == offset else "state" for i in range(layers))


def _lfm2(config: HfConfig, layers: int) -> tuple[str, ...]:
    """Return LFM2's kinds: short convolutions except in the listed full-attention layers."""
    full = config.numbers("full_attn_idxs")
    return tuple("full" if full is None or i in full else "state" for i in range(layers))


def _bamba(config: HfConfig, layers: int) -> tuple[str, ...]:
    full = config.numbers("attn_layer_indices") or ()
    return tuple("full" if i in full else "state" for i in range(layers))


def _nemotron_h(config: HfConfig, layers: int) -> tuple[str, ...]:
    """Return Nemotron-H's kinds: one letter per layer, which is either a mixer or an MLP."""
    pattern: Any = config.get("hybrid_override_pattern")
    if not isinstance(pattern, str) or set(pattern) - set(_LETTERS) or len(pattern) != layers:
        letters = " ".join(_LETTERS)
        raise config.error("hybrid_override_pattern", pattern, f"a letter of {letters} for each layer")
    return tuple(_LETTERS[letter] for letter in pattern)


def _minimax_m2(config: HfConfig, layers: int) -> tuple[str, ...]:
    """Return MiniMax-M2's kinds: 1 marks full attention, which all layers of released models are."""
    types = config.numbers("attn_type_list") or (1,) * layers
    if len(types) != layers or set(types) != {1}:
        raise config.error("attn_type_list", types, f"1 for each of the {layers} layers")
    return _full(config, layers)


PATTERNS: dict[str, Pattern] = {
    **{f"all_{kind}": _of_all(kind) for kind in ("both", "indexed", "state")},
    "all_windows": _all_windows,
    "afmoe": _every("global_attn_every_n_layers", "window"),
    "bamba": _bamba,
    "delta": _every("full_attention_interval", "state"),
    "even_windows": _even_windows,
    "full": _full,
    "jamba": _jamba,
    "last_windows": _last_windows,
    "lfm2": _lfm2,
    "llama4": _llama4,
    "minimax_m2": _minimax_m2,
    "nemotron_h": _nemotron_h,
    "windows": _every("sliding_window_pattern", "window", "sliding_window"),
}
"""Functions that return the kinds of all layers, by `ModelFamily.pattern`."""
