"""Values of vLLM's flags that determine an option, some together with the model or other flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagesim.errors import brief
from pagesim.models import model
from pagesim.models.layers import IndexerLayer, LatentLayer
from pagesim.setup.serve_parts import object_of
from pagesim.setup.serve_words import FlagRefused, number
from pagesim.setup.sizes import readable

KERNEL_BLOCKS = {
    **dict.fromkeys(("FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "ROCM_ATTN", "ROCM_AITER_FA"), 16),
    "ROCM_AITER_UNIFIED_ATTN": 64,
    "B12X": 128,
}
"""Preferred block sizes of attention kernels (``get_preferred_block_size``, v1/attention/backends)."""

LATENT_KERNEL_BLOCKS = {
    **dict.fromkeys(("FLASH_ATTN_MLA", "TRITON_MLA", "ROCM_AITER_MLA", "ROCM_AITER_TRITON_MLA"), 16),
    **dict.fromkeys(("FLASHINFER_MLA", "TOKENSPEED_MLA"), 32),
    "FLASHMLA": 64,
    "CUTLASS_MLA": 128,
}
"""The same for latent vector kernels (v1/attention/backends/mla)."""


def kernel_block(flags: Mapping[str, list[str]], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the block size of the attention backend that a flag names, unless another flag sets it.

    Source: ``update_block_size_for_backend`` (platforms/interface.py).

    Args:
        flags: flags with their values.
        options: options that the line has set so far.

    Raises:
        FlagRefused: the backend's block size for the model is not known.
    """
    for flag in ("attention-backend", "attention-config.backend"):
        name = flags.get(flag, ["auto"])[-1].upper()
        if name == "AUTO":
            continue
        layers = model(options["model"]).cache_layers
        blocks: Mapping[str, int] = {}
        if all(isinstance(layer, LatentLayer) and layer.tokens_per_state == 1 for layer in layers):
            blocks = LATENT_KERNEL_BLOCKS
        elif not any(isinstance(layer, LatentLayer | IndexerLayer) for layer in layers):
            blocks = {"FLASH_ATTN": 0, **KERNEL_BLOCKS}  # its block depends on the GPU
        if name not in blocks:
            known = ", ".join(blocks) or "auto"
            raise FlagRefused(
                flag,
                f"--{flag} {brief(name, 80)} is not modelled for {options['model']}, and may not even start; "
                f"it may be {known}",
            )
        size = blocks[name]
        return {"block_size": size} if size and "block_size" not in options else {}
    return {}


def adapters(flags: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the number and rank of adapters to reserve memory for, if LoRA is enabled."""
    if flags.get("enable-lora", ["false"]) == ["false"]:
        return {}
    found: dict[str, Any] = {"max_loras": 1}
    for name, option in (("max-loras", "max_loras"), ("max-lora-rank", "max_lora_rank")):
        if name in flags:
            found |= number(option, int)(name, flags[name][-1])
    return found


def offloaded(name: str, text: str) -> dict[str, Any]:
    """Return the GiB of weights in host memory; empty for 0."""
    found = number("cpu_offload_gb", float)(name, text)
    return found if found["cpu_offload_gb"] else {}


def own_length(name: str, flags: Mapping[str, list[str]]) -> int:
    """Return the longest request in tokens that a model accepts, given overrides of its config.json.

    Source: ``_get_and_verify_max_len`` (config/model.py).

    Args:
        name: name of the model.
        flags: flags with their values.
    """
    tokens: float = model(name).max_model_len
    for config in ("hf-overrides.", "hf-overrides.text_config."):
        if (part := f"{config}max_position_embeddings") in flags:
            tokens = number("max_model_len", int)(part, flags[part][-1])["max_model_len"]
    for config in ("hf-overrides.", "hf-overrides.text_config."):
        for key in ("rope_scaling", "rope_parameters"):
            rope = object_of(flags.get(f"{config}{key}", [""])[-1])
            factor = rope.get("factor")
            if rope.get("rope_type", rope.get("type")) not in _ROPE_WITHIN and isinstance(
                factor, int | float
            ):
                tokens *= factor
    longer = flags.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", ["0"])[-1].strip().lower() in ("1", "true")
    asked = length("max-model-len", flags.get("max-model-len", ["auto"])[-1])["max_model_len"]
    return max(int(tokens), asked) if longer and isinstance(asked, int) else int(tokens)


_ROPE_WITHIN = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Rotary embedding types whose scaling ``max_position_embeddings`` already includes."""


def retention(text: str) -> int:
    """Parse a retention interval; vLLM's None is -1 here."""
    if text in ("", "None"):
        return -1
    interval = int(text)
    if interval < 0:
        raise ValueError(f"{interval} is negative")
    return interval


def length(name: str, text: str) -> dict[str, Any]:
    """Return the longest request in tokens, or auto."""
    if text.strip().lower() in ("auto", "-1"):
        return {"max_model_len": "auto"}
    return number("max_model_len", readable)(name, text)


def limits(name: str, text: str) -> dict[str, Any]:
    """Return the option that loads no vision tower if neither images nor videos are allowed."""
    limits = object_of(text)
    return {"language_model_only": True} if limits.get("image") == limits.get("video") == 0 else {}


def processor(name: str, text: str) -> dict[str, Any]:
    """Return the pixels of the largest image, if given."""
    given = object_of(text)
    size = given.get("size")
    pixels = given.get("max_pixels", size.get("longest_edge") if isinstance(size, dict) else None)
    return {"max_pixels": pixels} if isinstance(pixels, int) and pixels > 0 else {}
