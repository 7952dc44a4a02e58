"""Quantized releases: a model of the catalogue in another weight dtype."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pagesim.models.model_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Quantized:
    """A quantized release.

    Attributes:
        name: what users call it.
        base: the model that was quantized, by its name here.
        weight_dtype: of its linear layers but the LM head.
        hub_ids: its ids on Hugging Face; the first is where the config stands.
        seen: in one line, where the numbers were seen.
        unverified: its config was not seen, nor a copy of it.
        kv_dtype: of the KV cache, where the config says one.
    """

    name: str
    base: str
    weight_dtype: str
    hub_ids: tuple[str, ...]
    seen: str = "copied in ai-dynamo/aiconfigurator"
    unverified: bool = False
    kv_dtype: str = ""


def quantized(release: Quantized, base: ModelSpec) -> ModelSpec:
    """Return the model of a quantized release, made from its base."""
    source = f"config.json of {release.hub_ids[0]}, {release.seen}"
    if release.unverified:
        source = f"{release.seen}; the config.json of {release.hub_ids[0]} was not seen"
    spec = base.with_weights(release.weight_dtype)
    spec = replace(spec, name=release.name, base=release.base, kv_dtype=release.kv_dtype)
    return replace(spec, source=source, unverified=release.unverified)


QUANTIZED = (
    Quantized(
        "llama-3.1-8b-fp8",
        "llama-3.1-8b",
        "fp8",
        ("nvidia/Llama-3.1-8B-Instruct-FP8",),
        "taken to be quantized as nvidia/Llama-3.1-70B-Instruct-FP8 is",
        unverified=True,
        kv_dtype="fp8",
    ),
    Quantized(
        "llama-3.1-8b-fp8-redhatai",
        "llama-3.1-8b",
        "fp8",
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8",),
        "taken to have all linear layers but the LM head in fp8",
        unverified=True,
    ),
    Quantized(
        "llama-3.1-70b-fp8",
        "llama-3.1-70b",
        "fp8",
        ("nvidia/Llama-3.1-70B-Instruct-FP8",),
        "its hf_quant_config.json copied in ai-dynamo/aiconfigurator",
        kv_dtype="fp8",
    ),
    Quantized(
        "llama-3.1-70b-fp8-redhatai",
        "llama-3.1-70b",
        "fp8",
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8",),
        "taken to have all linear layers but the LM head in fp8",
        unverified=True,
    ),
    Quantized(
        "llama-3.1-405b-fp8",
        "llama-3.1-405b",
        "fp8",
        ("nvidia/Llama-3.1-405B-Instruct-FP8",),
        "taken to be quantized as nvidia/Llama-3.1-70B-Instruct-FP8 is",
        unverified=True,
        kv_dtype="fp8",
    ),
    Quantized("qwen3-32b-fp8", "qwen3-32b", "fp8_block", ("Qwen/Qwen3-32B-FP8",)),
    Quantized("qwen3-30b-a3b-fp8", "qwen3-30b-a3b", "fp8_block", ("Qwen/Qwen3-30B-A3B-FP8",)),
    Quantized("qwen3-235b-a22b-fp8", "qwen3-235b-a22b", "fp8_block", ("Qwen/Qwen3-235B-A22B-FP8",)),
)
