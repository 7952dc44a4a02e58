"""Encoder: a vision tower's input sizes, which determine vLLM's largest batch of images in profiling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagesim.models.hf_config import HfConfig

ITEM_TOKENS = {
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), 16384),
    "gemma3": 256,
    "gemma4": 280,
    "kimi_k25": 65 * 65,
    "kimi_k3": 16817,
    "llama4": (16 + 1) * 144,
    "mistral3": 3025,
}
"""Tokens of the largest image that a family's preprocessor accepts, by model type: from the encoder budget in
logs (Qwen), or from the config and the processor's code. For Kimi it is the image with which vLLM 0.33.0
profiles the model, of 16,384 patches (K2.5) or 65,536 (K3) before padding. For Llama 4 it is an image of 16
tiles plus the global view."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """The sizes of a vision tower that `sizing.activations` needs.

    Attributes:
        hidden: width of its residual stream.
        ffn: inner width of its MLPs.
        patch: elements of a patch: channels × frames × height × width.
        merged: patches that become one token of the language model.
        pixels: pixels of a patch: height × width.
        item_tokens: tokens of the largest image.
    """

    hidden: int
    ffn: int
    patch: int
    merged: int
    pixels: int
    item_tokens: int

    def tokens_of(self, max_pixels: int) -> int:
        """Return the tokens of an image of ``max_pixels`` pixels, at most those of the largest image."""
        return max(1, min(self.item_tokens, max_pixels // (self.pixels * self.merged)))


def encoder(config: HfConfig, tower: HfConfig) -> Encoder | None:
    """Return the encoder of a model; None if the size of its largest image is not known.

    Args:
        config: config of the whole model.
        tower: its ``vision_config``.
    """
    family = str(config.whole.get("model_type"))
    if family not in ITEM_TOKENS:
        return None
    side = tower.number("patch_size", default=14)
    frames = tower.number("temporal_patch_size", default=2) if family.startswith("qwen") else 1
    merge = {"gemma3": 4, "gemma4": tower.number("pooling_kernel_size", default=3)}.get(family)
    merge = merge or (config if family == "mistral3" else tower).number("spatial_merge_size", default=2)
    hidden = tower.number("vt_hidden_size", "embed_dim", "hidden_size", default=1152)
    usual = 4 * hidden if family == "qwen2_vl" else 4304
    return Encoder(
        hidden=hidden,
        ffn=tower.number("vt_intermediate_size", "intermediate_size", default=usual),
        patch=3 * frames * side * side,
        merged=merge * merge,
        pixels=side * side,
        item_tokens=ITEM_TOKENS[family],
    )
