"""Parts of a multimodal model other than its language model: vision towers are counted, others left out.

Sources: the modeling files of transformers 5.23 for shapes, and those of vLLM 0.33.0 for what tensor
parallelism divides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import NamedTuple

from pagesim.models.hf_config import HfConfig
from pagesim.models.parameters import Shares

_PARTS = {
    "vision_config": "vision tower",
    "visual": "vision tower",
    "vision_tower": "vision tower",
    "mm_vision_tower": "vision tower",
    "audio_config": "audio tower",
    "audio_processor": "audio tower",
    "speech_config": "speech tower",
    "talker_config": "talker",
    "code2wav_config": "vocoder",
}
"""Config keys of parts other than the language model, and the names of these parts."""


class Tower(NamedTuple):
    """A vision tower's parameters, its config, and heads that tp must divide for it to be split; or 0."""

    shares: Shares
    config: HfConfig
    heads: int = 0


def parts(config: HfConfig) -> tuple[Tower | None, tuple[str, ...]]:
    """Return the vision tower, if its family is known, and the names of the parts that are left out.

    Raises:
        PagesimError: a size of the tower is not a positive whole number.
    """
    config.skip(*_PARTS)
    found = dict.fromkeys(part for key, part in _PARTS.items() if config.content.get(key))
    vision = config.whole.get("vision_config")
    count = _TOWERS.get(str(config.whole.get("model_type")))
    if vision is None and config.whole.get("model_type") == "llama4" and config.is_part:
        vision = {}  # its code then uses the defaults for all keys
    if count is None or vision is None:
        return None, tuple(found)
    if not isinstance(vision, Mapping):
        raise config.error("vision_config", vision, "an object")
    of_tower = HfConfig({**vision, "model_type": "tower"}, f"{config.where}: vision_config")
    shares = count(of_tower, config)
    found.pop("vision tower", None)
    is_k3 = config.whole.get("model_type") == "kimi_k3"
    heads = of_tower.number("vt_num_attention_heads") if is_k3 else 0
    return Tower(shares, of_tower, heads), tuple(found)


WITHOUT_IMAGES = ("gemma3", "llama4", "step3_vl", "inkling")
"""Families of which SGLang 0.5.23 serves text alone unless told otherwise (configs/model_config.py 692)."""

_OWN_DEFAULTS = {"kimi_k25": (27, 1152), "kimi_k3": (27, 1024)}
"""Layers and width of a tower in SGLang's own classes of configs, which have other keys than the file."""


def sglang_images(config: HfConfig) -> tuple[str, int, int] | None:
    """Return the family of a model that SGLang serves images with, and its tower's layers and width.

    Keys that the family's config does not have count as those of the tower of CLIP: 24 layers of 1024. None
    for a model of text. Source: 0.5.23, arg_groups/memory_hook.py 432.
    """
    family, vision = str(config.whole.get("model_type")), config.whole.get("vision_config")
    if not isinstance(vision, Mapping) or family in WITHOUT_IMAGES:
        return None
    layers, width = _OWN_DEFAULTS.get(family, (24, 1024))
    prefix = "vt_" if family == "kimi_k3" else ""
    sizes = HfConfig({**vision, "model_type": "tower"}, f"{config.where}: vision_config")
    layers = sizes.number(f"{prefix}num_hidden_layers", default=layers)
    return family, layers, sizes.number(f"{prefix}hidden_size", default=width)


def _sum(*shares: Shares) -> Shares:
    return Shares(*map(sum, zip(*shares, strict=True)))


def _divided(into: int, out: int, *, bias: bool = True) -> Shares:
    """Return the parameters of a matrix divided along its output, with its bias."""
    return Shares(into * out + (out if bias else 0))


def _summed(into: int, out: int, *, bias: bool = True) -> Shares:
    """Return the parameters of a matrix divided along its input; every GPU has its bias."""
    return Shares(into * out, out if bias else 0)


def _whole(*sizes: int) -> Shares:
    return Shares(0, sum(sizes))


def _layer(hidden: int, ffn: int, *, norm: int, gated: bool = False, bias: bool = True) -> Shares:
    """Return one layer's parameters: QKV and output projections, an MLP, two norms of size ``norm``."""
    return _sum(
        _divided(hidden, 3 * hidden, bias=bias),
        _summed(hidden, hidden, bias=bias),
        _divided(hidden, ffn * (2 if gated else 1), bias=bias),
        _summed(ffn, hidden, bias=bias),
        _whole(2 * norm),
    )


def _qwen2_5_vl(tower: HfConfig, model: HfConfig) -> Shares:
    tower.skip("window_size", "fullatt_block_indexes", "spatial_patch_size", "num_heads")
    hidden = tower.number("hidden_size", default=3584)
    merged = hidden * tower.number("spatial_merge_size", default=2) ** 2
    ffn = tower.number("intermediate_size", default=3420)
    return _sum(
        _whole(_patch(tower, 14, "in_channels", "in_chans") * hidden),
        _layer(hidden, ffn, norm=hidden, gated=True).times(tower.number("depth", default=32)),
        _whole(hidden),
        _divided(merged, merged),
        _summed(merged, tower.number("out_hidden_size", default=model.number("hidden_size"))),
    )


def _qwen2_vl(tower: HfConfig, model: HfConfig) -> Shares:
    """Count layers with biases and LayerNorms; ``hidden_size`` is the merger's output width."""
    tower.skip("num_heads", "spatial_patch_size")
    hidden = tower.number("embed_dim", default=1280)
    ffn = int(hidden * tower.real("mlp_ratio", default=4))
    merged = hidden * tower.number("spatial_merge_size", default=2) ** 2
    return _sum(
        _whole(_patch(tower, 14, "in_channels", "in_chans") * hidden),
        _layer(hidden, ffn, norm=2 * hidden).times(tower.number("depth", default=32)),
        _whole(2 * hidden),
        _divided(merged, merged),
        _summed(merged, tower.number("hidden_size", default=3584)),
    )


def _qwen3_vl(tower: HfConfig, model: HfConfig) -> Shares:
    """Count Qwen3-VL's and Qwen3.5's tower, with one merger plus one for each DeepStack layer."""
    tower.skip("num_heads")
    hidden = tower.number("hidden_size", default=1152)
    ffn = tower.number("intermediate_size", default=4304)
    merged = hidden * tower.number("spatial_merge_size", default=2) ** 2
    out = tower.number("out_hidden_size", default=model.number("hidden_size"))
    deep = [8, 16, 24] if str(model.whole["model_type"]).startswith("qwen3_vl") else []
    given = tower.numbers("deepstack_visual_indexes")
    mergers = len(deep if given is None else given)
    positions = tower.number("num_position_embeddings", default=2304)
    return _sum(
        _whole((_patch(tower, 16, "in_channels") + 1 + positions) * hidden),
        _layer(hidden, ffn, norm=2 * hidden).times(tower.number("depth", default=27)),
        _whole(2 * hidden + mergers * 2 * merged),
        _divided(merged, merged).times(1 + mergers),
        _summed(merged, out).times(1 + mergers),
    )


def _gemma3(tower: HfConfig, model: HfConfig) -> Shares:
    """Count SigLIP, a head if it has one, and a projection that every GPU holds whole."""
    tower.skip("num_attention_heads")
    hidden = tower.number("hidden_size", default=768)
    ffn = tower.number("intermediate_size", default=3072)
    patch = tower.number("patch_size", default=16)
    positions = (tower.number("image_size", default=224) // patch) ** 2
    return _sum(
        _whole((_patch(tower, 16, "num_channels", times=1) + 1 + positions) * hidden),
        _layer(hidden, ffn, norm=2 * hidden).times(tower.number("num_hidden_layers", default=12)),
        _sum(
            _whole(3 * hidden, 4 * hidden * hidden, 4 * hidden),
            _divided(hidden, ffn),
            _summed(ffn, hidden),
        ).times(tower.flag("vision_use_head", True)),
        _whole(2 * hidden, hidden * model.number("hidden_size"), hidden),
    )


def _llama4(tower: HfConfig, model: HfConfig) -> Shares:
    tower.skip("num_attention_heads", "pixel_shuffle_ratio")
    hidden = tower.number("hidden_size", default=768)
    ffn = tower.number("intermediate_size", default=5632)
    patch = tower.number("patch_size", default=14)
    positions = (tower.number("image_size", default=448) // patch) ** 2 + 1
    into = tower.number("projector_input_dim", default=4096)
    out = tower.number("projector_output_dim", default=4096)
    return _sum(
        _divided(_patch(tower, 14, "num_channels", times=1), hidden, bias=False),
        _layer(hidden, ffn, norm=2 * hidden).times(tower.number("num_hidden_layers", default=34)),
        _whole((1 + positions + 4) * hidden),
        _divided(ffn, into, bias=False),
        _summed(out, out, bias=False),
        _divided(tower.number("vision_output_dim", default=7680), model.number("hidden_size"), bias=False),
    )


def _mistral3(tower: HfConfig, model: HfConfig) -> Shares:
    """Count Pixtral, and a merger of patches with a projection."""
    tower.skip("num_attention_heads", "head_dim", "vocab_size")
    hidden = tower.number("hidden_size", default=1024)
    ffn = tower.number("intermediate_size", default=4096)
    merged = hidden * model.number("spatial_merge_size", default=2) ** 2
    out = model.number("hidden_size")
    biased = model.flag("multimodal_projector_bias")
    layer = _layer(hidden, ffn, norm=hidden, gated=True, bias=False)
    return _sum(
        _whole((_patch(tower, 16, "num_channels", times=1) + 1) * hidden),
        layer.times(tower.number("num_hidden_layers", default=24)),
        _whole(hidden, merged * hidden),
        _divided(hidden, out, bias=biased),
        _summed(out, out, bias=biased),
    )


def _moonvit(tower: HfConfig, model: HfConfig) -> Shares:
    """Count MoonViT (without biases in Kimi K3) and a projection that every GPU holds whole."""
    tower.skip("vt_num_attention_heads", "num_attention_heads", "mm_hidden_size", "text_hidden_size")
    tower.skip("init_pos_emb_time", "pos_emb_time", "pos_emb_type", "merge_type", "mlp_type", "norm_type")
    tower.skip("mm_projector_type")
    hidden = tower.number("vt_hidden_size", "hidden_size", default=1152)
    ffn = tower.number("vt_intermediate_size", "intermediate_size", default=4304)
    merged, out = hidden * prod(tower.numbers("merge_kernel_size") or (2, 2)), model.number("hidden_size")
    positions = tower.number("init_pos_emb_height", "pos_emb_height", default=64)
    positions *= tower.number("init_pos_emb_width", "pos_emb_width", default=64)
    layers = tower.number("vt_num_hidden_layers", "num_hidden_layers", default=27)
    table, projection = (
        _whole((_patch(tower, 14, times=1) + positions) * hidden),
        merged * (merged + out) + out,
    )
    if model.whole.get("model_type") == "kimi_k3":
        wide = tower.number("qkv_hidden_size", default=hidden)
        layer = Shares(4 * hidden * wide + 2 * hidden * ffn, 2 * hidden)
        return _sum(table, layer.times(layers), _whole(hidden, projection))
    layer = _layer(hidden, ffn, norm=2 * hidden)
    return _sum(table, layer.times(layers), _whole(hidden, 2 * hidden, 2 * hidden, merged + projection))


def _gemma4(tower: HfConfig, model: HfConfig) -> Shares:
    """Count a tower with gated MLPs and norms on queries and keys, which every GPU holds whole."""
    tower.skip("global_head_dim", "num_key_value_heads", "pooling_kernel_size", "standardize")
    tower.skip("use_clipped_linears", "default_output_length", "max_position_embeddings", "attention_bias")
    hidden, ffn = tower.number("hidden_size", default=768), tower.number("intermediate_size", default=3072)
    heads, dim = tower.number("num_attention_heads", default=12), tower.number("head_dim", default=64)
    layer = _whole(4 * hidden * heads * dim, 3 * hidden * ffn, 2 * dim, 4 * hidden)
    return _sum(
        _whole(2 * tower.number("position_embedding_size", default=10240) * hidden),
        _whole(_patch(tower, 16, times=1) * hidden, hidden * model.number("hidden_size")),
        layer.times(tower.number("num_hidden_layers", default=16)),
    )


def _glm(tower: HfConfig, model: HfConfig) -> Shares:
    """Count GLM-V's layers with gated MLPs, a convolution that merges patches, and a gated projection.

    GLM-5.3-Flash also has biases and norms per head, but no position table.
    """
    new = model.family == "glm5_next"
    tower.skip("attention_bias", "image_size", "num_heads", "spatial_merge_size")
    hidden, out = tower.number("hidden_size", default=1536), tower.number("out_hidden_size", default=4096)
    inner = tower.number("projection_intermediate_size" if new else "intermediate_size", default=13696)
    ffn = tower.number("intermediate_size") if new else out
    positions = (tower.number("image_size", default=336) // tower.number("patch_size", default=14)) ** 2
    norms = _whole(2 * hidden // tower.number("num_heads") if new else 0)
    merged = tower.number("spatial_merge_size", default=2) ** 2
    layer = _layer(hidden, ffn, norm=hidden, gated=True, bias=new)
    return _sum(
        _whole((_patch(tower, 14, "in_channels") + 1) * hidden),
        _whole(0 if new else (positions + 1) * hidden),
        _sum(layer, norms).times(tower.number("depth", default=24)),
        _whole(hidden, (hidden * merged + 1) * out, 2 * out),
        _divided(out, out, bias=False),
        _divided(out, 2 * inner, bias=False),
        _summed(inner, out, bias=False),
    )


def _minimax_m3(tower: HfConfig, model: HfConfig) -> Shares:
    """Count CLIP's layers, a projection of each patch, and one of merged patches."""
    tower.skip(
        "num_attention_heads", "image_size", "projection_dim", "vocab_size", "vision_segment_max_frames"
    )
    tower.skip("img_token_compression_config", "rope_mode", "position_embedding_type")
    hidden, ffn = tower.number("hidden_size"), tower.number("intermediate_size")
    inner, out, merged = model.number("projector_hidden_size"), model.number("hidden_size"), 4
    return _sum(
        _whole(_patch(tower, 14, "num_channels") * hidden, 2 * hidden),
        _layer(hidden, ffn, norm=2 * hidden).times(tower.number("num_hidden_layers")),
        _divided(hidden, inner),
        _summed(inner, out),
        _divided(merged * out, inner),
        _summed(inner, out),
    )


def _muse_glimmer(tower: HfConfig, model: HfConfig) -> Shares:
    """Count a tower of which only attention is divided, with adapter and projection whole on every GPU."""
    tower.skip(
        "num_attention_heads", "layer_types", "merge_size", "patch_temporal", "max_position_embeddings"
    )
    hidden, ffn = tower.number("hidden_size"), tower.number("intermediate_size")
    adapted, positions = model.number("projector_hidden_size"), tower.number("pos_emb_height")
    layer = _sum(
        _divided(hidden, 3 * hidden),
        _summed(hidden, hidden),
        _whole(2 * hidden * ffn, ffn + hidden, 4 * hidden),
    )
    frames = tower.number("patch_temporal", default=2)
    return _sum(
        _whole((_patch(tower, 14, times=frames) + positions * tower.number("pos_emb_width")) * hidden),
        layer.times(tower.number("num_hidden_layers")),
        _whole(4 * hidden, adapted * (model.number("out_hidden_size") + adapted)),
        _whole(adapted * model.number("hidden_size")),
    )


def _patch(tower: HfConfig, side: int, *channels: str, times: int | None = None) -> int:
    """Return the elements of a patch: channels × frames × height × width."""
    side = tower.number("patch_size", default=side)
    together = tower.number("temporal_patch_size", default=2) if times is None else times
    return (tower.number(*channels, default=3) if channels else 3) * together * side * side


_TOWERS: dict[str, Callable[[HfConfig, HfConfig], Shares]] = {
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    **dict.fromkeys(("glm4v", "glm4v_moe", "glm5_next"), _glm),
    **dict.fromkeys(("kimi_k25", "kimi_k3"), _moonvit),
    "llama4": _llama4,
    "minimax_m3_vl": _minimax_m3,
    "mistral3": _mistral3,
    "muse_glimmer": _muse_glimmer,
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_5": _qwen3_vl,
    "qwen3_5_moe": _qwen3_vl,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl,
}
"""Functions that count a tower, by the ``model_type`` of the whole model."""
